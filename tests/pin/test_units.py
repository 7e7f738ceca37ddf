"""AllowedCPUs= of real units: set through systemd, held over a reload, undone without a trace."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.model.placement import Consent, Knob, Outcome, SetValue
from nodeagent.pin import groups
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from tests.pin.test_kills import in_part, killed_at, steps
from tests.pin.units import CONTROL, EVERY, Unit, systemctl, unit

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
ME = Asked(by="test", why="a test of units")
ALLOW = frozenset({Consent.CGROUP})
KINDS = ("plain", "limited", "transient", "scope")
MOST_STEPS = 60
TOO_MANY = os.cpu_count() or 1


@pytest.fixture(params=KINDS)
def service(request: pytest.FixtureRequest) -> Iterator[Unit]:
    with unit(request.param) as one:
        yield one


@pytest.fixture
def plain() -> Iterator[Unit]:
    with unit("plain") as one:
        yield one


def to(name: str, value: str) -> SetValue:
    return SetValue(workload="w", knob=Knob.UNIT_CPUS, subject=name, value=value, before="")


def test_a_unit_is_held_over_a_reload_and_put_back(
    service: Unit, tmp_path: Path, open_actor: Opener
) -> None:
    before = service.state()
    with open_actor(tmp_path, allow=ALLOW) as actor:
        done = actor.perform(to(service.name, "2-3"), ME)
        assert done.outcome is Outcome.DONE, done.message
        assert service.allowed() == service.effective() == "2-3"
        # What the program bound inside stays as it was, on every kernel; what lay across the edge
        # has what is inside of it (since 6.2), or all.
        held = service.masks()
        assert held.pop("inside") == "2" and held.pop("across") in ("3", "2-3")
        assert set(held.values()) == {"2-3"}
        systemctl("daemon-reload")
        assert service.allowed() == service.effective() == "2-3"
        again = actor.perform(to(service.name, "2,3"), ME)
        assert again.outcome is Outcome.DONE and again.journal_id is None
        (undone,) = actor.undo("w", ME)
        assert undone.result.outcome is Outcome.DONE, undone.result.message
        assert actor.entries == ()
    assert service.state() == before
    systemctl("daemon-reload")
    assert service.state() == before, "systemd has nothing else in its memory"


@pytest.mark.timeout(7200)  # an emulated machine takes half a minute for each step
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["act", "undo"])
def test_killed_at_every_step(kind: str, which: str, tmp_path: Path, open_actor: Opener) -> None:
    with unit(kind) as service:
        before = service.state()

        def act() -> None:
            with open_actor(tmp_path, allow=ALLOW) as actor:
                assert actor.perform(to(service.name, "2-3"), ME).outcome is Outcome.DONE

        def undo() -> None:
            with open_actor(tmp_path, allow=ALLOW) as actor:
                actor.undo(None, ME)

        seen: set[bool] = set()
        for step in steps(MOST_STEPS):
            if which == "undo":
                act()
            killed = killed_at(step, act if which == "act" else undo)
            with open_actor(tmp_path, allow=ALLOW) as actor:
                actor.recover()
                assert all(e.state == "done" for e in actor.entries), step
                held = service.allowed() == "2-3"
                assert held == bool(actor.entries) == (service.effective() == "2-3"), step
                seen.add(held)
                if held:
                    assert service.masks()["inside"] == "2", step
                else:
                    assert service.state() == before, step
                actor.undo(None, ME)
                assert actor.entries == ()
            assert service.state() == before, step
            if not killed:
                break
        assert in_part() or (not killed and step > 5 and seen == {True, False})


def test_what_somebody_set_later_is_respected(
    plain: Unit, tmp_path: Path, open_actor: Opener
) -> None:
    with open_actor(tmp_path, allow=ALLOW) as actor:
        assert actor.perform(to(plain.name, "2-3"), ME).outcome is Outcome.DONE
        systemctl("set-property", "--runtime", plain.name, "AllowedCPUs=0-1")
        theirs = plain.files()
        (undone,) = actor.undo(None, ME)
        assert "was set to 0-1" in undone.result.message
        assert "by somebody later" in undone.result.message and actor.entries == ()
    assert plain.allowed() == plain.effective() == "0-1" and plain.files() == theirs


def test_a_drop_in_that_was_there_stays(plain: Unit, tmp_path: Path, open_actor: Opener) -> None:
    systemctl("set-property", "--runtime", plain.name, "AllowedCPUs=0-2")
    before, texts = plain.state(), [Path(f).read_bytes() for f in plain.files()]
    with open_actor(tmp_path, allow=ALLOW) as actor:
        assert actor.perform(to(plain.name, "2-3"), ME).outcome is Outcome.DONE
        assert actor.undo(None, ME)[0].result.outcome is Outcome.DONE
    assert plain.state() == before
    assert [Path(f).read_bytes() for f in plain.files()] == texts, "to the very byte"


def test_a_thread_that_somebody_bound_later_is_left(
    plain: Unit, tmp_path: Path, open_actor: Opener
) -> None:
    with open_actor(tmp_path, allow=ALLOW) as actor:
        assert actor.perform(to(plain.name, "2-3"), ME).outcome is Outcome.DONE
        os.sched_setaffinity(plain.pid, {3})
        (undone,) = actor.undo(None, ME)
        assert f"thread {plain.pid}, which somebody bound later" in undone.result.message
    assert plain.masks()["main"] == "3" and plain.effective() == EVERY


def test_an_operators_own_setting_is_not_overruled(
    plain: Unit, tmp_path: Path, open_actor: Opener
) -> None:
    systemctl("set-property", plain.name, "AllowedCPUs=0-1")
    before = plain.state()
    try:
        with open_actor(tmp_path, allow=ALLOW) as actor:
            done = actor.perform(to(plain.name, "2-3"), ME)
            assert done.outcome is Outcome.REFUSED, done.message
            assert "would win at the next daemon-reload" in done.message
            assert "/etc/systemd/system.control" in done.message and actor.entries == ()
        assert plain.state() == before
    finally:
        systemctl("revert", plain.name)


@contextlib.contextmanager
def drop_in(path: Path, text: str) -> Iterator[Path]:
    """A file of somebody's, read by systemd; gone afterwards, with the folder made for it."""
    fresh = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[Service]\n{text}\n")
    systemctl("daemon-reload")
    try:
        yield path
    finally:
        path.unlink()
        if fresh:
            path.parent.rmdir()
        systemctl("daemon-reload")


@pytest.mark.parametrize(
    ("file", "text", "wanted", "words"),
    [
        ("/run/systemd/system/nodeagent-test-.service.d/90-x.conf", "AllowedCPUs=0-3", "2-3",
         "sets AllowedCPUs= and would win at the next daemon-reload"),
        ("/usr/lib/systemd/system/nodeagent-.service.d/10-x.conf", "AllowedCPUs=0-1", "2-3",
         "sets AllowedCPUs=0-1, and 2-3 is not within it"),
        ("/usr/lib/systemd/system/nodeagent-.service.d/10-x.conf", "AllowedCPUs=0-1", "1", ""),
        ("/run/systemd/system/nodeagent-test-.service.d/10-x.conf", "CPUAffinity=0 1", "2-3",
         "sets CPUAffinity=0-1, and 2-3 is not within it"),
        ("/run/systemd/system/nodeagent-test-.service.d/10-x.conf", "CPUAffinity=1-3", "2-3", ""),
    ],
)  # fmt: skip
def test_what_a_file_of_somebodys_says_is_not_overruled(
    file: str, text: str, wanted: str, words: str, plain: Unit, tmp_path: Path, open_actor: Opener
) -> None:
    """Also where it stands in a folder of the name's prefix, or in the distribution's."""
    with drop_in(Path(file), text) as path:
        before = plain.state()
        with open_actor(tmp_path, allow=ALLOW) as actor:
            done = actor.perform(to(plain.name, wanted), ME)
            if words:
                assert done.outcome is Outcome.REFUSED, done.message
                assert f"{path} {words}" in done.message, done.message
            else:
                assert done.outcome is Outcome.DONE, done.message
                assert plain.effective() == wanted
                assert actor.undo(None, ME)[0].result.outcome is Outcome.DONE
            assert actor.entries == ()
        assert plain.state() == before


def test_what_systemd_run_was_told_is_not_overruled(tmp_path: Path, open_actor: Opener) -> None:
    with unit("transient") as one, open_actor(tmp_path, allow=ALLOW) as actor:
        fragment = Path(systemctl("show", "-p", "FragmentPath", "--value", one.name))
        with fragment.open("a") as file:
            file.write("\n[Service]\nAllowedCPUs=0-1\n")
        done = actor.perform(to(one.name, "2-3"), ME)
        assert done.outcome is Outcome.REFUSED, done.message
        assert f"{fragment} sets AllowedCPUs=0-1, and 2-3 is not within it" in done.message


def test_cpus_that_are_not_to_be_had_are_refused(
    plain: Unit, tmp_path: Path, open_actor: Opener
) -> None:
    before = plain.state()
    with open_actor(tmp_path, allow=ALLOW) as actor:
        done = actor.perform(to(plain.name, f"2-{TOO_MANY}"), ME)
        assert done.outcome is Outcome.REVERTED, done.message
        assert (
            f"has {EVERY} to give, and 2-{TOO_MANY} is asked for" in done.message
            and actor.entries == ()
        )
    assert plain.state() == before


def test_a_unit_that_does_not_run_is_held_when_it_starts(
    plain: Unit, tmp_path: Path, open_actor: Opener
) -> None:
    systemctl("stop", plain.name)
    with open_actor(tmp_path, allow=ALLOW) as actor:
        done = actor.perform(to(plain.name, "2-3"), ME)
        assert done.outcome is Outcome.DONE, done.message
        systemctl("start", plain.name)
        plain.wait()
        assert plain.effective() == "2-3"
        assert actor.undo(None, ME)[0].result.outcome is Outcome.DONE
    assert plain.effective() == EVERY and plain.files() == [] and plain.allowed() == ""


@pytest.mark.parametrize("kind", ["transient", "scope"])
def test_a_unit_that_ended_is_gone(kind: str, tmp_path: Path, open_actor: Opener) -> None:
    with unit(kind) as one, open_actor(tmp_path, allow=ALLOW) as actor:
        assert actor.perform(to(one.name, "2-3"), ME).outcome is Outcome.DONE
        systemctl("stop", one.name)
        for _ in range(100):
            if systemctl("show", "-p", "LoadState", "--value", one.name) == "not-found":
                break
            time.sleep(0.05)
        (undone,) = actor.undo(None, ME)
        assert undone.result.outcome is Outcome.GONE and actor.entries == ()
        assert actor.perform(to(one.name, "2-3"), ME).outcome is Outcome.GONE
        assert one.files() == []


def test_a_units_own_group_is_no_partition(plain: Unit) -> None:
    """The kernel's rule that docs/workloads.md gives for not trying."""
    file = plain.folder / "cpuset.cpus.partition"
    systemctl("set-property", "--runtime", plain.name, "AllowedCPUs=2-3")
    assert plain.effective() == "2-3"
    file.write_text("isolated")
    try:
        verdict = file.read_text().strip()
        # Linux 6.1: its parent is no partition; 6.12: cpuset.cpus.exclusive is not set above.
        assert verdict.startswith("isolated invalid ("), verdict
        assert (groups.MOUNT / "cpuset.cpus.effective").read_text().strip() == EVERY
    finally:
        file.write_text("member")


def test_a_second_name_is_refused(plain: Unit, tmp_path: Path, open_actor: Opener) -> None:
    alias = Path("/run/systemd/system/nodeagent-test-alias.service")
    alias.symlink_to(plain.name)
    try:
        systemctl("daemon-reload")
        with open_actor(tmp_path, allow=ALLOW) as actor:
            done = actor.perform(to(alias.name, "2-3"), ME)
            assert done.outcome is Outcome.REFUSED
            assert f"another name of {plain.name}" in done.message
    finally:
        alias.unlink()


def test_memory_of_a_running_unit_is_never_set(
    plain: Unit, tmp_path: Path, open_actor: Opener
) -> None:
    action = SetValue(workload="w", knob=Knob.UNIT_MEMS, subject=plain.name, value="0", before="")
    with open_actor(tmp_path, allow=frozenset({Consent.MEMORY})) as actor:
        done = actor.perform(action, ME)
        assert done.outcome is Outcome.REVERTED and "memory the kernel would move" in done.message
        systemctl("stop", plain.name)
        assert actor.perform(action, ME).outcome is Outcome.DONE
        assert systemctl("show", "-p", "AllowedMemoryNodes", "--value", plain.name) == "0"
        assert actor.undo(None, ME)[0].result.outcome is Outcome.DONE
    assert systemctl("show", "-p", "AllowedMemoryNodes", "--value", plain.name) == ""
    assert not [p for c in CONTROL for p in c.rglob("*") if plain.name in str(p) and p.is_file()]
