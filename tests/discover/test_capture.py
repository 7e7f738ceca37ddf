"""A capture says the same as the machine, and nothing of whose it is."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess

import pytest

from nodeagent.discover.archive import open_archive
from nodeagent.discover.capture import parse, render
from nodeagent.discover.redact import Masks, redact
from nodeagent.discover.store import Entry, Failed, Link
from nodeagent.errors import ReadError


def ctl(bin_dir: pathlib.Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([bin_dir / "nodeagentctl", *args], capture_output=True, text=True)


def test_capture_of_this_machine_shows_the_same_topology(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "this.capture"
    early = json.loads(ctl(bin_dir, "-o", "json", "topology", "show").stdout)
    assert ctl(bin_dir, "capture", str(file)).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    live = json.loads(ctl(bin_dir, "-o", "json", "topology", "show").stdout)
    again = json.loads(ctl(bin_dir, "--host", str(file), "-o", "json", "topology", "show").stdout)
    # A hypervisor's balloon may move the total meanwhile; what was read twice alike stands.
    for one, other, recorded in zip(
        live["numa_nodes"], early["numa_nodes"], again["numa_nodes"], strict=True
    ):
        if one["memory_bytes"] != other["memory_bytes"]:
            one["memory_bytes"] = recorded["memory_bytes"]
    assert again == live
    # A capture of the capture is the same file: nothing is lost, nothing masked twice.
    second = tmp_path / "again.capture"
    assert ctl(bin_dir, "--host", str(file), "capture", str(second)).returncode == 0
    assert second.read_text() == file.read_text()


@pytest.mark.parametrize("user", [None, 65534], ids=["root", "nobody"])
def test_capture_of_this_machine_is_judged_as_the_machine(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, user: int | None
) -> None:
    """Every finding, word by word, derived texts, kernel log and processes included."""
    if user is not None and os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    tmp_path.chmod(0o777)
    for folder in (tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    file = tmp_path / "this.capture"

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [bin_dir / "nodeagentctl", *args], capture_output=True, text=True, user=user
        )

    first = run("capture", str(file))
    if user is not None and "Permission denied" in first.stderr and not file.exists():
        pytest.skip(f"nobody cannot run it here: {first.stderr[:200]}")
    assert first.returncode == 0, first.stderr
    # Other tests' processes come and go between two readings: not thrice in a row.
    for _ in range(3):
        live = run("-o", "json", "topology", "check", "--all")
        again = run("--host", str(file), "-o", "json", "topology", "check", "--all")
        said = [_steady(json.loads(r.stdout)["findings"]) for r in (live, again)]
        if said[0] == said[1]:
            break
        run("capture", str(file))
    assert said[0] == said[1]
    assert again.returncode == live.returncode
    if user is not None and open_kmsg_needs_root():
        log = next(f for f in json.loads(live.stdout)["findings"] if f["id"] == "gpu.log")
        assert log["verdict"] == "UNKNOWN" and "/dev/kmsg" in log["message"]


def open_kmsg_needs_root() -> bool:
    kmsg = pathlib.Path("/dev/kmsg")
    restricted = pathlib.Path("/proc/sys/kernel/dmesg_restrict")
    return kmsg.exists() and restricted.exists() and restricted.read_text().strip() == "1"


def _steady(findings: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """Without figures that move between two readings, masks, which are the point, and what other
    daemons of ours cost just then."""
    return [
        (f["id"], f["verdict"], re.sub(r"<[a-z]+-[0-9a-f]+>|\d+", "#", str(f["message"])))
        for f in findings
        if not str(f["id"]).startswith("self.")
    ]


def test_hostname_and_boot_id_do_not_leave(bin_dir: pathlib.Path) -> None:
    text = ctl(bin_dir, "capture", "-").stdout
    boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot_id not in text
    assert "/proc/sys/kernel/hostname: <host-1>" in text


def test_list_writes_nothing_and_says_what_would_leave(bin_dir: pathlib.Path) -> None:
    done = ctl(bin_dir, "capture", "--list")
    assert done.returncode == 0
    assert "/sys/devices/system/cpu" in done.stdout
    assert "masked host" in done.stdout


TABLE: dict[str, Entry] = {
    "proc/cmdline": b"root=UUID=0b0c5a6e-1111-4222-8333-444455556666 isolcpus=2-5 token=hunter2",
    "proc/sys/kernel/hostname": b"gpu-07",
    "proc/mounts": b"filer.example:/export/acme /home/alice nfs rw,addr=10.1.2.3 0 0\n"
    b"tmpfs /dev/shm tmpfs rw,size=64m 0 0",
    "proc/net/route": b"Iface\tDestination\tGateway\teth0\neth0\t00000000\t0102030A\t3",
    "sys/class/net/enx0242ac110002/mtu": b"1500",
    "proc/self/cgroup": b"0::/system.slice/acme-feed.service\n4:memory:/acme/x",
    "sys/a b%/c": b"",
    "sys/link": Link("../x y"),
    "sys/failed": Failed("Permission denied"),
    "sys/empty": None,
    "sys/lines": b"a\n\n\tb",
    "sys/peer": b"10.1.2.3 fe80::1 02:42:ac:11:00:02",
}


def test_round_trip_of_every_kind_of_entry() -> None:
    assert parse("x", render(TABLE).encode()) == TABLE
    older = re.sub(r", \d+ lines$", "", render(TABLE).rstrip("\n"))
    assert older != render(TABLE).rstrip("\n") and parse("x", older.encode()) == TABLE


def test_a_line_that_is_missing_anywhere_is_noticed() -> None:
    lines = render(TABLE).split("\n")
    for gone in range(1, len(lines) - 1):
        text = "\n".join(lines[:gone] + lines[gone + 1 :])
        with pytest.raises(ReadError):
            parse("x", text.encode())


def test_masks_hide_and_keep_equal_what_is_equal() -> None:
    masks = Masks()
    found = redact(TABLE, masks)
    text = render(found)
    for secret in ("0b0c5a6e", "hunter2", "gpu-07", "filer", "acme", "alice", "10.1.2.3", "fe80"):
        assert secret not in text, secret
    assert "0::/system.slice/<path-" in text
    assert "02:42" not in text and "0242ac110002" not in text and "0102030A" not in text
    assert "isolcpus=2-5" in text and "size=64m" in text and "/dev/shm tmpfs" in text
    # The MAC in the interface's name and in the text are one.
    assert found["sys/class/net/enx<mac-1>/mtu"] == b"1500"
    assert str(found["sys/peer"]).endswith("<mac-1>'")


def test_a_key_makes_masks_comparable_and_none_does_not_leak() -> None:
    def hostname(key: bytes | None, name: bytes) -> Entry:
        return redact({"proc/sys/kernel/hostname": name}, Masks(key))["proc/sys/kernel/hostname"]

    key = b"0123456789abcdef"
    assert hostname(key, b"gpu-07") == hostname(key, b"gpu-07") != hostname(key, b"gpu-08")
    assert hostname(b"f" * 16, b"gpu-07") != hostname(key, b"gpu-07")
    assert hostname(None, b"gpu-07") == b"<host-1>"


def test_unknown_boot_arguments_stay_with_include_logs() -> None:
    table = {**TABLE, "proc/cmdline": b"acme.mode=fast token=hunter2"}
    found = redact(table, Masks(), include_logs=True)["proc/cmdline"]
    # What calls itself a secret does not even leave then.
    assert found == b"acme.mode=fast token=<secret-1>"
    assert redact(table, Masks())["proc/cmdline"] == b"acme.mode=<value-1> token=<value-2>"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# nodeagent capture v1\n/proc/x: 1\n", "cut"),
        ("# nodeagent capture v1\n/proc/x: 1\n# end, 2 entries\n", "says 2"),
        ("# nodeagent capture v1\nproc/x\n# end, 1 entries\n", "line 2"),
        ("# nodeagent capture v1\n\tx\n# end, 0 entries\n", "line 2"),
        ("# nodeagent capture v1\n/proc/x = 3\n# end, 1 entries\n", "line 2"),
        ("hello", "neither an archive"),
        ("", "neither an archive"),
    ],
)
def test_damaged_capture_is_a_sentence(tmp_path: pathlib.Path, text: str, why: str) -> None:
    file = tmp_path / "bad"
    file.write_text(text)
    with pytest.raises(ReadError) as caught:
        open_archive(str(file))
    assert why in str(caught.value)
    assert caught.value.remedy


def test_a_key_that_is_too_short_is_usage(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    key = tmp_path / "key"
    key.write_text("short")
    done = ctl(bin_dir, "capture", "-", "--key", str(key))
    assert done.returncode == 64
    assert "16" in done.stderr


def test_cgroup_folders_keep_who_rules_them_and_lose_whose_they_are() -> None:
    table: dict[str, Entry] = {
        "sys/fs/cgroup/cgroup.controllers": b"cpuset",
        "sys/fs/cgroup/user.slice/cpuset.cpus": b"0-3",
        "sys/fs/cgroup/user-carol.slice/cpuset.cpus": b"0-3",
        "sys/fs/cgroup/docker-0a1b2c3d.scope/cpuset.cpus": b"0-3",
        "sys/fs/cgroup/acme-trading/cpuset.cpus": b"0-3",
        "sys/fs/cgroup/nodeagent/cpuset.cpus": b"0-3",
    }
    found = redact(table, Masks())
    assert "sys/fs/cgroup/cgroup.controllers" in found
    assert "sys/fs/cgroup/user.slice/cpuset.cpus" in found
    assert "sys/fs/cgroup/nodeagent/cpuset.cpus" in found
    text = " ".join(found)
    assert "user-<path-" in text and "docker-<path-" in text
    for secret in ("carol", "0a1b2c3d", "acme", "trading"):
        assert secret not in text


def test_serials_of_boards_and_builders_of_drivers_are_masked() -> None:
    table: dict[str, Entry] = {
        "proc/cpuinfo": b"processor\t: 0\nSerial\t\t: 10000000abcdef01\nmodel name\t: X",
        "proc/driver/nvidia/version": b"NVRM version: x (erin@build.example) 550.1",
    }
    found = redact(table, Masks())
    text = b" ".join(v for v in found.values() if isinstance(v, bytes)).decode()
    assert "<serial-1>" in text and "550.1" in text and "processor" in text
    for secret in ("10000000abcdef01", "erin", "build.example"):
        assert secret not in text
