"""Run-queue latency and run time against what the kernel says of the same processes."""

from __future__ import annotations

import os
import pathlib
import threading
import time
from collections.abc import Callable

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.probe import ThreadDelay
from nodeagent.probe.runq import ProbeReader, start_ticks

from .conftest import CPU, Sleeper

pytestmark = [pytest.mark.bpf, pytest.mark.root]

COUNT = 1009
"""Sleeps; a prime, so that no other rhythm makes the same number."""

CLOCK = pathlib.Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def delay_of(reader: ProbeReader, pid: int) -> ThreadDelay:
    """The one process's counts."""
    return next(d for d in reader.read().delays if d.pid == pid)


def ran_ns(delay: ThreadDelay) -> int:
    """Run time on all CPUs."""
    return sum(ns for _, ns in delay.run_ns_by_cpu)


def test_every_wake_up_is_counted(reader: ProbeReader, sleeper: Callable[..., Sleeper]) -> None:
    victim = sleeper(COUNT)
    reader.watch([victim.pid])
    before, after = victim.go()
    delay = delay_of(reader, victim.pid)
    arrivals = after[2] - before[2]
    assert arrivals >= COUNT - 1
    # Besides: the arrival that started it, and a few around the two readings. A kernel that passes
    # hooks over (docs/probe.md) is told by its own count of arrivals.
    # Before it has left a CPU once under this watch, what is passed over cannot be told.
    assert -10 <= delay.runq.samples + reader.read().dropped - arrivals <= 4
    assert delay.runq.samples >= arrivals * 0.95
    assert delay.runq.total >= delay.runq.maximum > 0


def test_waits_agree_with_schedstat_under_two_hogs(
    reader: ProbeReader, sleeper: Callable[..., Sleeper], hog: Callable[[int], int]
) -> None:
    hogs = [hog(CPU), hog(CPU)]
    victim = sleeper(211)
    reader.watch([victim.pid, *hogs])
    before, after = victim.go()
    delay = delay_of(reader, victim.pid)
    kernel_ns, arrivals = after[1] - before[1], after[2] - before[2]
    assert kernel_ns > 0 and arrivals > 100
    # The kernel's clock stands still between a preempting wake-up and its switch, ours does not:
    # never less than the kernel's (but for its last two waits), little more for each arrival.
    assert delay.runq.samples + reader.read().dropped >= arrivals * 0.95
    # Without a TSC to trust the scheduler's clock stands between ticks, and its waits are coarse.
    if CLOCK.read_text().strip() not in ("hpet", "acpi_pm", "jiffies"):
        assert delay.runq.total >= kernel_ns * 0.9
    # Preempted by the host within it, any wait may be milliseconds longer; a scale error is not.
    assert delay.runq.total <= kernel_ns * 1.5 + delay.runq.samples * 500_000
    # A hog waits while the others run: both always want the CPU.
    for pid in hogs:
        assert delay_of(reader, pid).runq.total > 0


def test_run_time_agrees_with_schedstat_on_each_cpu(
    reader: ProbeReader, hog: Callable[[int], int]
) -> None:
    pid = hog(CPU)
    while os.sched_getaffinity(pid) != {CPU}:
        time.sleep(0.01)
    stat = pathlib.Path(f"/proc/{pid}/schedstat")
    reader.watch([pid])
    start = int(stat.read_text().split()[0])
    time.sleep(0.6)
    delay, end = delay_of(reader, pid), int(stat.read_text().split()[0])
    # A run under way when the watch began is taken by the clock.
    assert ran_ns(delay) == pytest.approx(end - start, rel=0.1, abs=20_000_000)
    assert dict(delay.run_ns_by_cpu).keys() == {CPU}


@pytest.mark.skipif(os.cpu_count() == 1, reason="one CPU: a thread cannot be moved")
def test_a_moved_thread_is_seen_on_both_cpus(
    reader: ProbeReader, hog: Callable[[int], int]
) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    pid = hog(first)
    while os.sched_getaffinity(pid) != {first}:
        time.sleep(0.01)
    reader.watch([pid])
    time.sleep(0.2)
    os.sched_setaffinity(pid, {second})
    time.sleep(0.2)
    runs = dict(delay_of(reader, pid).run_ns_by_cpu)
    assert runs.keys() == {first, second}
    assert all(ns > 10_000_000 for ns in runs.values())


def test_what_is_not_watched_counts_nothing(
    reader: ProbeReader, sleeper: Callable[..., Sleeper]
) -> None:
    watched, other = sleeper(101), sleeper(101)
    reader.watch([watched.pid])
    other.go()
    assert delay_of(reader, watched.pid).runq.samples <= 1
    assert [d.pid for d in reader.read().delays] == [watched.pid]
    reader.watch([])
    watched.go()
    assert reader.read().delays == () and reader.read().samples == 0


def test_a_cpu_that_is_not_armed_counts_nothing(
    reader: ProbeReader, sleeper: Callable[..., Sleeper]
) -> None:
    victim = sleeper(101)
    reader.arm(CpuSet.of(os.sched_getaffinity(0)) - CpuSet.of([CPU]))
    reader.watch([victim.pid])
    victim.go()
    delay = delay_of(reader, victim.pid)
    assert delay.runq.samples == 0 and delay.run_ns_by_cpu == ()


def test_arming_again_takes_no_old_time_for_a_wait(
    reader: ProbeReader, sleeper: Callable[..., Sleeper]
) -> None:
    victim = sleeper(101)
    every = CpuSet.of(os.sched_getaffinity(0))
    reader.watch([victim.pid])
    for _ in range(5):
        reader.arm(every - CpuSet.of([CPU]))
        time.sleep(0.02)
        reader.arm(every)
    before, after = victim.go()
    delay = delay_of(reader, victim.pid)
    assert delay.runq.total <= (after[1] - before[1]) + delay.runq.samples * 5_000_000


def test_a_watched_cpu_counts_every_task(
    reader: ProbeReader, sleeper: Callable[..., Sleeper]
) -> None:
    victim = sleeper(COUNT)
    reader.watch_cpus(CpuSet.of([CPU]))
    victim.go()
    (cpu,) = reader.read_cpus()
    assert cpu.cpu == CPU and cpu.runq.samples >= COUNT * 0.95
    assert reader.read().samples == 0


def test_threads_come_and_go(reader: ProbeReader) -> None:
    reader.watch([os.getpid()])
    started = delay_of(reader, os.getpid()).runq.samples
    for _ in range(97):
        thread = threading.Thread(target=time.sleep, args=(0.0005,))
        thread.start()
        thread.join()
    # Each thread came to a CPU at least twice: born, and woken.
    assert delay_of(reader, os.getpid()).runq.samples - started >= 2 * 97 * 0.9


def test_a_pid_of_another_process_is_not_taken_for_the_first(
    reader: ProbeReader, sleeper: Callable[..., Sleeper]
) -> None:
    victim = sleeper(53)
    ticks = start_ticks(victim.pid)
    assert ticks is not None
    memory = reader._memory
    assert memory is not None
    # As if the watch had been for a process of the same pid that started earlier.
    reader.watch([victim.pid])
    memory.gate.slots[0].start_ns = (ticks - 100) * 10_000_000
    victim.go()
    assert delay_of(reader, victim.pid).runq.samples <= 1
    reader.watch([victim.pid])
    assert not memory.stale(reader._watched[victim.pid].slot)


def test_gone_processes_and_too_many(reader: ProbeReader) -> None:
    reader.watch([2**22 - 3])
    assert reader.read().delays == ()
    every = [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit()]
    reader.watch(every)
    status = reader.read()
    assert len(status.delays) <= 64
    assert (status.reason is None) == (len(status.delays) >= len(every) - 3)
    reader.watch(every[:3])
    assert len(reader.read().delays) <= 3


def test_reading_makes_no_system_call_but_the_clock(reader: ProbeReader) -> None:
    reader.watch([os.getpid()])
    before = pathlib.Path("/proc/self/io").read_text()
    for _ in range(100):
        reader.watch([os.getpid()])
        reader.read()
    after = pathlib.Path("/proc/self/io").read_text()
    # syscr counts read() and its kin; reading /proc/self/io itself is two or three.
    reads = [
        int(next(line.split()[1] for line in text.splitlines() if line.startswith("syscr")))
        for text in (before, after)
    ]
    assert reads[1] - reads[0] < 10
