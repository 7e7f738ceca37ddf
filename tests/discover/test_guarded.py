"""Files that hold their reader in the kernel: the command goes on, the child is left waiting.

The file really blocks: a FUSE file system of one file (fuse_file.py) is mounted over it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from nodeagent.discover.guarded import HARDWARE, GuardedStore
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.served import served
from tests.gate import FUSE, SERVER, Gate
from tests.hosts.generate import MACHINES, write_tree

CTL = pathlib.Path(sys.executable).with_name("nodeagentctl")
DEVICE = "sys/devices/pci0000:20/0000:20:01.0/0000:21:00.0"


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_tree(MACHINES["two-socket-8gpu"](), tmp_path / "root")


@pytest.fixture
def stuck(tree: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Gate]:
    if os.geteuid() or not FUSE.exists():
        pytest.skip("mounting a FUSE file system needs root and /dev/fuse")
    files = sorted(tree.glob("sys/devices/pci*/**/current_link_speed"))
    gate = Gate(files[len(files) // 2], tmp_path / "gate")
    yield gate
    gate.close()


def machine(tree: pathlib.Path, *, live: bool) -> Root:
    store = GuardedStore(str(tree), live=live, deadline_s=0.3)
    return Root(store, live=live, label="test")


def test_a_device_that_hangs_leaves_the_rest_of_the_machine(
    tree: pathlib.Path, stuck: Gate
) -> None:
    name = stuck.place.relative_to(tree).as_posix()
    with machine(tree, live=True) as root:
        snapshot = read_snapshot(root)
        pid = root.child
        assert pid is not None
        assert "no answer in" in (snapshot.why_unread(name) or "")
        assert f"process {pid}" in (snapshot.why_unread(name) or "")
        later = [u for u in snapshot.unread if u.reason.startswith("not asked")]
        assert later and all(HARDWARE.fullmatch(u.path.lstrip("/")) for u in later)
        assert name in later[0].reason
        topology = snapshot.topology
        assert len(topology.pci) > 8 and len(topology.nodes) == 2
        untold = [p for p in topology.pci if p.link is not None and p.link.speed_gts is None]
        told = [p for p in topology.pci if p.link is not None and p.link.speed_gts is not None]
        assert untold and told
    # Left, not killed; and it ends by itself when the device answers.
    os.kill(pid, 0)
    stuck.open()
    os.waitpid(pid, 0)


def test_a_device_that_answers_late_is_asked_again(tree: pathlib.Path, stuck: Gate) -> None:
    name = stuck.place.relative_to(tree).as_posix()
    with machine(tree, live=True) as root:
        assert root.text(name) is None
        pid = root.child
        other = name.replace("speed", "width")
        assert root.text(other) is None
        stuck.open()
        while root.text(other) is None:
            time.sleep(0.01)
        assert root.text(name) == "7"
        assert root.child == pid


def test_a_recorded_tree_with_a_hanging_file(tree: pathlib.Path, stuck: Gate) -> None:
    """Whatever the file is, and by whichever link it is reached."""
    with machine(tree, live=False) as root:
        snapshot = read_snapshot(root)
    name = stuck.place.relative_to(tree).as_posix()
    assert "no answer in" in (snapshot.why_unread(name) or "")
    assert len(snapshot.topology.pci) > 8
    bdf = name.split("/")[-2]
    with machine(tree, live=False) as root:
        assert root.text(f"sys/bus/pci/devices/{bdf}/current_link_speed") is None
        assert root.unread
    stuck.open()


def test_a_hanging_file_that_is_no_device(tmp_path: pathlib.Path, tree: pathlib.Path) -> None:
    if os.geteuid() or not FUSE.exists():
        pytest.skip("mounting a FUSE file system needs root and /dev/fuse")
    name = "proc/meminfo"
    gate = Gate(tree / name, tmp_path / "gate")
    try:
        with machine(tree, live=False) as root:
            snapshot = read_snapshot(root)
        assert "no answer in" in (snapshot.why_unread(name) or "")
        assert [u.path for u in snapshot.unread if "answer" in u.reason] == [f"/{name}"]
    finally:
        gate.close()


def test_a_machine_file_that_hangs_is_one_sentence(tmp_path: pathlib.Path) -> None:
    if os.geteuid() or not FUSE.exists():
        pytest.skip("mounting a FUSE file system needs root and /dev/fuse")
    (tmp_path / "machine.capture").touch()
    gate = Gate(tmp_path / "machine.capture", tmp_path / "gate")
    try:
        asked = subprocess.run(
            [CTL, "--host", gate.place, "topology", "check"], capture_output=True, text=True
        )
        assert asked.returncode == 3
        assert "gave no answer in" in asked.stderr and len(asked.stderr.splitlines()) == 2
    finally:
        gate.close()


def test_the_command_on_this_machine_goes_on(tmp_path: pathlib.Path) -> None:
    """The real /sys, in a mount namespace of its own."""
    nics = [p for p in sorted(pathlib.Path("/sys/class/net").iterdir()) if (p / "device").exists()]
    if os.geteuid() or not FUSE.exists() or not nics:
        pytest.skip("needs root, /dev/fuse and a NIC")
    place = os.path.realpath(nics[0] / "speed")
    script = (
        f"{sys.executable} {SERVER} {place} {tmp_path / 'gate'} > {tmp_path / 'log'} & server=$!\n"
        f"until grep -q . {tmp_path / 'log'}; do kill -0 $server || exit 99; sleep 0.05; done\n"
        f"{CTL} -o json topology show; rc=$?; kill $server; exit $rc"
    )
    asked = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "bash", "-c", script],
        capture_output=True,
        text=True,
    )
    if asked.returncode == 99 or "unshare failed" in asked.stderr:
        pytest.skip(f"no FUSE in a namespace here: {asked.stderr}")
    said = json.loads(asked.stdout)
    assert said["online_cpus"]
    assert [u for u in said["unread"] if u["path"] == place and "no answer" in u["reason"]]


def test_refused_devices_are_not_asked(tree: pathlib.Path) -> None:
    with Root.guarded(path=str(tree), refuse="a child of an earlier reading hangs") as root:
        snapshot = read_snapshot(root)
        assert root.child is None
    reasons = {u.reason for u in snapshot.unread if HARDWARE.fullmatch(u.path.lstrip("/"))}
    assert reasons == {"not asked: a child of an earlier reading hangs"}


def test_the_child_reads_as_the_store_does(tree: pathlib.Path) -> None:
    """What is no regular file, too large or not there fails alike on both ways."""
    folder = tree / DEVICE / "hwmon"
    folder.mkdir(parents=True)
    (folder / "large").write_bytes(b"x" * 5000)
    (folder / "small").write_bytes(b"x" * 4096)
    os.mkfifo(folder / "pipe")
    for far in (True, False):
        with contextlib.closing(GuardedStore(str(tree), live=far)) as store:
            at = f"{DEVICE}/hwmon"
            assert store.read(f"{at}/small", 4096) == b"x" * 4096
            assert store.read(f"{at}/large", 10, head=True) == b"x" * 10
            with pytest.raises(OSError, match="larger than 4096"):
                store.read(f"{at}/large", 4096)
            with pytest.raises(OSError, match="not a regular file"):
                store.read(f"{at}/pipe", 4096)
            with pytest.raises(FileNotFoundError):
                store.read(f"{at}/none", 4096)
            assert (store.pid is not None) == far


def test_a_recorded_machine_needs_no_child(tree: pathlib.Path) -> None:
    with Root.open(str(tree)) as root:
        read_snapshot(root)
        assert root.child is None


def test_served_file_systems_by_the_kernels_list() -> None:
    text = (
        "22 28 0:21 / /sys rw - sysfs sysfs rw\n"
        "30 22 0:27 / /sys/fs/fuse/connections rw - fusectl fusectl rw\n"
        "31 28 0:50 / /proc/meminfo rw shared:1 - fuse.lxcfs lxcfs rw\n"
        "32 28 0:51 / /mnt/a\\040b rw - nfs4 host:/x rw\n"
        "broken\n"
    )
    assert served(text) == ("/proc/meminfo", "/mnt/a b")


@pytest.mark.parametrize(
    ("path", "asks"),
    [
        ("sys/devices/pci0000:00/0000:00:01.0/config", True),
        ("sys/bus/pci/devices/0000:00:01.0/max_link_width", True),
        ("sys/class/net/eth0/speed", True),
        ("sys/devices/pci0000:00/0000:00:01.0/net/eth0/speed", True),
        ("sys/devices/pci0000:00/0000:00:01.0/hwmon/hwmon3/temp1_input", True),
        ("sys/devices/pci0000:00/0000:00:01.0/infiniband/mlx5_0/ports/1/rate", True),
        ("sys/devices/pci0000:00/0000:00:01.0/class", False),
        ("sys/devices/pci0000:00/0000:00:01.0/net/eth0/operstate", False),
        ("sys/devices/system/cpu/online", False),
        ("proc/meminfo", False),
    ],
)
def test_which_files_ask_a_device(path: str, asks: bool) -> None:
    assert bool(HARDWARE.fullmatch(path)) == asks
