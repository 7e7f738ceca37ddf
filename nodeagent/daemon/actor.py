"""nodeagent-actor: the process with the rights. A closed list of typed actions on a Unix socket.

No network, no configuration but its command line, one action at a time. SIGTERM and SIGKILL leave
every pin as it is; the next start completes or reverts the one action that was in flight.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import grp
import os
import pwd
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from nodeagent.errors import ActError, NodeagentError, RightsError, UsageError, sentence
from nodeagent.feed.peer import groups_of
from nodeagent.model.actions import (
    MAX_ANSWER,
    MAX_DATAGRAM,
    MAX_ENTRIES,
    MAX_MESSAGE,
    ActionRequest,
    Answer,
    Call,
    ContainerLine,
    ContainersRequest,
    EntryLine,
    JournalRequest,
    LoadProbeRequest,
    MigrateMemoryRequest,
    MoveToCpusetRequest,
    Result,
    SetAffinityRequest,
    SetValueRequest,
    StatusRequest,
    UndoRequest,
    to_action,
    to_line,
)
from nodeagent.model.deadlines import ACT_S, STEP_S
from nodeagent.model.placement import Consent, MigrateMemory, SetValue
from nodeagent.model.settings import DEFAULT_PATH, Config, IsolatedProbe, Isolation
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.audit import Audit
from nodeagent.pin.memory import give_up_ptrace
from nodeagent.pin.undo import Journal
from nodeagent.streams import stand_in

SOCKET = "actor.sock"
LOCK = "actor.lock"
ADMIN_GROUP = "nodeagent-admin"
MAX_CLIENTS = 16
ROOTS_OWN = 4
"""Of MAX_CLIENTS, kept for root: nobody else's connections may keep it from `undo`."""
MAX_RESULT = 40 << 10
"""Bytes that one result may take: its message, and a mask."""
RELOAD_S = 5.0
"""Attaching patches kernel text and interrupts every CPU, so no more often than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end, as the kernel says."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]

    def __str__(self) -> str:
        try:
            name = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            name = str(self.uid)
        return f"{name} (pid {self.pid})"


@dataclass(slots=True, kw_only=True)
class Context:
    """What a handler may use. `kept` lives as long as the actor: BPF links, for one."""

    actor: Actor
    peer: Peer
    call: Call
    kept: dict[str, Any] = field(default_factory=dict)
    recovered: tuple[str, ...] = ()
    may_override: bool = False
    """Whether this peer may act in spite of a freeze: a person may, the daemon's user not."""
    isolated: IsolatedProbe = IsolatedProbe.OFF
    """What eBPF may do at most while a CPU is isolated."""

    @property
    def asked(self) -> Asked:
        """For journal and audit record. Raises RightsError."""
        if self.call.override_freeze and not self.may_override:
            raise RightsError(
                f"user {self.peer} may not override a freeze",
                f"be root, or in group {ADMIN_GROUP}",
            )
        return Asked(
            by=str(self.peer), why=self.call.why, override_freeze=self.call.override_freeze
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer and the descriptors that go with it, which are the handler's to close."""

    answer: Answer
    fds: tuple[int, ...] = ()
    moving: bool = False
    """Memory is being moved, and the next step is this caller's to ask for."""


def _act(request: ActionRequest, context: Context) -> Reply:
    action = to_action(request)
    done = context.actor.perform(action, context.asked)
    result = Result(
        outcome=done.outcome,
        message=done.message[:MAX_MESSAGE],
        read_back=done.read_back,
        journal_id=done.journal_id,
        workload=action.workload,
        pid=0 if isinstance(action, SetValue) else action.target.pid,
        contested=done.contested,
    )
    return Reply(answer=Answer(seq=context.call.seq, results=[result]))


def _migrate(request: MigrateMemoryRequest, context: Context) -> Reply:
    action = to_action(request)
    assert isinstance(action, MigrateMemory)
    if not context.may_override:
        raise RightsError(
            f"user {context.peer} may not move a running process's memory: that is for a person",
            f"be root, or in group {ADMIN_GROUP}: nodeagentctl place apply --yes",
        )
    step = context.actor.migrate(action, context.asked, go_on=request.go_on)
    result = Result(
        outcome=step.result.outcome,
        message=step.result.message[:MAX_MESSAGE],
        read_back=step.result.read_back,
        journal_id=step.result.journal_id,
        workload=action.workload,
        pid=action.target.pid,
    )
    facts: dict[str, object] = {**step.facts}
    answer = Answer(seq=context.call.seq, results=[result], more=step.more, facts=facts)
    return Reply(answer=answer, moving=step.more)


def _undo(request: UndoRequest, context: Context) -> Reply:
    results: list[Result] = []
    room, last, begun = MAX_ANSWER, request.below, time.monotonic()
    actor = context.actor
    for undone in actor.undo_each(
        request.workload, context.asked, below=request.below, entry=request.entry
    ):
        last = undone.entry.id
        results.append(
            Result(
                outcome=undone.result.outcome,
                message=undone.result.message[:MAX_MESSAGE],
                read_back=undone.result.read_back,
                journal_id=last,
                workload=undone.entry.open.workload,
                pid=undone.entry.open.pid,
            )
        )
        room -= len(msgspec.json.encode(results[-1])) + 1
        # Whoever asked asks for the rest, and hears of these before it has waited too long.
        if (
            room < MAX_RESULT
            or len(results) == MAX_ENTRIES
            or time.monotonic() > begun + ACT_S - STEP_S
        ):
            break
    more = bool(results) and bool(actor.waiting(request.workload, last, request.entry))
    return Reply(answer=Answer(seq=context.call.seq, results=results, more=more))


def _journal(request: JournalRequest, context: Context) -> Reply:
    later = [e for e in context.actor.entries if e.id > request.after]
    lines: list[EntryLine] = []
    room = MAX_ANSWER
    for entry in later[:MAX_ENTRIES]:
        line = to_line(entry.public())
        room -= len(msgspec.json.encode(line)) + 1
        if room < 0:
            break
        lines.append(line)
    return Reply(answer=Answer(seq=context.call.seq, entries=lines, more=len(lines) < len(later)))


def _status(request: StatusRequest, context: Context) -> Reply:
    return Reply(
        answer=Answer(
            seq=context.call.seq,
            facts={
                "pid": os.getpid(),
                "allow": sorted(context.actor.allow),
                "lacks": context.actor.lacks,
                "frozen": context.actor.frozen(),
                "entries": len(context.actor.entries),
                "recovered": [text[:MAX_MESSAGE] for text in context.recovered[:MAX_ENTRIES]],
                "probes": sorted(context.kept),
            },
        )
    )


def _containers(request: ContainersRequest, context: Context) -> Reply:
    # Imported when it is asked for: few nodes match by container.
    from nodeagent.discover.containers import Containers
    from nodeagent.discover.root import Root

    lines: list[ContainerLine] = []
    room = MAX_ANSWER
    with Root.live() as root:
        containers = Containers(root)
        for cgroup in request.cgroups:
            found = containers.of(cgroup)
            if found is None or found.name is None:
                continue
            line = ContainerLine(
                cgroup=cgroup,
                runtime=found.runtime,
                name=found.name,
                image=found.image,
                labels=dict(found.labels),
            )
            size = len(msgspec.json.encode(line)) + 1
            if size > room:
                line = msgspec.structs.replace(line, labels={})
                size = len(msgspec.json.encode(line)) + 1
            if size > room:
                break
            room -= size
            lines.append(line)
    told = [msgspec.to_builtins(line) for line in lines]
    facts: dict[str, object] = {"containers": told, "reason": containers.reason}
    return Reply(answer=Answer(seq=context.call.seq, facts=facts))


def _load_probe(request: LoadProbeRequest, context: Context) -> Reply:
    # Imported when it is asked for: without a probe the actor stays small.
    from nodeagent.probe import guarding, serve

    loaders = {"sched": serve.load, "guard": guarding.load}
    if request.program not in loaders:
        raise ActError(
            f"there is no program {request.program!r}, expected {' or '.join(loaders)}",
            "actor and daemon are of different versions: restart both",
        )
    asked, allowed = request.options.get("isolated", "off"), context.isolated
    if asked in serve.MODES and serve.MODES.index(asked) > serve.MODES.index(allowed):
        raise RightsError(
            f"no consent to {asked} measuring on isolated CPUs (allowed: {allowed})",
            f'set [probe] isolated = "{asked}" and restart nodeagent-actor',
        )
    if not isinstance(request.options.get("isolated_cpus", ""), str):
        raise UsageError("isolated_cpus is no CPU list", 'write isolated_cpus = "2-3"')
    now, before = time.monotonic(), context.kept.get(request.program)
    if before is not None and now < before.at + RELOAD_S and before.options != request.options:
        raise ActError(
            f"the probe was attached less than {RELOAD_S:g} s ago; attaching interrupts every CPU",
            "ask again a little later",
        )
    if before is not None and now < before.at + RELOAD_S and not before.available:
        description, fds = before.description, list[int]()
    else:
        description, fds = loaders[request.program](request.options)
        context.kept[request.program] = Loaded(
            at=now, options=dict(request.options), description=description
        )
    names = list(description["maps"]) if fds else []
    facts = {"description": msgspec.json.encode(description).decode()}
    return Reply(answer=Answer(seq=context.call.seq, fds=names, facts={**facts}), fds=tuple(fds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was last asked of the loader, and what it said. `at` on the monotonic clock."""

    at: float
    options: dict[str, str | int | bool]
    description: dict[str, Any]

    @property
    def available(self) -> bool:
        """Whether it is attached."""
        return bool(self.description["available"])


Handler = Callable[[Any, Context], Reply]

ACTIONS: dict[type[msgspec.Struct], Handler] = {
    SetAffinityRequest: _act,
    MoveToCpusetRequest: _act,
    MigrateMemoryRequest: _migrate,
    SetValueRequest: _act,
    UndoRequest: _undo,
    JournalRequest: _journal,
    StatusRequest: _status,
    LoadProbeRequest: _load_probe,
    ContainersRequest: _containers,
}
"""The closed list. A handler raises NodeagentError for what it refuses as a whole."""


class Server:
    """The socket, and the loop that takes one call after the other."""

    def __init__(
        self,
        run_dir: Path,
        actor: Actor,
        recovered: tuple[str, ...],
        daemon_uid: int | None,
        isolated: IsolatedProbe = IsolatedProbe.OFF,
    ) -> None:
        self._isolated = isolated
        self._path = run_dir / SOCKET
        self._actor = actor
        self._recovered = recovered
        self._uids = {0, os.geteuid()} | ({daemon_uid} if daemon_uid is not None else set())
        self._kept: dict[str, Any] = {}
        self._clients: dict[int, tuple[socket.socket, Peer]] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ended = False
        self._mover: int | None = None
        """The caller whose next step a moving of memory waits for."""
        self._admin = _group_id(ADMIN_GROUP)
        self._path.unlink(missing_ok=True)
        self._listening = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        # Who may speak is decided by the peer's credentials; the mode only keeps strangers out.
        old = os.umask(0o177)
        try:
            self._listening.bind(str(self._path))
        finally:
            os.umask(old)
        self._open_to_group(daemon_uid)
        self._listening.listen(MAX_CLIENTS)

    def _open_to_group(self, daemon_uid: int | None) -> None:
        gid = self._admin
        if gid is None and daemon_uid not in (None, os.geteuid()):
            gid = pwd.getpwuid(daemon_uid or 0).pw_gid
        if gid is not None and os.geteuid() == 0:
            os.chown(self._path, -1, gid)
            self._path.chmod(0o660)
            if self._admin is not None and daemon_uid not in (None, 0):
                # The daemon's user is in no admin group: it gets in as the owner.
                os.chown(self._path, daemon_uid or 0, -1)

    def stop(self, *_: object) -> None:
        """From a signal handler: ends the loop after the action in progress."""
        self._ended = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def serve(self) -> None:
        """Until `stop`."""
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while not self._ended:
            for fd, _ in poll.poll():
                if fd == self._listening.fileno():
                    self._accept(poll)
                elif fd in self._clients:
                    self._read(fd, poll)
        self._actor.leave_moving("the actor was stopped", Asked(by="actor", why="it was stopped"))
        self._listening.close()
        self._path.unlink(missing_ok=True)

    def _accept(self, poll: select.poll) -> None:
        try:
            client, _ = self._listening.accept()
        except OSError:
            return
        client.setblocking(False)
        peer = _peer(client)
        allowed = peer.uid in self._uids or (self._admin is not None and self._admin in peer.groups)
        room = MAX_CLIENTS if peer.uid == 0 else MAX_CLIENTS - ROOTS_OWN
        if not allowed or len(self._clients) >= room:
            why = (
                f"user {peer} may not ask the actor for anything"
                if not allowed
                else f"{len(self._clients)} callers are connected already"
            )
            remedy = f"be root, or in group {ADMIN_GROUP}" if not allowed else "try again later"
            _send(client, Reply(answer=Answer(seq=0, error=why, remedy=remedy)))
            client.close()
            return
        self._clients[client.fileno()] = (client, peer)
        poll.register(client, select.POLLIN)

    def _read(self, fd: int, poll: select.poll) -> None:
        client, peer = self._clients[fd]
        try:
            data = client.recv(MAX_DATAGRAM)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            reply = self._answer(data, peer)
            if reply.moving:
                self._mover = fd
            if _send(client, reply):
                return
        poll.unregister(client)
        client.close()
        del self._clients[fd]
        if self._mover == fd:
            self._mover = None
            why = f"{peer}, who had asked for it, is connected no more"
            self._actor.leave_moving(why, Asked(by="actor", why="a caller went away"))

    def _answer(self, data: bytes, peer: Peer) -> Reply:
        try:
            call = msgspec.json.decode(data, type=Call)
        except (msgspec.MsgspecError, RecursionError) as error:
            return Reply(
                answer=Answer(
                    seq=_seq_of(data),
                    error=f"the call is not understood: {error}",
                    remedy="actor and daemon are of different versions: restart both",
                )
            )
        context = Context(
            actor=self._actor,
            peer=peer,
            call=call,
            kept=self._kept,
            recovered=self._recovered,
            may_override=peer.uid in (0, os.geteuid())
            or (self._admin is not None and self._admin in peer.groups),
            isolated=self._isolated,
        )
        try:
            if call.begin_by_ns and time.monotonic_ns() > call.begin_by_ns:
                raise ActError(
                    "not begun: the actor was busy with what others asked for until too late to "
                    "answer in time; nothing of this was done",
                    "ask again",
                )
            return ACTIONS[type(call.request)](call.request, context)
        except NodeagentError as error:
            return Reply(answer=Answer(seq=call.seq, error=str(error), remedy=error.remedy))
        except OSError as error:
            why = f"{error.filename or 'a system call'}: {error.strerror}"
            return Reply(answer=Answer(seq=call.seq, error=why, remedy="see the audit record"))


class _Seq(msgspec.Struct):
    seq: int = 0


def _seq_of(data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=_Seq).seq
    except (msgspec.MsgspecError, RecursionError):
        return 0


def _send(client: socket.socket, reply: Reply) -> bool:
    """False: the caller is gone, or does not read."""
    data = msgspec.json.encode(reply.answer)
    try:
        if reply.fds:
            socket.send_fds(client, [data], list(reply.fds))
        else:
            client.send(data)
    except OSError:
        return False
    return True


def _peer(client: socket.socket) -> Peer:
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, gid = struct.unpack("iII", raw)
    return Peer(pid=pid, uid=uid, gid=gid, groups=groups_of(client) | {gid})


def _group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="nodeagent-actor",
        description="Performs typed actions on this host, one at a time, each with its undo.",
        epilog="example: nodeagent-actor --config /etc/nodeagent/nodeagent.toml",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the daemon's file: run_dir, state_dir and [pin] allow stand in it (default: "
        f"{DEFAULT_PATH} where there is one)",
    )
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="(default: /run/nodeagent)")
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="of the undo journal and the audit record (default: /var/lib/nodeagent)",
    )
    parser.add_argument(
        "--allow",
        metavar="CLASSES",
        help=f"comma-separated classes of consent: {', '.join(Consent)} (default: none)",
    )
    parser.add_argument(
        "--user", default=None, help="the daemon's user (default: nodeagent where it exists)"
    )
    return parser.parse_args(argv)


def _configured(path: Path | None) -> Config:
    """The daemon's settings, of a file that only root may write where this is root. Raises
    ConfigError."""
    if path is None and not os.path.lexists(DEFAULT_PATH):
        return Config()
    # Its parser is needed for this moment only.
    from nodeagent.daemon.config import check_roots_own, load

    if os.geteuid() == 0:
        check_roots_own(path or Path(DEFAULT_PATH))
    return load(path).config


def _told(path: Path | None) -> str:
    if path is not None or os.path.lexists(DEFAULT_PATH):
        return f"configured by {path or DEFAULT_PATH}"
    return f"no --config, and no {DEFAULT_PATH}: defaults, and the command line"


def _consents(text: str) -> frozenset[Consent]:
    words = [w.strip() for w in text.split(",") if w.strip()]
    known = {str(c) for c in Consent}
    for word in words:
        if word not in known:
            raise UsageError(
                f"--allow: saw {word!r}, expected some of {', '.join(sorted(known))}",
                "nodeagent-actor --help",
            )
    return frozenset(Consent(w) for w in words)


def _user_id(name: str | None) -> int | None:
    try:
        return pwd.getpwnam(name or "nodeagent").pw_uid
    except KeyError:
        if name is None:
            return None
        raise UsageError(f"--user: there is no user {name!r}", "create it first") from None


def _hold_lock(run_dir: Path) -> int:
    # The daemon's user may write in this folder: no link of its making is followed.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(run_dir / LOCK, flags, 0o600)
    except OSError as error:
        raise ActError(
            f"{run_dir / LOCK}: cannot be made: {error.strerror}", "give another --run-dir"
        ) from error
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode) or seen.st_nlink != 1:
        # Nor a second name of another file, which would be emptied.
        os.close(fd)
        raise ActError(
            f"{run_dir / LOCK}: no regular file of its own, expected a lock", "remove it"
        )
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise ActError(
            f"{run_dir / LOCK}: another actor runs already (pid {pid or 'unknown'})",
            "stop it, or give another --run-dir and --state-dir",
        ) from error
    # Who holds it is for people to read; a file that takes no words locks all the same.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _notify_ready() -> None:
    """sd_notify(3) by hand: one datagram, and no library in the process with the rights."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
    ):
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.send(b"READY=1")


def _say(text: str) -> None:
    sys.stderr.write(f"nodeagent-actor: {text}\n")
    sys.stderr.flush()


def _run(argv: list[str] | None) -> None:
    arguments = _arguments(argv)
    config = _configured(arguments.config)
    _say(_told(arguments.config))
    arguments.run_dir = arguments.run_dir or Path(config.daemon.run_dir)
    arguments.state_dir = arguments.state_dir or Path(config.daemon.state_dir)
    allow = frozenset(config.pin.allow) if arguments.allow is None else _consents(arguments.allow)
    if Consent.MEMORY not in allow:
        give_up_ptrace()
    daemon_uid = _user_id(arguments.user)
    lock = _hold_lock(arguments.run_dir)
    journal = Journal(arguments.state_dir / "journal")
    actor = Actor(
        journal,
        Audit(arguments.state_dir),
        allow=allow,
        run_dir=arguments.run_dir,
        partitions=config.pin.isolation is Isolation.PARTITION,
        runtimes=frozenset(config.pin.runtimes),
    )
    recovered = actor.recover()
    for line in recovered:
        _say(line)
    try:
        server = Server(arguments.run_dir, actor, recovered, daemon_uid, config.probe.isolated)
    except OSError as error:
        raise ActError(
            f"{arguments.run_dir / SOCKET}: cannot be served: {error.strerror}",
            "give a --run-dir that this user may write to (a path below 108 bytes)",
        ) from error
    signal.signal(signal.SIGTERM, server.stop)
    signal.signal(signal.SIGINT, server.stop)
    _say(
        f"ready on {arguments.run_dir / SOCKET}; allowed: {', '.join(sorted(allow)) or 'nothing'}; "
        f"{len(actor.entries)} actions can be undone"
    )
    _notify_ready()
    server.serve()
    journal.close()
    os.close(lock)
    _say(f"stopped; {len(actor.entries)} pins stay as they are")


def main(argv: list[str] | None = None) -> None:
    """Entry point of `nodeagent-actor`."""
    stand_in()
    try:
        _run(argv)
    except NodeagentError as error:
        sys.stderr.write(f"error: {sentence(str(error))}\n")
        if error.remedy:
            sys.stderr.write(f"remedy: {sentence(error.remedy)}\n")
        sys.exit(error.exit_code)
