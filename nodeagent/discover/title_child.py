"""The process child: reads /proc/PID/cmdline, which waits for the process's mmap_lock.

A process stuck in a driver's mmap would hang whoever reads it; so a child reads, alone. Run as a
script without site-packages: it must stay small. Source: fs/proc/base.c get_mm_cmdline().
"""

import sys

LIMIT = 4096


def main() -> None:
    """Answers `N pid pid ...` with `pid hex-of-cmdline` lines and `= N`."""
    for line in sys.stdin:
        words = line.split()
        out = []
        for pid in words[1:]:
            try:
                with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
                    out.append(f"{pid} {file.read(LIMIT).hex()}\n")
            except OSError:
                # It ended: that is what processes do.
                continue
        sys.stdout.write("".join(out) + f"= {words[0]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
