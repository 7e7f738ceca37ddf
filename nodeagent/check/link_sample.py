"""gpu: PCIe link lines that were pasted without their device, judged by the power state beside
them."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    unknown,
    warn,
)
from nodeagent.model.gpu_report import GpuState
from nodeagent.model.pcie_report import LinkSample


@check(
    "gpu.link-sample",
    "pasted LnkSta lines show a good link",
    means="FAIL for fewer lanes than LnkCap under load, WARN otherwise; WARN for a speed below "
    "LnkCap under load or in P0 to P2; OK when a lower speed is only seen at idle and a sample "
    "under load is at full speed, or the power state is P5 to P15; UNKNOWN when a lower speed was "
    "seen and nothing tells the load.",
    why="`downgraded` is what lspci prints for any lower speed, also for the power saving of an "
    "idle GPU: the speed means nothing without the power state, the width always does.",
    prove="lspci -vv -s BDF | grep -E 'LnkCap:|LnkSta:'; nvidia-smi --query-gpu=pstate "
    "--format=csv, both while a job runs",
    mend="Speed: reseat the card, BIOS slot speed on Auto. Width: bifurcation, riser, reseat.",
    source="pciutils ls-caps.c (downgraded); PCI Express Base Specification 6.0, section 7.5.3.8",
)
def link_sample(s: Seen) -> Iterator[Judged]:
    """Each sample by its load."""
    pasted = s.snapshot.pasted
    samples = pasted.of(LinkSample) if pasted is not None else ()
    if not samples or pasted is None:
        raise NotApplicable("no LnkSta line without its device was pasted")
    cap_speed = max((x.max_speed_gts for x in samples if x.max_speed_gts), default=None)
    cap_width = max((x.max_width for x in samples if x.max_width), default=None)
    pstates = {g.loaded: g.pstate for g in pasted.of(GpuState) if g.pstate is not None}
    fast = any(cap_speed and x.speed_gts >= cap_speed for x in samples)
    bad = idle = 0
    for x in samples:
        evidence = saw(x.source, f"line {x.line}: {x.text}")
        pstate = pstates.get(x.loaded)
        if pstate is None and len(pstates) == 1:
            pstate = next(iter(pstates.values()))
        busy = x.loaded if x.loaded is not None else None if pstate is None else pstate <= 2
        if x.width_downgraded or (cap_width and x.width < cap_width):
            bad += 1
            make = fail if busy else warn
            yield make(
                "link",
                f"the link runs on x{x.width}" + (f" of x{cap_width}" if cap_width else ""),
                evidence,
                remedy="lspci -vv | grep LnkSta:; look at BIOS bifurcation and riser, reseat the "
                "card; width does not shrink to save power",
            )
        if x.speed_downgraded or (cap_speed and x.speed_gts < cap_speed):
            if busy:
                bad += 1
                yield warn(
                    "link",
                    f"the link works at {x.speed_gts:g} GT/s"
                    + (f" of {cap_speed:g} GT/s" if cap_speed else ""),
                    evidence,
                    remedy="reseat the card; set the slot's speed to Auto in the BIOS",
                )
            elif busy is False or fast:
                idle += 1
                yield info("link", f"{x.speed_gts:g} GT/s at idle: power saving", evidence)
            else:
                bad += 1
                yield unknown(
                    "link",
                    f"the link is at {x.speed_gts:g} GT/s, which is normal at idle; nothing tells "
                    "whether the device works",
                    evidence,
                    remedy="lspci -vv -s BDF | grep LnkSta while a job runs, with nvidia-smi "
                    "--query-gpu=pstate --format=csv",
                )
    if not bad:
        yield ok("link", f"{len(samples)} samples: all lanes; {idle} slower ones are at idle")
