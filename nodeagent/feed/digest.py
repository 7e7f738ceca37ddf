"""The digest by which sources are compared: what a capture leaves behind, whoever received it.

Ticks without `ts_rx_ns`; frames as stored without their receive stamps; nothing of the ring's own
words. Two back-ends that were fed the same packets must give the same text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nodeagent.native.ring import Frame

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def digest(ticks: npt.NDArray[np.void], frames: Iterable[Frame] = ()) -> str:
    """SHA-256, hexadecimal. `ticks`: dtype nodeagent.native.ring.TICK, in order."""
    plain = ticks.copy()
    plain["ts_rx_ns"] = 0
    total = hashlib.sha256(plain.tobytes())
    for f in frames:
        head = (f.position, f.number, f.flags, f.vlan, f.family, f.src, f.dst, f.src_port)
        total.update(repr((*head, f.dst_port, f.payload)).encode())
    return total.hexdigest()
