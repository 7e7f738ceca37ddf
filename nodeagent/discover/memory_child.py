"""The memory child: sums /proc/PID/numa_maps, which waits for the process's mmap_lock.

Run as a script without site-packages, as title_child.py is. Source:
Documentation/filesystems/proc.rst (numa_maps), fs/proc/task_mmu.c show_numa_map().
"""

import sys

LIMIT = 64 << 20


def main() -> None:
    """Answers `N pid pid ...` with `pid node:bytes ...` lines and `= N`."""
    for line in sys.stdin:
        words = line.split()
        out = []
        for pid in words[1:]:
            try:
                with open(f"/proc/{pid}/numa_maps", "rb") as file:
                    out.append(f"{pid} {_sum(file.read(LIMIT))}\n")
            except OSError:
                # It ended, or it is not ours to look into.
                continue
        sys.stdout.write("".join(out) + f"= {words[0]}\n")
        sys.stdout.flush()


def _sum(data: bytes) -> str:
    found: dict[int, int] = {}
    for line in data.splitlines():
        words = line.split()
        page = next((int(w[18:]) for w in words if w.startswith(b"kernelpagesize_kB=")), 4) << 10
        for word in words[2:]:
            if word[:1] == b"N" and b"=" in word:
                node, _, pages = word[1:].partition(b"=")
                if node.isdigit() and pages.isdigit():
                    found[int(node)] = found.get(int(node), 0) + int(pages) * page
    return " ".join(f"{node}:{found[node]}" for node in sorted(found))


if __name__ == "__main__":
    main()
