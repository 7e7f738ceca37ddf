"""Counters of packets: `ethtool -S`, `ip -s link`, /proc/net, `nstat`, `netstat -su`, `ss -m`,
tcpdump's last lines, a ring's own figures.

Source: ethtool(8); Linux Documentation/networking/statistics.rst, net/core/net-procfs.c
softnet_seq_show(), net/ipv4/proc.c; ss(8), skmem.
"""

from __future__ import annotations

import json
import re

from nodeagent.discover.paste.names import stem_of
from nodeagent.discover.paste.net_tools import nic_of
from nodeagent.discover.paste.part import Part
from nodeagent.model.netreport import Counters

_STAT = re.compile(r"^[ \t]*((?:rx|tx|port|veb|vport|queue|ch|imissed|ierrors|rss)[\w.\-\[\]]*"
                   r"|\w*missed\w*|"
                   r"\w*(?:drop|discard)\w*):\s*(\d{1,20})[ \t]*$", re.M)  # fmt: skip
_XSTAT = re.compile(r"(?<![\w-])RX-(missed|errors|nombuf|packets):[ \t]*(\d+)")
_ETH_STATS = re.compile(r"(?<![\w-])(imissed|ierrors|rx_nombuf|ipackets):[ \t]*(\d{1,20})\b")
_ETH_TABLE = re.compile(
    r"^[ \t]*((?:[a-z_]+[ \t]+){1,8}imissed(?:[ \t]+[a-z_]+){0,8})[ \t]*\n[ \t]*(\d[\d \t]*)$", re.M
)
"""struct rte_eth_stats, several fields a line, or names above their numbers."""
_LINK = re.compile(r"^[ \t]*\d+: ([\w.@-]+): <", re.M)
_RX = re.compile(r"^[ \t]*RX:\s+(bytes.*)\n\s*([\d ]+)$", re.M)
_DEV = re.compile(r"^[ \t]*([\w.@-]+):((?:\s+\d+){16})[ \t]*$", re.M)
_NSTAT = re.compile(
    r"^[ \t]*#?\s*((?:Udp6?|UdpLite|Ip|IpExt|TcpExt"
    r"|Tcp)[A-Z]\w+)\s+(\d+)(?:\s+\d+(?:\.\d+)?)?[ \t]*$",
    re.M,
)
_SNMP = re.compile(r"^[ \t]*(Udp|UdpLite|Ip|TcpExt|IpExt): ([A-Z][\w ]+)\n\s*\1: ([-\d ]+)$", re.M)
_SU = {
    "packets received": "UdpInDatagrams",
    "packet receive errors": "UdpInErrors",
    "receive buffer errors": "UdpRcvbufErrors",
    "packets to unknown port received": "UdpNoPorts",
    "send buffer errors": "UdpSndbufErrors",
}
_SOFTNET = re.compile(r"^[0-9a-f]{8}(?: [0-9a-f]{8}){8,15}[ \t]*$", re.M)
_SKMEM = re.compile(r"skmem:\(r(\d+),rb(\d+),[^)]*?\bd(\d+)\)")
_UDP = re.compile(
    r"^[ \t]*\d+: [0-9A-F]{8,32}:([0-9A-F]{4}) [0-9A-F]{8,32}:[0-9A-F]{4} [0-9A-F]{2} "
    r".*\s(\d+)[ \t]*$",
    re.M,
)
_TCPDUMP = re.compile(r"^[ \t]*(\d+) packets? (captured|received by filter|dropped by "
                      r"(?:kernel|interface))",
                      re.M)  # fmt: skip
_XSK = re.compile(
    r"^[ \t]*(rx dropped|rx invalid|tx invalid|rx queue full|fill ring empty|tx ring empty"
    r"|rx_dropped|rx_invalid_descs|tx_invalid_descs|rx_ring_full|rx_fill_ring_empty_descs"
    r"|tx_ring_empty_descs)(?:[ \t]*[:=][ \t]*|[ \t]+[\d,.]+[ \t]+)([\d,]+)[ \t]*$",
    re.M,
)
"""struct xdp_statistics, as xdpsock prints it (rate, count) or a program by its field's names."""
_RING_KEYS = ("inserted", "published", "read", "received", "messages", "packets", "lost", "dropped",
              "gaps", "gap", "missed", "overruns")  # fmt: skip


def read_counters(text: str, name: str) -> Part | None:
    """All of these in a text; None when it has none."""
    moment = stem_of(name.partition(": ")[0])[1]
    later = None if moment is None else moment.later
    rows: list[tuple[str, str | None, dict[str, int]]] = []
    stats = {k: int(v) for k, v in _STAT.findall(text)}
    stats |= {f"rx_{k}": int(v) for k, v in _XSTAT.findall(text)}
    dpdk = {k: int(v) for k, v in _ETH_STATS.findall(text)}
    for names, numbers in _ETH_TABLE.findall(text):
        dpdk |= {k: int(v) for k, v in zip(names.split(), numbers.split(), strict=False)}
    if "ipackets" in dpdk:
        dpdk["rx_packets"] = dpdk.pop("ipackets")
    stats |= {k: v for k, v in dpdk.items() if k not in stats}
    if stats and ("NIC statistics" in text or any(k[:2] in ("rx", "po", "im") for k in stats)):
        rows.append(("nic", nic_of(name), stats))
    rows += _links(text)
    for nic, cells in _DEV.findall(text):
        v = [int(c) for c in cells.split()]
        values = {"rx_packets": v[1], "rx_errors": v[2], "rx_dropped": v[3], "rx_fifo_errors": v[4]}
        if nic != "lo":
            rows.append(("link", nic, values))
    protocol = {k: int(v) for k, v in _NSTAT.findall(text)}
    for kind, names, values_text in _SNMP.findall(text):
        numbers = [int(n) for n in values_text.split() if n.lstrip("-").isdigit()]
        protocol |= {f"{kind}{n}": v for n, v in zip(names.split(), numbers, strict=False)}
    protocol |= _netstat(text)
    if protocol:
        rows.append(("udp", None, protocol))
    softnet = [line.split() for line in _SOFTNET.findall(text)]
    if softnet:
        sums = {
            k: sum(int(r[i], 16) for r in softnet)
            for i, k in enumerate(("processed", "dropped", "time_squeeze"))
        }
        rows.append(("softnet", None, sums))
    sockets = [(int(d), int(rb)) for _, rb, d in _SKMEM.findall(text)]
    if sockets:
        worst = max(sockets)
        rows.append(("socket", None, {"drops": sum(d for d, _ in sockets), "rcvbuf": worst[1]}))
    if "drops" in text and (udp := _UDP.findall(text)):
        lost = {f"port {int(p, 16)}": int(d) for p, d in udp}
        rows.append(("socket", None, {"drops": sum(lost.values())}))
    capture = {what.replace(" ", "_"): int(n) for n, what in _TCPDUMP.findall(text)}
    if capture:
        rows.append(("capture", "tcpdump", capture))
    sockets_xdp = {k: int(v.replace(",", "")) for k, v in _XSK.findall(text)}
    if sockets_xdp.keys() - {"rx_dropped"}:
        rows.append(("xsk", None, sockets_xdp))
    rows += _ring(text, name)
    if not rows:
        return None
    return Part(
        kind="counters",
        reports=tuple(
            Counters(source=name, of=of, name=nic, values=values, later=later)
            for of, nic, values in rows
        ),
    )


def _links(text: str) -> list[tuple[str, str | None, dict[str, int]]]:
    found: list[tuple[str, str | None, dict[str, int]]] = []
    heads = list(_LINK.finditer(text))
    for i, m in enumerate(heads):
        end = heads[i + 1].start() if i + 1 < len(heads) else len(text)
        rx = _RX.search(text, m.end(), end)
        if rx is None or m[1] == "lo":
            continue
        pairs = dict(zip(rx[1].split(), (int(n) for n in rx[2].split()), strict=False))
        names = {"packets": "rx_packets", "errors": "rx_errors", "dropped": "rx_dropped",
                 "missed": "rx_missed_errors", "overrun": "rx_over_errors"}  # fmt: skip
        found.append(("link", m[1], {names[k]: v for k, v in pairs.items() if k in names}))
    return found


def _netstat(text: str) -> dict[str, int]:
    """The Udp: block of `netstat -su`."""
    found: dict[str, int] = {}
    inside = False
    for line in text.split("\n"):
        if re.match(r"^\w+:[ \t]*$", line):
            inside = line.strip() == "Udp:"
        elif inside and (m := re.match(r"^\s+(\d+) (.+?)[ \t]*$", line)) and m[2] in _SU:
            found[_SU[m[2]]] = int(m[1])
        elif inside and (m := re.match(r"^\s+(\w+): (\d+)[ \t]*$", line)):
            found[f"Udp{m[1]}"] = int(m[2])
    return found


def _ring(text: str, name: str) -> list[tuple[str, str | None, dict[str, int]]]:
    """A flat JSON object of a ring's or feed handler's counters."""
    if text.lstrip()[:1] != "{" or len(text) > 1 << 16:
        return []
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(data, dict):
        return []
    values = {k: v for k, v in data.items() if k in _RING_KEYS and isinstance(v, int)}
    if not {"lost", "dropped", "gaps", "gap", "missed", "overruns"} & values.keys():
        return []
    return [("ring", stem_of(name)[0], values)]
