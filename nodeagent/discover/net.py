"""Network interfaces: which function they are on, their queues, speed and RDMA device.

Source: Documentation/ABI/testing/sysfs-class-net, sysfs-class-net-queues; /proc/net/route.
"""

from __future__ import annotations

import re

from nodeagent.discover.pci import normal_bdf
from nodeagent.discover.root import Root
from nodeagent.model.snapshot import NicFacts

NET = "sys/class/net"
MAX_INTERFACES = 512
"""A node full of containers has thousands of veth ends; hardware comes first."""
_QUEUE = re.compile(r"[rt]x-\d{1,5}")


def read_nics(root: Root) -> tuple[NicFacts, ...]:
    """Interfaces on PCI functions first, then virtual ones, each by name."""
    default = _default_routes(root)
    placed = []
    for name in root.names(NET):
        at = root.resolve(f"{NET}/{name}")
        if at is not None and at != f"{NET}/{name}":
            placed.append((bdf_in(at) or "", name, at))
    placed.sort(key=lambda p: (not p[0], p[1]))
    if len(placed) > MAX_INTERFACES:
        root.fail(NET, f"{len(placed)} interfaces, the first {MAX_INTERFACES} were read")
    return tuple(
        _facts(root, name, at, bdf or None, name in default)
        for bdf, name, at in placed[:MAX_INTERFACES]
    )


def bdf_in(path: str) -> str | None:
    """The PCI function that a device path lies below; None for a virtual device."""
    found = [bdf for part in path.split("/") if (bdf := normal_bdf(part))]
    return found[-1] if found else None


def _facts(root: Root, name: str, at: str, bdf: str | None, default: bool) -> NicFacts:
    queues = root.names(f"{at}/queues", _QUEUE)
    speed = root.number(f"{at}/speed", quiet=True)
    rdma = None
    if bdf is not None:
        function = at[: at.rindex(f"/{bdf}") + len(bdf) + 1] if f"/{bdf}" in at else at
        devices = root.names(f"{function}/infiniband")
        rdma = devices[0] if devices else None
    return NicFacts(
        name=name,
        bdf=bdf,
        operstate=root.text(f"{at}/operstate", 64),
        # -1 and 4294967295: the driver does not know (link down, virtual).
        speed_mbps=speed if speed is not None and 0 < speed < 0xFFFFFFFF else None,
        rx_queues=sum(q.startswith("rx") for q in queues),
        tx_queues=sum(q.startswith("tx") for q in queues),
        mtu=root.number(f"{at}/mtu"),
        default_route=default,
        rdma=rdma,
    )


def _default_routes(root: Root) -> frozenset[str]:
    """Interfaces that a default route (destination and mask 0) leaves by."""
    found = set()
    for line in root.lines("proc/net/route")[1:]:
        words = line.split()
        if len(words) >= 8 and words[1] == words[7] == "00000000":
            found.add(words[0])
    return frozenset(found)
