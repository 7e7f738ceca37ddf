"""nodeagentd: reads the node, judges it, decides, and serves what it knows.

It changes nothing unless its configuration consents; what it changes, the actor does.
"""

from __future__ import annotations

import os
import stat

# Before numpy comes in with the ring: its BLAS would start a thread for each CPU.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import contextlib
import fcntl
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nodeagent.daemon.config import told
from nodeagent.daemon.doors import real_doors
from nodeagent.daemon.loop import Loop
from nodeagent.daemon.notify import notifier
from nodeagent.daemon.setup import set_up
from nodeagent.discover.root import Root
from nodeagent.errors import NodeagentError, UnavailableError, sentence
from nodeagent.model.settings import DEFAULT_PATH
from nodeagent.streams import stand_in

_EPILOG = """example:
  nodeagentd --config /etc/nodeagent/nodeagent.toml

signals:  SIGHUP reads the configuration and the machine again; SIGTERM and SIGINT stop.
          Pins stay in force after a stop unless [pin] on_stop = "release".
exit:     0 stopped as told, 3 could not start, 64 wrong usage or configuration, 70 our own fault"""


class Parser(argparse.ArgumentParser):
    """Wrong usage exits 64, as everywhere."""

    def error(self, message: str) -> None:  # type: ignore[override]  # ours ends the process too
        """One sentence and one remedy."""
        fail(message, f"{self.prog} --help", 64)


def fail(message: str, remedy: str, code: int) -> None:
    """One sentence, one remedy, no traceback; ends the process."""
    sys.stderr.write(f"error: {sentence(message)}\n")
    if remedy:
        sys.stderr.write(f"remedy: {sentence(remedy)}\n")
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `nodeagentd`."""
    stand_in()
    parser = Parser(
        prog="nodeagentd",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"(default: {DEFAULT_PATH} where there is one, else every setting's default)",
    )
    parser.add_argument(
        "--host", metavar="PATH", help="judge and plan for a recorded machine; nothing is pinned"
    )
    args = parser.parse_args(argv)
    log_to_stderr()
    try:
        asyncio.run(_run(args.config, args.host))
    except NodeagentError as error:
        fail(str(error), error.remedy, error.exit_code)


async def _run(path: Path | None, host: str | None) -> None:
    doors = replace(real_doors(), host=host)
    if host is not None:
        # Now, and not in a child later: a path that is no machine is wrong usage.
        Root.open(host).close()
    setup = set_up(path, doors)
    logging.getLogger("nodeagentd").info("%s", told(path))
    locks = [take_lock(setup.run_dir / "daemon.lock", "nodeagentd")]
    try:
        locks += _state_lock(Path(setup.loaded.config.daemon.state_dir))
        await Loop(path, setup, doors, notifier()).run()
    finally:
        for lock in locks:
            os.close(lock)


def _state_lock(state_dir: Path) -> list[int]:
    """The lock of what is remembered: of two daemons with one memory each would forget whose
    changes the other one respects. Raises UnavailableError when another holds it. Nothing where
    the folder cannot be written: that costs the memory, and not the watch."""
    try:
        return [take_lock(state_dir / "state.lock", "nodeagentd", "state_dir")]
    except UnavailableError as error:
        if isinstance(error.__cause__, BlockingIOError):
            raise
        return []


def take_lock(path: Path, who: str, setting: str = "run_dir") -> int:
    """The descriptor of a lock that one process may hold; the file names its pid.

    Raises UnavailableError when another holds it, or when the folder cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UnavailableError(
            f"{path}: {error.strerror}, expected a folder this user may write to",
            f"start it as its own user (systemctl start nodeagentd), or set [daemon] {setting}",
        ) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UnavailableError(f"{path}: no regular file, expected a lock", f"rm {path}")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise UnavailableError(
            f"{who} runs already {'with' if setting == 'state_dir' else 'in'} {path.parent} "
            f"(pid {holder})",
            f"stop it first (kill {holder}, or systemctl stop {who}), or set another "
            f"[daemon] {setting}",
        ) from error
    # Who holds it is for people to read; on a full disk it locks all the same.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def log_to_stderr() -> None:
    """One line a message; under systemd with the journal's priority in front."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Priority() if os.environ.get("JOURNAL_STREAM") else _Plain())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Plain(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")


class _Priority(logging.Formatter):
    """Source: sd-daemon(3), SD_ERR and its like."""

    _LEVELS = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))

    def format(self, record: logging.LogRecord) -> str:
        """`<6>message`; every line of a traceback too."""
        level = next((n for at, n in self._LEVELS if record.levelno >= at), 7)
        return "\n".join(f"<{level}>{line}" for line in super().format(record).splitlines())


if __name__ == "__main__":
    main()
