"""A process that is called like an engine, with threads that are: started as a script.

    python stand_in.py TITLE THREAD...

It writes the title over its command line as setproctitle does, names its main thread so too, and
each thread as told ("" keeps its creator's name, as an OpenMP pool does). On its input: `thread
NAME` makes one more, `name TID NAME` renames one, `bind TID CPU` binds one, `end TID` ends one.
"""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

PR_SET_NAME = 15
libc = ctypes.CDLL(None, use_errno=True)
over: dict[int, threading.Event] = {}
"""Set, it ends that thread."""


def name_thread(name: str) -> None:
    """Of the calling thread; the kernel keeps 15 bytes."""
    assert libc.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0) == 0


def set_title(title: str) -> None:
    """Over the arguments in memory (fields 48 and 49 of /proc/self/stat)."""
    words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(words[45]), int(words[46])
    data = title.encode()[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, data, len(data))
    name_thread(title)


def wait(name: str, born: list[int], ready: threading.Event) -> None:
    """A thread's life."""
    if name:
        name_thread(name)
    tid = threading.get_native_id()
    born.append(tid)
    over[tid] = threading.Event()
    ready.set()
    over[tid].wait()


def make(name: str) -> int:
    """One thread more; its number."""
    born: list[int] = []
    ready = threading.Event()
    threading.Thread(target=wait, args=(name, born, ready), daemon=True).start()
    ready.wait()
    return born[0]


def main() -> None:
    """Answers each line with one."""
    title, names = sys.argv[1], sys.argv[2:]
    set_title(title)
    print(" ".join(str(make(name)) for name in names), flush=True)
    for line in sys.stdin:
        verb, _, rest = line.strip().partition(" ")
        if verb == "thread":
            print(make(rest), flush=True)
        elif verb == "name":
            tid, _, name = rest.partition(" ")
            Path(f"/proc/self/task/{tid}/comm").write_text(name)
            print("ok", flush=True)
        elif verb == "bind":
            tid, _, cpu = rest.partition(" ")
            os.sched_setaffinity(int(tid), {int(cpu)})
            print("ok", flush=True)
        elif verb == "end":
            over[int(rest)].set()
            while Path(f"/proc/self/task/{rest}").exists():
                time.sleep(0.001)
            print("ok", flush=True)


if __name__ == "__main__":
    main()
