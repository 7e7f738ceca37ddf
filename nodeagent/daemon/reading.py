"""The reading child: one snapshot of this machine (or of a recorded one), pickled to stdout.

`python -m nodeagent.daemon.reading [--host PATH] [--no-devices REASON]`; started by
daemon/machine.py, never by a person. When a child of its own hangs (NVML's, or the one that reads
files which ask a device) it stays until that one ends, so that none is started beside it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time

from nodeagent.discover.gpu import Gpus, GpuSource, NoGpus
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot


def main() -> None:
    """Reads, writes, and waits for a hanging NVML child."""
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    host, refuse = options.get("--host"), options.get("--no-devices")
    real = Gpus() if host is None and refuse is None else None
    gpus: GpuSource | None = real if refuse is None else NoGpus(refuse)
    root = Root.guarded(refuse=refuse) if host is None else Root.open(host)
    snapshot = read_snapshot(root, gpus, time.time_ns())
    children = [root.child]
    root.close()
    data = pickle.dumps(snapshot, protocol=pickle.HIGHEST_PROTOCOL)
    # A daemon that was killed meanwhile reads no more.
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(1, data) :]
    os.close(1)
    if real is not None:
        children.append(real.pid)
        real.close()
    for child in children:
        while child is not None and _runs(child):
            time.sleep(1.0)


def _runs(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


if __name__ == "__main__":
    main()
