"""Folders and lock of the main job: what stands on disk while it runs, and after a crash."""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
from dataclasses import dataclass

from nodeagent.errors import NodeagentError, RightsError


@dataclass(slots=True)
class Workplace:
    """`run_dir` goes at the end; `state_dir` keeps journal, audit record, controller store."""

    run_dir: pathlib.Path
    state_dir: pathlib.Path
    _lock: int = -1

    @classmethod
    def default(cls) -> Workplace:
        """/run and /var/lib for root, the user's own folders otherwise (XDG Base Directory)."""
        if os.geteuid() == 0:
            return cls(pathlib.Path("/run/nodeagent-run"), pathlib.Path("/var/lib/nodeagent-run"))
        run = os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/nodeagent-{os.geteuid()}"
        state = os.environ.get("XDG_STATE_HOME") or str(pathlib.Path.home() / ".local" / "state")
        return cls(
            pathlib.Path(run) / "nodeagent-run",
            pathlib.Path(state) / "nodeagent-run",
        )

    def lock(self) -> None:
        """Makes the folders and takes the lock; NodeagentError when another run has it."""
        for folder in (self.run_dir, self.state_dir):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise RightsError(
                    f"{folder}: {error.strerror}, expected a folder that can be written",
                    "set XDG_RUNTIME_DIR and XDG_STATE_HOME to folders of yours, or run as root",
                ) from error
            if folder.stat().st_uid != os.geteuid():
                raise RightsError(
                    f"{folder}: belongs to user {folder.stat().st_uid}, expected {os.geteuid()}",
                    "remove it as its owner, or set XDG_RUNTIME_DIR to a folder of yours",
                )
        path = self.run_dir / "run.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(fd, 32, 0).decode().strip() or "unknown"
            os.close(fd)
            raise NodeagentError(
                f"another run is going on (pid {pid}); its lock is {path}",
                f"stop it first: kill -INT {pid}",
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock = fd

    def leave(self) -> None:
        """Removes `run_dir` and lets go of the lock."""
        shutil.rmtree(self.run_dir, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
