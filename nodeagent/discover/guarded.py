"""Files that may hold their reader in the kernel for ever: read by a child, with a deadline.

Those are files of this machine that reach into a device (PCIe link and config space, a NIC's speed,
hwmon), and files on a file system with a server behind it (FUSE, NFS), wherever they are mounted.
The child that misses its deadline is left alone and none is started beside it: what it would have
read is refused with a sentence from then on, and everything else is read as ever.
"""

from __future__ import annotations

import errno
import os
import re
import time
from typing import TYPE_CHECKING

from nodeagent.discover.store import MAX_NAMES, DirStore
from nodeagent.errors import ReadError
from nodeagent.served import DEADLINE_S, behind, file_child, look, mounts, unpacked

if TYPE_CHECKING:
    from nodeagent.child import Child

BUDGET_S = 20.0
"""For all answers of one reading that took longer than SLOW_S, together."""
SLOW_S = 0.05

HARDWARE = re.compile(
    r"sys/(?:bus|class|devices)/.*/(?:"
    r"(?:current|max)_link_(?:speed|width)|config|vpd|resource\d_resize"
    r"|net/[^/]+/(?:speed|duplex|carrier)"
    r"|ports/\d+/(?:state|phys_state|rate)"
    r"|current_(?:compute|memory)_partition|hwmon/.+|gpu_busy_percent|mem_busy_percent|pp_\w+)"
    r"|sys/class/net/[^/]+/(?:speed|duplex|carrier)"
    r"|proc/driver/nvidia/.+"
)
"""Files whose reading asks the device. Source: Linux drivers/pci/pci-sysfs.c (config space),
net/core/net-sysfs.c speed_show() (the driver asks its firmware), drivers/gpu/drm/amd/pm; NVIDIA
open-gpu-kernel-modules nv-procfs.c (its files wait for the driver's own locks)."""


def touch(path: str) -> None:
    """Looks once at a path on a served file system, before anybody waits for it. Raises ReadError
    when its server gives no answer in DEADLINE_S."""
    try:
        look(path)
    except TimeoutError as late:
        raise ReadError(
            path,
            f"gave {late.strerror}",
            f"copy it to a local disk; findmnt -T {path} names the file system",
        ) from late


class GuardedStore(DirStore):
    """A DirStore of which some paths are read by the child."""

    def __init__(
        self, path: str, *, live: bool, refuse: str | None = None, deadline_s: float = DEADLINE_S
    ) -> None:
        """`refuse`: why the child is not to be asked at all (an earlier one hangs)."""
        self._deadline_s = deadline_s
        whole = os.path.abspath(path)
        here = whole.rstrip("/") + "/"
        tops = (here + "sys/", here + "proc/") if live else (here,)
        below = [m for m in mounts() if (m + "/").startswith(tops)]
        prefixes = [m[len(here) :] for m in below]
        if not live and behind(path):
            prefixes.append("")
        self._far = tuple(prefixes)
        self._hardware = HARDWARE.fullmatch if live else None
        self._whole = whole
        self._child: Child | None = None
        self._refuse = refuse
        self._stuck: tuple[str, float] | None = None
        self._spent_s = 0.0
        # With a served mount below, links are followed one by one: each step is looked at.
        super().__init__(path, inside=not live or bool(below))

    @property
    def pid(self) -> int | None:
        """The child's pid while it runs."""
        return None if self._child is None else self._child.pid

    def close(self) -> None:
        """Closes the directory and lets the child go."""
        super().close()
        if self._child is not None:
            self._child.close()

    def _is_far(self, path: str) -> bool:
        if self._hardware is not None and self._hardware(path):
            return True
        return any(not p or path == p or path.startswith(p + "/") for p in self._far)

    def _read(self, path: str, limit: int, head: bool, flags: int) -> bytes:
        if not self._is_far(path):
            return super()._read(path, limit, head, flags)
        found = self._ask("read", path, limit if head else limit + 1)
        if len(found) > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        return found

    def _list(self, path: str) -> list[str]:
        if not self._is_far(path):
            return super()._list(path)
        found = self._ask("names", path, MAX_NAMES)
        return [os.fsdecode(n) for n in found.split(b"\0")] if found else []

    def _mode(self, path: str) -> int:
        if not self._far or not self._is_far(path):
            return super()._mode(path)
        return int(self._ask("mode", path, 0))

    def _link_text(self, path: str) -> str:
        if not self._far or not self._is_far(path):
            return super()._link_text(path)
        return os.fsdecode(self._ask("link", path, 0))

    def _ask(self, op: str, path: str, limit: int) -> bytes:
        if self._refuse is not None:
            raise OSError(errno.ETIMEDOUT, f"not asked: {self._refuse}", path)
        if self._spent_s > BUDGET_S:
            raise OSError(
                errno.ETIMEDOUT, f"not asked: slow answers took {self._spent_s:.0f} s", path
            )
        if self._child is None:
            self._child = file_child(self._whole)
        child = self._child
        if self._stuck is not None and child.hung:
            # Its late answer may have come meanwhile.
            child.receive(0.0)
            if child.hung:
                at, since = self._stuck
                raise OSError(
                    errno.ETIMEDOUT,
                    f"not asked: the child process {child.pid} has been waiting for /{at} "
                    f"for {time.monotonic() - since:.0f} s",
                    path,
                )
        began = time.monotonic()
        answer = child.ask(f"{op} {limit} /{os.fsencode(path).hex()}", self._deadline_s)
        took = time.monotonic() - began
        if took > SLOW_S:
            self._spent_s += took
        if answer is None:
            if child.hung:
                self._stuck = path, began
                raise OSError(
                    errno.ETIMEDOUT,
                    f"no answer in {self._deadline_s:g} s: the device or server hangs; the child "
                    f"process {child.pid} that reads it is left waiting",
                    path,
                )
            raise OSError(errno.EIO, child.reason, path)
        return unpacked(answer, path)
