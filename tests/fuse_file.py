"""A file system of one file whose readers wait in the kernel until a gate exists.

`python fuse_file.py PLACE GATE`: mounts itself over the file PLACE (root only), prints a line, and
serves until it is killed; then the kernel frees who waits. Talks the protocol of /dev/fuse itself.
Source: Linux include/uapi/linux/fuse.h, Documentation/filesystems/fuse.rst.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pathlib
import select
import stat
import struct
import sys

TEXT = b"7\n"
GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, INTERRUPT = 3, 14, 15, 18, 25, 26, 36
ATTR = struct.pack(
    "<QII QQQ QQQ III IIII III",
    *(1, 0, 0),
    *(1, len(TEXT), 1, 0, 0, 0, 0, 0, 0),
    *(stat.S_IFREG | 0o644, 1, 0, 0, 0, 4096, 0),
)


def main() -> None:
    place, gate = sys.argv[1], pathlib.Path(sys.argv[2])
    fd = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=100644,user_id=0,group_id=0"
    if libc.mount(b"gate", place.encode(), b"fuse.gate", 0, options.encode()):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    waiting: list[tuple[int, int, int]] = []
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while True:
        if waiting and gate.exists():
            for unique, offset, size in waiting:
                reply(fd, unique, TEXT[offset : offset + size])
            waiting.clear()
        if not poll.poll(0 if waiting and gate.exists() else 20):
            continue
        try:
            asked = os.read(fd, 1 << 20)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            continue
        _, op, unique = struct.unpack_from("<IIQ", asked)
        if op == INIT:
            body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 4, 4, 1 << 16, 1, 0, 0, 0)
            reply(fd, unique, body)
        elif op == GETATTR:
            reply(fd, unique, ATTR)
        elif op == OPEN:
            # FOPEN_DIRECT_IO: every read comes here.
            reply(fd, unique, struct.pack("<QII", 1, 1, 0))
        elif op == READ:
            waiting.append((unique, *struct.unpack_from("<QI", asked, 48)))
        elif op in (RELEASE, FLUSH):
            reply(fd, unique, b"")
        elif op != INTERRUPT:
            reply(fd, unique, b"", -errno.ENOSYS)


def reply(fd: int, unique: int, body: bytes, number: int = 0) -> None:
    # Who asked may be gone (ENOENT).
    with contextlib.suppress(OSError):
        os.write(fd, struct.pack("<IiQ", 16 + len(body), number, unique) + body)


if __name__ == "__main__":
    main()
