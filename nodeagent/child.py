"""A process of ours that may hang inside the kernel, asked by lines and answering by lines.

What it does can block where no signal helps (a driver's ioctl, mmap_lock). So every answer has a
deadline; a child that missed it is left alone, never killed and never doubled: it is asked again
only after its late answer came.

Question: `N words...`; answer: any lines, then `= N`.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

MAX_ANSWER = 32 << 20
"""Bytes of one answer; a child that says more is taken for broken."""


class Child:
    """Started on the first question. `reason` says why the last `ask` gave None."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._argv = list(argv)
        self._env = None if env is None else dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._asked = 0
        self._waiting_since: float | None = None
        self.reason = ""

    @property
    def pid(self) -> int | None:
        """Its pid while it runs."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    @property
    def hung(self) -> bool:
        """Whether an answer is overdue: nothing new can be asked."""
        return self._waiting_since is not None

    def send(self, words: str) -> bool:
        """Puts a question; False (with `reason`) when it cannot be put."""
        if self._waiting_since is not None:
            self._collect(0.0)
            if self._waiting_since is not None:
                waited = time.monotonic() - self._waiting_since
                self.reason = (
                    f"its child process (pid {self.pid}) has not answered for {waited:.0f} s"
                )
                return False
        if self.pid is None and not self._start():
            return False
        assert self._process is not None and self._process.stdin is not None
        self._asked += 1
        try:
            self._process.stdin.write(f"{self._asked} {words}\n".encode())
        except OSError as error:
            self.reason = f"its child process ended: {error.strerror}"
            self._drop()
            return False
        self._waiting_since = time.monotonic()
        return True

    def receive(self, deadline_s: float) -> list[str] | None:
        """The answer to the last question, or None (with `reason`) after the deadline."""
        answer = self._collect(deadline_s)
        if answer is None and self._waiting_since is not None:
            self.reason = f"its child process (pid {self.pid}) gave no answer in {deadline_s:g} s"
        return answer

    def ask(self, words: str, deadline_s: float) -> list[str] | None:
        """`send` and `receive`."""
        return self.receive(deadline_s) if self.send(words) else None

    def close(self) -> None:
        """Lets it go: it ends by itself when its input does. Never kills."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if self._waiting_since is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)

    def _start(self) -> bool:
        self._drop()
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._env,
                bufsize=0,
                # Ctrl-C on a terminal is for us; the child ends with its input.
                process_group=0,
            )
        except OSError as error:
            self.reason = f"its child process could not be started: {error.strerror}"
            return False
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        return True

    def _drop(self) -> None:
        self._waiting_since, self._buffer = None, b""
        if self._process is not None:
            self.close()

    def _collect(self, deadline_s: float) -> list[str] | None:
        if self._process is None or self._waiting_since is None:
            return None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        mark = f"= {self._asked}\n".encode()
        end = time.monotonic() + deadline_s
        while True:
            if self._buffer.endswith(mark) and self._buffer[-len(mark) - 1 : -len(mark)] in (
                b"",
                b"\n",
            ):
                text = self._buffer[: -len(mark)].decode("utf-8", "replace")
                self._buffer, self._waiting_since = b"", None
                return text.splitlines()
            left = end - time.monotonic()
            if not poller.poll(max(0.0, left) * 1000):
                return None
            try:
                part = os.read(fd, 1 << 16)
            except BlockingIOError:
                continue
            self._buffer += part
            if not part or len(self._buffer) > MAX_ANSWER:
                self.reason = "its child process ended" if not part else "its answer has no end"
                self._drop()
                return None
