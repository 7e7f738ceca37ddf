"""The full reading of the machine, made by a child process.

A device that is dying can hold whoever reads its files in the kernel for minutes. So the turn never
reads /sys: a child does, at its own slow rate. A child that hangs is never killed (that would wait
for the same device) and never doubled: the turn goes on with the snapshot it has and says so. One
whose own child hangs, in NVML or in a device's file, has delivered all the rest; the next one then
leaves the devices alone.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Callable

from nodeagent.model.snapshot import Snapshot

SLOW_S = 30.0
"""A reading that takes longer is reported as hanging."""

MAX_BYTES = 256 << 20
"""No machine's snapshot is this large; what sends more is not our child."""

COMMAND = (sys.executable, "-m", "nodeagent.daemon.reading")


class MachineReader:
    """At most one reading at a time; `done` is called after each."""

    def __init__(
        self,
        done: Callable[[], None],
        command: tuple[str, ...] = COMMAND,
        *,
        host: str | None = None,
    ) -> None:
        self._done = done
        self._command = command if host is None else (*command, "--host", host)
        self._child: subprocess.Popen[bytes] | None = None
        self._lingering: subprocess.Popen[bytes] | None = None
        self._data = bytearray()
        self._began_s = 0.0
        self._fresh: Snapshot | None = None
        self._failed: str | None = None

    @property
    def pid(self) -> int | None:
        """The child's pid while there is one."""
        child = self._child or self._lingering
        return child.pid if child is not None and child.poll() is None else None

    def start(self) -> bool:
        """Begins a reading; False while another is under way."""
        if self._child is not None:
            return False
        command = list(self._command)
        if self._lingering is not None and self._lingering.poll() is None:
            command += [
                "--no-devices",
                f"the device child of an earlier reading (pid {self._lingering.pid}) has not "
                "ended: a device or driver hangs",
            ]
        else:
            self._lingering = None
        loop = asyncio.get_running_loop()
        # A session of its own: a signal to our group must not cut a reading in a driver.
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        assert child.stdout is not None
        self._child, self._began_s = child, loop.time()
        self._data.clear()
        os.set_blocking(child.stdout.fileno(), False)
        loop.add_reader(child.stdout.fileno(), self._readable)
        return True

    def _readable(self) -> None:
        child = self._child
        assert child is not None and child.stdout is not None
        try:
            chunk = os.read(child.stdout.fileno(), 1 << 20)
        except BlockingIOError:
            return
        self._data += chunk
        if chunk and len(self._data) <= MAX_BYTES:
            return
        asyncio.get_running_loop().remove_reader(child.stdout.fileno())
        child.stdout.close()
        try:
            snapshot = pickle.loads(self._data)
            assert isinstance(snapshot, Snapshot)
            self._fresh, self._failed = snapshot, None
        except (EOFError, pickle.UnpicklingError, AttributeError, AssertionError) as error:
            self._failed = (
                f"the reading child ended after {len(self._data)} bytes without a snapshot "
                f"({type(error).__name__})"
            )
        self._data = bytearray()
        self._child = None
        if self._lingering is None or self._lingering.poll() is not None:
            self._lingering = child
        self._done()

    def take(self) -> Snapshot | None:
        """The snapshot that came since the last call, once."""
        fresh, self._fresh = self._fresh, None
        if self._lingering is not None and self._lingering.poll() is not None:
            self._lingering = None
        return fresh

    def trouble(self, now_s: float) -> str | None:
        """Why there is no new reading; None: all is well. `now_s` is the loop's time."""
        if self._child is not None and now_s - self._began_s > SLOW_S:
            return (
                f"a reading of the machine does not end (pid {self._child.pid}): a device or "
                "driver hangs; the last snapshot is used"
            )
        return self._failed

    def close(self) -> None:
        """Lets a running child be: it ends by itself when its pipe is closed."""
        if self._child is not None and self._child.stdout is not None:
            asyncio.get_running_loop().remove_reader(self._child.stdout.fileno())
            self._child.stdout.close()
            self._child = None
