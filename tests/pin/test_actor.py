"""Actions on real processes of the live kernel."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Action,
    Consent,
    MoveToCpuset,
    Outcome,
    SetAffinity,
    Target,
)
from nodeagent.pin import affinity, cpuset
from nodeagent.pin.actor import Actor
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.asked import Asked
from nodeagent.pin.proc import Thread, boot_id, stat_of, threads_of, tids_of
from nodeagent.pin.records import Former, Header, Open, line_of
from nodeagent.pin.undo import Journal

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
Two = tuple[CpuSet, CpuSet]
ME = Asked(by="test", why="a test")


class Process(Protocol):
    """conftest.Victim, as these tests use it."""

    pid: int

    @property
    def target(self) -> Target: ...
    def masks(self) -> dict[int, str]: ...
    def ask(self, text: str) -> str: ...
    def end(self) -> None: ...


Make = Callable[..., Process]


def pin(target: Target, cpus: CpuSet, workload: str = "w") -> SetAffinity:
    return SetAffinity(workload=workload, target=target, cpus=cpus, before=CpuSet())


def move(target: Target, cpus: CpuSet, name: str) -> MoveToCpuset:
    return MoveToCpuset(
        workload=name,
        target=target,
        cpuset=f"/nodeagent/{name}",
        cpus=cpus,
        mems=CpuSet.of([0]),
        before="/",
    )


@pytest.fixture
def name(as_root: None) -> str:
    """A cpuset's name of our own; skips where no cpuset can be made."""
    try:
        tree = cpuset.find()
    except Exception as error:
        pytest.skip(f"no cpuset here: {error}")
    if not os.access(tree.mount, os.W_OK):
        pytest.skip("the cpuset hierarchy is read-only here")
    return f"test-pin-{os.getpid()}"


def audit(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "state/audit.jsonl").read_text().splitlines()]


def test_every_thread_is_pinned_and_put_back(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    everywhere, one = two_cpus
    process = victim(5)
    before = process.masks()
    with open_actor(tmp_path) as actor:
        done = actor.perform(pin(process.target, one), ME)
        assert done.outcome is Outcome.DONE and done.read_back == str(one)
        assert set(process.masks().values()) == {str(one)} and len(process.masks()) == 6
        again = actor.perform(pin(process.target, one), ME)
        assert again.outcome is Outcome.DONE and again.journal_id is None
        (undone,) = actor.undo("w", ME)
        assert undone.result.outcome is Outcome.DONE
        assert process.masks() == before and actor.entries == ()
        assert actor.undo(None, ME) == ()
    records = audit(tmp_path)
    assert [(r["what"], r["outcome"], r["before"], r["after"]) for r in records] == [
        ("set_affinity", "done", str(everywhere), str(one)),
        ("undo", "done", str(one), str(everywhere)),
    ]
    assert records[0]["why"] == "a test" and records[0]["by"] == "test"


def test_threads_born_and_dying_while_they_are_pinned(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    everywhere, one = two_cpus
    process = victim(2, churn=True)
    with open_actor(tmp_path) as actor:
        for _ in range(10):
            done = actor.perform(pin(process.target, one), ME)
            assert done.outcome is Outcome.DONE, done
            for _ in range(5):
                assert set(process.masks().values()) == {str(one)}
                time.sleep(0.01)
            (undone,) = actor.undo(None, ME)
            assert undone.result.outcome is Outcome.DONE
            assert set(process.masks().values()) == {str(everywhere)}


def test_a_mask_that_somebody_else_sets_all_the_time_is_left_to_them(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everywhere, one = two_cpus
    process = victim(0)
    other = CpuSet(everywhere.ids - one.ids)

    def set_again(pid: int) -> list[Thread]:
        os.sched_setaffinity(pid, other.ids)
        return threads_of(pid)

    monkeypatch.setattr(affinity, "threads_of", set_again)
    with open_actor(tmp_path) as actor:
        done = actor.perform(pin(process.target, one), ME)
        assert done.outcome is Outcome.REVERTED and done.contested, done
        assert f"somebody else sets the affinity of thread {process.pid}" in done.message
        assert "everything is as before" not in done.message
        assert actor.entries == ()


def test_threads_and_children_born_under_the_pin_are_put_back_too(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    everywhere, one = two_cpus
    process = victim(1)
    elder = int(process.ask("fork"))
    os.sched_setaffinity(elder, one.ids)
    time.sleep(0.05)
    with open_actor(tmp_path) as actor:
        actor.perform(pin(process.target, one), ME)
        process.ask("thread")
        child = int(process.ask("fork"))
        assert CpuSet.of(os.sched_getaffinity(child)) == one
        assert set(process.masks().values()) == {str(one)} and len(process.masks()) == 3
        actor.undo(None, ME)
    assert set(process.masks().values()) == {str(everywhere)}
    assert CpuSet.of(os.sched_getaffinity(child)) == everywhere
    # That one was born before, and bound by somebody else.
    assert CpuSet.of(os.sched_getaffinity(elder)) == one


def test_what_a_program_bound_itself_is_left_alone(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    _, one = two_cpus
    process = victim(2, bound=min(one.ids))
    time.sleep(0.1)
    before = process.masks()
    assert sorted(before.values()).count(str(one)) == 1
    with open_actor(tmp_path) as actor:
        actor.perform(pin(process.target, one), ME)
        actor.undo(None, ME)
    assert process.masks() == before


def test_somebody_s_later_change_is_respected(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    everywhere, one = two_cpus
    other = CpuSet.of(list(everywhere)[:1])
    process = victim(2)
    with open_actor(tmp_path) as actor:
        actor.perform(pin(process.target, one), ME)
        tid = max(process.masks())
        os.sched_setaffinity(tid, other.ids)
        (undone,) = actor.undo(None, ME)
        assert f"thread {tid} was set to {other} by somebody later" in undone.result.message
        assert process.masks()[tid] == str(other)
        assert actor.entries == ()


def test_pins_upon_pins_are_undone_in_reverse(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    everywhere, one = two_cpus
    other = CpuSet.of(list(everywhere)[:1])
    process = victim(2)
    before = process.masks()
    with open_actor(tmp_path) as actor:
        actor.perform(pin(process.target, one), ME)
        actor.perform(pin(process.target, other), ME)
        assert set(process.masks().values()) == {str(other)}
        assert len(actor.entries) == 2
        assert len(actor.undo("w", ME)) == 2
    assert process.masks() == before


def test_one_thread_only(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    everywhere, one = two_cpus
    process = victim(2)
    before = process.masks()
    tid = max(before)
    t = process.target
    with open_actor(tmp_path) as actor:
        action = pin(Target(pid=t.pid, tid=tid, start_time=t.start_time), one)
        assert actor.perform(action, ME).outcome is Outcome.DONE
        assert [m for k, m in process.masks().items() if k == tid] == [str(one)]
        assert [m for k, m in process.masks().items() if k != tid] == [str(everywhere)] * 2
        actor.undo(None, ME)
    assert process.masks() == before


def test_a_reused_number_is_not_touched(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    _, one = two_cpus
    process = victim(1)
    t = process.target
    before = process.masks()
    with open_actor(tmp_path) as actor:
        stranger = Target(pid=t.pid, tid=0, start_time=t.start_time - 1)
        done = actor.perform(pin(stranger, one), ME)
        assert done.outcome is Outcome.GONE and "has its number now" in done.message
    assert process.masks() == before


def next_process_with(pid: int) -> subprocess.Popen[bytes]:
    """A process with a number chosen beforehand. Source: kernel/pid_namespace.c ns_last_pid."""
    for _ in range(50):
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        except OSError as error:
            pytest.skip(f"the next process number cannot be chosen here: {error}")
        made = subprocess.Popen(["sleep", "600"])
        if made.pid == pid:
            return made
        made.kill()
        made.wait()
    pytest.skip("others took the number each time")


def test_undo_after_the_number_was_reused_writes_nothing(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
    as_root: None,
) -> None:
    _, one = two_cpus
    first, second = victim(1), victim(1)
    with open_actor(tmp_path) as actor:
        actor.perform(pin(first.target, one, "first"), ME)
        actor.perform(pin(second.target, one, "second"), ME)
    first.end()
    second.end()
    time.sleep(0.05)
    strangers = [next_process_with(first.pid)]
    try:
        strangers.append(next_process_with(second.pid))
        for s in strangers:
            os.sched_setaffinity(s.pid, one.ids)
        with open_actor(tmp_path) as actor:
            (undone,) = actor.undo("first", ME)
            assert undone.result.outcome is Outcome.GONE
            assert "sleep has its number now" in undone.result.message
            (said,) = actor.recover()
            assert "sleep has its number now: nothing to undo" in said
            assert actor.entries == ()
        for s in strangers:
            assert CpuSet.of(os.sched_getaffinity(s.pid)) == one
    finally:
        for s in strangers:
            s.kill()
            s.wait()


def test_process_that_ended(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    process = victim(1)
    t = process.target
    process.end()
    with open_actor(tmp_path) as actor:
        done = actor.perform(pin(t, two_cpus[1]), ME)
    assert done.outcome is Outcome.GONE and "has ended" in done.message


def test_processes_that_end_while_they_are_pinned(
    tmp_path: Path, open_actor: Opener, two_cpus: Two
) -> None:
    _, one = two_cpus
    with open_actor(tmp_path) as actor:
        seen = set()
        for i in range(40):
            short = subprocess.Popen(["sleep", str(0.0005 * (i % 8))])
            stat = stat_of(short.pid)
            if stat is not None:
                target = Target(pid=short.pid, tid=0, start_time=stat.start_time)
                seen.add(actor.perform(pin(target, one), ME).outcome)
            short.wait()
        assert seen <= {Outcome.DONE, Outcome.GONE} and seen
        actor.undo(None, ME)
        assert actor.entries == ()


def test_offline_cpus_alone_are_refused_and_all_is_as_before(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    process = victim(2)
    before = process.masks()
    with open_actor(tmp_path) as actor:
        done = actor.perform(pin(process.target, CpuSet.of([8000])), ME)
        assert done.outcome is Outcome.REVERTED and "offline" in done.message
        assert actor.entries == ()
    assert process.masks() == before


def journaled(folder: Path, target: Target, former: CpuSet, now: CpuSet) -> None:
    """What a machine has in its journal whose CPUs were taken offline since."""
    journal = Journal(folder / "state/journal")
    number = journal.next_id
    journal.begin(
        Open(
            id=number, act="set_affinity", boot=boot_id(), at_ns=1, ticks=1 << 60, by="test",
            why="", workload="w", pid=target.pid, start_time=target.start_time, comm="x",
            cpus=str(now),
        ),
        Former(id=number, threads=[(target.pid, target.start_time, str(former))]),
    )  # fmt: skip
    journal.done(number, str(now))
    journal.close()
    os.sched_setaffinity(target.pid, now.ids)


def test_undo_to_offline_cpus_stays_open_and_says_which(
    tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two
) -> None:
    everywhere, one = two_cpus
    process = victim(0)
    journaled(tmp_path, process.target, CpuSet.of([8000]), one)
    with open_actor(tmp_path) as actor:
        for _ in range(2):
            (undone,) = actor.undo("w", ME)
            assert undone.result.outcome is Outcome.FAILED
            assert "CPU 8000 is offline" in undone.result.message
            assert "cpu8000/online; then nodeagentctl undo" in undone.result.message
            assert process.masks()[process.pid] == str(one)
            assert [e.state for e in actor.entries] == ["undoing"]
    with open_actor(tmp_path) as actor:
        (said,) = actor.recover()
        assert "CPU 8000 is offline" in said
        # As the remedy says where the CPU does not come back.
        os.sched_setaffinity(process.pid, everywhere.ids)
        (undone,) = actor.undo("w", ME)
        assert undone.result.outcome is Outcome.DONE and not actor.entries
    assert process.masks()[process.pid] == str(everywhere)


def test_undo_that_waits_for_cpus_is_closed_when_the_process_ends(
    tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two
) -> None:
    process = victim(0)
    journaled(tmp_path, process.target, CpuSet.of([8000]), two_cpus[1])
    with open_actor(tmp_path) as actor:
        assert actor.undo(None, ME)[0].result.outcome is Outcome.FAILED
        process.end()
        assert "has ended" in actor.undo(None, ME)[0].result.message
        assert len(actor.entries) == 0


@pytest.mark.parametrize(
    ("mask", "up", "said"),
    [
        ("5", "0-3", "CPU 5 is offline"),
        ("5,7", "0-4,6", "CPUs 5,7 are offline"),
        ("64-191", "0-63", "CPUs 64-191 are offline"),
        ("3-5", "0-3", None),
        ("0-3", None, None),
    ],
)
def test_only_masks_without_an_online_cpu_are_blocked(
    mask: str, up: str | None, said: str | None
) -> None:
    words = affinity.offline_words(CpuSet.parse(mask), CpuSet.parse(up) if up else None)
    assert (words and words[0]) == said
    assert words is None or "/online; then nodeagentctl undo" in words[1]


@pytest.mark.parametrize("kind", [SetAffinity, MoveToCpuset])
def test_no_consent_no_act(
    kind: type[Action],
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    process = victim(1)
    before = process.masks()
    action = pin(process.target, two_cpus[1])
    other = move(process.target, two_cpus[1], "never-made")
    with open_actor(tmp_path, frozenset({Consent.MEMORY})) as actor:
        done = actor.perform(action if kind is SetAffinity else other, ME)
        assert done.outcome is Outcome.REFUSED and "[pin] allow" in done.message
    assert process.masks() == before
    assert audit(tmp_path)[0]["outcome"] == "refused"


def test_freeze_stops_acts_and_undo_until_overridden_with_a_reason(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    _, one = two_cpus
    process = victim(1)
    before = process.masks()
    with open_actor(tmp_path) as actor:
        (tmp_path / "run/freeze").touch()
        done = actor.perform(pin(process.target, one), ME)
        assert done.outcome is Outcome.REFUSED and "frozen by" in done.message
        assert process.masks() == before
        override = Asked(by="test", why="", override_freeze="page 4711")
        assert actor.perform(pin(process.target, one), override).outcome is Outcome.DONE
        (refused,) = actor.undo(None, ME)
        assert refused.result.outcome is Outcome.REFUSED
        assert set(process.masks().values()) == {str(one)}
        (tmp_path / "run/freeze").unlink()
        actor.undo(None, ME)
    assert process.masks() == before
    assert audit(tmp_path)[1]["override_freeze"] == "page 4711"


def test_pid_1_and_kernel_threads_are_never_pinned(
    tmp_path: Path, open_actor: Opener, two_cpus: Two
) -> None:
    with open_actor(tmp_path) as actor:
        for pid in (1, 2):
            stat = stat_of(pid)
            if stat is None:
                continue
            target = Target(pid=pid, tid=0, start_time=stat.start_time)
            done = actor.perform(pin(target, two_cpus[1]), ME)
            assert done.outcome is Outcome.REFUSED and "never pinned" in done.message


def test_another_boot_s_entries_are_closed_and_never_written_back(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
) -> None:
    _, one = two_cpus
    process = victim(1)
    with open_actor(tmp_path) as actor:
        actor.perform(pin(process.target, one), ME)
    path = tmp_path / "state/journal/undo.log"
    import zlib

    lines = []
    for line in path.read_bytes().rstrip(b"\0").splitlines():
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().encode()
        body = line[9:].replace(boot, b"another-boot")
        lines.append(b"%08x %s\n" % (zlib.crc32(body), body))
    # Without the seal, which says that these lines are not those that were written.
    path.write_bytes(line_of(Header()) + b"".join(lines[1:]))
    with open_actor(tmp_path) as actor:
        (said,) = actor.recover()
        assert "before the machine was restarted" in said
        assert actor.entries == ()
    assert set(process.masks().values()) == {str(one)}


def test_a_number_that_passes_on_during_the_sync_is_not_touched(
    two_cpus: Two, as_root: None
) -> None:
    everywhere, one = two_cpus
    first = subprocess.Popen(["sleep", "600"])
    stat = stat_of(first.pid)
    assert stat is not None
    strangers: list[subprocess.Popen[bytes]] = []

    def meanwhile(outside: list[Thread], inside: list[Thread]) -> None:
        first.kill()
        first.wait()
        # It starts in another clock tick, as any number that comes around again does.
        time.sleep(0.05)
        strangers.append(next_process_with(first.pid))

    try:
        with pytest.raises(GoneError):
            affinity.pin(first.pid, stat.start_time, (), one, meanwhile)
        assert CpuSet.of(os.sched_getaffinity(strangers[0].pid)) == everywhere
    finally:
        for process in (first, *strangers):
            process.kill()
            process.wait()


def test_no_cpu_is_no_pin(tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two) -> None:
    process = victim(0)
    with open_actor(tmp_path) as actor:
        done = actor.perform(pin(process.target, CpuSet()), ME)
        assert done.outcome is Outcome.REFUSED and "no CPU is named" in done.message
        assert actor.perform(move(process.target, CpuSet(), "x"), ME).outcome is Outcome.REFUSED
        assert actor.entries == ()


def test_a_refused_undo_is_in_the_audit_record(
    tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two
) -> None:
    process = victim(0)
    with open_actor(tmp_path) as actor:
        actor.perform(pin(process.target, two_cpus[1]), ME)
        (tmp_path / "run/freeze").touch()
        actor.undo(None, ME)
        (tmp_path / "run/freeze").unlink()
        actor.undo(None, ME)
    told = [(r["what"], r["outcome"]) for r in audit(tmp_path)]
    assert told == [("set_affinity", "done"), ("undo", "refused"), ("undo", "done")]


# cgroup cpusets.


def test_a_mount_whose_path_is_no_utf8_hides_no_cpuset(tmp_path: Path, as_root: None) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff"
    Path(os.fsdecode(odd)).mkdir()
    command = b'mount -t tmpfs none "$1" && exec "$2" -c "$3"'
    code = b"from nodeagent.pin import cpuset; print(cpuset.find())"
    inside = [b"unshare", b"-m", b"sh", b"-c", command, b"sh", odd, sys.executable.encode(), code]
    if subprocess.run([*inside[:7], b"/bin/true", b""], capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    done = subprocess.run(inside, capture_output=True)
    assert b"UnicodeDecodeError" not in done.stderr
    assert done.returncode == 0 or b"UnavailableError" in done.stderr, done


def test_a_cgroup_whose_name_is_no_utf8_is_left_alone(
    tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two, name: str
) -> None:
    process = victim(0)
    tree = cpuset.find()
    theirs = os.fsencode(tree.mount) + b"/odd-\xff-" + name.encode()
    Path(os.fsdecode(theirs)).mkdir()
    try:
        for file, text in (("cpuset.cpus", str(two_cpus[0])), ("cpuset.mems", "0")):
            Path(os.fsdecode(theirs), file).write_text(text)
        Path(os.fsdecode(theirs), "cgroup.procs").write_text(str(process.pid))
        with open_actor(tmp_path) as actor:
            done = actor.perform(move(process.target, two_cpus[1], name), ME)
        assert done.outcome is Outcome.REFUSED and "no UTF-8" in done.message
    finally:
        process.end()
        time.sleep(0.05)
        Path(os.fsdecode(theirs)).rmdir()


def test_cpuset_made_held_and_removed(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
    name: str,
) -> None:
    everywhere, one = two_cpus
    process = victim(3, churn=True)
    tree = cpuset.find()
    home = cpuset.path_of(tree, process.pid)
    with open_actor(tmp_path) as actor:
        done = actor.perform(move(process.target, one, name), ME)
        assert done.outcome is Outcome.DONE, done
        assert cpuset.path_of(tree, process.pid) == f"/nodeagent/{name}"
        assert cpuset.values(tree, f"/nodeagent/{name}") == (str(one), "0")
        child = int(process.ask("fork"))
        assert cpuset.path_of(tree, child) == f"/nodeagent/{name}"
        for _ in range(20):
            assert set(process.masks().values()) == {str(one)}
        (undone,) = actor.undo(None, ME)
        assert undone.result.outcome is Outcome.DONE
    assert cpuset.path_of(tree, process.pid) == home == cpuset.path_of(tree, child)
    assert set(process.masks().values()) == {str(everywhere)}
    assert CpuSet.of(os.sched_getaffinity(child)) == everywhere
    assert not tree.at(f"/nodeagent/{name}").exists()


def test_cpuset_is_not_left_while_former_cpus_are_offline(
    tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two, name: str
) -> None:
    process = victim(1)
    tree = cpuset.find()
    with open_actor(tmp_path) as actor:
        done = actor.perform(move(process.target, two_cpus[1], name), ME)
        assert done.outcome is Outcome.DONE, done.message
        before = set(process.masks())
        process.ask("thread")
        (tid,) = set(process.masks()) - before
        born = stat_of(process.pid, tid)
        assert born is not None
    journal = Journal(tmp_path / "state/journal")
    (entry,) = journal.entries
    journal.more(Former(id=entry.id, threads=[(tid, born.start_time, "8000")]))
    journal.close()
    with open_actor(tmp_path) as actor:
        (undone,) = actor.undo(None, ME)
        assert undone.result.outcome is Outcome.FAILED
        assert f"thread {tid} of process {process.pid} cannot go back" in undone.result.message
        assert cpuset.path_of(tree, process.pid) == f"/nodeagent/{name}"
        process.end()
        actor.undo(None, ME)
        assert actor.entries == () and cpuset.values(tree, f"/nodeagent/{name}") is None


def test_cpuset_of_two_processes_goes_with_the_last(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
    name: str,
) -> None:
    _, one = two_cpus
    first, second = victim(1), victim(1)
    before = (first.masks(), second.masks())
    tree = cpuset.find()
    with open_actor(tmp_path) as actor:
        actor.perform(move(first.target, one, name), ME)
        actor.perform(move(second.target, one, name), ME)
        first.end()
        (said,) = actor.recover()
        assert "has ended" in said
        assert cpuset.path_of(tree, second.pid) == f"/nodeagent/{name}"
        actor.undo(name, ME)
    assert second.masks() == before[1]
    assert not tree.at(f"/nodeagent/{name}").exists()


def test_somebody_s_later_move_is_respected(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
    name: str,
) -> None:
    _, one = two_cpus
    process = victim(1)
    tree = cpuset.find()
    other = tree.at(f"{name}-other")
    with open_actor(tmp_path) as actor:
        actor.perform(move(process.target, one, name), ME)
        other.mkdir()
        try:
            (other / "cpuset.cpus").write_text(str(one))
            (other / "cpuset.mems").write_text("0")
            (other / "cgroup.procs").write_text(str(process.pid))
            (undone,) = actor.undo(None, ME)
            assert "was moved to cgroup" in undone.result.message
            assert cpuset.path_of(tree, process.pid) == f"/{name}-other"
        finally:
            process.end()
            time.sleep(0.05)
            other.rmdir()
        assert actor.recover() == ()
    tree.at(f"/nodeagent/{name}").rmdir() if tree.at(f"/nodeagent/{name}").exists() else None


def test_a_cpuset_that_is_none_of_ours_is_refused(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
    name: str,
) -> None:
    process = victim(1)
    for path in ("/", "/nodeagent/../x", "/system.slice/a", "/nodeagent/a/b"):
        action = MoveToCpuset(
            workload="w",
            target=process.target,
            cpuset=path,
            cpus=two_cpus[1],
            mems=CpuSet.of([0]),
            before="/",
        )
        with open_actor(tmp_path) as actor:
            done = actor.perform(action, ME)
            assert done.outcome is Outcome.REFUSED and "none of ours" in done.message


def test_a_container_s_cgroup_is_left_alone(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
    name: str,
) -> None:
    process = victim(1)
    tree = cpuset.find()
    theirs = tree.at(f"libpod-{name}")
    theirs.mkdir()
    try:
        (theirs / "cpuset.cpus").write_text(str(two_cpus[0]))
        (theirs / "cpuset.mems").write_text("0")
        (theirs / "cgroup.procs").write_text(str(process.pid))
        with open_actor(tmp_path) as actor:
            done = actor.perform(move(process.target, two_cpus[1], name), ME)
        assert done.outcome is Outcome.REFUSED and "container runtime" in done.message
        assert cpuset.path_of(tree, process.pid) == f"/libpod-{name}"
    finally:
        process.end()
        time.sleep(0.05)
        theirs.rmdir()


def test_cpus_that_are_not_there_leave_no_cpuset(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
    name: str,
) -> None:
    process = victim(1)
    before = process.masks()
    tree = cpuset.find()
    with open_actor(tmp_path) as actor:
        done = actor.perform(move(process.target, CpuSet.of([8000]), name), ME)
        assert done.outcome is Outcome.REVERTED, done
        assert "as before" in done.message and actor.entries == ()
    assert process.masks() == before
    assert not tree.at(f"/nodeagent/{name}").exists()
    assert tids_of(process.pid)
