"""Cases of test_checks.py for what tools of a host's configuration print: (name, what was pasted,
verdict)."""

from __future__ import annotations

from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.model.finding import Verdict
from nodeagent.model.snapshot import Snapshot

V = Verdict


def P(*texts: str, **named: str) -> Snapshot:  # noqa: N802  # short, for a table
    """What somebody pasted: texts without a telling name, and texts with one."""
    given = [Text(name=f"paste-{i}.txt", text=t) for i, t in enumerate(texts)]
    given += [Text(name=n.replace("__", "-"), text=t) for n, t in named.items()]
    return read_paste(given).snapshot


N = P("hello: world")
ONLY_TELL = {f"{t}.log" for t in ("isolation", "irq", "cgroup", "pinning", "memory", "shm", "feed")}
EAL = "EAL: Not enough memory available on socket 1! Requested: 1024MB, available: 64MB"
CASES: dict[str, list[tuple[str, Snapshot, Verdict]]] = {
    "isolation.log": [
        ("dropped", P("[    0.0] Housekeeping: nohz_full= or isolcpus= incorrect CPU "
                      "range"), V.FAIL),
        ("throttled", P("[  812.4] sched: RT throttling activated"), V.WARN),
        ("nothing", N, V.NA),
    ],
    "irq.log": [
        ("vectors", P("irq 212: Affinity broken due to vector space exhaustion."), V.FAIL),
        ("managed", P("root@n1:~# echo 2 > /proc/irq/91/smp_affinity\n"
                      "bash: echo: write error: Input/output error"), V.WARN),
        ("irqbalance", P("irqbalance: Cannot change IRQ 44 affinity: Input/output error"), V.INFO),
        ("nothing", N, V.NA),
    ],
    "cgroup.log": [
        ("child", P("x.service: Failed to set 'cpuset.cpus' attribute on '/system.slice/x.service' "
                    "to '': No space left on device"), V.FAIL),
        ("runc", P('failed to write "4-7": write /sys/fs/cgroup/cpuset/pods/p1/cpuset.cpus: '
                   "permission denied"), V.FAIL),
        ("key", P("x.service:7: Unknown key name 'AllowedCPUS' in section 'Service', ignoring."),
         V.WARN),
        ("nothing", N, V.NA),
    ],
    "pinning.log": [
        ("membind", P("setting membind: Invalid argument"), V.FAIL),
        ("seccomp", P("set_mempolicy: Operation not permitted"), V.FAIL),
        ("no numactl", P("bash: line 1: numactl: command not found"), V.WARN),
        ("nothing", N, V.NA),
    ],
    "memory.log": [
        ("socket", P(EAL), V.FAIL),
        ("one size", P("EAL: No free hugepages reported in hugepages-1048576kB"), V.WARN),
        ("nothing", N, V.NA),
    ],
    "shm.log": [
        ("nccl", P("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size "
                   "9637888), error: No space left on device (28)"), V.FAIL),
        ("leaked", P("UserWarning: resource_tracker: There appear to be 3 leaked shared_memory "
                     "objects to clean up at shutdown"), V.WARN),
        ("nothing", N, V.NA),
    ],
    "feed.log": [
        ("copy", P("xsk_socket__create: Operation not supported"), V.WARN),
        ("queue", P('ERROR: Can\'t setup AF_XDP socket "Invalid argument"'), V.FAIL),
        ("nothing", N, V.NA),
    ],
}  # fmt: skip
