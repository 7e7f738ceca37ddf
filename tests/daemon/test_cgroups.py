"""A write to a cpuset concerns those who live below it, and nobody else."""

from __future__ import annotations

import pathlib

from nodeagent.daemon.cgroups import MAX_SPREAD, spread
from nodeagent.model.notice import Change, Kind
from nodeagent.model.placement import ProcessState


def written(cgroup_id: int, kind: Kind = Kind.CPUSET) -> Change:
    return Change(
        kind=kind, at_ns=1, pid=0, tid=0, by_pid=1, comm="systemd", uid=0, user="root",
        login=None, login_name="", session=None, cgroup_id=cgroup_id, file="cpuset.cpus",
    )  # fmt: skip


def process(pid: int, cgroup: str) -> ProcessState:
    return ProcessState(pid=pid, start_time=1, comm="w", title="w", cgroup=cgroup, threads=())


def test_those_below_and_nobody_else(tmp_path: pathlib.Path) -> None:
    deep = tmp_path / "system.slice" / "w.service" / "inner"
    deep.mkdir(parents=True)
    (tmp_path / "other.slice").mkdir()
    processes = [
        process(1, "/system.slice/w.service/inner"),
        process(2, "/system.slice"),
        process(3, "/other.slice"),
        process(4, "/gone.slice/x"),
        process(5, "/../system.slice"),
    ]

    def concerned(folder: pathlib.Path) -> list[int]:
        number = folder.stat().st_ino
        return [c.pid for c in spread([written(number)], processes, [tmp_path / "no", tmp_path])]

    assert concerned(tmp_path / "system.slice") == [1, 2, 5]
    assert concerned(deep) == [1]
    assert concerned(tmp_path / "other.slice") == [3]
    assert concerned(tmp_path) == [1, 2, 3, 4, 5]
    assert list(spread([written(1 << 60)], processes, [tmp_path])) == []


def test_other_changes_pass_and_there_is_a_bound(tmp_path: pathlib.Path) -> None:
    change = written(0, Kind.AFFINITY)
    assert list(spread([change], [], [tmp_path])) == [change]
    crowd = [process(pid, "/") for pid in range(1, 1000)]
    some = [written(tmp_path.stat().st_ino)] * 5
    assert len(list(spread(some, crowd, [tmp_path]))) == MAX_SPREAD
