"""Values of the host, on a real interrupt of this machine: set, read back, put back to the byte."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Consent, Knob, Outcome, SetValue
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.irq import IrqAffinity

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
ME = Asked(by="test", why="a test of values")
ALLOW = frozenset({Consent.IRQ})


@pytest.fixture
def irq() -> Iterator[str]:
    """An interrupt that may be moved and is allowed on every CPU; as it was, afterwards."""
    if os.geteuid() != 0 or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("moving an interrupt needs root and two CPUs")
    for folder in sorted(Path("/proc/irq").iterdir()):
        path = folder / "smp_affinity_list"
        if not path.exists():
            continue
        before = path.read_text()
        if len(CpuSet.parse(before.strip())) < 2:
            continue
        try:
            path.write_text(before)
        except OSError:
            continue
        yield folder.name
        path.write_text(before)
        return
    pytest.skip("no interrupt of this machine may be moved")


def now(irq: str) -> str:
    return (Path("/proc/irq") / irq / "smp_affinity_list").read_text().strip()


def to(irq: str, value: str, before: str = "") -> SetValue:
    return SetValue(workload="w", knob=Knob.IRQ_AFFINITY, subject=irq, value=value, before=before)


def test_a_value_is_set_and_put_back(irq: str, tmp_path: Path, open_actor: Opener) -> None:
    before = now(irq)
    one = str(CpuSet.of([max(CpuSet.parse(before))]))
    with open_actor(tmp_path, allow=ALLOW) as actor:
        done = actor.perform(to(irq, one), ME)
        assert done.outcome is Outcome.DONE and done.read_back == one == now(irq)
        (entry,) = actor.entries
        public = entry.public()
        assert (public.knob, public.subject, public.value, public.value_before) == (
            "irq-affinity",
            irq,
            one,
            before,
        )
        again = actor.perform(to(irq, one), ME)
        assert again.outcome is Outcome.DONE and again.journal_id is None
        (undone,) = actor.undo("w", ME)
        assert undone.result.outcome is Outcome.DONE
        assert now(irq) == before and actor.entries == ()


def test_a_later_change_is_respected(irq: str, tmp_path: Path, open_actor: Opener) -> None:
    before = CpuSet.parse(now(irq))
    ours, theirs = (str(CpuSet.of([c])) for c in sorted(before)[:2])
    with open_actor(tmp_path, allow=ALLOW) as actor:
        assert actor.perform(to(irq, ours), ME).outcome is Outcome.DONE
        (Path("/proc/irq") / irq / "smp_affinity_list").write_text(theirs)
        (undone,) = actor.undo(None, ME)
        assert "by somebody later" in undone.result.message
        assert now(irq) == theirs and actor.entries == ()


@pytest.mark.parametrize(
    ("subject", "value"),
    [("../../etc/x", "0"), ("1/../2", "0"), ("", "0"), ("٣", "0"), ("1", "x"), ("1", "")],
)
def test_what_must_never_be_written_is_refused(
    subject: str, value: str, tmp_path: Path, open_actor: Opener
) -> None:
    with open_actor(tmp_path, allow=ALLOW) as actor:
        done = actor.perform(to(subject, value), ME)
        assert done.outcome is Outcome.REFUSED and actor.entries == ()


def test_without_consent_nothing_is_tried(irq: str, tmp_path: Path, open_actor: Opener) -> None:
    before = now(irq)
    with open_actor(tmp_path, allow=frozenset({Consent.THREADS})) as actor:
        done = actor.perform(to(irq, "0"), ME)
        assert done.outcome is Outcome.REFUSED and "irq" in done.message
    assert now(irq) == before


def test_an_interrupt_that_is_not_there_is_gone(tmp_path: Path, open_actor: Opener) -> None:
    with open_actor(tmp_path, allow=ALLOW) as actor:
        assert actor.perform(to("999999999", "0"), ME).outcome is Outcome.GONE
    assert IrqAffinity().same("0-1", "0,1")
