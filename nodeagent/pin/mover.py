"""`Mover`: looks where a process's pages are and moves them, through a child that may hang.

The child is left alone when it misses its deadline, and nothing is asked of a second one beside it
(docs/adr/0013).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.child import Child
from nodeagent.errors import ActError, RightsError, UnavailableError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import MAX_STEP_BYTES, Staying
from nodeagent.pin.affinity import GoneError

WAIT_S = 2.0
"""For one answer; then NotYetError, and whoever asks does other things before asking again."""
HUNG_S = 30.0
"""Without an answer for so long, the process's mmap_lock is taken for stuck."""
MAX_LOOKS = 1 << 16
"""Answers of one `look`: 5 hours of looking."""


@dataclass(slots=True, kw_only=True)
class Walked:
    """What one step, or several together, saw and did. Bytes."""

    by_node: dict[int, int] = field(default_factory=dict)
    """Of the pages looked at, where they are now."""
    moved: int = 0
    staying: Staying = field(default_factory=Staying)
    calls: int = 0
    moving_ns: int = 0
    longest_ns: int = 0
    full: bool = False
    """The target had no page left."""
    done: bool = False
    """The end of the process's mappings was reached."""

    def add(self, step: Walked) -> None:
        """Takes the next step in."""
        for node, bytes_ in step.by_node.items():
            self.by_node[node] = self.by_node.get(node, 0) + bytes_
        self.moved += step.moved
        self.staying = self.staying.plus(step.staying)
        self.calls += step.calls
        self.moving_ns += step.moving_ns
        self.longest_ns = max(self.longest_ns, step.longest_ns)
        self.full, self.done = step.full, step.done


class NotYetError(ActError):
    """No answer yet: the same call again takes it."""


class Mover:
    """One child, one process at a time.

    Raises GoneError (the process ended), RightsError, UnavailableError (no native build, or the
    child hangs), NotYetError and ActError.
    """

    def __init__(self, *, wait_s: float = WAIT_S, hung_s: float = HUNG_S) -> None:
        self._wait_s, self._hung_s = wait_s, hung_s
        self._child: Child | None = None
        self._pid = 0
        self._asked = ""
        """What was asked and is not answered yet."""
        self._since_s = 0.0

    @property
    def child_pid(self) -> int | None:
        """The child, while there is one."""
        return None if self._child is None else self._child.pid

    def close(self) -> None:
        """Lets the child go, unless it hangs: then it is kept, so that none is started beside."""
        if self._child is not None and not self._child.hung:
            self._child.close()
            self._child, self._asked = None, ""

    def begin(self, pid: int) -> None:
        """Starts a pass over the mappings of a process."""
        self._pid = pid
        self._ask(f"begin {pid}")

    def look(self) -> Walked:
        """One step of the pass, moving nothing."""
        return _walked(self._ask("walk - , 0"))

    def look_all(self, pid: int) -> Walked:
        """A whole pass that moves nothing: bytes by node, page by page."""
        found, begun = Walked(), False
        for _ in range(MAX_LOOKS):
            try:
                if begun:
                    found.add(self.look())
                else:
                    self.begin(pid)
                    begun = True
            except NotYetError:
                continue
            if found.done:
                return found
        raise ActError(f"process {pid} has more mappings than can be looked through", "")

    def move(self, target: int, nodes: CpuSet, step_bytes: int) -> Walked:
        """One step: at most that many bytes from nodes outside `nodes` to the target."""
        assert step_bytes <= MAX_STEP_BYTES
        names = ",".join(map(str, sorted(nodes.ids)))
        return _walked(self._ask(f"walk {target} {names} {step_bytes}"))

    def speed(self, source: int, target: int) -> float:
        """Bytes a second, by moving 16 MiB of the child's own memory once."""
        self._pid, said = 0, dict[str, int]()
        while not said:
            with contextlib.suppress(NotYetError):
                said = self._ask(f"speed {source} {target}")
        moved, took_ns = said.get("moved", 0), said.get("ns", 0)
        if not moved or not took_ns:
            raise ActError(f"no page could be moved from node {source} to node {target}", "")
        return moved * 1e9 / took_ns

    def _ask(self, words: str) -> dict[str, int]:
        if self._child is None:
            try:
                from nodeagent.native import _core
            except ImportError as error:
                raise UnavailableError(
                    f"this build cannot look at or move pages: {error}",
                    "build with -Dnative=enabled",
                ) from error
            del _core
            script = Path(__file__).with_name("mover_child.py")
            self._child = Child([sys.executable, "-I", str(script)])
        if self._asked != words:
            if not self._child.send(words):
                raise self._hung()
            self._asked, self._since_s = words, time.monotonic()
        answer = self._child.receive(self._wait_s)
        if answer is None and self._child.hung and time.monotonic() - self._since_s < self._hung_s:
            raise NotYetError(f"no answer about process {self._pid} yet", "")
        self._asked = ""
        if answer is None:
            raise self._hung()
        line = answer[0] if answer else ""
        if line.startswith("error "):
            raise _explained(self._pid, int(line.split()[1]), words.startswith("begin "))
        return {key: int(value) for key, _, value in (w.partition("=") for w in line.split())}

    def _hung(self) -> UnavailableError:
        assert self._child is not None
        if not self._child.hung:
            return UnavailableError(
                f"the memory of process {self._pid} cannot be looked at: {self._child.reason}",
                "try again; journalctl -u nodeagent-actor says more",
            )
        return UnavailableError(
            f"the memory of process {self._pid} cannot be looked at: {self._child.reason}; whoever "
            "maps memory in that process waits in the kernel too",
            f"see what it waits for: cat /proc/{self._pid}/task/*/stack; the child is left "
            "waiting, never killed",
        )


def _explained(pid: int, number: int, opening: bool) -> ActError | RightsError:
    if number in (errno.ESRCH, errno.ENOENT):
        return GoneError(f"process {pid} has ended")
    if number == errno.EPERM or (number == errno.EACCES and opening):
        return RightsError(
            f"the pages of process {pid} may not be looked at or moved: it belongs to another "
            "user, and the capabilities CAP_SYS_PTRACE and CAP_SYS_NICE are missing",
            "run this as root; under systemd nodeagent-actor has them when [pin] allow names "
            "memory",
        )
    why = {
        errno.EACCES: "the target node is outside its cpuset",
        errno.ENODEV: "the target node has no memory",
    }.get(number, os.strerror(number))
    return ActError(
        f"the pages of process {pid} could not be looked at or moved: {why}",
        f"grep Mems_allowed_list /proc/{pid}/status",
    )


def _walked(said: dict[str, int]) -> Walked:
    return Walked(
        by_node={int(key[1:]): said[key] for key in said if key[0] == "n" and key[1:].isdecimal()},
        moved=said.get("moved", 0),
        staying=Staying(
            shared=said.get("shared", 0),
            busy=said.get("busy", 0),
            pool=said.get("pool", 0),
            untried=said.get("untried", 0),
        ),
        calls=said.get("calls", 0),
        moving_ns=said.get("moving_ns", 0),
        longest_ns=said.get("longest_ns", 0),
        full=bool(said.get("full", 0)),
        done=bool(said.get("done", 0)),
    )
