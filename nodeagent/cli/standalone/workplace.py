"""Folders and lock of the main job: what stands on disk while it runs, and after a crash."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.errors import NodeagentError, RightsError

RUN_DIR = "NODEAGENT_RUN_DIR"
STATE_DIR = "NODEAGENT_STATE_DIR"
LOCK = "run.lock"
MAX_RUN_DIR = 80
"""Bytes of `run_dir`: a socket below it must fit into sun_path, 108 bytes (unix(7))."""
LOCK_TRIES = 10


@dataclass(slots=True)
class Workplace:
    """`run_dir` goes at the end; `state_dir` keeps journal, audit record, controller store."""

    run_dir: pathlib.Path
    state_dir: pathlib.Path
    earlier_pid: str | None = None
    """A run that was killed and had this folder before us; None: it ended in order."""
    _lock: int = -1

    @classmethod
    def default(cls, environ: Mapping[str, str] = os.environ) -> Workplace:
        """The folders that the environment names; else /run and /var/lib for root, the user's own
        ones otherwise (XDG Base Directory)."""
        if os.geteuid() == 0:
            run, state = pathlib.Path("/run"), pathlib.Path("/var/lib")
        else:
            run = pathlib.Path(environ.get("XDG_RUNTIME_DIR") or f"/tmp/nodeagent-{os.geteuid()}")
            home = pathlib.Path(environ.get("HOME") or "/nonexistent")
            state = pathlib.Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state")
        return cls(
            pathlib.Path(environ.get(RUN_DIR) or run / "nodeagent-run").absolute(),
            pathlib.Path(environ.get(STATE_DIR) or state / "nodeagent-run").absolute(),
        )

    def lock(self) -> None:
        """Makes the folders and takes the lock; NodeagentError when another run has it."""
        if len(os.fsencode(self.run_dir)) > MAX_RUN_DIR:
            raise NodeagentError(
                f"{self.run_dir}: this path is longer than {MAX_RUN_DIR} bytes, too long for the "
                "sockets in it",
                f"set {RUN_DIR} to a shorter one",
            )
        for folder in (self.run_dir, self.state_dir):
            self._make(folder)
        path = self.run_dir / LOCK
        if not path.exists() and any(self.run_dir.iterdir()):
            # It is removed with all that is in it when the run ends: it must be ours.
            raise NodeagentError(
                f"{self.run_dir}: holds files of somebody else, expected an empty folder or none",
                f"set {RUN_DIR} to a folder that this run may make and remove",
            )
        for _ in range(LOCK_TRIES):
            if self._take(path):
                return
            self._make(self.run_dir)
        raise NodeagentError(f"{path}: goes and comes again", "start it again in a moment")

    def _make(self, folder: pathlib.Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise RightsError(
                f"{folder}: {error.strerror}, expected a folder that can be written",
                f"set {RUN_DIR} and {STATE_DIR} to folders of yours, or run as root",
            ) from error
        for ours in (folder, folder.parent):
            stat = ours.stat()
            # In a folder that others may write to, they could put another in its place.
            others = stat.st_mode & 0o002 and not stat.st_mode & 0o1000
            if stat.st_uid not in (0, os.geteuid()) or (ours == folder and others):
                raise RightsError(
                    f"{ours}: belongs to user {stat.st_uid} (mode {stat.st_mode & 0o7777:04o}), "
                    f"expected user {os.geteuid()} and nobody else who may write to it",
                    f"set {RUN_DIR} and {STATE_DIR} to folders of yours",
                )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise RightsError(
                f"{folder}: user {os.geteuid()} may not write to it",
                f"set {RUN_DIR} and {STATE_DIR} to folders of yours, or run as root",
            )

    def _take(self, path: pathlib.Path) -> bool:
        """False: the lock we got was that of a run which was just removing it."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            return False
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise NodeagentError(
                f"another run is going on (pid {holder or 'unknown'}); its lock is {path}",
                f"stop it first (kill -INT {holder or 'PID'}), or give this one folders of its own "
                f"with {RUN_DIR} and {STATE_DIR}",
            ) from error
        try:
            same = path.stat().st_ino == os.fstat(fd).st_ino
        except FileNotFoundError:
            same = False
        if not same:
            os.close(fd)
            return False
        self.earlier_pid = holder or None
        os.ftruncate(fd, 0)
        try:
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(fd)
            raise NodeagentError(
                f"{path}: {error.strerror}, expected room for the run's files",
                f"make room there, or set {RUN_DIR} to a folder with some",
            ) from error
        self._lock = fd
        return True

    def leave(self) -> None:
        """Removes `run_dir`, the lock last, and lets go of it."""
        if self._lock < 0:
            return
        for entry in self.run_dir.iterdir():
            if entry.name == LOCK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        (self.run_dir / LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            # Stays where it is a mount point, or where another run has its lock in it already.
            self.run_dir.rmdir()
        os.close(self._lock)
        self._lock = -1
