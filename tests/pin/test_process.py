"""nodeagent-actor as a process: who may ask, what it says without rights, how it ends."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from nodeagent.errors import ActError, UnavailableError
from nodeagent.model.actions import Answer
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import MoveToCpuset, Outcome, SetAffinity, Target
from nodeagent.pin import cpuset
from nodeagent.pin.client import ActorClient
from nodeagent.pin.kernelwork import CAP_SYS_ADMIN
from nodeagent.pin.proc import held

Two = tuple[CpuSet, CpuSet]


class Process(Protocol):
    """conftest.Victim, as these tests use it."""

    pid: int

    @property
    def target(self) -> Target: ...
    def masks(self) -> dict[int, str]: ...


class Actor(Protocol):
    """conftest.ActorProcess."""

    socket: Path
    process: subprocess.Popen[str]
    said: list[str]

    def terminate(self) -> str: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


Start = Callable[..., Actor]
Make = Callable[..., Process]


def pin(target: Target, cpus: CpuSet) -> SetAffinity:
    return SetAffinity(workload="w", target=target, cpus=cpus, before=CpuSet())


def test_pin_journal_stop_start_undo(start_actor: Start, victim: Make, two_cpus: Two) -> None:
    _, one = two_cpus
    process = victim(3)
    before = process.masks()
    actor = start_actor("--allow", "threads")

    async def first() -> None:
        client = ActorClient(actor.socket)
        done = await client.perform(pin(process.target, one), why="a test")
        assert done.outcome is Outcome.DONE and done.read_back == str(one)
        (entry,) = await client.journal()
        assert (entry.workload, entry.pid, entry.why) == ("w", process.pid, "a test")
        assert f"(pid {os.getpid()})" in entry.by
        facts = (await client.status()).facts
        assert facts["allow"] == ["threads"] and facts["entries"] == 1
        await client.close()

    asyncio.run(first())
    assert "1 pins stay as they are" in actor.terminate()
    assert set(process.masks().values()) == {str(one)} and not actor.socket.exists()
    actor = start_actor("--allow", "threads")
    assert "1 actions can be undone" in actor.said[-1]

    async def second() -> None:
        client = ActorClient(actor.socket)
        (undone,) = await client.undo("w")
        assert undone.outcome == "done" and undone.pid == process.pid
        assert await client.undo() == () and await client.journal() == ()
        await client.close()

    asyncio.run(second())
    assert process.masks() == before


def test_the_actor_imports_no_network_and_no_screen() -> None:
    heavy = "{'grpc', 'click', 'rich', 'asyncio', 'numpy', 'cffi', 'google.protobuf'}"
    code = f"import sys, nodeagent.daemon.actor; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done


def test_links_in_the_state_folder_are_not_followed(start_actor: Start, tmp_path: Path) -> None:
    (tmp_path / "state/journal").mkdir(parents=True)
    (tmp_path / "precious").write_text("as it was")
    (tmp_path / "state/journal/undo.log").symlink_to(tmp_path / "precious")
    actor = start_actor(wait=False)
    _, said = actor.process.communicate()
    assert actor.process.returncode == 3 and "undo.log" in said
    assert (tmp_path / "precious").read_text() == "as it was"


def test_two_actors_refuse(start_actor: Start) -> None:
    first = start_actor()
    second = start_actor(wait=False)
    _, said = second.process.communicate()
    assert second.process.returncode == 3
    assert f"another actor runs already (pid {first.process.pid})" in said and "remedy:" in said


def test_an_unknown_class_is_wrong_usage(start_actor: Start) -> None:
    actor = start_actor("--allow", "everything", wait=False)
    _, said = actor.process.communicate()
    assert actor.process.returncode == 64 and "saw 'everything'" in said


def test_nobody_serves_the_socket(tmp_path: Path) -> None:
    async def ask() -> None:
        with pytest.raises(UnavailableError, match="no actor answers there"):
            await ActorClient(tmp_path / "actor.sock").status()

    asyncio.run(ask())


def test_a_call_has_a_deadline(tmp_path: Path) -> None:
    path = tmp_path / "actor.sock"
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.bind(str(path))
    silent.listen(1)

    async def ask() -> None:
        with pytest.raises(UnavailableError, match=r"no answer within 0\.05 s"):
            await ActorClient(path, deadline_s=0.05).status()

    asyncio.run(ask())
    silent.close()


HOSTILE = [
    b"x",
    b"{}",
    b'{"seq":7,"request":{"do":"reboot"}}',
    b'{"seq":7,"request":{"do":"set_affinity","pid":"1"}}',
    b'{"seq":7,"request":{"do":"undo"},"shell":"rm"}',
    b'{"seq":7,"request":{"do":"set_affinity","workload":"w","pid":1,"tid":0,"start_time":0,'
    b'"cpus":"3-1","before":""}}',
    b'{"seq":7,"request":{"do":"set_affinity","workload":"w","pid":' + b"1" * 4200 + b',"tid":0,'
    b'"start_time":0,"cpus":"0","before":""}}',
    b'{"seq":7,"request":{"do":"set_affinity","workload":"w","pid":-1,"tid":0,"start_time":0,'
    b'"cpus":"0","before":""}}',
    b'{"seq":7,"request":{"do":"set_affinity","workload":"w","pid":2,"tid":0,"start_time":0,'
    b'"cpus":"' + b"0-65535," * 2000 + b'","before":""}}',
    b'{"seq":7,"why":"' + b"x" * 401 + b'","request":{"do":"undo"}}',
    b'{"seq":7,"request":{"do":"load_probe","program":"sched","options":{"isolated_cpus":7}}}',
    b'{"seq":7,"request":{"do":"load_probe","program":"sched","options":{"isolated":"full"}}}',
    b"\xff" * 4000,
    b"[" * 100_000,
    b'{"x":' + b"[" * 30_000,
]


def test_hostile_datagrams_get_a_sentence_and_the_next_call_works(start_actor: Start) -> None:
    actor = start_actor()
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(str(actor.socket))
    client.settimeout(30)
    for data in HOSTILE:
        client.send(data)
        answer = msgspec.json.decode(client.recv(1 << 17), type=Answer)
        assert answer.error and not answer.results, data[:40]
    client.send(b'{"seq":8,"request":{"do":"status"}}')
    answer = msgspec.json.decode(client.recv(1 << 17), type=Answer)
    assert answer.seq == 8 and not answer.error
    client.close()


def test_more_callers_than_it_takes(start_actor: Start) -> None:
    actor = start_actor()
    clients = []
    for _ in range(17):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(30)
        client.connect(str(actor.socket))
        clients.append(client)
    answer = msgspec.json.decode(clients[-1].recv(1 << 17), type=Answer)
    assert "16 callers are connected already" in answer.error
    for client in clients:
        client.close()


def test_no_probe_in_this_build_is_a_sentence(start_actor: Start) -> None:
    actor = start_actor()

    async def ask() -> None:
        client = ActorClient(actor.socket)
        with pytest.raises(ActError, match="no program 'no-such'"):
            await client.load_probe("no-such")
        await client.close()

    asyncio.run(ask())


# Rights. Strangers and reduced rights need programs that another user can run.

STRANGER = """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    s.connect(sys.argv[1])
    print(s.recv(1 << 17).decode())
except OSError as error:
    print(error.strerror)
"""


@pytest.fixture
def nobody(as_root: None) -> str:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    return str(pwd.getpwnam("nobody").pw_uid)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    folder = Path(f"/tmp/nodeagent-test-pin-{os.getpid()}")
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


def ask_as(user: str, path: Path) -> str:
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    done = subprocess.run(
        [*command, "/usr/bin/python3", "-c", STRANGER, str(path)], capture_output=True, text=True
    )
    return done.stdout


def test_a_stranger_may_not_ask(start_actor: Start, open_folder: Path, nobody: str) -> None:
    actor = start_actor(folder=open_folder)
    # The mode keeps strangers out, and where it was opened, their credentials do.
    assert "Permission denied" in ask_as(nobody, actor.socket)
    actor.socket.chmod(0o666)
    answer = ask_as(nobody, actor.socket)
    assert "may not ask the actor for anything" in answer and "nodeagent-admin" in answer


def test_the_daemon_s_user_may(start_actor: Start, open_folder: Path, nobody: str) -> None:
    actor = start_actor("--user", "nobody", folder=open_folder)
    ask = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        "s.connect(sys.argv[1]);"
        """s.send(b'{"seq":1,"request":{"do":"status"}}'); print(s.recv(1 << 17).decode())"""
    )
    command = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups"]
    done = subprocess.run(
        [*command, "/usr/bin/python3", "-c", ask, str(actor.socket)],
        capture_output=True,
        text=True,
    )
    assert '"seq":1' in done.stdout and '"error":""' in done.stdout, done


def test_without_cap_sys_nice_a_sentence_and_nothing_changed(
    start_actor: Start, victim: Make, two_cpus: Two, nobody: str
) -> None:
    process = victim(2, prefix=("setpriv", f"--reuid={nobody}", "--clear-groups"))
    before = process.masks()
    actor = start_actor("--allow", "threads", prefix=("setpriv", "--bounding-set", "-sys_nice"))

    async def ask() -> None:
        client = ActorClient(actor.socket)
        done = await client.perform(pin(process.target, two_cpus[1]))
        assert done.outcome is Outcome.REFUSED
        assert "CAP_SYS_NICE" in done.message and "everything is as before" in done.message
        assert await client.journal() == ()
        await client.close()

    asyncio.run(ask())
    assert process.masks() == before


def test_read_only_cgroup_is_a_sentence_and_nothing_changed(
    start_actor: Start, victim: Make, two_cpus: Two, as_root: None
) -> None:
    try:
        tree = cpuset.find()
    except Exception as error:
        pytest.skip(f"no cpuset here: {error}")
    readonly = f'mount -o remount,bind,ro "{tree.mount}" && exec "$0" "$@"'
    trial = ["unshare", "-m", "sh", "-c", readonly, "true"]
    if subprocess.run(trial, capture_output=True).returncode != 0:
        pytest.skip("a mount namespace with a read-only cgroup cannot be made here")
    process = victim(1)
    before = process.masks()
    actor = start_actor("--allow", "cgroup", prefix=("unshare", "-m", "sh", "-c", readonly))
    action = MoveToCpuset(
        workload="w",
        target=process.target,
        cpuset=f"/nodeagent/test-ro-{os.getpid()}",
        cpus=two_cpus[1],
        mems=CpuSet.of([0]),
        before="/",
    )

    async def ask() -> None:
        client = ActorClient(actor.socket)
        done = await client.perform(action)
        assert done.outcome is Outcome.REFUSED, done
        assert "read-only" in done.message and await client.journal() == ()
        await client.close()

    asyncio.run(ask())
    assert process.masks() == before


def test_a_process_cut_in_the_act_is_told_at_the_next_start(
    start_actor: Start, victim: Make, two_cpus: Two
) -> None:
    process = victim(2)
    before = process.masks()
    actor = start_actor("--allow", "threads", NODEAGENT_KILL_AT="affinity.written")

    async def ask() -> None:
        client = ActorClient(actor.socket)
        with pytest.raises(UnavailableError):
            await client.perform(pin(process.target, two_cpus[1]))
        await client.close()

    asyncio.run(ask())
    assert actor.wait() == -9
    assert process.masks() != before
    again = start_actor("--allow", "threads")
    assert "had been made: it holds" in again.said[1]
    again.kill()
    actor = start_actor("--allow", "threads", NODEAGENT_KILL_AT="undo.before")

    async def undo() -> None:
        client = ActorClient(actor.socket)
        with pytest.raises(UnavailableError):
            await client.undo()
        await client.close()

    asyncio.run(undo())
    assert actor.wait() == -9
    again = start_actor("--allow", "threads")
    assert "the interrupted undo of" in again.said[1]
    assert process.masks() == before


# Bounds: what one caller may cost the others.


def test_many_entries_with_long_reasons_are_listed_and_undone_in_pages(
    start_actor: Start, victim: Make, two_cpus: Two
) -> None:
    everywhere, _ = two_cpus
    singles = [CpuSet.of([cpu]) for cpu in list(everywhere)[:2]]
    process = victim(0)
    before = process.masks()
    actor = start_actor("--allow", "threads")
    reason = "\x01" * 400

    async def ask() -> None:
        client = ActorClient(actor.socket)
        for i in range(130):
            done = await client.perform(pin(process.target, singles[i % 2]), why=reason)
            assert done.outcome is Outcome.DONE and done.journal_id == i + 1
        entries = await client.journal()
        assert [e.id for e in entries] == list(range(1, 131)) and entries[9].why == reason
        undone = await client.undo("w")
        assert [u.journal_id for u in undone] == list(range(130, 0, -1))
        assert await client.journal() == ()
        await client.close()

    asyncio.run(ask())
    assert process.masks() == before


def test_undo_goes_on_below_what_could_not_be_undone(
    start_actor: Start, victim: Make, two_cpus: Two, nobody: str
) -> None:
    _, one = two_cpus
    # Whoever lacks CAP_SYS_NICE may bind its own user's processes whose rights are no more than
    # its own; the actor gives CAP_SYS_PTRACE up.
    mine = victim(0, prefix=("setpriv", "--bounding-set", "-sys_nice,-sys_ptrace"))
    theirs = victim(0, prefix=("setpriv", f"--reuid={nobody}", "--clear-groups"))
    actor = start_actor("--allow", "threads")

    async def act() -> None:
        client = ActorClient(actor.socket)
        await client.perform(pin(mine.target, one))
        await client.perform(pin(theirs.target, one))
        await client.close()

    async def undo() -> None:
        client = ActorClient(actor.socket)
        failed, done = await client.undo()
        assert (failed.outcome, failed.journal_id) == ("failed", 2)
        assert (done.outcome, done.journal_id) == ("done", 1)
        assert [e.id for e in await client.journal()] == [2]
        await client.close()

    asyncio.run(act())
    actor.terminate()
    actor = start_actor(prefix=("setpriv", "--bounding-set", "-sys_nice"))
    asyncio.run(undo())
    assert set(mine.masks().values()) != {str(one)} == set(theirs.masks().values())


ASK = """
import socket, sys, time
socks = []
for _ in range(int(sys.argv[2])):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sys.argv[1])
    socks.append(s)
for text in sys.argv[3:]:
    s.send(text.encode())
    print(s.recv(1 << 17).decode(), flush=True)
if len(sys.argv) == 3:
    print(s.recv(1 << 17).decode(), flush=True)
    sys.stdin.read()
"""
STATUS = '{"seq":1,"request":{"do":"status"}}'
OVERRIDE = '{"seq":2,"override_freeze":"because","request":{"do":"undo"}}'


def as_nobody(user: str) -> list[str]:
    rights = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return ["setpriv", *rights, "/usr/bin/python3"]


def test_others_leave_room_for_root(start_actor: Start, open_folder: Path, nobody: str) -> None:
    actor = start_actor("--user", "nobody", folder=open_folder)
    crowd = subprocess.Popen(
        [
            "setpriv",
            f"--reuid={nobody}",
            f"--regid={nobody}",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            ASK,
            str(actor.socket),
            "13",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert crowd.stdout is not None
    assert "12 callers are connected already" in crowd.stdout.readline()

    async def ask() -> None:
        client = ActorClient(actor.socket)
        assert (await client.status()).facts["entries"] == 0
        await client.close()

    asyncio.run(ask())
    crowd.communicate()


def test_the_daemon_s_user_may_not_override_a_freeze(
    start_actor: Start, open_folder: Path, nobody: str
) -> None:
    actor = start_actor("--user", "nobody", folder=open_folder)
    done = subprocess.run(
        [
            "setpriv",
            f"--reuid={nobody}",
            f"--regid={nobody}",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            ASK,
            str(actor.socket),
            "1",
            STATUS,
            OVERRIDE,
        ],
        capture_output=True,
        text=True,
    )
    status, refused = done.stdout.splitlines()
    assert '"error":""' in status
    assert "may not override a freeze" in refused


def test_a_member_of_the_admin_group_may_ask_and_override(
    start_actor: Start, open_folder: Path, nobody: str
) -> None:
    groups = open_folder / "group"
    groups.write_text(Path("/etc/group").read_text() + "nodeagent-admin:x:61234:\n")
    bound = f'mount --bind {groups} /etc/group && exec "$0" "$@"'
    prefix = ("unshare", "-m", "sh", "-c", bound)
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("a mount namespace with another /etc/group cannot be made here")
    actor = start_actor(folder=open_folder, prefix=prefix)
    command = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}"]
    ask = ["/usr/bin/python3", "-c", ASK, str(actor.socket), "1", STATUS, OVERRIDE]
    # A member by a supplementary group, as people are, among many others.
    many = ",".join(str(gid) for gid in (*range(70000, 70100), 61234))
    done = subprocess.run([*command, f"--groups={many}", *ask], capture_output=True, text=True)
    assert done.stdout.count('"error":""') == 2, done
    done = subprocess.run([*command, "--groups=70000", *ask], capture_output=True, text=True)
    assert done.stdout == "", done


def test_a_socket_that_another_user_serves_is_not_believed(open_folder: Path, nobody: str) -> None:
    open_folder.chmod(0o777)
    serve = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        "s.bind(sys.argv[1]); s.listen(1); print('up', flush=True); s.accept()"
    )
    path = open_folder / "actor.sock"
    other = subprocess.Popen(
        [
            "setpriv",
            f"--reuid={nobody}",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            serve,
            str(path),
        ],
        stdout=subprocess.PIPE,
    )
    assert other.stdout is not None and other.stdout.readline()

    async def ask() -> None:
        with pytest.raises(ActError, match=f"user {nobody} serves it"):
            await ActorClient(path).status()

    asyncio.run(ask())
    other.communicate()


def test_descriptors_do_not_pass_on_to_children(tmp_path: Path) -> None:
    path = tmp_path / "actor.sock"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen(1)

    async def ask() -> None:
        def serve() -> None:
            client, _ = listening.accept()
            client.recv(1 << 17)
            answer = msgspec.json.encode(Answer(seq=1, fds=["map"]))
            socket.send_fds(client, [answer], [0])
            client.close()

        client = ActorClient(path)
        served = asyncio.get_running_loop().run_in_executor(None, serve)
        fds, _ = await client.load_probe("sched")
        await served
        assert not os.get_inheritable(fds["map"])
        os.close(fds["map"])
        await client.close()

    asyncio.run(ask())
    listening.close()


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ((), ""),
        (("setpriv", "--bounding-set", "-sys_admin"), "has no CAP_SYS_ADMIN"),
        (
            ("unshare", "-m", "sh", "-c",
             'mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec "$@"',
             "sh"),
            "read-only",
        ),
    ],
)  # fmt: skip
def test_the_actor_says_what_it_has_no_right_to_set(
    prefix: tuple[str, ...],
    why: str,
    start_actor: Start,
    as_root: None,
) -> None:
    if not Path("/proc/sys/kernel/numa_balancing").exists():
        pytest.skip("this kernel does not balance memory between nodes")
    if not held(CAP_SYS_ADMIN) or not os.access("/proc/sys/kernel/numa_balancing", os.W_OK):
        pytest.skip("CAP_SYS_ADMIN is not held here, or /proc/sys is read-only")
    if prefix and subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("rights cannot be taken away here")
    actor = start_actor("--allow", "host", prefix=prefix)

    async def ask() -> object:
        client = ActorClient(actor.socket)
        try:
            return (await client.status()).facts["lacks"]
        finally:
            await client.close()

    lacks = asyncio.run(ask())
    assert isinstance(lacks, dict) and set(lacks) == ({"numa-balancing"} if why else set())
    assert why in str(lacks)
