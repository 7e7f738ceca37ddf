"""feed: what a market-data feed asks of the network stack."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import Judged, NotApplicable, Seen, check, info, ok, saw, some, warn

RMEM = "proc/sys/net/core/rmem_max"
RP_FILTER = "proc/sys/net/ipv4/conf/all/rp_filter"


@check(
    "feed.socket-buffer",
    "receive buffers can hold a burst",
    means="INFO when net.core.rmem_max is below `bytes`. It counts only where a policy grades it, "
    "since a machine without a feed needs nothing of it.",
    why="A burst of 10,000 datagrams of 1,000 bytes takes 10 MB; what does not fit is dropped by "
    "the kernel, and only /proc/net/snmp (RcvbufErrors) tells.",
    prove="sysctl net.core.rmem_max; grep ^Udp: /proc/net/snmp",
    mend="sysctl -w net.core.rmem_max=67108864, and a file in /etc/sysctl.d.",
    source="Linux Documentation/admin-guide/sysctl/net.rst, rmem_max",
    bounds={"bytes": 8 << 20},
)
def socket_buffer(s: Seen) -> Iterator[Judged]:
    """One sysctl."""
    size = s.number(RMEM, absent="this network namespace has no rmem_max")
    if size < s.bounds["bytes"]:
        yield info(
            "net.core.rmem_max",
            f"a socket may buffer {size >> 10} KiB; a feed wants "
            f"at least {int(s.bounds['bytes']) >> 20} MiB",
            saw(RMEM, str(size)),
            remedy="sysctl -w net.core.rmem_max=67108864",
        )
    else:
        yield ok("net.core.rmem_max", f"{size >> 20} MiB", saw(RMEM, str(size)))


@check(
    "feed.rp-filter",
    "reverse-path filter lets multicast in",
    means="INFO when rp_filter is strict (1) and the machine has more than one physical NIC.",
    why="Strict reverse-path filtering drops datagrams whose source is not routed back through the "
    "NIC they came in by: the usual case for a feed on a second NIC. Nothing counts it but "
    "IPReversePathFilter in /proc/net/netstat.",
    prove="sysctl -a | grep '\\.rp_filter'; grep -o 'IPReversePathFilter.*' /proc/net/netstat",
    mend="sysctl -w net.ipv4.conf.NIC.rp_filter=2 (and all.rp_filter no higher), or route the "
    "sources through that NIC.",
    source="Linux Documentation/networking/ip-sysctl.rst, rp_filter",
)
def rp_filter(s: Seen) -> Iterator[Judged]:
    """One sysctl, with several NICs."""
    mode = s.number(RP_FILTER, absent="this network namespace has no IPv4")
    physical = [n for n in s.snapshot.nics if n.bdf is not None]
    if mode == 1 and len(physical) > 1:
        yield info(
            "net.ipv4.conf.all.rp_filter",
            f"strict reverse-path filtering with {len(physical)} NICs: a feed on one without the "
            "route back is dropped",
            saw(RP_FILTER, "1"),
            remedy="sysctl -w net.ipv4.conf.all.rp_filter=2",
        )
    else:
        yield ok("net.ipv4.conf.all.rp_filter", str(mode), saw(RP_FILTER, str(mode)))


@check(
    "feed.nic-link",
    "physical NICs that are up have a link speed",
    means="WARN when an interface is up and its speed is below `mbps` on a machine with GPUs.",
    why="A cable or transceiver that negotiated 1 Gbit/s instead of 100 shows up nowhere else "
    "until the feed drops.",
    prove="ethtool NIC | grep -E 'Speed|Link'",
    mend="Look at cable, transceiver and the switch's port.",
    source="Linux Documentation/ABI/testing/sysfs-class-net, speed",
    bounds={"mbps": 1000},
)
def nic_link(s: Seen) -> Iterator[Judged]:
    """Speed of what is up."""
    up = [n for n in s.snapshot.nics if n.bdf and n.operstate == "up" and n.speed_mbps]
    if not up:
        s.whole("sys/class/net")
        raise NotApplicable("no physical NIC is up with a speed")
    slow = [n for n in up if (n.speed_mbps or 0) < s.bounds["mbps"]]
    if slow and s.gpus_compute:
        yield warn(
            some(n.name for n in slow),
            f"{some(f'{n.name} runs at {n.speed_mbps} Mbit/s' for n in slow)}",
            *(saw(f"sys/class/net/{n.name}/speed", str(n.speed_mbps)) for n in slow[:3]),
            remedy=f"ethtool {slow[0].name}; look at cable, transceiver and switch port",
        )
    else:
        yield ok("net", some(f"{n.name} {n.speed_mbps} Mbit/s" for n in up))
