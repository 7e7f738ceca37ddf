"""The rules of `Values` behind any door, by one of the test's own: its values stand in real files,
and it does what a kernel, a unit or a runtime may do with a write."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.errors import ActError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Knob, Outcome, SetValue
from nodeagent.pin.asked import Asked
from nodeagent.pin.proc import Thread, boot_id
from nodeagent.pin.undo import Journal
from nodeagent.pin.values import Values

ME = Asked(by="test", why="a test of rules")
KNOB = Knob.UNIT_CPUS


class Shelf:
    """A file a subject. `deaf`: values that a write of has no effect; `broken`: those whose write
    fails; `instead`: what somebody else writes while a write fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deaf: set[str] = set()
        self.broken: set[str] = set()
        self.instead: str | None = None
        self.effective: bool = True
        self.writes: list[str] = []

    def check(self, subject: str, value: str) -> None:
        assert subject and "/" not in subject

    def read(self, subject: str) -> str:
        return (self.folder / subject).read_text()

    def write(self, subject: str, value: str) -> None:
        self.writes.append(value)
        if value in self.broken:
            if self.instead is not None:
                (self.folder / subject).write_text(self.instead)
            raise ActError(f"{value} is refused")
        if value not in self.deaf:
            (self.folder / subject).write_text(value)
        self.effective = True

    def same(self, one: str, other: str) -> bool:
        return one == other

    # As one that holds processes, of which there are none.

    def cpus(self, value: str) -> CpuSet | None:
        return None

    def in_force(self, subject: str, value: str) -> bool:
        return self.effective

    def room(self, subject: str) -> CpuSet:
        return CpuSet()

    def threads(self, subject: str) -> tuple[list[Thread], list[Thread]]:
        return [], []

    def settle(self, subject: str, before: str) -> None:
        return None


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    (tmp_path / "a").write_text("old")
    return Shelf(tmp_path)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def act(value: str = "new") -> SetValue:
    return SetValue(workload="w", knob=KNOB, subject="a", value=value, before="")


def values(journal: Journal, shelf: Shelf) -> Values:
    return Values(journal, {KNOB: shelf}, boot_id())


def test_what_is_so_but_not_in_force_is_written_again(journal: Journal, shelf: Shelf) -> None:
    (shelf.folder / "a").write_text("new")
    shelf.effective = False
    done, before = values(journal, shelf).perform(act(), ME, 0)
    assert done.outcome is Outcome.DONE and before == "new" and shelf.writes == ["new"]
    again, _ = values(journal, shelf).perform(act(), ME, 0)
    assert "already" in again.message and shelf.writes == ["new"]


def test_a_write_without_effect_is_no_success(journal: Journal, shelf: Shelf) -> None:
    shelf.deaf = {"new"}
    done, _ = values(journal, shelf).perform(act(), ME, 0)
    assert done.outcome is Outcome.REVERTED
    assert "reads back old, expected new; everything is as before" in done.message
    assert journal.entries == ()


def test_an_undo_without_effect_is_none_and_stays_open(journal: Journal, shelf: Shelf) -> None:
    todo = values(journal, shelf)
    todo.perform(act(), ME, 0)
    shelf.deaf = {"old"}
    (entry,) = journal.entries
    undone = todo.undo(entry)
    assert undone.outcome is Outcome.FAILED
    assert "reads back new, expected old; it stays open" in undone.message
    (entry,) = journal.entries
    shelf.deaf = set()
    assert todo.undo(entry).outcome is Outcome.DONE and shelf.read("a") == "old"
    assert journal.entries == ()


def test_an_act_that_fails_and_cannot_be_put_back_is_told_as_that(
    journal: Journal, shelf: Shelf
) -> None:
    shelf.deaf, shelf.broken = set(), {"old"}
    todo = values(journal, shelf)
    todo.perform(act(), ME, 0)
    (entry,) = journal.entries
    undone = todo.undo(entry)
    assert undone.outcome is Outcome.FAILED and "old is refused" in undone.message
    assert len(journal.entries) == 1 and shelf.read("a") == "new"


def test_as_before_is_not_said_where_somebody_wrote_meanwhile(
    journal: Journal, shelf: Shelf
) -> None:
    shelf.broken, shelf.instead = {"new"}, "theirs"
    done, _ = values(journal, shelf).perform(act(), ME, 0)
    assert done.outcome is Outcome.REVERTED and shelf.read("a") == "theirs"
    assert "was set to theirs by somebody later and is left there" in done.message
    assert "as before" not in done.message and journal.entries == ()


@pytest.mark.parametrize(("stands", "outcome"), [("new", Outcome.DONE), ("old", Outcome.REVERTED),
                                                 ("theirs", Outcome.REVERTED)])  # fmt: skip
def test_an_interrupted_act_is_what_the_value_says(
    stands: str, outcome: Outcome, journal: Journal, shelf: Shelf
) -> None:
    todo = values(journal, shelf)
    todo.perform(act(), ME, 0)
    (entry,) = journal.entries
    journal.resumed(entry.id)
    (shelf.folder / "a").write_text(stands)
    got, said = todo.recover(journal.entries[0])
    assert got is outcome and shelf.read("a") == stands
    assert len(journal.entries) == (1 if outcome is Outcome.DONE else 0)
    assert ("somebody later" in said) is (stands == "theirs")


def test_one_whose_undo_was_interrupted_is_put_back(journal: Journal, shelf: Shelf) -> None:
    todo = values(journal, shelf)
    todo.perform(act(), ME, 0)
    journal.undoing(journal.entries[0].id)
    got, said = todo.recover(journal.entries[0])
    assert got is Outcome.DONE and "undo of unit-cpus a was completed" in said
    assert shelf.read("a") == "old" and journal.entries == ()
