"""The journal's file or folder removed, or exchanged, under the actor that holds it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.errors import ActError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Outcome, SetAffinity
from nodeagent.pin.asked import Asked
from nodeagent.pin.undo import FILE, Journal, read
from tests.pin.conftest import Victim, acting

ME = Asked(by="test", why="a test of a removed journal")


def file_of(folder: Path) -> Path:
    return folder / "state/journal" / FILE


@pytest.mark.parametrize("whole", [False, True], ids=["file", "folder"])
def test_what_was_removed_is_written_anew(
    tmp_path: Path, victim: Callable[..., Victim], two_cpus: tuple[CpuSet, CpuSet], whole: bool
) -> None:
    """Before the next act, with all that was open: nothing is pinned that no undo knows."""
    first, second = victim(), victim()
    before = first.masks(), second.masks()
    _, one = two_cpus
    with acting(tmp_path) as actor:

        def pin(process: Victim) -> None:
            action = SetAffinity(workload="w", target=process.target, cpus=one, before=CpuSet())
            assert actor.perform(action, ME).outcome is Outcome.DONE

        pin(first)
        if whole:
            shutil.rmtree(file_of(tmp_path).parent)
        else:
            file_of(tmp_path).unlink()
        pin(second)
        with pytest.raises(ActError, match="another actor holds this journal"):
            Journal(file_of(tmp_path).parent)
    found = read(file_of(tmp_path).parent)
    assert [e.open.pid for e in found.entries.values()] == [first.pid, second.pid]
    assert not found.notes
    with acting(tmp_path) as actor:
        assert actor.recover() == ()
        assert {u.result.outcome for u in actor.undo(None, ME)} == {Outcome.DONE}
    assert (first.masks(), second.masks()) == before


def test_another_file_in_its_place_is_refused(
    tmp_path: Path, victim: Callable[..., Victim], two_cpus: tuple[CpuSet, CpuSet]
) -> None:
    process = victim()
    before = process.masks()
    _, one = two_cpus
    with acting(tmp_path) as actor:
        file = file_of(tmp_path)
        kept = file.read_bytes()
        file.rename(file.with_suffix(".aside"))
        file.write_bytes(kept)
        action = SetAffinity(workload="w", target=process.target, cpus=one, before=CpuSet())
        result = actor.perform(action, ME)
        assert result.outcome is Outcome.REFUSED, result
        assert "another file stands there" in result.message
        assert process.masks() == before
