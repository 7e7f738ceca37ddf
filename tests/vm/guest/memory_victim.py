"""A process with memory of every kind, its threads at work on it: what tests move.

Reads lines: `check` answers whether every page holds what was written, `end` ends it. The first
line it prints is JSON: region -> [address, bytes], and what could not be had.
"""

import ctypes
import json
import mmap
import os
import pathlib
import struct
import subprocess
import sys
import threading

PAGE = 4096
MIB = 1 << 20
MAP_HUGETLB = 0x40000
IO_URING_SETUP, IO_URING_REGISTER = 425, 427
libc = ctypes.CDLL(None, use_errno=True)


def address(m: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(m))


def written(m: mmap.mmap, bytes_: int, mark: int) -> None:
    for at in range(0, bytes_, PAGE):
        struct.pack_into("<QQ", m, at, at ^ mark, 0)


def whole(m: mmap.mmap, bytes_: int, mark: int) -> bool:
    return all(struct.unpack_from("<Q", m, at)[0] == at ^ mark for at in range(0, bytes_, PAGE))


def at_work(m: mmap.mmap, first: int, end: int, ended: threading.Event, turns: list[int]) -> None:
    while not ended.is_set():
        for at in range(first, end, PAGE):
            struct.pack_into("<Q", m, at + 8, turns[0])
        turns[0] += 1


def pin(m: mmap.mmap, bytes_: int) -> str:
    """As a driver pins for DMA: FOLL_LONGTERM, by io_uring's registered buffers."""
    ring = libc.syscall(IO_URING_SETUP, 4, ctypes.create_string_buffer(120))
    if ring < 0:
        return f"io_uring_setup: {os.strerror(ctypes.get_errno())}"
    vector = struct.pack("<QQ", address(m), bytes_)
    if libc.syscall(IO_URING_REGISTER, ring, 0, vector, 1) < 0:
        return f"io_uring_register: {os.strerror(ctypes.get_errno())}"
    return ""


def main() -> None:
    anon_bytes = int(sys.argv[1]) * MIB
    kinds = sys.argv[2].split(",") if len(sys.argv) > 2 else []
    regions: dict[str, tuple[mmap.mmap, int]] = {}
    missing: dict[str, str] = {}

    def region(name: str, bytes_: int, flags: int = 0) -> mmap.mmap | None:
        try:
            m = mmap.mmap(-1, bytes_, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
        except OSError as error:
            missing[name] = str(error)
            return None
        if not flags & MAP_HUGETLB:
            m.madvise(mmap.MADV_NOHUGEPAGE)
        regions[name] = m, bytes_
        written(m, bytes_, len(regions))
        return m

    region("anon", anon_bytes)
    m = region("locked", 8 * MIB) if "locked" in kinds else None
    if m is not None and libc.mlock(ctypes.c_void_p(address(m)), ctypes.c_size_t(8 * MIB)):
        missing["locked"] = os.strerror(ctypes.get_errno())
    if "huge" in kinds:
        region("huge", 8 * MIB, MAP_HUGETLB)
    if "thp" in kinds:
        m = mmap.mmap(-1, 16 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        m.madvise(mmap.MADV_HUGEPAGE)
        regions["thp"] = m, 16 * MIB
        written(m, 16 * MIB, len(regions))
    if "pinned" in kinds and (m := region("pinned", 4 * MIB)) is not None:
        reason = pin(m, 4 * MIB)
        if reason:
            missing["pinned"] = reason
    other = None
    if "shared" in kinds:
        with pathlib.Path("/dev/shm/victim").open("w+b") as file:
            file.truncate(8 * MIB)
            m = mmap.mmap(file.fileno(), 8 * MIB)
        regions["shared"] = m, 8 * MIB
        written(m, 8 * MIB, len(regions))
        script = (
            "import mmap,sys\nf=open('/dev/shm/victim','r+b')\nm=mmap.mmap(f.fileno(),0)\n"
            "s=sum(m[i] for i in range(0,len(m),4096))\nprint('ok',flush=True)\nsys.stdin.read()"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert other.stdout is not None and other.stdout.readline() == b"ok\n"
    ended, turns = threading.Event(), [1]
    half = anon_bytes // 2
    anon = regions["anon"][0]
    for first, end in ((0, half), (half, anon_bytes)):
        threading.Thread(target=at_work, args=(anon, first, end, ended, turns), daemon=True).start()
    told = {
        "regions": {name: [address(m), bytes_] for name, (m, bytes_) in regions.items()},
        "missing": missing,
    }
    print(json.dumps(told), flush=True)
    for line in sys.stdin:
        if line.strip() == "check":
            good = {
                name: whole(m, bytes_, i)
                for i, (name, (m, bytes_)) in enumerate(regions.items(), 1)
            }
            print(json.dumps({"whole": good, "turns": turns[0]}), flush=True)
        if line.strip() == "end":
            break
    ended.set()
    if other is not None:
        assert other.stdin is not None
        other.stdin.close()
        other.wait()
    pathlib.Path("/dev/shm/victim").unlink(missing_ok=True)
    os._exit(0)


main()
