"""`LnkCap:` and `LnkSta:` lines of `lspci -vv` without the device they belong to, and the power
state of each sample; and what the kernel said of paths narrower than their device.

Source: pciutils ls-caps.c; Linux drivers/pci/pci.c __pcie_print_link_status().
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part
from nodeagent.model.pcie_report import LinkLimit, LinkSample

_LINE = re.compile(
    r"^\s*(LnkCap|LnkSta):\s.{0,80}?Speed (\d+(?:\.\d+)?|unknown)(?: ?GT/s)?(?: \((\w+)\))?, "
    r"Width x(\d{1,2})(?: \((\w+)\))?"
)
_HEAD = re.compile(
    r"^[ \t]*(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7][ \t]+\S", re.MULTILINE
)
_NAMED = re.compile(r"(?:^|[\W_])(idle|load|busy|loaded)(?:[\W_]|$)", re.IGNORECASE)


def read_pcie_lines(text: str, name: str) -> Part | None:
    """The lines of a text that shows no device; None when there are none."""
    if ("LnkSta:" not in text and "LnkCap:" not in text) or _HEAD.search(text):
        return None
    cap: tuple[float, int] | None = None
    samples: list[LinkSample] = []
    hint = _NAMED.search(name.rpartition("/")[2])
    loaded = None if hint is None else hint[1].lower() != "idle"
    for number, line in enumerate(text.split("\n"), 1):
        m = _LINE.match(line)
        if m is None or m[2] == "unknown":
            continue
        if m[1] == "LnkCap":
            cap = float(m[2]), int(m[4])
        else:
            samples.append(
                LinkSample(
                    source=name,
                    line=number,
                    text=line.strip(),
                    speed_gts=float(m[2]),
                    width=int(m[4]),
                    max_speed_gts=cap[0] if cap else None,
                    max_width=cap[1] if cap else None,
                    speed_downgraded=m[3] == "downgraded",
                    width_downgraded=m[5] == "downgraded",
                    loaded=loaded,
                )
            )
    if not samples:
        return None
    short = [s for s in samples if s.width_downgraded or (s.max_width and s.width < s.max_width)]
    return Part(kind="PCIe link", facts={"width_ok": not short}, reports=tuple(samples))


_RATE = r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)? x(\d{1,2}) link"
_LIMIT = re.compile(
    r"\b((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): "
    r"(\d{1,5}(?:\.\d{1,3})?) Gb/s available PCIe bandwidth, limited by "
    + _RATE
    + r" at (\S{7,16}) \(capable of \S{1,12} Gb/s with "
    + _RATE
    + r"\)"
)
MAX_LIMITS = 1000


def read_link_limits(text: str, name: str) -> Part | None:
    """The kernel's lines "available PCIe bandwidth, limited by"; None without any."""
    found = [
        LinkLimit(
            source=name,
            line=number,
            bdf=m[1],
            gbps=float(m[2]),
            at=m[5],
            speed_gts=float(m[3]),
            width=int(m[4]),
            able_speed_gts=float(m[6]),
            able_width=int(m[7]),
        )
        for number, line in enumerate(text.split("\n"), 1)
        if "limited by" in line and (m := _LIMIT.search(line[:2000]))
    ]
    return Part(kind="PCIe bandwidth", reports=tuple(found[:MAX_LIMITS])) if found else None
