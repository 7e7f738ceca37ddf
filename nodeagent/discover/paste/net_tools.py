"""`ethtool` in its forms, `ip`, XDP programs, clocks, multicast groups.

Source: ethtool(8), ethtool netlink/*.c; ip-link(8), ip-maddress(8); bpftool-net(8); chronyc(1);
linuxptp ptp4l.c, phc2sys.c.
"""

from __future__ import annotations

import json
import re

from nodeagent.discover.paste.part import Part
from nodeagent.model.netreport import (
    ClockState,
    Groups,
    NicAmounts,
    NicDriver,
    NicSettings,
    XdpProgram,
)
from nodeagent.model.pasted import Report

_KEY = re.compile(r"^[ \t]*([A-Za-z][\w ./()-]*?):[ \t]*(\S.*?)?[ \t]*$")
_AMOUNTS = re.compile(r"^[ \t]*(Channel|Ring) parameters for ([\w.@-]+):", re.M)
_BARE_AMOUNTS = re.compile(r"^[ \t]*Pre-set maximums:", re.M)
_SETTINGS = (
    ("features", re.compile(r"^[ \t]*(?:Features|Offload parameters) for ([\w.@-]+):", re.M)),
    ("coalesce", re.compile(r"^[ \t]*Coalesce parameters for ([\w.@-]+):", re.M)),
    ("pause", re.compile(r"^[ \t]*Pause parameters for ([\w.@-]+):", re.M)),
    ("timestamps", re.compile(r"^[ \t]*Time stamping parameters for ([\w.@-]+):", re.M)),
    ("link", re.compile(r"^[ \t]*Settings for ([\w.@-]+):", re.M)),
)
_XDP_LINK = re.compile(
    r"^[ \t]*\d+: ([\w.@-]+): "
    r"<.*?\b(xdp(?:generic|drv|offload|multi)?)(?:/id:(\d+))?\b",
    re.M,
)
_XDP_NET = re.compile(
    r"^[ \t]*([\w.-]+)\((\d+)\) (?:driver|generic|offload|multi) ?(?:id "
    r"(\d+))?.*$",
    re.M,
)
_XDP_LOADER = re.compile(r"^[ \t]*([\w.-]+)\s+(\S+)\s+(native|skb|hw|unspecified)\s+\d+\b", re.M)
_OFFSET = re.compile(r"(?:master|path|phc|rev|sys)? ?offset\s+(-?\d+)\s+(s[0-3])\b")
_RMS = re.compile(r"\brms\s+(\d+)\s+max\s+(\d+)\b")
_CHRONY = re.compile(r"^[ \t]*(Reference ID|Stratum|System time|Last offset|RMS offset|Root "
                     r"dispersion|"
                     r"Leap status)\s*:\s*(.*)$", re.M)  # fmt: skip
_SECONDS = re.compile(r"([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?) seconds?(?: (slow|fast))?")
_MADDR = re.compile(r"^[ \t]*inet6?\s+((?:2[23]\d\.\d+\.\d+\.\d+)|ff[0-9a-f]{2}:\S+)", re.M)
_IFACE = re.compile(r"^[ \t]*\d+:\s+([\w.@-]+)[ \t]*$")
_NETSTAT_G = re.compile(
    r"^[ \t]*([\w.-]+)\s+\d+\s+((?:2[23]\d\.\d+\.\d+\.\d+)"
    r"|ff[0-9a-f]{2}:\S+)[ \t]*$",
    re.M,
)

_MODES = {
    "xdp": "native", "xdpdrv": "native", "xdpmulti": "native", "driver": "native",
    "xdpgeneric": "generic", "skb": "generic", "xdpoffload": "offload", "hw": "offload",
}  # fmt: skip


def read_net(text: str, name: str) -> Part | None:
    """All of these in a text; None when it has none."""
    reports: list[Report] = [
        *_driver(text, name),
        *_amounts(text, name),
        *_settings(text, name),
        *_xdp(text, name),
        *_clock(text, name),
        *_groups(text, name),
    ]
    return Part(kind="net", reports=tuple(reports)) if reports else None


def nic_of(name: str) -> str | None:
    """The interface that a command or file name ends with, `ethtool -S ens5f0`."""
    m = re.search(r"ethtool (?:-{1,2}[\w-]+ )+([\w.@-]+)", name)
    return m[1] if m else None


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.split("\n"):
        m = _KEY.match(line) if len(line) < 500 else None
        if m is not None:
            found.setdefault(m[1], m[2] or "")
    return found


def _driver(text: str, name: str) -> list[NicDriver]:
    pairs = _pairs(text)
    if not pairs.get("driver"):
        return []
    if not {"version", "firmware-version", "bus-info"} & pairs.keys():
        return []
    return [
        NicDriver(
            source=name,
            nic=nic_of(name),
            driver=pairs["driver"],
            version=pairs.get("version") or None,
            firmware=pairs.get("firmware-version") or None,
            bdf=pairs.get("bus-info") or None,
        )
    ]


def _amounts(text: str, name: str) -> list[NicAmounts]:
    found = []
    heads = list(_AMOUNTS.finditer(text))
    if not heads and _BARE_AMOUNTS.search(text):
        what = "channels" if "Combined" in text else "rings"
        return [_amount(text, what, nic_of(name), name)]
    for i, m in enumerate(heads):
        end = heads[i + 1].start() if i + 1 < len(heads) else len(text)
        what = "channels" if m[1] == "Channel" else "rings"
        found.append(_amount(text[m.end() : end], what, m[2], name))
    return found


def _amount(text: str, what: str, nic: str | None, name: str) -> NicAmounts:
    maximum, _, current = text.partition("Current hardware settings")
    sets = [
        {k: int(v) for k, v in _pairs(part).items() if re.fullmatch(r"\d{1,9}", v)}
        for part in (maximum, current)
    ]
    return NicAmounts(source=name, nic=nic, what=what, maximum=sets[0], current=sets[1])


def _settings(text: str, name: str) -> list[NicSettings]:
    found = []
    for what, head in _SETTINGS:
        heads = list(head.finditer(text))
        for i, m in enumerate(heads):
            end = heads[i + 1].start() if i + 1 < len(heads) else len(text)
            body = text[m.end() : end]
            lists: dict[str, tuple[str, ...]] = {}
            if what == "timestamps":
                words = tuple(w.strip().split()[0] for w in body.split("\n") if w.strip())
                lists["capabilities"] = words
            found.append(
                NicSettings(source=name, nic=m[1], what=what, values=_pairs(body), lists=lists)
            )
    return found


def _xdp(text: str, name: str) -> list[XdpProgram]:
    modes = _MODES
    found = [
        XdpProgram(source=name, nic=m[1], mode=modes[m[2]], program=m[3])
        for m in _XDP_LINK.finditer(text)
    ]
    if re.search(r"^[ \t]*xdp:[ \t]*$", text, re.M):
        for m in _XDP_NET.finditer(text.partition("\ntc:")[0]):
            mode = m[0].split(") ")[1].split()[0]
            found.append(
                XdpProgram(source=name, nic=m[1], mode=modes.get(mode, mode), program=m[3])
            )
    if "XDP program" in text or "xdp-loader" in name or ("Interface" in text and "Mode" in text):
        found += [
            XdpProgram(source=name, nic=m[1], mode=modes.get(m[3], m[3]), program=m[2])
            for m in _XDP_LOADER.finditer(text)
        ]
    if '"xdp"' in text and text.lstrip()[:1] in ("[", "{"):
        found += _xdp_json(text, name)
    return found


def _xdp_json(text: str, name: str) -> list[XdpProgram]:
    """`bpftool -j net`."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return []
    modes = {"driver": "native", "generic": "generic", "offload": "offload"}
    found = []
    for part in data if isinstance(data, list) else [data]:
        rows = part.get("xdp") if isinstance(part, dict) else None
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and "devname" in row:
                mode = str(row.get("mode", row.get("kind", "driver")))
                found.append(
                    XdpProgram(
                        source=name,
                        nic=str(row["devname"]),
                        mode=modes.get(mode, mode),
                        program=str(row.get("id", row.get("prog_id", ""))) or None,
                    )
                )
    return found


def _clock(text: str, name: str) -> list[ClockState]:
    found: list[ClockState] = []
    rows = dict(_CHRONY.findall(text))
    if "Leap status" in rows or "System time" in rows:
        seconds = _SECONDS.search(rows.get("System time", ""))
        leap = rows.get("Leap status", "").strip()
        stratum = rows.get("Stratum", "").strip()
        lost = leap.startswith("Not") or stratum == "0"
        found.append(
            ClockState(
                tool="chronyc",
                source=name,
                offset_ns=float(seconds[1]) * 1e9 if seconds else None,
                synchronised=None if not leap and not stratum else not lost,
                detail=f"Stratum {stratum}, Leap status {leap}, {rows.get('System time', '')}",
            )
        )
    for tool in ("ptp4l", "phc2sys"):
        lines = [x for x in text.split("\n") if tool in x and len(x) < 500]
        offsets = [(abs(int(m[1])), m[2]) for x in lines if (m := _OFFSET.search(x))]
        spans = [(int(m[1]), int(m[2])) for x in lines if (m := _RMS.search(x))]
        if not offsets and not spans:
            continue
        last = [o for o, state in offsets if state in ("s2", "s3")][-60:]
        found.append(
            ClockState(
                tool=tool,
                source=name,
                offset_ns=float(max(last)) if last else None,
                rms_ns=float(max(r for r, _ in spans[-60:])) if spans else None,
                synchronised=offsets[-1][1] in ("s2", "s3") if offsets else None,
                detail=lines[-1].strip()[:200],
            )
        )
    if m := re.search(r"^[ \t]*System clock synchronized:\s*(yes|no)", text, re.M):
        found.append(
            ClockState(
                tool="timedatectl", source=name, offset_ns=None, synchronised=m[1] == "yes",
                detail=m[0].strip(),
            )
        )  # fmt: skip
    return found


def _groups(text: str, name: str) -> list[Groups]:
    joined: dict[str, list[str]] = {}
    nic = "?"
    for line in text.split("\n"):
        if len(line) > 500:
            continue
        if m := _IFACE.match(line):
            nic = m[1]
        elif m := _MADDR.match(line):
            joined.setdefault(nic, []).append(m[1])
    if "IPv6/IPv4 Group Memberships" in text:
        for m in _NETSTAT_G.finditer(text):
            joined.setdefault(m[1], []).append(m[2])
    return [Groups(source=name, nic=n, groups=tuple(g)) for n, g in joined.items()]
