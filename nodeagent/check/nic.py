"""feed: where packets were lost, and how the NIC and its clock are set, from pasted texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nodeagent.check.declared import RELEASE, given
from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    share,
    some,
    unknown,
    warn,
)
from nodeagent.model.netreport import (
    ClockState,
    Counters,
    Groups,
    NicAmounts,
    NicDriver,
    NicSettings,
    XdpProgram,
)

ZERO_COPY = frozenset(
    (
        "i40e", "ice", "ixgbe", "igc", "igb", "mlx5_core", "stmmac", "nfp", "gve", "virtio_net",
        "idpf", "tsnep", "bnxt_en",
    )
)  # fmt: skip
"""Drivers in the kernel whose AF_XDP sockets have zero-copy (the newest kernels' list)."""
INTEL = frozenset(["ixgbe", "i40e", "ice", "igb", "igc", "ixgbevf", "iavf"])
HARD = (
    r"(?:rx_|port\.)?(?:rx_)?(?:missed(?:_errors)?|no_dma_resources|out_of_buffer"
    r"|discards(?:_phy)?|"
    r"no_buffer_count|fifo_errors|over_errors|steer_missed_packets|dropped\.nic|nombuf|"
    r"prio\d_(?:buf_)?discards?(?:_packets)?|buffer_overrun\w*|mac_missed)|imissed|rx_missed|"
    r"port\.rx_dropped|port\.rx_discards|rx_nodesc_drop_cnt|rx_total_discards|rx_brb_discard|"
    r"rx_no_buffer|rx_dropped_pkts_no_buf|rx_mbuf_allocation_errors|rx_nombuf|rx_missed_packets"
)
_NIC = re.compile(HARD)
_DRIVER = re.compile(r"rx_dropped|rx_alloc_failed|alloc_rx_\w*failed|rx_buff_alloc_err"
                     r"|rx_cache_full|"
                     r"rx_queue_\d+_drops|rx\d+_drops|dropped_no_skbs|rx_alloc_fail")  # fmt: skip
_WIRE = re.compile(r"rx_crc_errors(?:_phy|\.nic)?|rx_symbol_err_phy|rx_length_errors"
                   r"|rx_align_errors|"
                   r"rx_frame_errors|rx_pcs_symbol_err_phy|port\.rx_crc_errors"
                   r"|rx_jabbers_phy")  # fmt: skip
RING_LOSS = ("lost", "dropped", "missed", "gaps", "gap", "overruns")
_TOTAL = ("rx_packets_phy", "port.rx_packets", "rx_packets", "rx_good_packets", "rx_total_packets")
XSK = (
    (("fill ring empty", "rx_fill_ring_empty_descs"),
     "for want of buffers: the fill ring was empty",
     "put frames back into the fill ring sooner, and make it and the UMEM larger (fill ring >= "
     "2 x the NIC's RX ring); poll from a CPU that does nothing else"),
    (("rx queue full", "rx_ring_full"), "at the RX ring: the program did not read it in time",
     "a larger RX ring of the socket, a busier or pinned reader, more queues (ethtool -L)"),
    (("rx dropped", "rx_dropped", "rx invalid", "rx_invalid_descs"),
     "in the socket: no buffer or a frame larger than a chunk",
     "chunk size >= MTU + headroom; fill ring full at start; bind with XDP_USE_NEED_WAKEUP"),
)  # fmt: skip
RING_UP = "ethtool -G NIC rx 4096; ethtool -L NIC combined N  # move the consumer to the NIC's node"


def _rise(
    rows: tuple[Counters, ...], of: tuple[str, ...]
) -> list[tuple[Counters, Mapping[str, int]]]:
    """Counters of these kinds; of two readings the rise, of one what it says."""
    found: list[tuple[Counters, Mapping[str, int]]] = []
    mine = [r for r in rows if r.of in of]
    for row in mine:
        if row.later is False and any(r.later and r.of == row.of for r in mine):
            continue
        first = next(
            (r for r in mine if row.later and r.later is False and r.of == row.of
             and r.name == row.name), None,
        )  # fmt: skip
        old = first.values if first else {}
        found.append((row, {k: max(0, v - old.get(k, 0)) for k, v in row.values.items()}))
    return found


@check(
    "feed.loss",
    "no packet was lost on the way in",
    means="Names the stage. FAIL when the NIC, the kernel's queues or a socket lost `percent` % of "
    "the packets or more (or when the total is not known and more than `packets` were lost), WARN "
    "for any loss. Of two readings the rise counts.",
    why="Gaps in a feed with a clean ring mean that the loss was earlier: in the NIC for want of "
    "descriptors, in softnet for want of time, in the socket for want of buffer.",
    prove="ethtool -S NIC | grep -E 'miss|drop|discard|out_of'; cat /proc/net/softnet_stat; "
    "nstat -az 'Udp*'; ss -ump",
    mend="NIC: ethtool -G NIC rx 4096, more queues, consumer on the NIC's node. softnet: sysctl -w "
    "net.core.netdev_max_backlog=250000 net.core.netdev_budget=600. Socket: "
    "net.core.rmem_max=67108864 and a larger SO_RCVBUF.",
    source="Linux Documentation/networking/statistics.rst; net/core/dev.c; udp(7)",
    bounds={"percent": 0.1, "packets": 1000},
)
def loss(s: Seen) -> Iterator[Judged]:
    """Each stage's counters."""
    rows = given(s).of(Counters)
    if not rows:
        raise NotApplicable("no packet counters were pasted")
    bad = False
    for row, values in _rise(rows, ("nic", "link")):
        total = next((values[k] for k in _TOTAL if values.get(k)), 0)
        who = row.name or "NIC"
        stages = (
            (_NIC, "in the NIC: it had no free descriptor or buffer", RING_UP),
            (_WIRE, "on the wire: damaged frames", "clean or change cable and transceiver; ethtool "
             "-m NIC"),
            (_DRIVER, "in the driver or the kernel above it", "ethtool -S NIC; dropwatch -l kas; "
             "perf record -e skb:kfree_skb -a sleep 10"),
        )  # fmt: skip
        for pattern, where, remedy in stages:
            lost = {k: v for k, v in values.items() if v and pattern.fullmatch(k)}
            if not lost:
                continue
            bad = True
            yield _lost(s, who, where, max(lost.values()), total, lost, row.source, remedy)
    for row, values in _rise(rows, ("udp",)):
        lost = {k: values[k] for k in ("UdpRcvbufErrors", "Udp6RcvbufErrors") if values.get(k)}
        if not lost and values.get("UdpInErrors"):
            lost = {"UdpInErrors": values["UdpInErrors"]}
        if values.get("IpExtInNoRoutes") or values.get("TcpExtIPReversePathFilter"):
            lost["IPReversePathFilter"] = values.get("TcpExtIPReversePathFilter", 0)
        lost = {k: v for k, v in lost.items() if v}
        if lost:
            bad = True
            total = values.get("UdpInDatagrams", 0)
            where = "in the sockets: their receive buffers were full"
            if "IPReversePathFilter" in lost:
                where = "in routing: the reverse-path filter dropped them"
            yield _lost(s, "UDP", where, max(lost.values()), total, lost, row.source,
                        "sysctl -w net.core.rmem_max=67108864, a larger SO_RCVBUF, and a reader "
                        "that keeps up")  # fmt: skip
    for row, values in _rise(rows, ("softnet",)):
        if values.get("dropped"):
            bad = True
            yield _lost(s, "softnet", "in the per-CPU backlog", values["dropped"],
                        values.get("processed", 0), {"dropped": values["dropped"]}, row.source,
                        "sysctl -w net.core.netdev_max_backlog=250000")  # fmt: skip
        elif share(values.get("time_squeeze", 0), values.get("processed", 0)) > s.bounds["percent"]:
            bad = True
            yield warn(
                "softnet",
                f"softirqs ran out of budget {values['time_squeeze']} times (time_squeeze)",
                saw(row.source, f"time_squeeze {values['time_squeeze']}"),
                remedy="sysctl -w net.core.netdev_budget=600 net.core.netdev_budget_usecs=8000",
            )
    for row, values in _rise(rows, ("xsk",)):
        for keys, where, remedy in XSK:
            lost = {k: values[k] for k in keys if values.get(k)}
            if lost:
                bad = True
                yield _lost(s, "AF_XDP socket", where, max(lost.values()), 0, lost, row.source,
                            remedy)  # fmt: skip
    for row, values in _rise(rows, ("socket", "capture")):
        key = next((k for k in ("drops", "dropped_by_kernel", "dropped_by_interface")
                    if values.get(k)), None)  # fmt: skip
        if key:
            bad = True
            what = "in the capture's buffer" if row.of == "capture" else "in a socket's buffer"
            remedy = (
                "tcpdump -B 65536, or write less; a capture that drops proves nothing"
                if row.of == "capture"
                else "sysctl -w net.core.rmem_max=67108864 and a larger SO_RCVBUF"
            )
            total = values.get("received_by_filter", 0)
            yield _lost(s, row.name or "socket", what, values[key], total, {key: values[key]},
                        row.source, remedy)  # fmt: skip
    for row, values in _rise(rows, ("ring",)):
        lost = {k: v for k, v in values.items() if v and k in RING_LOSS}
        if lost:
            bad = True
            total = max((v for k, v in values.items() if k not in lost), default=0)
            yield _lost(s, row.name or "ring", "in the ring: the reader was lapped",
                        max(lost.values()), total, lost, row.source,
                        "taskset -pc CPU PID  # pin the reader; a larger ring")  # fmt: skip
    if not bad:
        yield ok("packets", f"{len(rows)} sets of counters show no loss")


def _lost(
    s: Seen,
    who: str,
    where: str,
    count: int,
    total: int,
    lost: Mapping[str, int],
    source: str,
    remedy: str,
) -> Judged:
    part = share(count, count + total)
    heavy = part >= s.bounds["percent"] if total else count > s.bounds["packets"]
    of = f" ({part:.2g} % of {count + total})" if total else ""
    return (fail if heavy else warn)(
        who,
        f"{who}: {count} packets were lost {where}{of}",
        saw(source, some(f"{k}: {v}" for k, v in lost.items())),
        remedy=remedy.replace("NIC ", f"{who} ")
        if who != "NIC" and "ethtool" in remedy
        else remedy,
    )


@check(
    "feed.nic-driver",
    "the NIC's driver can do AF_XDP zero-copy",
    means="WARN when the driver has no zero-copy, or is one of Intel's out-of-tree drivers (their "
    "version is not the kernel's), whose zero-copy is not to be relied on.",
    why="A socket that asks for zero-copy then fails with EOPNOTSUPP or falls back to copy mode, "
    "at "
    "half the rate, and only XDP_OPTIONS tells.",
    prove="ethtool -i NIC; modinfo DRIVER | grep -E 'filename|intree'",
    mend="Boot with the kernel's own driver (remove the DKMS package), or use copy mode and say "
    "so.",
    source="Linux Documentation/networking/af_xdp.rst, XDP_ZEROCOPY; driver sources (xsk_pool)",
)
def nic_driver(s: Seen) -> Iterator[Judged]:
    """Driver and version."""
    rows = given(s).of(NicDriver)
    if not rows:
        raise NotApplicable("no output of ethtool -i was pasted")
    kernel = s.snapshot.texts.get(RELEASE, "").strip()
    for row in rows:
        version = row.version or ""
        own = re.fullmatch(r"\d+\.\d+(\.\d+)*(?:_\w+)?", version) is not None
        evidence = saw(row.source, f"driver: {row.driver}, version: {version or 'not said'}")
        who = row.nic or row.driver
        if row.driver in INTEL and own and version != kernel:
            yield warn(
                who,
                f"driver {row.driver} {version} is not the kernel's own (out of tree): zero-copy "
                f"is "
                "not to be relied on",
                evidence,
                remedy=f"modinfo {row.driver} | grep filename; remove the DKMS package, or use "
                f"copy "
                "mode and report it",
            )
        elif row.driver not in ZERO_COPY:
            yield warn(
                who,
                f"driver {row.driver} has no AF_XDP zero-copy: sockets run in copy mode",
                evidence,
                remedy="ethtool -i NIC  # ice, i40e, mlx5_core can; recvmmsg or AF_PACKET on it",
            )
        else:
            yield ok(who, f"driver {row.driver} can do zero-copy", evidence)


@check(
    "feed.queues",
    "the NIC has queues and descriptors",
    means="WARN when one queue of several possible is used, or when a receive ring has fewer than "
    "`descriptors` and could have more.",
    why="With one queue one CPU takes all interrupts; a short ring overflows in the microseconds "
    "in "
    "which that CPU is busy. A queue id beyond the current count cannot be bound (EINVAL).",
    prove="ethtool -l NIC; ethtool -g NIC",
    mend="ethtool -L NIC combined N; ethtool -G NIC rx MAX.",
    source="ethtool(8), --set-channels, --set-ring",
    bounds={"descriptors": 1024},
)
def queues(s: Seen) -> Iterator[Judged]:
    """Current against maximum."""
    rows = given(s).of(NicAmounts)
    if not rows:
        raise NotApplicable("no output of ethtool -l or -g was pasted")
    for row in rows:
        who = row.nic or "NIC"
        if row.what == "channels":
            now = max(row.current.get("Combined", 0), row.current.get("RX", 0))
            most = max(row.maximum.get("Combined", 0), row.maximum.get("RX", 0))
            evidence = saw(row.source, f"{now} of {most} queues")
            if now == 1 and most > 1:
                yield warn(
                    who, f"{who} uses one queue of {most}", evidence,
                    remedy=f"ethtool -L {who} combined {min(most, 8)}  # the link goes down for a "
                    "second",
                )  # fmt: skip
            else:
                yield ok(
                    who, f"{now} of {most} queues: queue ids 0-{max(0, now - 1)} only", evidence
                )
            continue
        now, most = row.current.get("RX", 0), row.maximum.get("RX", 0)
        evidence = saw(row.source, f"RX {now} of {most}")
        if now and now < s.bounds["descriptors"] and most >= 2 * now:
            yield warn(
                who, f"{who} has {now} receive descriptors of {most} possible", evidence,
                remedy=f"ethtool -G {who} rx {min(most, 4096)}  # the link goes down for a second",
            )  # fmt: skip
        else:
            yield ok(who, f"{now} receive descriptors of {most}", evidence)


@check(
    "feed.nic-settings",
    "the NIC's settings suit a feed",
    means="FAIL when the link is down; WARN for half duplex, large receive offload, and interrupt "
    "moderation of `usecs` us or more (adaptive moderation is told).",
    why="LRO glues datagrams and rules out XDP; moderation holds each packet back for its time.",
    prove="ethtool NIC; ethtool -k NIC; ethtool -c NIC; ethtool -a NIC",
    mend="ethtool -K NIC lro off; ethtool -C NIC adaptive-rx off rx-usecs 0.",
    source="ethtool(8); Linux Documentation/networking/scaling.rst",
    bounds={"usecs": 25},
)
def nic_settings(s: Seen) -> Iterator[Judged]:
    """Features, coalescing, link."""
    rows = [r for r in given(s).of(NicSettings) if r.what != "timestamps"]
    if not rows:
        raise NotApplicable("no settings of a NIC were pasted")
    for row in rows:
        who = row.nic or "NIC"
        v = row.values
        bad = False
        if row.what == "link" and v.get("Link detected", "").startswith("no"):
            bad = True
            yield fail(
                who, f"{who} has no link", saw(row.source, f"Link detected: {v['Link detected']}"),
                remedy=f"look at cable, transceiver and switch port; ip link set {who} up",
            )  # fmt: skip
        if row.what == "link" and v.get("Duplex") == "Half":
            bad = True
            yield warn(who, f"{who} runs half duplex", saw(row.source, "Duplex: Half"),
                       remedy=f"ethtool -s {who} autoneg on, and the switch's port "
                              f"too")  # fmt: skip
        if v.get("large-receive-offload", "").startswith("on"):
            bad = True
            yield warn(
                who, f"large receive offload is on at {who}: it glues datagrams and rules out XDP",
                saw(row.source, "large-receive-offload: on"), remedy=f"ethtool -K {who} lro off",
            )  # fmt: skip
        usecs = v.get("rx-usecs", "")
        if usecs.isdigit() and int(usecs) >= s.bounds["usecs"]:
            bad = True
            yield warn(
                who, f"{who} holds interrupts back for {usecs} us",
                saw(row.source, f"rx-usecs: {usecs}"),
                remedy=f"ethtool -C {who} adaptive-rx off rx-usecs 0",
            )  # fmt: skip
        if v.get("Adaptive RX", "").startswith("on"):
            yield info(who, f"interrupt moderation of {who} adapts to the rate",
                       saw(row.source, f"Adaptive RX: {v['Adaptive RX']}"),
                       remedy=f"ethtool -C {who} adaptive-rx off rx-usecs 0")  # fmt: skip
        if not bad:
            yield ok(who, f"{row.what} suit a feed")


@check(
    "feed.timestamps",
    "the NIC stamps packets in hardware",
    means="WARN when the NIC has no PTP clock or no hardware receive stamps; INFO when it stamps "
    "PTP packets only.",
    why="Software stamps are taken after the interrupt: tens of microseconds late, and unevenly.",
    prove="ethtool -T NIC",
    mend="Use a NIC with hardware-receive and a PTP Hardware Clock; ptp4l -S is the fallback.",
    source="Linux Documentation/networking/timestamping.rst",
)
def timestamps(s: Seen) -> Iterator[Judged]:
    """Capabilities of `ethtool -T`."""
    rows = [r for r in given(s).of(NicSettings) if r.what == "timestamps"]
    if not rows:
        raise NotApplicable("no output of ethtool -T was pasted")
    for row in rows:
        who = row.nic or "NIC"
        clock = row.values.get(
            "PTP Hardware Clock", row.values.get("Hardware timestamp provider index", "")
        )
        words = row.lists.get("capabilities", ())
        evidence = saw(row.source, f"PTP Hardware Clock: {clock or 'not said'}")
        if clock == "none" or not any(w.startswith("hardware-receive") for w in words):
            yield warn(
                who, f"{who} has no hardware time stamps (PTP Hardware Clock: {clock or 'none'})",
                evidence, remedy="take the feed on a NIC with a PTP clock; ptp4l -S stamps in "
                                 "software",
            )  # fmt: skip
        elif "all" not in words:
            yield info(who, f"{who} stamps PTP packets only, not every packet", evidence)
            yield ok(who, f"PTP clock {clock}", evidence)
        else:
            yield ok(who, f"PTP clock {clock}, every packet can be stamped", evidence)


@check(
    "feed.xdp-mode",
    "XDP programs run in the driver",
    means="WARN when a program is attached in generic (skb) mode.",
    why="Generic XDP runs after the packet became an skb: AF_XDP sockets copy, and the gain is "
    "gone.",
    prove="ip link show NIC; bpftool net; xdp-loader status",
    mend="xdp-loader load -m native NIC PROG; a driver with native XDP, MTU 1500, LRO off.",
    source="Linux Documentation/networking/af_xdp.rst; ip-link(8), xdpgeneric",
)
def xdp_mode(s: Seen) -> Iterator[Judged]:
    """Mode of each program."""
    rows = given(s).of(XdpProgram)
    if not rows:
        raise NotApplicable("no XDP program was pasted")
    for row in rows:
        evidence = saw(row.source, f"{row.nic}: {row.mode} {row.program or ''}".strip())
        if row.mode == "generic":
            yield warn(
                row.nic, f"the XDP program on {row.nic} runs in generic mode: every packet is "
                         f"copied",
                evidence, remedy=f"xdp-loader load -m native {row.nic} PROG; ethtool -i {row.nic}",
            )  # fmt: skip
        else:
            yield ok(row.nic, f"{row.mode} mode", evidence)


@check(
    "feed.clock",
    "the clock is synchronised",
    means="FAIL when the clock is not synchronised; WARN when ptp4l or phc2sys are off by more "
    "than "
    "`ptp_ns`, or NTP by more than `ntp_ns`.",
    why="Latencies across machines and the exchange's time stamps mean nothing with a clock that "
    "is "
    "off by more than what is measured.",
    prove="chronyc tracking; journalctl -u ptp4l -n 20; journalctl -u phc2sys -n 20",
    mend="chronyc sources -v; for PTP look at the port's state (pmc -u -b 0 'GET PORT_DATA_SET').",
    source="chronyc(1), tracking; ptp4l(8), phc2sys(8)",
    bounds={"ptp_ns": 1000, "ntp_ns": 1_000_000},
)
def clock(s: Seen) -> Iterator[Judged]:
    """Each tool's last word."""
    rows = given(s).of(ClockState)
    if not rows:
        raise NotApplicable("no state of a clock was pasted")
    for row in rows:
        ptp = row.tool in ("ptp4l", "phc2sys")
        limit = s.bounds["ptp_ns"] if ptp else s.bounds["ntp_ns"]
        off = max(abs(row.offset_ns or 0), row.rms_ns or 0)
        evidence = saw(row.source, row.detail)
        if row.synchronised is False:
            yield fail(
                row.tool, f"{row.tool} says that the clock is not synchronised", evidence,
                remedy="chronyc sources -v" if not ptp else "journalctl -u ptp4l; ethtool -T NIC",
            )  # fmt: skip
        elif row.offset_ns is None and row.rms_ns is None:
            yield unknown(
                row.tool,
                f"{row.tool} tells no offset that can be read",
                evidence,
                remedy="paste its whole output again"
                + (f": journalctl -u {row.tool}" if ptp else ": chronyc tracking"),
            )
        elif off > limit:
            yield warn(
                row.tool, f"{row.tool}: the clock is off by {off:.0f} ns", evidence,
                remedy="hardware time stamps (ethtool -T NIC), a boundary clock on the way, fewer "
                "C-states" if ptp else "chronyc makestep; chronyc sources -v",
            )  # fmt: skip
        else:
            yield ok(row.tool, f"off by {off:.0f} ns", evidence)


@check(
    "feed.groups",
    "multicast groups are joined",
    means="WARN when a list of memberships holds none but the kernel's own (224.0.0.1, ff02::).",
    why="Without a membership the switch (IGMP snooping) sends nothing: no error, only silence.",
    prove="ip maddr show dev NIC; cat /proc/net/igmp",
    mend="Join with the interface named (IP_ADD_MEMBERSHIP with imr_ifindex), and keep the socket.",
    source="ip(7), IP_ADD_MEMBERSHIP; RFC 4541",
)
def groups(s: Seen) -> Iterator[Judged]:
    """Groups beyond those that the kernel joins."""
    rows = given(s).of(Groups)
    if not rows:
        raise NotApplicable("no multicast memberships were pasted")
    own = ("224.0.0.1", "224.0.0.251", "224.0.0.252", "ff0")
    joined = [(r.nic, g) for r in rows for g in r.groups if not g.startswith(own)]
    if joined:
        yield ok("multicast", some(f"{n}: {g}" for n, g in joined))
    else:
        yield warn(
            "multicast",
            f"no group is joined on {some(r.nic for r in rows)} but the kernel's own",
            *(saw(r.source, f"{r.nic}: {some(r.groups)}") for r in rows[:3]),
            remedy="join on the feed's interface by name and keep the socket open; ip maddr show",
        )
