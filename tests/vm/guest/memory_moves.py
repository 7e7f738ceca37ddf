"""Moves a process's memory with the actor's own code, and tells what came of it as JSON.

Where the pages are is asked here by a system call of its own, not through what is tested.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Consent, MigrateMemory, Target
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.audit import Audit
from nodeagent.pin.proc import stat_of
from nodeagent.pin.undo import Journal

PAGE, MIB = 4096, 1 << 20
ME = Asked(by="test", why="a test of memory")
VICTIM = pathlib.Path(__file__).with_name("memory_victim.py")
libc = ctypes.CDLL(None, use_errno=True)
MOVE_PAGES = 279


class Victim:
    """On the CPUs of node 0, so that what it touches is there."""

    def __init__(self, mib: int, kinds: str = "", prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*(prefix or ("taskset", "-c", "0-3")), sys.executable, str(VICTIM), str(mib), kinds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self.process.pid
        told = self._read()
        self.regions: dict[str, list[int]] = told["regions"]
        self.missing: dict[str, str] = told["missing"]

    def _read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def check(self) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write("check\n")
        return self._read()

    def pages(self) -> dict[str, dict[str, int]]:
        """Pages of each region by node, one by one; `absent` for those without a page."""
        return {name: nodes_of(self.pid, *where) for name, where in self.regions.items()}

    @property
    def target(self) -> Target:
        stat = stat_of(self.pid)
        assert stat is not None
        return Target(pid=self.pid, tid=0, start_time=stat.start_time)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        self.process.wait()


def nodes_of(pid: int, start: int, bytes_: int) -> dict[str, int]:
    count = bytes_ // PAGE
    addresses = (ctypes.c_void_p * count)(*range(start, start + bytes_, PAGE))
    status = (ctypes.c_int * count)()
    if libc.syscall(MOVE_PAGES, pid, ctypes.c_ulong(count), addresses, None, status, 0) < 0:
        raise OSError(ctypes.get_errno(), "move_pages")
    found: dict[str, int] = {}
    for node in status:
        key = str(node) if node >= 0 else "absent"
        found[key] = found.get(key, 0) + 1
    return found


@contextlib.contextmanager
def acting(folder: str) -> Iterator[Actor]:
    run = pathlib.Path(folder, "run")
    run.mkdir(exist_ok=True)
    state = pathlib.Path(folder, "state")
    journal = Journal(state / "journal")
    try:
        yield Actor(journal, Audit(state), allow=frozenset({Consent.MEMORY}), run_dir=run)
    finally:
        journal.close()


def moving(victim: Victim, stall_ms: int = 10_000, to: int = 1) -> MigrateMemory:
    return MigrateMemory(
        workload="w",
        target=victim.target,
        nodes=CpuSet.of([to]),
        to=to,
        before="",
        stall_ms=stall_ms,
    )


def told(result: Any) -> dict[str, Any]:
    return {
        "outcome": str(result.outcome),
        "message": result.message,
        "read_back": result.read_back,
        "journal_id": result.journal_id,
    }


def stalled(result: Any) -> bool:
    """A busy host may take a whole emulated machine away for longer than any bound."""
    return "over the stall bound" in result.message


def everything(folder: str) -> dict[str, Any]:
    victim = Victim(256, "locked,huge,thp,pinned,shared")
    before, facts = victim.pages(), []
    began = time.monotonic()
    with acting(folder) as actor:
        step = actor.migrate(moving(victim), ME, go_on=False)
        while step.more or stalled(step.result):
            facts.append(step.facts)
            step = actor.migrate(moving(victim), ME, go_on=step.more)
        seconds = time.monotonic() - began
        after = victim.pages()
        again = actor.perform(moving(victim), ME)
        undone = [told(u.result) for u in actor.undo(None, ME)]
        left = victim.pages()
        entries = len(actor.entries)
    found = {
        "before": before,
        "after": after,
        "after_undo": left,
        "missing": victim.missing,
        "result": told(step.result),
        "again": told(again),
        "undone": undone,
        "entries": entries,
        "steps": len(facts),
        "seconds": seconds,
        "facts": step.facts,
        "largest_step": max(f.get("step_bytes", 0) for f in facts),
        "check": victim.check(),
    }
    victim.end()
    return found


def small(folder: str) -> dict[str, Any]:
    """Node 1 is filled by another process."""
    text = pathlib.Path("/sys/devices/system/node/node1/meminfo").read_text()
    free = next(int(li.split()[3]) for li in text.splitlines() if "MemFree" in li) << 10
    script = (
        "import sys\nb=bytearray(int(sys.argv[1]))\n"
        "for i in range(0,len(b),4096): b[i]=1\nprint('ok',flush=True)\nsys.stdin.read()"
    )
    hog = subprocess.Popen(
        ["numactl", "--membind=1", sys.executable, "-c", script, str(free - 60 * MIB)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert hog.stdout is not None and hog.stdout.readline() == b"ok\n"
    victim = Victim(160)
    before = victim.pages()
    with acting(folder) as actor:
        result = told(actor.perform(moving(victim), ME))
        entries = len(actor.entries)
    found = {"result": result, "before": before, "after": victim.pages(), "entries": entries}
    victim.end()
    hog.communicate()
    return found


def stall(folder: str) -> dict[str, Any]:
    victim = Victim(64)
    with acting(folder) as actor:
        first = told(actor.perform(moving(victim, stall_ms=1), ME))
        states = [e.state for e in actor.entries]
        half = victim.pages()
        going_on = actor.perform(moving(victim), ME)
        while stalled(going_on):
            going_on = actor.perform(moving(victim), ME)
        second = told(going_on)
        entries = [(e.id, e.state, e.open.value_before) for e in actor.entries]
    found = {
        "first": first,
        "states": states,
        "half": half,
        "second": second,
        "entries": entries,
        "after": victim.pages(),
        "check": victim.check(),
    }
    victim.end()
    return found


def killed_at(step: int, work: Callable[[], object]) -> bool:
    child = os.fork()
    if child == 0:
        os.environ["NODEAGENT_KILL_AT"] = str(step)
        try:
            work()
        except BaseException:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, status
    return False


def kills(folder: str) -> dict[str, Any]:
    """Killed at the n-th step of each try, until one gets through; each start says how far."""
    victim = Victim(24)
    rows = []

    def work() -> None:
        with acting(folder) as actor:
            actor.perform(moving(victim), ME)

    for step in range(1, 60):
        killed = killed_at(step, work)
        with acting(folder) as actor:
            said = actor.recover()
            rows.append(
                {
                    "step": step,
                    "said": said,
                    "pages": victim.pages()["anon"],
                    "states": [e.state for e in actor.entries],
                    "again": actor.recover(),
                }
            )
        if not killed:
            break
    found = {"rows": rows, "killed": killed, "check": victim.check(), "after": victim.pages()}
    victim.end()
    return found


def freeze(folder: str) -> dict[str, Any]:
    """The freeze file appears between two steps."""
    victim = Victim(64)
    with acting(folder) as actor:
        step = actor.migrate(moving(victim), ME, go_on=False)
        while step.more and step.facts.get("moved_bytes", 0) < 8 * MIB:
            step = actor.migrate(moving(victim), ME, go_on=True)
        pathlib.Path(folder, "run/freeze").touch()
        frozen = told(actor.migrate(moving(victim), ME, go_on=True).result)
        half = victim.pages()
        late = told(actor.migrate(moving(victim), ME, go_on=True).result)
        pathlib.Path(folder, "run/freeze").unlink()
        undone = [told(u.result) for u in actor.undo(None, ME)]
        after_undo = told(actor.migrate(moving(victim), ME, go_on=True).result)
    found = {
        "frozen": frozen,
        "half": half,
        "late": late,
        "undone": undone,
        "after_undo": after_undo,
        "pages": victim.pages(),
        "check": victim.check(),
    }
    victim.end()
    return found


def left(folder: str) -> dict[str, Any]:
    """Who asked for it goes away between two steps."""
    victim = Victim(64)
    with acting(folder) as actor:
        step = actor.migrate(moving(victim), ME, go_on=False)
        while step.more and step.facts.get("moved_bytes", 0) < 8 * MIB:
            step = actor.migrate(moving(victim), ME, go_on=True)
        actor.leave_moving("root (pid 3) is connected no more", ME)
        (entry,) = actor.entries
        half = victim.pages()
        audit = pathlib.Path(folder, "state/audit.jsonl").read_text()
        again = told(actor.perform(moving(victim), ME))
        entries = [e.id for e in actor.entries]
    found = {
        "state": entry.state,
        "half": half,
        "audit": json.loads(audit.splitlines()[-1]),
        "again": again,
        "entries": [entry.id, entries],
        "pages": victim.pages(),
        "check": victim.check(),
    }
    victim.end()
    return found


def ended(folder: str) -> dict[str, Any]:
    """The process ends between two steps."""
    victim = Victim(64)
    action = moving(victim)
    with acting(folder) as actor:
        step = actor.migrate(action, ME, go_on=False)
        while step.more and step.facts.get("moved_bytes", 0) < 8 * MIB:
            step = actor.migrate(action, ME, go_on=True)
        victim.end()
        result = told(actor.migrate(action, ME, go_on=True).result)
        return {"result": result, "entries": len(actor.entries)}


def hidden(folder: str) -> dict[str, Any]:
    """The target node is outside its cpuset."""
    hiding = ("systemd-run", "--scope", "--quiet", "-p", "AllowedMemoryNodes=0")
    victim = Victim(16, prefix=(*hiding, "taskset", "-c", "0-3"))
    with acting(folder) as actor:
        result = told(actor.perform(moving(victim), ME))
        entries = len(actor.entries)
    victim.end()
    return {"result": result, "entries": entries}


def pool(folder: str) -> dict[str, Any]:
    """The target's pool of huge pages is empty."""
    at = pathlib.Path("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages")
    had = at.read_text()
    victim = Victim(4, "huge")
    at.write_text("0")
    with acting(folder) as actor:
        result = told(actor.perform(moving(victim), ME))
        actor.undo(None, ME)
    pages = victim.pages()
    at.write_text(had)
    victim.end()
    return {"result": result, "pages": pages, "missing": victim.missing}


def balanced(folder: str) -> dict[str, Any]:
    """With NUMA balancing on, and the threads on the other node."""
    at = pathlib.Path("/proc/sys/kernel/numa_balancing")
    at.write_text("1")
    victim = Victim(4)
    with acting(folder) as actor:
        result = told(actor.perform(moving(victim), ME))
    at.write_text("0")
    victim.end()
    return {"result": result}


def speed(folder: str) -> dict[str, Any]:
    from nodeagent.pin.mover import Mover

    mover = Mover()
    rate = mover.speed(0, 1)
    mover.close()
    return {"rate": rate}


with tempfile.TemporaryDirectory(prefix="na-") as name:
    print(json.dumps(globals()[sys.argv[1]](name)))
