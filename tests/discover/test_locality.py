"""Where memory lies, on this machine and on one made of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.child import Child
from nodeagent.discover.engines import memory_by_node
from nodeagent.discover.locality import EVERY_S, MIN_PAGES, Locality, numa_stat
from nodeagent.discover.root import Root

STAT = """anon N0=1048576 N1=2097152
file N0=999999999 N1=0
kernel_stack N0=16384 N1=0
shmem N0=4096 N1=0
file_mapped N0=4096 N1=8192
file_dirty N0=0 N1=0
"""


def tree(folder: Path, nodes: str) -> Path:
    at = folder / "sys/devices/system/node"
    at.mkdir(parents=True)
    (at / "has_memory").write_text(nodes)
    cgroup = folder / "sys/fs/cgroup/unit.service"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.numa_stat").write_text(STAT)
    return folder


def test_a_cgroups_bytes_are_those_of_its_processes() -> None:
    assert numa_stat(STAT) == {0: 1048576 + 4096, 1: 2097152 + 8192}
    assert numa_stat("") == {}
    assert numa_stat("anon N0=x N1 =3\nanon\n") == {}


def test_one_node_is_never_read(tmp_path: Path) -> None:
    with Root.open(str(tree(tmp_path, "0"))) as root:
        locality = Locality(root)
        assert locality.look([(1, "/unit.service")], 0.0) is None


def test_several_nodes_are_read_now_and_then(tmp_path: Path) -> None:
    with Root.open(str(tree(tmp_path, "0-1"))) as root:
        locality = Locality(root)
        assert locality.look([], 0.0) is None
        seen = locality.look([(os.getpid(), "/unit.service"), (2**22 - 1, "/gone")], 0.0)
        assert seen is not None
        assert seen.by_cgroup == {"/unit.service": {0: 1052672, 1: 2105344}}
        assert locality.child_pid is None
        assert locality.look([(1, "/unit.service")], EVERY_S - 1) is None
        assert locality.look([(1, "/unit.service")], EVERY_S) is not None
        locality.close()


FILLED = """
import mmap, sys
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(0, 64 << 20, 4096):
    m[i] = 1
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_sample_has_the_shares_that_numa_maps_tells() -> None:
    """Two ways to the same: pages asked one by one, and the kernel's own sum of each mapping."""
    pytest.importorskip("nodeagent.native._core", reason="this build has no native code")
    made = subprocess.Popen(
        [sys.executable, "-c", FILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert made.stdout is not None and made.stdout.readline() == b"ready\n"
    import nodeagent.discover.locality as module

    child = Child([sys.executable, "-I", str(Path(module.__file__).with_name("sample_child.py"))])
    answer = child.ask(f"{made.pid} {2**22 - 1}", 60)
    child.close()
    exact, _ = memory_by_node([made.pid])
    made.communicate()
    assert answer is not None and len(answer) == 1
    pid, asked, *pairs = answer[0].split()
    assert int(pid) == made.pid and 0 < int(asked) <= 4096
    sampled = {int(n): int(c) for n, _, c in (p.partition(":") for p in pairs)}
    assert sum(sampled.values()) >= MIN_PAGES
    if not exact:
        pytest.skip("/proc/PID/numa_maps is not there")
    total = sum(b for _, b in exact[made.pid])
    for node, bytes_ in exact[made.pid]:
        share = sampled.get(node, 0) / sum(sampled.values())
        assert share == pytest.approx(bytes_ / total, abs=0.1)
