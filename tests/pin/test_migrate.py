"""Moving memory, as far as one node shows: refusals, order, recovery, undo, who may ask.

Pages that move between nodes are in tests/vm/test_memory.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from nodeagent.errors import ActError, RightsError, UnavailableError
from nodeagent.model.actions import Answer, Call, to_request
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import MAX_STEP_BYTES
from nodeagent.model.placement import Consent, MigrateMemory, Outcome, Target
from nodeagent.pin.actor import Actor
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.asked import Asked
from nodeagent.pin.client import ActorClient
from nodeagent.pin.migrate import ACT, IDLE_S, Migrations
from nodeagent.pin.mover import Mover, NotYetError, Walked
from nodeagent.pin.moving import Moving
from nodeagent.pin.noderoom import available
from nodeagent.pin.proc import boot_id
from nodeagent.pin.records import Entry, Open
from nodeagent.pin.undo import Journal

pytest.importorskip("nodeagent.native._core", reason="this build has no native code")
Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
ME = Asked(by="test", why="a test of memory")
MEMORY = frozenset({Consent.MEMORY})
MIB = 1 << 20
NODES = Path("/sys/devices/system/node")


class Process(Protocol):
    """conftest.Victim, as these tests use it."""

    pid: int

    @property
    def target(self) -> Target: ...
    def end(self) -> None: ...


class ActorLike(Protocol):
    """conftest.ActorProcess."""

    socket: Path
    process: subprocess.Popen[str]

    def kill(self) -> None: ...


Make = Callable[..., Process]


def the_nodes() -> CpuSet:
    if not (NODES / "has_memory").exists():
        pytest.skip("this kernel knows no NUMA nodes")
    return CpuSet.parse((NODES / "has_memory").read_text())


def moving(target: Target, nodes: CpuSet | None = None, to: int | None = None) -> MigrateMemory:
    nodes = nodes if nodes is not None else the_nodes()
    return MigrateMemory(
        workload="w",
        target=target,
        nodes=nodes,
        to=min(nodes.ids) if to is None else to,
        before="",
    )


def opened(folder: Path, target: Target, *, before: str, done: bool = False) -> None:
    """An undo record as a moving leaves it when it is killed."""
    journal = Journal(folder / "state/journal")
    entry = begun(journal, target, before)
    if done:
        journal.done(entry.id, before)
    journal.close()


def begun(journal: Journal, target: Target, before: str) -> Entry:
    return journal.begin(
        Open(
            id=journal.next_id,
            act=ACT,
            boot=boot_id(),
            at_ns=time.time_ns(),
            ticks=0,
            by="test",
            why="a test",
            workload="w",
            pid=target.pid,
            start_time=target.start_time,
            comm="python3",
            mems=str(the_nodes()),
            value=str(min(the_nodes().ids)),
            value_before=before,
        )
    )


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


def test_every_resident_page_is_seen(victim: Make) -> None:
    process, mover = victim(), Mover()
    found = mover.look_all(process.pid)
    mover.close()
    # The kernel counts pages in batches for each CPU, and [vvar] is its own.
    assert abs(sum(found.by_node.values()) - resident(process.pid)) < MIB
    assert found.done and found.moved == 0 and found.calls == 0


def test_memory_that_is_there_already_is_left_and_not_recorded(
    tmp_path: Path, open_actor: Opener, victim: Make
) -> None:
    process = victim()
    with open_actor(tmp_path, MEMORY) as actor:
        done = actor.perform(moving(process.target), ME)
        assert done.outcome is Outcome.DONE and "already" in done.message
        assert done.read_back is not None and done.read_back.count(":") == len(the_nodes())
        assert actor.entries == ()


@pytest.mark.parametrize(
    ("nodes", "to", "words"),
    [("999", 999, "so none of it can go to node 999"), ("0", 1, "node 1 is none of the planned")],
)
def test_a_node_that_may_not_be_had_is_refused(
    nodes: str, to: int, words: str, tmp_path: Path, open_actor: Opener, victim: Make
) -> None:
    process = victim()
    with open_actor(tmp_path, MEMORY) as actor:
        done = actor.perform(moving(process.target, CpuSet.parse(nodes), to), ME)
        assert done.outcome is Outcome.REFUSED and words in done.message
        assert actor.entries == ()


def test_consent_and_freeze_come_first(tmp_path: Path, open_actor: Opener, victim: Make) -> None:
    process = victim()
    with open_actor(tmp_path, frozenset({Consent.THREADS})) as actor:
        done = actor.perform(moving(process.target), ME)
        assert done.outcome is Outcome.REFUSED and 'add "memory" to [pin] allow' in done.message
    with open_actor(tmp_path, MEMORY) as actor:
        step = actor.migrate(moving(process.target), ME, go_on=False)
        (tmp_path / "run/freeze").touch()
        step = actor.migrate(moving(process.target), ME, go_on=True)
        assert step.result.outcome is Outcome.REFUSED and "frozen by" in step.result.message


def test_a_process_that_ended_or_is_another(
    tmp_path: Path, open_actor: Opener, victim: Make
) -> None:
    process = victim()
    target = process.target
    with open_actor(tmp_path, MEMORY) as actor:
        reused = Target(pid=target.pid, tid=0, start_time=target.start_time + 1)
        assert actor.perform(moving(reused), ME).outcome is Outcome.GONE
        process.end()
        assert actor.perform(moving(target), ME).outcome is Outcome.GONE


def test_going_on_without_a_beginning_says_why(
    tmp_path: Path, open_actor: Opener, victim: Make
) -> None:
    process = victim()
    with open_actor(tmp_path, MEMORY) as actor:
        step = actor.migrate(moving(process.target), ME, go_on=True)
        assert step.result.outcome is Outcome.REFUSED and not step.more
        assert "was ended meanwhile" in step.result.message


SPARSE = """
import mmap, sys
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
m = [mmap.mmap(-1, 8 << 30, flags=flags) for _ in range(16)]
for one in m:
    one.madvise(mmap.MADV_NOHUGEPAGE)
    one[0] = 1
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sparse() -> Iterator[Target]:
    """128 GiB of addresses, 16 pages: more than one step looks through."""
    process = subprocess.Popen(
        [sys.executable, "-c", SPARSE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    from nodeagent.pin.proc import stat_of

    stat = stat_of(process.pid)
    assert stat is not None
    yield Target(pid=process.pid, tid=0, start_time=stat.start_time)
    process.communicate()


def test_looking_goes_in_steps_and_one_process_at_a_time(
    tmp_path: Path, open_actor: Opener, victim: Make, sparse: Target
) -> None:
    other = victim()
    with open_actor(tmp_path, MEMORY) as actor:
        step = actor.migrate(moving(sparse), ME, go_on=False)
        said = step.result.message
        assert "looked at" in said
        refused = actor.migrate(moving(other.target), ME, go_on=False)
        assert refused.result.outcome is Outcome.REFUSED
        assert "is being moved, and one process's is moved at a time" in refused.result.message
        steps = 1
        while step.more:
            step = actor.migrate(moving(sparse), ME, go_on=True)
            steps += 1
        assert step.result.outcome is Outcome.DONE and steps > 2
        assert actor.migrate(moving(other.target), ME, go_on=False).result.outcome is Outcome.DONE


def test_a_moving_that_was_left_keeps_nobody_waiting(
    tmp_path: Path, open_actor: Opener, victim: Make, sparse: Target
) -> None:
    other = victim()
    with open_actor(tmp_path, MEMORY) as actor:
        assert actor.migrate(moving(sparse), ME, go_on=False).more
        time.sleep(IDLE_S + 0.1)
        assert actor.migrate(moving(other.target), ME, go_on=False).result.outcome is Outcome.DONE
        late = actor.migrate(moving(sparse), ME, go_on=True)
        assert late.result.outcome is Outcome.REFUSED and not late.more
        assert "was ended meanwhile" in late.result.message


def test_one_that_nobody_asks_the_next_step_of_is_closed_and_says_how_far_it_came(
    tmp_path: Path, victim: Make
) -> None:
    # This machine may have one node: where its memory lay before is given, what ends it is real.
    process, journal = victim(), Journal(tmp_path / "journal")
    migrations, now = Migrations(journal, boot_id()), time.monotonic()
    assert migrations.leave("nobody was there") is None
    action = moving(process.target, nodes=CpuSet.of([0]), to=0)
    migrations._moving = Moving(
        action=action,
        comm="python3",
        before=Walked(by_node={7: 64 * MIB}, done=True),
        now=Walked(moved=24 * MIB),
        entry=begun(journal, process.target, f"7:{64 * MIB}"),
        began_s=now,
        at_s=now,
    )
    assert migrations.leave("not yet", idle_only=True) is None
    left = migrations.leave("root (pid 3), who had asked for it, is connected no more")
    assert left is not None and left[0] == action
    result = left[1].result
    assert result.outcome is Outcome.FAILED and not left[1].more
    assert "stopped with 24.0 MiB of 64.0 MiB moved to node 0: root (pid 3), who had" in str(result)
    (entry,) = journal.entries
    assert entry.state == "done" and entry.read_back == ""
    late = migrations.perform(action, ME, 0, go_on=True)
    assert "was ended meanwhile" in late.result.message and len(journal.entries) == 1
    journal.close()


def test_an_interrupted_moving_is_told_at_the_next_start(
    tmp_path: Path, open_actor: Opener, victim: Make
) -> None:
    process = victim()
    opened(tmp_path, process.target, before=f"7:{64 * MIB}")
    with open_actor(tmp_path, MEMORY) as actor:
        (said,) = actor.recover()
        assert "was interrupted: before, node 7: 64.0 MiB; now, node" in said
        assert "0 B is left" in said
        (entry,) = actor.entries
        assert entry.state == "done" and entry.public().value_before == f"7:{64 * MIB}"
        assert actor.recover() == ()


def test_an_interrupted_moving_of_what_has_ended_is_closed(
    tmp_path: Path, open_actor: Opener, victim: Make
) -> None:
    process = victim()
    opened(tmp_path, process.target, before=f"7:{MIB}")
    process.end()
    with open_actor(tmp_path, MEMORY) as actor:
        (said,) = actor.recover()
        assert "was interrupted, and python3" in said and "has ended" in said
        assert actor.entries == ()


def test_an_interrupted_undo_is_completed_and_says_what_stays(
    tmp_path: Path, open_actor: Opener, victim: Make
) -> None:
    process = victim()
    journal = Journal(tmp_path / "state/journal")
    entry = begun(journal, process.target, f"7:{64 * MIB}")
    journal.done(entry.id, "")
    journal.undoing(entry.id)
    journal.close()
    with open_actor(tmp_path, MEMORY) as actor:
        (said,) = actor.recover()
        assert "the interrupted undo of moving the memory of" in said and "completed" in said
        assert actor.entries == ()


def test_a_number_that_is_another_s_by_now_is_told_as_that(
    tmp_path: Path, open_actor: Opener, victim: Make
) -> None:
    target = victim().target
    old = Target(pid=target.pid, tid=0, start_time=target.start_time - 1)
    opened(tmp_path, old, before=f"7:{64 * MIB}")
    with open_actor(tmp_path, MEMORY) as actor:
        (said,) = actor.recover()
        assert "was interrupted, and" in said and "has its number now" in said
        assert actor.entries == ()


def test_undo_leaves_memory_and_says_how_to_move_it_back(
    tmp_path: Path, open_actor: Opener, victim: Make
) -> None:
    process = victim()
    opened(tmp_path, process.target, before=f"0:{MIB} 7:{64 * MIB}", done=True)
    with open_actor(tmp_path, MEMORY) as actor:
        (undone,) = actor.undo(None, ME)
        assert undone.result.outcome is Outcome.DONE
        assert "stays there (before: node 0: 1.0 MiB, node 7: 64.0 MiB)" in undone.result.message
        assert f"migratepages {process.pid} 0 7" in undone.result.message
        assert actor.entries == ()


def test_the_room_is_that_of_the_nodes_own_file() -> None:
    node = min(the_nodes().ids)
    assert available(node) > 0
    with pytest.raises(ActError, match="expected a node with memory"):
        available(999)


def test_a_step_is_never_larger_than_its_bound(victim: Make) -> None:
    mover = Mover()
    mover.begin(victim().pid)
    with pytest.raises(AssertionError):
        mover.move(0, CpuSet.of([0]), MAX_STEP_BYTES + 1)
    mover.close()


def test_looking_at_what_is_not_there_is_said() -> None:
    mover = Mover()
    with pytest.raises(GoneError):
        mover.look_all(2**22 - 1)
    mover.close()


def test_a_child_that_gives_no_answer_is_left_and_nothing_is_asked_beside_it(
    victim: Make,
) -> None:
    process, mover = victim(), Mover(wait_s=0.1, hung_s=0.5)
    mover.look_all(process.pid)
    child = mover.child_pid
    assert child is not None
    os.kill(child, signal.SIGSTOP)
    waits = 0
    with pytest.raises(UnavailableError, match="gave no answer") as caught:
        while True:
            try:
                mover.begin(process.pid)
                raise AssertionError("a stopped process answered")
            except NotYetError:
                waits += 1
    assert waits > 1 and "never killed" in caught.value.remedy
    # It is kept: closing does not end it, and another question does not start a second one.
    mover.close()
    with pytest.raises(UnavailableError, match="has not answered for"):
        mover.begin(process.pid)
    assert mover.child_pid == child
    os.kill(child, signal.SIGCONT)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(UnavailableError, NotYetError):
            mover.begin(process.pid)
            break
        time.sleep(0.05)
    while True:
        with contextlib.suppress(NotYetError):
            assert mover.look().by_node
            break
    mover.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_users_memory_needs_rights(victim: Make, bin_dir: Path) -> None:
    """As the daemon's user would be: no capability, another uid."""
    process = victim()
    script = (
        "import os, sys\n"
        "from nodeagent.pin.mover import Mover\n"
        "from nodeagent.errors import RightsError\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"try:\n    Mover().look_all({process.pid})\n"
        "except RightsError as error:\n    print(error, '/', error.remedy)\n"
    )
    python = bin_dir / "python"
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True)
    assert "CAP_SYS_PTRACE" in done.stdout, done.stderr
    assert RightsError.__name__ not in done.stderr


def test_over_the_socket_every_step_is_a_call_of_its_own(
    start_actor: Callable[..., ActorLike], sparse: Target
) -> None:
    actor = start_actor("--allow", "memory")
    seen: list[str] = []

    async def ask() -> tuple[Outcome, str, bool]:
        client, other = ActorClient(actor.socket), ActorClient(actor.socket)
        answered = False

        def progress(result: object, facts: object) -> None:
            seen.append(str(facts))

        task = asyncio.create_task(client.migrate(moving(sparse), progress=progress))
        while not task.done():
            # Between two steps the actor answers others.
            answered = bool((await other.status()).facts.get("pid")) or answered
            await asyncio.sleep(0)
        done = await task
        await client.close()
        await other.close()
        return done.outcome, done.message, answered

    outcome, message, answered = asyncio.run(ask())
    assert outcome is Outcome.DONE and "already" in message and answered
    assert len(seen) > 1 and all("step_bytes" in text for text in seen)


def test_a_caller_that_goes_away_keeps_nobody_waiting(
    start_actor: Callable[..., ActorLike], sparse: Target, victim: Make
) -> None:
    actor, other = start_actor("--allow", "memory"), victim()
    begin = to_request(moving(sparse))
    call = msgspec.json.encode(Call(seq=1, why="a test", request=begin))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as leaver:
        leaver.connect(str(actor.socket))
        leaver.send(call)
        assert msgspec.json.decode(leaver.recv(1 << 20), type=Answer).more

    async def ask() -> Outcome:
        client = ActorClient(actor.socket)
        done = await client.migrate(moving(other.target), progress=lambda *_: None)
        await client.close()
        return done.outcome

    # At once, not after the time that a silent caller has.
    assert asyncio.run(ask()) is Outcome.DONE


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that other users may look into, as pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="na-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start as another user")
def test_the_daemons_user_may_not_ask_for_it(
    start_actor: Callable[..., ActorLike], victim: Make, bin_dir: Path, open_folder: Path
) -> None:
    actor = start_actor("--allow", "memory", "--user", "nobody", folder=open_folder)
    target = victim().target
    script = (
        "import asyncio, os\n"
        "from nodeagent.errors import NodeagentError\n"
        "from nodeagent.model.cpuset import CpuSet\n"
        "from nodeagent.model.placement import MigrateMemory, Target\n"
        "from nodeagent.pin.client import ActorClient\n"
        f"action = MigrateMemory(workload='w', target=Target(pid={target.pid}, tid=0, "
        f"start_time={target.start_time}), nodes=CpuSet.of([0]), to=0, before='')\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "async def ask():\n"
        f"    client = ActorClient({str(actor.socket)!r})\n"
        "    try:\n        print(await client.perform(action))\n"
        "    except NodeagentError as error:\n        print(error)\n"
        "asyncio.run(ask())\n"
    )
    done = subprocess.run([bin_dir / "python", "-I", "-c", script], capture_output=True, text=True)
    assert "may not move a running process's memory: that is for a person" in done.stdout, (
        done.stdout + done.stderr
    )


def test_only_an_actor_that_may_move_memory_keeps_the_right_to_look_into_processes(
    start_actor: Callable[..., ActorLike], tmp_path: Path
) -> None:
    def held(actor: ActorLike) -> bool:
        text = Path(f"/proc/{actor.process.pid}/status").read_text()
        word = next(li for li in text.splitlines() if li.startswith("CapEff:")).split()[1]
        return bool(int(word, 16) >> 19 & 1)

    own = next(
        li for li in Path("/proc/self/status").read_text().splitlines() if li.startswith("CapEff:")
    )
    if not int(own.split()[1], 16) >> 19 & 1:
        pytest.skip("CAP_SYS_PTRACE is not held here")
    for name, allow, kept in (("a", "threads,cgroup", False), ("b", "memory", True)):
        (tmp_path / name).mkdir()
        assert held(start_actor("--allow", allow, folder=tmp_path / name)) is kept
