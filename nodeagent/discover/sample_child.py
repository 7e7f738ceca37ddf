"""The sample child: where a few thousand pages of a process are, for the daemon's turn.

A process of its own, because each look takes the other process's mmap_lock. Run as a script; it
ends at once where this build has no native code. Source: move_pages(2).
"""

from __future__ import annotations

import sys

PAGES = 4096
"""Of one process (docs/adr/0005)."""


def main() -> None:
    """Answers `N pid pid ...` with `pid ASKED node:pages ...` lines and `= N`."""
    from nodeagent.native._core import ffi, lib
    from nodeagent.native.pages import sample

    for line in sys.stdin:
        words = line.split()
        out = []
        for pid in words[1:]:
            try:
                asked, found = sample(ffi, lib, int(pid), PAGES)
            except OSError:
                # It ended, or it is not ours to look into.
                continue
            pairs = " ".join(f"{node}:{found[node]}" for node in sorted(found))
            out.append(f"{pid} {asked} {pairs}\n")
        sys.stdout.write("".join(out) + f"= {words[0]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
