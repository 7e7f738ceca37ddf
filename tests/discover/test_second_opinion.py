"""This machine, read by us and by psutil, which shares no code with us."""

from __future__ import annotations

import psutil

from nodeagent.discover.procs import Processes
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot


def test_cpus_cores_memory_and_interfaces() -> None:
    with Root.live() as root:
        snapshot = read_snapshot(root)
    topology = snapshot.topology
    assert len(topology.online) == psutil.cpu_count(logical=True)
    cores = psutil.cpu_count(logical=False)
    assert cores is None or len(topology.cores) == cores
    known = [n.memory_bytes for n in topology.nodes if n.memory_bytes is not None]
    total = psutil.virtual_memory().total
    # Not equal: memory plugged into a guest later is counted in the whole, not in its node.
    assert 0 < sum(known) <= total
    assert {nic.name for nic in snapshot.nics} <= set(psutil.net_if_addrs()) | set(
        psutil.net_if_stats()
    )


def test_processes_with_their_threads_and_masks() -> None:
    us = psutil.Process()
    processes = Processes(Root.live())
    try:
        ours = {p.pid: p for p in processes.scan()}
    finally:
        processes.close()
    assert set(ours) & set(psutil.pids())
    mine = ours[us.pid]
    assert mine.comm == us.name()[:15]
    assert {t.tid for t in mine.threads} == {t.id for t in us.threads()}
    main = next(t for t in mine.threads if t.tid == us.pid)
    assert sorted(main.cpus.ids) == sorted(us.cpu_affinity())
