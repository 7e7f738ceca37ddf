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
    some,
    unknown,
    warn,
)
from nodeagent.model.gpu_report import GpuState
from nodeagent.model.pcie_report import LinkLimit, LinkSample


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


WIDE = 8
"""Lanes that a device has for whom bandwidth matters: GPUs, fast NICs."""


@check(
    "pcie.boot-bandwidth",
    "the kernel found no path narrower than its device",
    means="WARN when the kernel's log says that a device of 8 lanes or more got fewer lanes; INFO "
    "when only the generation is lower. 2.5 GT/s at boot is power saving: OK.",
    why="The narrowest link of the path is the bandwidth of all that is below it.",
    prove="dmesg | grep 'limited by'; lspci -vv -s PORT | grep -E 'LnkCap:|LnkSta:'",
    mend="Lanes: bifurcation in the BIOS, riser, reseat. Generation: slot speed on Auto; a switch "
    "or board of an older generation stays the limit.",
    source="Linux drivers/pci/pci.c, __pcie_print_link_status()",
)
def boot_bandwidth(s: Seen) -> Iterator[Judged]:
    """Each line on a wide device, the last one of each."""
    pasted = s.snapshot.pasted
    said = {x.bdf: x for x in (pasted.of(LinkLimit) if pasted is not None else ())}
    if not said:
        raise NotApplicable("no kernel line on limited PCIe bandwidth was pasted")
    wide = [x for x in said.values() if x.able_width >= WIDE]
    short = [x for x in wide if x.width < x.able_width]
    slow = [x for x in wide if x not in short and 2.5 < x.speed_gts < x.able_speed_gts]
    for x in short:
        yield warn(
            x.bdf,
            f"{x.bdf} could use x{x.able_width} and has x{x.width}: the link at {x.at} is the "
            "narrowest of its path",
            saw(x.source, f"line {x.line}: {x.gbps:g} Gb/s, limited by {x.speed_gts:g} GT/s "
                f"x{x.width} at {x.at}"),
            remedy=f"lspci -vv -s {x.at} | grep Lnk; look at BIOS bifurcation and riser, reseat",
        )  # fmt: skip
    if slow:
        x = slow[0]
        yield info(
            some(y.bdf for y in slow),
            f"{len(slow)} devices could use {x.able_speed_gts:g} GT/s and have {x.speed_gts:g} "
            f"GT/s: {some(dict.fromkeys(y.at for y in slow))} cannot do more or is set lower",
            saw(x.source, f"line {x.line}: {x.gbps:g} Gb/s at {x.at}"),
        )
    if not short and not slow:
        yield ok("pcie", "no wide device has fewer lanes than it could use")
