"""`LnkCap:` and `LnkSta:` lines of `lspci -vv` without the device they belong to, and the power
state of each sample.

Source: pciutils ls-caps.c.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part
from nodeagent.model.pcie_report import LinkSample

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
