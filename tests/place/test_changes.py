"""From what to what, and whose work that undoes."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Consent,
    Knob,
    Match,
    Placed,
    Placement,
    Role,
    RolePlaced,
    SetValue,
    Sharing,
    ThreadState,
)
from nodeagent.place.changes import allow_line, changes, needed
from nodeagent.place.diff import actions
from tests.place.test_taken import entry, process

ONLINE = CpuSet.parse("0-15")
PLACED = Placed(
    workload="w",
    unit=None,
    sharing=Sharing.EXCLUSIVE,
    cpus=CpuSet.parse("4-7"),
    mems=CpuSet.parse("0"),
    node=0,
    gpu=None,
    reasons=(),
    match=Match(title="p"),
)
PLACEMENT = Placement(placed=(PLACED,), refused=(), housekeeping=CpuSet.parse("0"))


def test_nothing_of_ours_and_nobody_elses_choice() -> None:
    now = (process(33, "p", "0-15"),)
    (change,) = changes(actions(PLACEMENT, now), PLACEMENT, now, ONLINE, ())
    assert (change.before, change.after) == ("0-15", "4-7")
    assert change.how == "1 of 1 thread by affinity" and change.consent is Consent.THREADS
    assert change.replaced is None and not change.foreign


def test_our_own_act_somebodys_change_of_it_and_a_strangers_choice() -> None:
    ours = entry(33, "w", "8-11")
    now = (process(33, "p", "8-11"),)
    (change,) = changes(actions(PLACEMENT, now), PLACEMENT, now, ONLINE, (ours,))
    assert change.replaced == ours and not change.foreign
    moved = (process(33, "p", "1"),)
    (change,) = changes(actions(PLACEMENT, moved), PLACEMENT, moved, ONLINE, (ours,))
    assert change.replaced == ours and change.foreign
    (change,) = changes(actions(PLACEMENT, moved), PLACEMENT, moved, ONLINE, ())
    assert change.replaced is None and change.foreign
    # An unread journal says nothing about whose it is, nor does one of a reused number.
    (change,) = changes(actions(PLACEMENT, moved), PLACEMENT, moved, ONLINE, None)
    assert change.replaced is None and not change.foreign
    reused = (process(33, "p", "0-15", start=8),)
    (change,) = changes(actions(PLACEMENT, reused), PLACEMENT, reused, ONLINE, (ours,))
    assert change.replaced is None and not change.foreign


def test_by_cpuset_and_by_role() -> None:
    now = (
        replace(
            process(33, "p", "0-15"),
            threads=tuple(
                ThreadState(tid=t, comm=c, cpus=ONLINE)
                for t, c in ((33, "p"), (34, "omp"), (35, "omp"), (36, "x"))
            ),
        ),
    )
    acts = actions(PLACEMENT, now, frozenset({Consent.CGROUP}))
    (change,) = changes(acts, PLACEMENT, now, ONLINE, ())
    assert change.how == "4 threads into cpuset /nodeagent/w"
    assert (change.before, change.after) == ("0-15", "4-7")
    role = Role(name="pool", cpus=2, comm="omp")
    by_role = replace(
        PLACEMENT,
        placed=(replace(PLACED, roles=(RolePlaced(role=role, cpus=CpuSet.parse("4-5")),)),),
    )
    found = changes(actions(by_role, now), by_role, now, ONLINE, ())
    assert {(c.how, c.after) for c in found} == {
        ("2 of 4 threads (pool) by affinity", "4-5"),
        ("2 of 4 threads (main, thread) by affinity", "6-7"),
    }


def test_values_of_the_host_and_the_line_that_allows_them() -> None:
    act = SetValue(workload="", knob=Knob.IRQ_AFFINITY, subject="86", value="0", before="0-15")
    made = replace(
        entry(0, "", ""), knob="irq-affinity", subject="86", value="1", value_before="0-15"
    )
    (change,) = changes((act,), PLACEMENT, (), ONLINE, (made,))
    assert change.replaced == made and change.foreign and change.consent is Consent.IRQ
    now = (process(33, "p", "0-15"),)
    wanted = needed((act, *actions(PLACEMENT, now)))
    assert wanted == (Consent.THREADS, Consent.IRQ)
    assert allow_line(frozenset(), wanted) == 'allow = ["threads", "irq"]'
    assert (
        allow_line({Consent.HOST, Consent.THREADS}, wanted) == 'allow = ["threads", "irq", "host"]'
    )
