"""irqbalance told through its own socket: the real one, which may move nothing here."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

from nodeagent.model.placement import Consent, Knob, Outcome, SetValue
from nodeagent.pin import irqbalance as telling
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from tests.pin.places import irqbalance, irqbalance_program

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
ME = Asked(by="test", why="a test of irqbalance")
HOST = frozenset({Consent.HOST})


def ban(number: int) -> SetValue:
    return SetValue(
        workload="", knob=Knob.IRQBALANCE, subject=str(number), value="banned", before="balanced"
    )


def test_what_others_banned_stays(tmp_path: Path, open_actor: Opener) -> None:
    door = telling.Irqbalance()
    with irqbalance("--banirq=7", "--banirq=24"), open_actor(tmp_path, allow=HOST) as actor:
        assert door.read("7") == door.read("24") == "banned" and door.read("25") == "balanced"
        kept = actor.perform(ban(24), ME)
        assert kept.outcome is Outcome.DONE and kept.journal_id is None, "it was banned already"
        assert actor.perform(ban(25), ME).outcome is Outcome.DONE
        assert [door.read(n) for n in ("7", "24", "25")] == ["banned"] * 3
        assert len(actor.undo(None, ME)) == 1
        assert [door.read(n) for n in ("7", "24", "25")] == ["banned", "banned", "balanced"]


def test_a_list_that_is_too_long_for_it_is_refused_and_as_before(
    tmp_path: Path, open_actor: Opener
) -> None:
    door = telling.Irqbalance()
    with irqbalance("--banirq=7"), open_actor(tmp_path, allow=HOST) as actor:
        taken: list[int] = []
        result = actor.perform(ban(100), ME)
        while result.outcome is Outcome.DONE and len(taken) < 400:
            taken.append(100 + len(taken))
            result = actor.perform(ban(100 + len(taken)), ME)
        for number in (7, *taken):
            assert door.read(str(number)) == "banned"
        if len(taken) < 400:
            # Before 1.9.5: 500 bytes. Never half a number, and never a shorter list.
            assert len(taken) > 100 and "read 500 bytes" in result.message
            assert "--banirq" in result.message
            assert door.read(str(100 + len(taken))) == "balanced"


def test_no_number_stands_across_the_border() -> None:
    for first in range(95, 105):
        command = telling._command(list(range(first, first + 200)))
        cut = command[: telling.OLD_BUFFER].removeprefix(b"settings ban irqs ").split()
        assert [int(n) for n in cut] == list(range(first, first + len(cut)))
        whole = command.removeprefix(b"settings ban irqs ").split()
        assert [int(n) for n in whole] == list(range(first, first + 200))


def test_without_it_there_is_nobody_to_tell(tmp_path: Path, open_actor: Opener) -> None:
    irqbalance_program()
    with open_actor(tmp_path, allow=HOST) as actor:
        done = actor.perform(ban(24), ME)
        assert done.outcome is Outcome.GONE and done.message == "irqbalance does not run"


def test_one_that_hangs_or_hides_is_told_with_a_remedy(tmp_path: Path, open_actor: Opener) -> None:
    with irqbalance() as process, open_actor(tmp_path, allow=HOST) as actor:
        process.send_signal(signal.SIGSTOP)
        done = actor.perform(ban(24), ME)
        assert done.outcome is Outcome.REFUSED and "did not answer within" in done.message
        process.send_signal(signal.SIGCONT)
        Path(f"/run/irqbalance/irqbalance{process.pid}.sock").unlink()
        done = actor.perform(ban(24), ME)
        assert done.outcome is Outcome.REFUSED and actor.entries == ()
        assert "no socket that the actor can reach" in done.message and "--banirq" in done.message


def test_a_restart_forgets_the_list_and_undo_says_nothing_is_left(
    tmp_path: Path, open_actor: Opener
) -> None:
    with open_actor(tmp_path, allow=HOST) as actor:
        with irqbalance():
            assert actor.perform(ban(24), ME).outcome is Outcome.DONE
        with irqbalance():
            (undone,) = actor.undo(None, ME)
            assert undone.result.outcome is Outcome.DONE and actor.entries == ()
