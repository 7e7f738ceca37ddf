"""The reading child: one snapshot of this machine, pickled to stdout.

`python -m nodeagent.daemon.reading [--no-gpus REASON]`; started by daemon/machine.py, never by a
person. When its NVML child hangs it stays until that one ends, so that none is started beside it.
"""

from __future__ import annotations

import os
import pickle
import sys
import time

from nodeagent.discover.gpu import Gpus, GpuSource, NoGpus
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot


def main() -> None:
    """Reads, writes, and waits for a hanging NVML child."""
    real = Gpus() if len(sys.argv) < 3 else None
    gpus: GpuSource = real if real is not None else NoGpus(sys.argv[2])
    root = Root.live()
    snapshot = read_snapshot(root, gpus, time.time_ns())
    root.close()
    data = pickle.dumps(snapshot, protocol=pickle.HIGHEST_PROTOCOL)
    while data:
        data = data[os.write(1, data) :]
    os.close(1)
    if real is not None:
        child = real.pid
        real.close()
        while child is not None and _runs(child):
            time.sleep(1.0)


def _runs(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


if __name__ == "__main__":
    main()
