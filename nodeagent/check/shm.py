"""shm: is /dev/shm large enough for what will be put there?"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.memory import size_of
from nodeagent.check.record import (
    READ_BY_HAND,
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    ok,
    saw,
    warn,
)

MOUNTS = "proc/mounts"


@check(
    "shm.size",
    "/dev/shm is large enough",
    means="WARN when the tmpfs on /dev/shm has a size limit below `bytes`.",
    why="The container default is 64 MiB. vLLM's broadcast ring alone asks for 240 MiB; "
    "ftruncate() "
    "succeeds, and the first touch beyond the limit kills the process with SIGBUS.",
    prove="df -h /dev/shm; grep /dev/shm /proc/mounts",
    mend="--shm-size=16g or --ipc=host for a container, an emptyDir with medium: Memory in "
    "Kubernetes; mount -o remount,size=16g /dev/shm on a host.",
    source="Linux Documentation/filesystems/tmpfs.rst; Docker run reference, --shm-size",
    bounds={"bytes": 1 << 30},
)
def size(s: Seen) -> Iterator[Judged]:
    """The mount's size= option."""
    mounts = s.word(MOUNTS, absent="nothing is mounted")
    line = next((m for m in mounts.splitlines() if m.split()[1:3] == ["/dev/shm", "tmpfs"]), None)
    if line is None:
        raise NotApplicable("no tmpfs is mounted on /dev/shm")
    options = (line.split() + [""] * 4)[3].split(",")
    text = next((o.removeprefix("size=") for o in options if o.startswith("size=")), None)
    if text is None:
        yield ok("/dev/shm", "no limit is set: half of the memory", saw(MOUNTS, line))
        return
    limit = size_of(text)
    if limit is None:
        raise Missing(MOUNTS, f"saw size={text}, expected a size such as 64m", READ_BY_HAND)
    if limit < s.bounds["bytes"]:
        yield warn(
            "/dev/shm",
            f"/dev/shm is limited to {limit >> 20} MiB: inference servers and NCCL need more and "
            "die with SIGBUS",
            saw(MOUNTS, line),
            remedy="--shm-size=16g for the container, or mount -o remount,size=16g /dev/shm",
        )
    else:
        yield ok("/dev/shm", f"limit {limit >> 20} MiB", saw(MOUNTS, line))
