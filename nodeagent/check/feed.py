"""feed: what a market-data feed asks of the network stack."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.irq import irqs_of, lands
from nodeagent.check.own import FEEDER, ours
from nodeagent.check.record import (
    READ_BY_HAND,
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    info,
    ok,
    saw,
    some,
    warn,
)
from nodeagent.model.snapshot import NicFacts

RMEM = "proc/sys/net/core/rmem_max"
RP_FILTER = "proc/sys/net/ipv4/conf/all/rp_filter"
NET = "sys/class/net"
MEMBERSHIPS = "proc/sys/net/ipv4/igmp_max_memberships"


def fed(s: Seen) -> None:
    """Raises NotApplicable unless this machine takes in a feed: a feeder runs, the policy speaks
    of the check, or a person pasted the settings."""
    feeder = any(path.startswith(f"run/self/{FEEDER}/") for path in s.snapshot.texts)
    if not (feeder or s.asked or s.snapshot.pasted is not None):
        raise NotApplicable("no feeder runs here; a policy that names this check asks all the same")


def states(s: Seen) -> None:
    """Raises Missing when it is not told whether each physical NIC is up."""
    s.whole(NET, "sys/devices/pci", leaf="operstate")
    blank = next((n.name for n in s.snapshot.nics if n.bdf and n.operstate == ""), None)
    if blank is not None:
        raise Missing(f"{NET}/{blank}/operstate", "the file is empty", READ_BY_HAND)


def physical(s: Seen) -> list[NicFacts]:
    """Network interfaces of PCI functions that are up. Raises NotApplicable when there are none."""
    states(s)
    up = [n for n in s.snapshot.nics if n.bdf and n.operstate == "up"]
    if not up:
        raise NotApplicable("no physical NIC is up")
    return up


@check(
    "feed.socket-buffer",
    "receive buffers can hold a burst",
    means="INFO when net.core.rmem_max is below `bytes` and this machine takes in a feed (a feeder "
    "runs, or the policy speaks of this check); NA elsewhere.",
    why="A burst of 10,000 datagrams of 1,000 bytes takes 10 MB; what does not fit is dropped by "
    "the kernel, and only /proc/net/snmp (RcvbufErrors) tells.",
    prove="sysctl net.core.rmem_max; grep ^Udp: /proc/net/snmp",
    mend="sysctl -w net.core.rmem_max=67108864, and a file in /etc/sysctl.d.",
    source="Linux Documentation/admin-guide/sysctl/net.rst, rmem_max",
    bounds={"bytes": 8 << 20},
)
def socket_buffer(s: Seen) -> Iterator[Judged]:
    """One sysctl."""
    fed(s)
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
    means="INFO when rp_filter is strict (1) and a machine that takes in a feed has more than one "
    "physical NIC; NA without a feed.",
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
    fed(s)
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
    states(s)
    s.whole(NET, "sys/devices/pci", leaf="speed")
    if not up:
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


@check(
    "feed.rx-queues",
    "the NIC has as many receive queues as the feed needs",
    means="INFO when a physical NIC that is up has fewer than `queues` receive queues and this "
    "machine takes in a feed; NA elsewhere.",
    why="With one queue the feed shares it with all other traffic, and no flow rule can give it a "
    "queue, an interrupt and a CPU of its own.",
    prove="ethtool -l NIC; ls -d /sys/class/net/NIC/queues/rx-*",
    mend="ethtool -L NIC combined N; in a virtual machine more queues of the virtual NIC.",
    source="Linux Documentation/networking/scaling.rst; ethtool(8), --set-channels",
    bounds={"queues": 2},
)
def queues(s: Seen) -> Iterator[Judged]:
    """rx-* folders of each NIC."""
    fed(s)
    up = physical(s)
    need = int(s.bounds["queues"])
    few = [n for n in up if n.rx_queues < need]
    if few:
        yield info(
            some(n.name for n in few),
            f"{some(f'{n.name} has {n.rx_queues} receive queue(s)' for n in few)}; a feed wants "
            f"{need} or more",
            saw(f"{NET}/{few[0].name}/queues", f"{few[0].rx_queues} rx"),
            remedy=f"ethtool -L {few[0].name} combined {need}  # the link goes down for a second",
        )
    else:
        yield ok("net", some(f"{n.name} {n.rx_queues} queues" for n in up))


@check(
    "feed.irq-on-feeder",
    "interrupts stay off the feeder's CPU",
    means="WARN when a feeder of nodeagent is pinned to at most `cpus` CPUs and a device's "
    "interrupt that fired goes to one of them only. NA when no feeder runs or it is not pinned.",
    why="The feeder polls: each interrupt on its CPU delays the packets behind it by 2 to 20 us.",
    prove="taskset -apc $(pgrep -f nodeagent-feeder); grep . /proc/irq/*/effective_affinity_list",
    mend="Move the interrupt to another CPU of the same node: echo CPU > "
    "/proc/irq/N/smp_affinity_list.",
    source="Linux Documentation/networking/scaling.rst, 'RSS IRQ configuration'",
    bounds={"cpus": 2},
)
def irq_on_feeder(s: Seen) -> Iterator[Judged]:
    """Interrupts against the masks of feeders."""
    online = s.snapshot.topology.online
    pinned = [
        p
        for p in ours(s)
        # One that may run on every CPU of a small machine is not pinned.
        if p.name == FEEDER
        and 0 < len(p.cpus) <= s.bounds["cpus"]
        and (online - p.cpus or not online)
    ]
    if not pinned:
        raise NotApplicable("no feeder that is pinned runs here")
    irqs = irqs_of(s)
    s.whole("proc/irq", leaf="effective_affinity")
    bad = False
    for p in pinned:
        there = [i for i in irqs if lands(i) and lands(i) <= p.cpus]
        fired = [i for i in there if any(n for c, n in i.counts if c in p.cpus)]
        if not fired:
            continue
        bad = True
        rest = online - p.cpus
        numbers = [str(i.number) for i in fired]
        one = "$i" if len(fired) > 1 else numbers[0]
        move = f"echo {rest or 'CPU'} > /proc/irq/{one}/smp_affinity_list"
        if len(fired) > 1:
            move = f"for i in {' '.join(numbers)}; do {move}; done"
        yield warn(
            f"irq {some(i.number for i in fired)}",
            f"{len(fired)} interrupts ({some((i.name for i in fired), 3)}) go to CPU {p.cpus}, "
            f"where the feeder {p.pid} polls",
            saw(f"proc/irq/{fired[0].number}/effective_affinity_list", str(lands(fired[0]))),
            saw(p.path, p.text),
            remedy=move,
        )
    if not bad:
        yield ok("irq", f"no interrupt goes to the CPUs of {len(pinned)} feeders")


@check(
    "feed.ptp",
    "the feed's NIC has a hardware clock",
    means="INFO when this machine takes in a feed and a physical NIC that is up has no PTP "
    "hardware clock; NA without a feed.",
    why="Without it a packet's time stamp is taken by software after interrupt and scheduling: "
    "data age and one-way latency are then off by microseconds to milliseconds.",
    prove="ethtool -T NIC; cat /sys/class/ptp/ptp*/clock_name",
    mend="Take the feed in by a NIC with hardware time stamps; run ptp4l and phc2sys on it.",
    source="Linux Documentation/driver-api/ptp.rst; Documentation/networking/timestamping.rst",
)
def ptp(s: Seen) -> Iterator[Judged]:
    """ptp* folders of each NIC's device."""
    fed(s)
    up = physical(s)
    bare = [n for n in up if n.ptp_clock is None]
    if s.snapshot.pasted is not None and bare:
        raise NotApplicable("the input does not tell of PTP clocks")
    if bare:
        yield info(
            some(n.name for n in bare),
            f"{some(n.name for n in bare)} has no PTP hardware clock: time stamps are software's",
            saw(f"{NET}/{bare[0].name}/device/ptp", "not there"),
            remedy=f"ethtool -T {bare[0].name}  # what it can stamp",
        )
    else:
        yield ok("net", f"{len(up)} NICs have PTP hardware clocks")


@check(
    "feed.nic-drops",
    "NICs lose no packets before the kernel sees them",
    means="WARN when a physical NIC dropped or damaged more than `ppm` of a million packets since "
    "boot, and at least `packets`: missed or FIFO errors (no free buffer in time), CRC errors "
    "(cable, transceiver). NA without counters.",
    why="These losses are before every socket: no application counter shows them, a feed has a "
    "gap and RDMA retransmits.",
    prove="grep . /sys/class/net/*/statistics/rx_{packets,missed_errors,fifo_errors,crc_errors}",
    mend="Missed: a larger ring (ethtool -G NIC rx MAX), IRQs on idle CPUs of its node. CRC: look "
    "at cable and transceiver (ethtool -m NIC).",
    source="Linux Documentation/networking/statistics.rst, rx_missed_errors",
    bounds={"ppm": 10, "packets": 1000},
)
def nic_drops(s: Seen) -> Iterator[Judged]:
    """Three error counters against the packets."""
    if s.snapshot.pasted is not None and not s.matching(f"{NET}/", "/rx_packets"):
        raise NotApplicable("the input tells of no counters")
    up = physical(s)
    s.whole(NET, leaf="rx_")
    judged, bad = 0, False
    for n in up:
        at = f"{NET}/{n.name}/statistics"
        rows: dict[str, int] = {}
        for leaf in ("rx_packets", "rx_missed_errors", "rx_fifo_errors", "rx_crc_errors"):
            text = s.snapshot.texts.get(f"{at}/{leaf}")
            if text is not None and not text.isdigit():
                raise Missing(f"{at}/{leaf}", f"saw {text[:40]!r}, expected a number", READ_BY_HAND)
            if text is not None:
                rows[leaf] = int(text)
        if "rx_packets" not in rows:
            continue
        judged += 1
        packets = rows.pop("rx_packets")
        for leaf, count in rows.items():
            if count < s.bounds["packets"] or count * 1e6 <= packets * s.bounds["ppm"]:
                continue
            bad = True
            crc = leaf == "rx_crc_errors"
            yield warn(
                n.name,
                f"{n.name} {'damaged' if crc else 'dropped'} {count} of {packets + count} packets "
                f"since boot ({leaf})",
                saw(f"{at}/{leaf}", str(count)),
                saw(f"{at}/rx_packets", str(packets)),
                remedy=f"ethtool -m {n.name}  # then exchange cable or transceiver"
                if crc
                else f"ethtool -g {n.name}; ethtool -G {n.name} rx MAX  # the link goes down for a "
                "second",
            )
            break
    if not judged:
        raise NotApplicable("no NIC's counters are told")
    if not bad:
        yield ok("net", f"{judged} physical NICs lost no packets worth speaking of")


@check(
    "feed.memberships",
    "a socket may join all the feed's groups",
    means="INFO when this machine takes in a feed and net.ipv4.igmp_max_memberships is below "
    "`groups`; NA without a feed.",
    why="A market-data feed has dozens of multicast groups: the 21st join of a socket fails with "
    "ENOBUFS, and its channel stays silent.",
    prove="sysctl net.ipv4.igmp_max_memberships; cat /proc/net/igmp",
    mend="sysctl -w net.ipv4.igmp_max_memberships=200, and a file in /etc/sysctl.d.",
    source="Linux Documentation/networking/ip-sysctl.rst, igmp_max_memberships",
    bounds={"groups": 64},
)
def memberships(s: Seen) -> Iterator[Judged]:
    """One sysctl."""
    fed(s)
    limit = s.number(MEMBERSHIPS, absent="this network namespace has no IPv4 multicast")
    if limit < s.bounds["groups"]:
        yield info(
            "net.ipv4.igmp_max_memberships",
            f"a socket may join {limit} multicast groups",
            saw(MEMBERSHIPS, str(limit)),
            remedy="sysctl -w net.ipv4.igmp_max_memberships=200",
        )
    else:
        yield ok("net.ipv4.igmp_max_memberships", str(limit), saw(MEMBERSHIPS, str(limit)))
