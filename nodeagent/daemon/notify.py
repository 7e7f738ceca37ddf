"""systemd's notification protocol: ready, reloading, stopping, status, watchdog.

Without NOTIFY_SOCKET nothing is imported and nothing is sent. Source: sd_notify(3).
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Protocol


class Notifier(Protocol):
    """Tells the service manager."""

    watchdog_s: float | None
    """The manager expects a sign of life this often; None: no watchdog."""

    def ready(self) -> None:
        """Start-up, or a reload, is over."""

    def reloading(self) -> None:
        """A reload began."""

    def stopping(self) -> None:
        """The stop began."""

    def status(self, sentence: str) -> None:
        """One sentence for `systemctl status`."""

    def alive(self) -> None:
        """Feeds the watchdog."""


class Silent:
    """Nobody listens."""

    watchdog_s: float | None = None

    def ready(self) -> None:
        """Nothing."""

    def reloading(self) -> None:
        """Nothing."""

    def stopping(self) -> None:
        """Nothing."""

    def status(self, sentence: str) -> None:
        """Nothing."""

    def alive(self) -> None:
        """Nothing."""


class Systemd:
    """The manager that started us, through cysystemd."""

    def __init__(self) -> None:
        # Imported here: without systemd it would only cost memory.
        from cysystemd import daemon

        self._daemon = daemon
        self._said = ""
        watch = os.environ.get("WATCHDOG_USEC", "")
        mine = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s: float | None = int(watch) / 1e6 if watch.isdigit() and mine else None

    def ready(self) -> None:
        """READY=1."""
        self._send("READY=1")

    def reloading(self) -> None:
        """RELOADING=1 with the time stamp Type=notify-reload asks for."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """STOPPING=1."""
        self._send("STOPPING=1")

    def status(self, sentence: str) -> None:
        """STATUS=, only when it changed."""
        if sentence != self._said:
            self._said = sentence
            self._send(f"STATUS={sentence}")

    def alive(self) -> None:
        """WATCHDOG=1."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        # The manager's socket may be gone; then there is nobody to tell.
        with contextlib.suppress(RuntimeError, ValueError, OSError):
            self._daemon.sd_notify(text)


def notifier() -> Notifier:
    """The one for this process."""
    return Systemd() if os.environ.get("NOTIFY_SOCKET") else Silent()
