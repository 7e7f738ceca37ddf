"""The child processes of the main job: started, watched, recorded on disk, stopped in order."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.errors import NodeagentError

STOP_S = 10.0
"""How long a child may take to stop by itself before it is killed."""
POLL_S = 0.02
_ORPHAN = '[ "$PPID" = "$0" ] && exec "$@"'
"""Run by sh once the death signal is set. A parent that died before that would never send one."""


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (stat field 22); None: gone, or a
    zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


@dataclass(slots=True)
class Child:
    """One running child. Its output is in `out` (stdout) and `log` (stderr)."""

    name: str
    process: subprocess.Popen[bytes]
    out: pathlib.Path
    log: pathlib.Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def lines(self) -> list[dict[str, object]]:
        """The JSON lines it has printed so far, whole ones only."""
        found = []
        for line in self.out.read_text(errors="replace").splitlines(keepends=True):
            if line.endswith("\n") and line.startswith("{"):
                found.append(json.loads(line))
        return found

    def complaint(self) -> str:
        """The last line it wrote to stderr, for an error sentence."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError as error:
            return f"its output cannot be read ({error.strerror})"
        lines = [x.strip() for x in text.splitlines() if x.strip()]
        # Ours say "error: ..." and then "remedy: ..."; of a traceback the last line counts.
        said = next((x for x in reversed(lines) if x.startswith("error: ")), None)
        if said is not None:
            return said.removeprefix("error: ")
        if lines:
            return lines[-1]
        full = os.statvfs(self.log.parent).f_bavail == 0
        return f"there is no room left in {self.log.parent}" if full else "it said nothing"


@dataclass(slots=True)
class Children:
    """All children, in the order they were started; `record` names them for the next start."""

    folder: pathlib.Path
    running: list[Child] = field(default_factory=list)

    @property
    def record(self) -> pathlib.Path:
        """Where (name, pid, start time) of each child stands while we run."""
        return self.folder / "children.json"

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """Starts one child in a session of its own, so that Ctrl-C reaches only us.

        It gets SIGTERM when we die (`setpriv --pdeathsig`, util-linux), also by kill -9.
        """
        logs = self.folder / "log"
        logs.mkdir(parents=True, exist_ok=True)
        out, log = logs / f"{name}.out", logs / f"{name}.log"
        setpriv = shutil.which("setpriv")
        full = list(argv)
        if setpriv is not None:
            gate = ["sh", "-c", _ORPHAN, str(os.getpid())]
            full = [setpriv, "--pdeathsig", "TERM", "--", *gate, *argv]
        with out.open("wb") as stdout, log.open("wb") as stderr:
            process = subprocess.Popen(
                full,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        child = Child(name=name, process=process, out=out, log=log)
        self.running.append(child)
        self._write()
        return child

    def _write(self) -> None:
        rows = [
            {"name": c.name, "pid": c.pid, "start_time": start_time(c.pid)}
            for c in self.running
            if c.alive
        ]
        temporary = self.record.with_suffix(".part")
        temporary.write_text(json.dumps(rows))
        temporary.replace(self.record)

    def dead(self) -> Child | None:
        """A child that ended without being asked to, or None."""
        return next((c for c in self.running if not c.alive), None)

    def stop(self, child: Child, timeout_s: float = STOP_S) -> int:
        """SIGTERM, then SIGKILL after `timeout_s`; returns its exit status."""
        if child.alive:
            child.process.send_signal(signal.SIGTERM)
        try:
            status = child.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            child.process.kill()
            status = child.process.wait()
        if child in self.running:
            self.running.remove(child)
            with contextlib.suppress(OSError):
                # A full disk must not keep the others from being stopped; a row of a process that
                # has ended means nothing to the next start.
                self._write()
        return status

    def stop_all(self) -> None:
        """Stops what still runs, last started first."""
        for child in reversed(list(self.running)):
            self.stop(child)
        self.record.unlink(missing_ok=True)


def end_leftovers(record: pathlib.Path) -> list[str]:
    """Ends the children of a dead run, named with pid and start time; returns what was done, in
    words.

    A number that belongs to another process by now is left alone.
    """
    try:
        rows = json.loads(record.read_text())
    except (OSError, ValueError):
        return []
    said = []
    alive = [r for r in rows if r["start_time"] and start_time(r["pid"]) == r["start_time"]]
    for row in reversed(alive):
        try:
            os.kill(row["pid"], signal.SIGTERM)
        except PermissionError as error:
            raise NodeagentError(
                f"{row['name']} (pid {row['pid']}) of an earlier run is not ours to end",
                f"as its owner or root: kill {row['pid']}",
            ) from error
        except ProcessLookupError:
            continue
        deadline = time.monotonic() + STOP_S
        while start_time(row["pid"]) == row["start_time"] and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if start_time(row["pid"]) == row["start_time"]:
            os.kill(row["pid"], signal.SIGKILL)
        said.append(f"ended {row['name']} (pid {row['pid']}) that an earlier run had left")
    record.unlink(missing_ok=True)
    return said
