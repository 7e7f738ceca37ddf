"""Two readings and what came between them: verdicts, culprits by name, wraps, what is not known."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Verdict
from nodeagent.model.proof import Counters, Owned, Proof, TaskRun
from nodeagent.place.proof import MAX_CULPRITS, grown, prove, rows_of, words_of

SECONDS = 10
INTERRUPTS = """\
            CPU0       CPU1       CPU3
   1:          9          0          0   IO-APIC   1-edge      i8042
  86:          0          5         12   PCI-MSIX-0000:02:00.0    3-edge      nvme1q3
 LOC:    4000000    3000000        100   Local timer interrupts
 RES:         10         20         30   Rescheduling interrupts
 TLB:          0          0          2   TLB shootdowns
 ERR:          0
 MIS:          0
"""
SOFTIRQS = """\
                    CPU0       CPU1       CPU3
          HI:          0          0          0
       TIMER:       1000       1000         10
      NET_RX:          0          0          3
"""


def task(
    pid: int, run_ns: int, cpu: int = 3, comm: str = "job", allowed: str | None = None,
    kernel: bool = False, start: int = 1,
) -> TaskRun:  # fmt: skip
    return TaskRun(
        pid=pid, comm=comm, kernel=kernel, start_time=start, run_ns=run_ns, cpu=cpu,
        allowed=None if allowed is None else CpuSet.parse(allowed),
    )  # fmt: skip


def counters(
    at_s: float,
    interrupts: Mapping[str, int] | None = None,
    softirqs: Mapping[str, int] | None = None,
    tasks: Mapping[int, TaskRun] | None = None,
    titles: Mapping[str, str] | None = None,
    online: str = "0-7",
    unread: tuple[str, ...] = (),
    busy_s: Mapping[int, float] | None = None,
) -> Counters:
    """Of CPU 3 alone."""
    return Counters(
        at_ns=int(at_s * 1e9),
        interrupts={name: {3: n} for name, n in (interrupts or {"LOC": 0}).items()},
        softirqs={name: {3: n} for name, n in (softirqs or {}).items()},
        titles=titles or {},
        tasks=tasks or {},
        online=CpuSet.parse(online),
        unread=unread,
        busy_ns={cpu: int(s * 1e9) for cpu, s in (busy_s or {}).items()},
    )


def judged(last: Counters, first: Counters | None = None, *, tickless: bool = True) -> Proof:
    owned = [Owned(workload="rank0", cpus=CpuSet.of([3]), pids=frozenset({100}))]
    return prove(
        first or counters(0), last, CpuSet.of([3]), owned,
        CpuSet.of([3]) if tickless else CpuSet(), {},
    )  # fmt: skip


def test_tables_as_the_kernel_prints_them() -> None:
    rows, titles = rows_of(INTERRUPTS)
    assert rows["86"] == {0: 0, 1: 5, 3: 12} and titles["86"].endswith("nvme1q3")
    assert rows["LOC"][3] == 100 and "ERR" not in rows and "MIS" not in rows
    soft, _ = rows_of(SOFTIRQS)
    assert soft["NET_RX"][3] == 3
    assert rows_of("") == ({}, {})
    assert rows_of("CPU0\n x: y\n 3\n")[0] == {}


def test_a_quiet_cpu_is_ok() -> None:
    mine = {100: task(100, 9_900_000_000)}
    proof = judged(counters(SECONDS, {"LOC": 10}, tasks=mine))
    (cpu,) = proof.cpus
    assert proof.verdict is Verdict.OK and cpu.ticks == 10 and cpu.own_ns == 9_900_000_000
    assert [c.kind for c in cpu.culprits] == ["tick"] and cpu.reason == ""


@pytest.mark.parametrize(
    ("interrupts", "softirqs", "verdict", "says"),
    [
        ({"LOC": 10, "86": 12}, {}, "WARN", "IRQ 86 nvme1q3 12 times"),
        ({"LOC": 10, "86": 1}, {}, "WARN", "IRQ 86 nvme1q3 once"),
        ({"LOC": 10, "86": 1000}, {}, "FAIL", "IRQ 86 nvme1q3 1000 times"),
        ({"LOC": 2500}, {}, "WARN", "the tick 2500 times"),
        ({"LOC": 10, "RES": 50}, {}, "OK", ""),
        ({"LOC": 10, "TLB": 5000}, {}, "WARN", "TLB (tlb shootdowns) 5000 times"),
        ({"LOC": 10, "NMI": 3}, {}, "OK", ""),
        ({"LOC": 10}, {"NET_RX": 3}, "WARN", "softirq NET_RX 3 times"),
        ({"LOC": 10}, {"NET_RX": 3000}, "FAIL", "softirq NET_RX 3000 times"),
        ({"LOC": 10}, {"TIMER": 9, "RCU": 12}, "OK", ""),
        ({"LOC": 10}, {"RCU": 500}, "WARN", "softirq RCU 500 times"),
    ],
)
def test_what_disturbs_is_named(
    interrupts: dict[str, int], softirqs: dict[str, int], verdict: str, says: str
) -> None:
    titles = {"86": "PCI-MSIX-0000:02:00.0    3-edge      nvme1q3", "TLB": "TLB shootdowns"}
    proof = judged(counters(SECONDS, interrupts, softirqs, titles=titles))
    assert (proof.verdict, proof.cpus[0].reason) == (verdict, says)


def test_ticks_and_what_they_bring_are_expected_where_nohz_full_is_not() -> None:
    last = counters(SECONDS, {"LOC": 2500}, {"TIMER": 2500, "SCHED": 900, "RCU": 700})
    assert judged(last, tickless=False).verdict is Verdict.OK
    assert judged(last, tickless=True).verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("stranger", "verdict", "says"),
    [
        (task(40, 40_000_000, comm="kworker/3:1", allowed="3", kernel=True), "WARN",
         "kworker/3:1 (pid 40) ran 40 ms"),
        (task(41, 2_000_000_000, comm="backup", allowed="0-7"), "FAIL",
         "backup (pid 41) ran up to 2000 ms"),
        (task(42, 900_000, comm="ksoftirqd/3", allowed="3", kernel=True), "OK", ""),
        (task(43, 2_000_000_000, comm="elsewhere", cpu=5), "OK", ""),
    ],
)  # fmt: skip
def test_strangers_are_named_with_their_time(stranger: TaskRun, verdict: str, says: str) -> None:
    proof = judged(counters(SECONDS, {"LOC": 10}, tasks={stranger.pid: stranger}))
    assert (proof.verdict, proof.cpus[0].reason) == (verdict, says)


def test_run_time_counts_between_the_readings_only_and_a_reused_number_anew() -> None:
    before = {41: task(41, 5_000_000_000), 42: task(42, 7_000_000_000, start=1)}
    after = {41: task(41, 5_000_000_001), 42: task(42, 50_000_000, start=2)}
    proof = judged(counters(SECONDS, {"LOC": 10}, tasks=after), counters(0, tasks=before))
    (cpu,) = proof.cpus
    ran = {c.what: c.run_ns for c in cpu.culprits if c.run_ns is not None}
    assert ran == {"job (pid 41)": 1, "job (pid 42)": 50_000_000}


def test_a_thread_met_elsewhere_fails_and_one_that_slept_does_not() -> None:
    first = counters(0, tasks={100: task(100, 0), 101: task(100, 0, cpu=5)})
    last = counters(SECONDS, {"LOC": 1}, tasks={100: task(100, 9), 101: task(100, 0, cpu=5)})
    owned = [Owned(workload="r", cpus=CpuSet.of([3]), pids=frozenset({100}))]
    met = {100: (3, 3, 6), 101: (5, 5, 5)}
    proof = prove(first, last, CpuSet.of([3]), owned, CpuSet(), met)
    assert [(t.tid, t.seen, t.verdict) for t in proof.threads] == [
        (100, ((3, 2), (6, 1)), Verdict.FAIL),
        (101, (), Verdict.OK),
    ]
    assert proof.verdict is Verdict.FAIL


def test_a_role_has_cpus_of_its_own() -> None:
    last = counters(SECONDS, {"LOC": 1}, tasks={100: task(100, 9), 101: task(100, 9, cpu=4)})
    owned = [
        Owned(workload="r", cpus=CpuSet.parse("3-4"), pids=frozenset({100}),
              seats={100: CpuSet.of([3]), 101: CpuSet.of([4])}),
    ]  # fmt: skip
    proof = prove(counters(0), last, CpuSet.of([3]), owned, CpuSet(), {100: [4], 101: [4]})
    assert [t.verdict for t in proof.threads] == [Verdict.FAIL, Verdict.OK]


def test_what_cannot_be_read_is_unknown_never_ok() -> None:
    gone = judged(counters(SECONDS, {"LOC": 1}, online="0-2,4-7"))
    assert gone.verdict is Verdict.UNKNOWN and gone.cpus[0].reason.startswith("CPU 3 is not online")
    blind = judged(counters(SECONDS, {"1": 0}))
    assert blind.verdict is Verdict.UNKNOWN
    untold = judged(counters(SECONDS, {"LOC": 1}, unread=("schedstat",)))
    assert untold.verdict is Verdict.UNKNOWN and untold.unread == ("schedstat",)


def test_many_culprits_are_bounded_and_counted() -> None:
    tasks = {pid: task(pid, pid * 1_000_000) for pid in range(200, 400)}
    (cpu,) = judged(counters(SECONDS, {"LOC": 1}, tasks=tasks)).cpus
    assert len(cpu.culprits) == MAX_CULPRITS and cpu.more == 201 - MAX_CULPRITS
    assert words_of(cpu.culprits[0]).startswith("job (pid 399) ran up to 399 ms")


@given(st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 20))
def test_a_counter_that_wraps_goes_on(before: int, more: int) -> None:
    after = (before + more) % (1 << 32)
    assert grown(before, after) == more


@given(
    st.dictionaries(st.integers(1, 300).map(str), st.integers(0, 10**6), max_size=8),
    st.dictionaries(st.sampled_from(["NET_RX", "TIMER", "BLOCK"]), st.integers(0, 10**6)),
    st.dictionaries(st.integers(200, 300), st.integers(0, 10 * 10**9), max_size=12),
    st.booleans(),
)
def test_ok_means_that_nothing_came(
    irqs: dict[str, int], softirqs: dict[str, int], strangers: dict[int, int], tickless: bool
) -> None:
    tasks = {pid: task(pid, ns) for pid, ns in strangers.items()}
    proof = judged(counters(SECONDS, {"LOC": 1, **irqs}, softirqs, tasks), tickless=tickless)
    clean = (
        not any(irqs.values())
        and not softirqs.get("NET_RX")
        and not softirqs.get("BLOCK")
        and all(ns < 10_000_000 for ns in strangers.values())
        and not (tickless and softirqs.get("TIMER", 0) > 2 * SECONDS)
    )
    assert (proof.verdict is Verdict.OK) == clean


def test_who_is_gone_is_told_by_the_time_that_nobody_accounts_for() -> None:
    mine = {100: task(100, 4_000_000_000)}
    first = counters(0, busy_s={3: 50.0})
    (cpu,) = judged(counters(SECONDS, tasks=mine, busy_s={3: 55.0}), first).cpus
    assert (cpu.verdict, cpu.own_ns) == (Verdict.WARN, 4_000_000_000)
    assert cpu.reason == "threads that have ended or moved away ran about 1000 ms"
    (cpu,) = judged(counters(SECONDS, tasks=mine, busy_s={3: 54.5}), first).cpus
    assert cpu.verdict is Verdict.OK, "the kernel may sample it: up to 5 % is nobody's"
    (cpu,) = judged(counters(SECONDS, tasks=mine), first).cpus
    assert cpu.verdict is Verdict.OK, "not told"


def test_a_workload_may_move_among_its_own_cpus_and_nobody_else() -> None:
    mine = {100: task(100, 6_000_000_000)}
    first, last = (
        counters(at, tasks=tasks, busy_s=busy)
        for at, tasks, busy in ((0, {}, {2: 0, 3: 0}), (SECONDS, mine, {2: 4, 3: 2}))
    )
    both = CpuSet.of([2, 3])
    owned = [Owned(workload="rank0", cpus=both, pids=frozenset({100}))]
    kinds = [c.kind for p in prove(first, last, both, owned, both, {}).cpus for c in p.culprits]
    assert "gone" not in kinds
    found = prove(first, last, both, [], both, {}).cpus
    assert [[c.run_ns for c in p.culprits if c.kind == "gone"] for p in found] == [
        [4_000_000_000],
        [],
    ]
