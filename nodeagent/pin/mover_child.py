"""The memory mover: walks the pages of one process, in bounded steps, for the actor or a person.

A process of its own, because each look takes the other process's mmap_lock: one that is stuck in a
driver's mmap would hang whoever looks. Run as a script. Questions: `speed FROM TO`, `begin PID`,
`walk TO NODES BYTES` (TO `-`: look only).
"""

from __future__ import annotations

import sys


def main() -> None:
    """Answers until the input ends: `KEY=NUMBER ...` or `error ERRNO`, then `= N`."""
    from nodeagent.native._core import ffi, lib
    from nodeagent.native.pages import Walk, speed

    walk: Walk | None = None
    for line in sys.stdin:
        number, what, *words = line.split()
        try:
            said: dict[str, int] = {}
            if what == "begin":
                walk = None
                walk = Walk(ffi, lib, int(words[0]))
                said["ranges"] = len(walk.ranges)
            elif what == "walk" and walk is not None:
                target = -1 if words[0] == "-" else int(words[0])
                nodes = frozenset(int(n) for n in words[1].split(",") if n)
                said = walk.go(target, nodes, int(words[2]))
            elif what == "speed":
                said["moved"], said["ns"] = speed(ffi, lib, int(words[0]), int(words[1]))
            answer = " ".join(f"{key}={value}" for key, value in said.items())
        except OSError as error:
            answer = f"error {error.errno}"
        sys.stdout.write(f"{answer}\n= {number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
