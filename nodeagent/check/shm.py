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
    fail,
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


USED = "derived/dev_shm_used_bytes"
SIZE = "derived/dev_shm_bytes"


@check(
    "shm.used",
    "/dev/shm has room left",
    means="WARN when more than `percent` % of the tmpfs on /dev/shm is in use, FAIL above "
    "`full_percent` %. NA where nobody looked (a recorded tree, pasted text).",
    why="ftruncate() succeeds on a full tmpfs; the next touch of a new page kills the process with "
    "SIGBUS. What killed processes left there (nccl-*, psm_*, torch_*) is never freed by itself.",
    prove="df -h /dev/shm; ls -lS /dev/shm | head; fuser -v /dev/shm/*",
    mend="Remove what no process maps (fuser shows who does); enlarge it: mount -o "
    "remount,size=64g /dev/shm, --shm-size for a container.",
    source="Linux Documentation/filesystems/tmpfs.rst; statvfs(3)",
    bounds={"percent": 80, "full_percent": 95},
)
def used(s: Seen) -> Iterator[Judged]:
    """statvfs of the live machine, as the capture keeps it."""
    texts = s.snapshot.texts
    s.whole(USED, SIZE)
    held, size = texts.get(USED, ""), texts.get(SIZE, "")
    if not held.isdigit() or not size.isdigit() or not int(size):
        raise NotApplicable("nobody looked how full /dev/shm is")
    part = 100 * int(held) / int(size)
    left = (int(size) - int(held)) >> 20
    evidence = saw("df /dev/shm", f"{int(held) >> 20} MiB of {int(size) >> 20} MiB")
    if part <= s.bounds["percent"]:
        yield ok("/dev/shm", f"{part:.0f} % in use, {left} MiB left", evidence)
        return
    say = fail if part > s.bounds["full_percent"] else warn
    yield say(
        "/dev/shm",
        f"{part:.0f} % of /dev/shm is in use, {left} MiB are left: the next segment ends in SIGBUS",
        evidence,
        remedy="ls -lS /dev/shm | head; fuser -v /dev/shm/*  # remove only what nobody maps; or "
        f"mount -o remount,size={max(1, 2 * int(size) >> 30)}g /dev/shm",
    )
