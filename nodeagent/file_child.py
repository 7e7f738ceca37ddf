"""The file child: single file operations that may never come back, below the folder given.

A device that is dying, or a file system whose server is gone, holds whoever reads it in the kernel;
so a child reads, alone. Run as a script without site-packages: it must start fast and stay small.
Question: `N OP LIMIT HEX-OF-PATH`; answer: `: HEX`, or `! ERRNO SENTENCE`, then `= N`.
"""

import errno
import os
import stat
import sys

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def main() -> None:
    """Answers until the input ends."""
    base = None
    for line in sys.stdin:
        number, op, limit, name = line.split()
        path = bytes.fromhex(name.lstrip("/")) or b"."
        try:
            if base is None:
                # Not before a question: opening the folder itself may be what hangs.
                base = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
            answer = ": " + OPS[op](base, path, int(limit)).hex()
        except OSError as error:
            answer = f"! {error.errno or 0} {error.strerror or error}"
        sys.stdout.write(f"{answer}\n= {number}\n")
        sys.stdout.flush()


def read(base: int, path: bytes, limit: int) -> bytes:
    """At most `limit` bytes of a regular file."""
    fd = os.open(path, FLAGS, dir_fd=base)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        parts = []
        while limit > 0 and (part := os.read(fd, min(limit, 1 << 20))):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def names(base: int, path: bytes, limit: int) -> bytes:
    """At most `limit` entries of a directory."""
    fd = os.open(path, FLAGS | os.O_DIRECTORY, dir_fd=base)
    try:
        return b"\0".join(os.fsencode(n) for n in os.listdir(fd)[:limit])
    finally:
        os.close(fd)


def mode(base: int, path: bytes, limit: int) -> bytes:
    """Its st_mode, in decimal, without following a link."""
    return str(os.lstat(path, dir_fd=base).st_mode).encode()


def link(base: int, path: bytes, limit: int) -> bytes:
    """Text of a symbolic link."""
    return os.readlink(path, dir_fd=base)


OPS = {"read": read, "names": names, "mode": mode, "link": link}

if __name__ == "__main__":
    main()
