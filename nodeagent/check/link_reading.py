"""Links that somebody pasted as samples: judged by the busiest one of each device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from nodeagent.check.record import Judged, Seen, fail, info, ok, some, warn
from nodeagent.model.finding import Evidence
from nodeagent.model.pcie_said import LinkReading

ALIKE = "all of them alike: look at the BIOS bifurcation of the slots first, then at the risers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The sample of one device that is judged; `idle`: it was also, or only, seen so."""

    name: str
    reading: LinkReading
    idle: bool

    @property
    def evidence(self) -> Evidence:
        """The numbers as they stand."""
        r = self.reading
        state = {True: " under load", False: " idle", None: ""}[r.loaded]
        able = f"of {_gts(r.max_speed_gts)} x{r.max_width or '?'}"
        return Evidence(
            path=r.source, text=f"{self.name}: {_gts(r.speed_gts)} x{r.width or '?'} {able}{state}"
        )


def _gts(speed: float | None) -> str:
    return "?" if speed is None else f"{speed:g} GT/s"


def sampled(s: Seen) -> list[Sampled]:
    """One judged sample a device: under load where there is one. Rows of bridges are left out."""
    if s.snapshot.pasted is None:
        return []
    readings = s.snapshot.pasted.of(LinkReading)
    groups: dict[str | None, list[LinkReading]] = {}
    for r in readings:
        groups.setdefault(r.device, []).append(r)
    found = []
    for device, group in groups.items():
        best = next((r for r in group if r.loaded), None) or max(
            group, key=lambda r: ((r.speed_gts or 0), (r.width or 0))
        )
        # One sample may hold LnkCap, another one only LnkSta.
        merged = replace(
            best,
            max_speed_gts=best.max_speed_gts or _first(r.max_speed_gts for r in group),
            max_width=best.max_width or int(_first(r.max_width for r in group) or 0) or None,
        )
        found.append(
            Sampled(
                name=device or "the link",
                reading=merged,
                idle=any(r.loaded is False for r in group),
            )
        )
    return found


def _first(values: Iterator[float | None] | Iterator[int | None]) -> float | None:
    return next((v for v in values if v), None)


def widths(all_sampled: list[Sampled]) -> Iterator[Judged]:
    """Lanes: they do not depend on load."""
    told = [x for x in all_sampled if x.reading.width and x.reading.max_width]
    short = [x for x in told if (x.reading.width or 0) < (x.reading.max_width or 0)]
    if short:
        lanes = some(sorted({f"x{x.reading.width} of x{x.reading.max_width}" for x in short}))
        under = " under load" if any(x.reading.loaded for x in short) else ""
        alike = len(short) > 1 and len(short) == len(told)
        remedy = (
            ALIKE
            if alike
            else "reseat the card; then look at riser, slot and the slot's BIOS bifurcation"
        )
        judge = fail if under else warn
        yield judge(
            some(x.name for x in short),
            f"{some(x.name for x in short)} run on {lanes} lanes{under}: the slot is bifurcated "
            "or lanes are lost; power saving does not change the width",
            *(x.evidence for x in short[:4]),
            remedy=f"{remedy}; sudo lspci -vv | grep -E 'LnkCap:|LnkSta:'",
        )
    elif told:
        yield ok("links", f"{len(told)} sampled links have all their lanes")


def speeds(all_sampled: list[Sampled]) -> Iterator[Judged]:
    """GT/s: judged only where the device was busy."""
    told = [x for x in all_sampled if x.reading.speed_gts and x.reading.max_speed_gts]
    slow = [x for x in told if (x.reading.speed_gts or 0) < (x.reading.max_speed_gts or 0)]
    busy = [x for x in slow if x.reading.loaded]
    idle = [x for x in slow if not x.reading.loaded]
    if busy:
        half = any((x.reading.speed_gts or 0) * 2 <= (x.reading.max_speed_gts or 0) for x in busy)
        judge = fail if half else warn
        yield judge(
            some(x.name for x in busy),
            f"{some(x.name for x in busy)} run at {_gts(busy[0].reading.speed_gts)} under load, "
            f"they can do {_gts(busy[0].reading.max_speed_gts)}",
            *(x.evidence for x in busy[:4]),
            remedy="reseat the card, exchange the riser, set the slot's speed in the BIOS to auto; "
            "sudo lspci -vv | grep -E 'LnkCap:|LnkSta:'",
        )
    if idle:
        yield info(
            some(x.name for x in idle),
            f"{some(x.name for x in idle)} run at {_gts(idle[0].reading.speed_gts)}, they can do "
            f"{_gts(idle[0].reading.max_speed_gts)}: normal at idle (power saving), judged only "
            "under load",
            *(x.evidence for x in idle[:4]),
            remedy="take it again under load: nvidia-smi --query-gpu=pcie.link.gen.current,"
            "pcie.link.width.current,pstate --format=csv",
        )
    if told and not busy and len(idle) < len(told):
        after = " under load" if any(x.reading.loaded for x in told) else ""
        lowered = "; the lower one at idle is power saving" if any(x.idle for x in told) else ""
        yield ok("links", f"the links run at their full speed{after}{lowered}")


def paths(all_sampled: list[Sampled], rate: Mapping[str, float]) -> Iterator[Judged]:
    """Bridges of a pasted table that several devices share. `rate`: GB/s of each row's link."""
    rows = {x.name: x.reading for x in all_sampled if x.reading.parent is not None}
    parents = {r.parent for r in rows.values()}
    leaves = [name for name in rows if name not in parents]
    below: dict[str, list[str]] = {}
    for leaf in leaves:
        at, seen = rows[leaf].parent, {leaf}
        while at is not None and at in rows and at not in seen:
            below.setdefault(at, []).append(leaf)
            seen.add(at)
            at = rows[at].parent
    crowded = [
        bridge
        for bridge, found in below.items()
        if len(found) > 1 and sum(rate.get(x, 0.0) for x in found) > rate.get(bridge, 1e9) * 1.05
    ]
    # The narrowest one, and of those as narrow the one nearest the root.
    crowded.sort(key=lambda b: (rate[b], rows[b].parent in rows))
    if crowded:
        at = crowded[0]
        whole = sum(rate.get(x, 0.0) for x in below[at])
        r = rows[at]
        yield warn(
            f"bridge {at}",
            f"uplink {at} ({_gts(r.speed_gts)} x{r.width}, {rate[at]:.0f} GB/s) carries "
            f"{len(below[at])} devices ({some(below[at], 4)}) that can do {whole:.0f} GB/s "
            "together: the uplink is the bottleneck, not the endpoints",
            Evidence(path=r.source, text=f"{at}: {rate[at]:.1f} GB/s for {some(below[at], 8)}"),
            remedy="spread the devices over uplinks, keep peer-to-peer traffic below the switch, "
            "or plan who transfers when; lspci -tv shows the path",
        )
    elif below:
        yield ok("links", f"{len(below)} bridges carry what hangs below them")
