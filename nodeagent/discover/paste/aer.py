"""AER counters of sysfs as they are pasted: `cat`, `grep . .../aer_dev_*`, `head -n`.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part
from nodeagent.model.pci import parse_bdf
from nodeagent.model.pcie_said import AerCounters

MAX_LINE = 4096
_BDF = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_TOTAL = re.compile(r"\bTOTAL_ERR_(COR|NONFATAL|FATAL)\s{1,8}(\d{1,15})\b")
_NAMED = re.compile(
    r"(?:^|[:\s])(RxErr|BadTLP|BadDLLP|Rollover|Timeout|DLP|SDES|TLP|FCP|CmpltTO|CmpltAbrt|RxOF"
    r"|MalfTLP|ECRC|ACSViol|UncorrIntErr|CorrIntErr)\s{1,8}([1-9]\d{0,14})\s*$"
)


def read_aer(text: str, name: str) -> Part | None:
    """Totals by device; None when there are none."""
    if "TOTAL_ERR_" not in text:
        return None
    device: str | None = None
    totals: dict[str | None, dict[str, int]] = {}
    errors: dict[str | None, list[str]] = {}
    for line in text.split("\n"):
        if len(line) > MAX_LINE:
            continue
        if m := _BDF.search(line):
            # A path names several functions: the last one is the file's.
            device = parse_bdf(_BDF.findall(line)[-1])
        if m := _TOTAL.search(line):
            kinds = totals.setdefault(device, {})
            kinds[m[1]] = kinds.get(m[1], 0) + int(m[2])
        elif m := _NAMED.search(line):
            errors.setdefault(device, []).append(m[1])
    reports = tuple(
        AerCounters(
            source=name,
            device=d,
            correctable=kinds.get("COR", 0),
            nonfatal=kinds.get("NONFATAL", 0),
            fatal=kinds.get("FATAL", 0),
            names=tuple(dict.fromkeys(errors.get(d, ()))),
        )
        for d, kinds in totals.items()
    )
    return Part(kind="aer", reports=reports) if reports else None
