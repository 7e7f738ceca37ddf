"""Network interfaces: which function they are on, their queues, speed and RDMA device.

Source: Documentation/ABI/testing/sysfs-class-net, sysfs-class-net-queues; /proc/net/route.
"""

from __future__ import annotations

import re

from nodeagent.discover import xdp
from nodeagent.discover.pci import normal_bdf
from nodeagent.discover.root import Root
from nodeagent.model.snapshot import NicFacts

NET = "sys/class/net"
MAX_INTERFACES = 512
"""A node full of containers has thousands of veth ends; hardware comes first."""
MAX_QUEUES = 128
"""Queues of one interface whose masks are read."""
_QUEUE = re.compile(r"[rt]x-\d{1,5}")
_PTP = re.compile(r"ptp(\d{1,4})")
_SETTINGS = (
    *("carrier", "carrier_changes", "tx_queue_len", "threaded", "gro_flush_timeout"),
    *("napi_defer_hard_irqs",),
)
_COUNTERS = (
    *("rx_packets", "rx_errors", "rx_dropped", "rx_missed_errors", "rx_fifo_errors"),
    *("rx_over_errors", "rx_crc_errors", "rx_nohandler", "tx_errors", "tx_dropped"),
)


def read_nics(root: Root) -> tuple[NicFacts, ...]:
    """Interfaces on PCI functions first, then virtual ones, each by name."""
    default = _default_routes(root)
    features = xdp.parse(_xdp(root))
    placed = []
    for name in root.names(NET):
        at = root.resolve(f"{NET}/{name}")
        if at is not None and at != f"{NET}/{name}":
            placed.append((bdf_in(at) or "", name, at))
    placed.sort(key=lambda p: (not p[0], p[1]))
    if len(placed) > MAX_INTERFACES:
        root.fail(NET, f"{len(placed)} interfaces, the first {MAX_INTERFACES} were read")
    return tuple(
        _facts(root, name, at, bdf or None, name in default, features.get(name))
        for bdf, name, at in placed[:MAX_INTERFACES]
    )


def read_texts(root: Root, nics: tuple[NicFacts, ...]) -> dict[str, str]:
    """Path -> text of settings and counters of interfaces on PCI functions, below sys/class/net:
    which CPUs each queue is steered to (RPS, XPS), and what was lost where."""
    found: dict[str, str] = {}
    for nic in nics:
        if nic.bdf is None:
            continue
        # Through the link once: a node has a thousand queues.
        at = root.resolve(f"{NET}/{nic.name}")
        if at is None:
            continue
        there = frozenset(root.names(at))
        paths = [name for name in _SETTINGS if name in there]
        counted = frozenset(root.names(f"{at}/statistics")) if "statistics" in there else ()
        paths += [f"statistics/{name}" for name in _COUNTERS if name in counted]
        queues = sorted(root.names(f"{at}/queues", _QUEUE), key=lambda q: (q[:2], int(q[3:])))
        for side, files in (("rx", ("rps_cpus", "rps_flow_cnt")), ("tx", ("xps_cpus",))):
            mine = [q for q in queues if q.startswith(side)][:MAX_QUEUES]
            # All queues of a side have the same files.
            has = frozenset(root.names(f"{at}/queues/{mine[0]}")) if mine else ()
            paths += [f"queues/{q}/{file}" for q in mine for file in files if file in has]
        for path in paths:
            # EINVAL, ENOENT: a NIC with one queue has nothing to steer.
            text = root.text(f"{at}/{path}", 4096, quiet=True)
            if text is not None:
                found[f"{NET}/{nic.name}/{path}"] = text
    return found


def _xdp(root: Root) -> str | None:
    if not root.is_live:
        return root.text(xdp.KEY)
    text = xdp.read_live()
    if text is not None:
        root.note(xdp.KEY, text)
    return text


def bdf_in(path: str) -> str | None:
    """The PCI function that a device path lies below; None for a virtual device."""
    found = [bdf for part in path.split("/") if (bdf := normal_bdf(part))]
    return found[-1] if found else None


def _facts(
    root: Root,
    name: str,
    at: str,
    bdf: str | None,
    default: bool,
    features: tuple[str, ...] | None,
) -> NicFacts:
    queues = root.names(f"{at}/queues", _QUEUE)
    speed = root.number(f"{at}/speed", quiet=True)
    rdma = driver = clock = None
    if bdf is not None:
        function = at[: at.rindex(f"/{bdf}") + len(bdf) + 1] if f"/{bdf}" in at else at
        devices = root.names(f"{function}/infiniband")
        rdma = devices[0] if devices else None
        # The interface's own device first: under virtio that is not the PCI function.
        driver = root.target(f"{at}/device/driver") or root.target(f"{function}/driver")
        clocks = root.names(f"{function}/ptp", _PTP)
        clock = int(clocks[0][3:]) if clocks else None
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
        driver=driver,
        ptp_clock=clock,
        xdp=features,
    )


def _default_routes(root: Root) -> frozenset[str]:
    """Interfaces that a default route (destination and mask 0) leaves by."""
    found = set()
    for line in root.lines("proc/net/route")[1:]:
        words = line.split()
        if len(words) >= 8 and words[1] == words[7] == "00000000":
            found.add(words[0])
    return frozenset(found)
