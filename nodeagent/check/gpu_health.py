"""gpu: heat, power supply and memory errors, by what tools print."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodeagent.check.gpu_state import at, once, states, told
from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    some,
    warn,
)
from nodeagent.model.gpu_report import GpuState

HARD = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")
"""Reasons that are no normal power management. SW power cap and idle are."""


@check(
    "gpu.throttled",
    "no GPU is slowed down by heat or by its power supply",
    means="WARN when a hardware, thermal or power-brake slowdown is active, FAIL when `samples` "
    "samples of one GPU say so; FAIL for a temperature at the slowdown limit, WARN above the "
    "operating limit. SW power cap, idle and clock settings are normal.",
    why="One slowed GPU slows each collective to its own pace; a power brake comes from the "
    "server's supply and needs hands.",
    prove="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
    mend="Heat: airflow, fans, inlet temperature, dust, heat sink. Power brake: power supplies, "
    "cables, the BMC's power cap.",
    source="NVIDIA NVML API reference, nvmlClocksEventReasons; DCGM health, thermal and power",
    bounds={"samples": 6},
)
def throttled(s: Seen) -> Iterator[Judged]:
    """Clocks event reasons and temperatures."""
    gpus = [
        g
        for g in states(s)
        if g.reasons or g.temp_c is not None or g.margin_c is not None or g.tool.endswith("-q")
    ]
    if not gpus:
        raise NotApplicable("no GPU tells its clocks event reasons or its temperature")
    bad = False
    by: dict[str, list[GpuState]] = {}
    for g in gpus:
        if g.reasons & set(HARD):
            by.setdefault(g.label, []).append(g)
    for label, found in by.items():
        bad = True
        reasons = [r for r in HARD if any(r in g.reasons for g in found)]
        make = fail if len(found) >= s.bounds["samples"] else warn
        brake = "HW Power Brake Slowdown" in reasons
        times = f" in {len(found)} samples" if len(found) > 1 else ""
        yield make(
            label,
            f"{label} is slowed down: {some(reasons)}{times}",
            at(found[0], f"{some(reasons)}: Active"),
            remedy="look at the power supplies, their cables and the BMC's power cap: "
            "ipmitool sdr type 'Power Supply'"
            if brake
            else "look at fans, airflow and inlet temperature: nvidia-smi -q -d TEMPERATURE; "
            "ipmitool sdr type Fan",
        )

    def heat() -> Iterator[Judged]:
        for g in gpus:
            if g.temp_c is not None and g.slowdown_c and g.temp_c >= g.slowdown_c:
                yield _hot(fail, g, f"{g.temp_c:g} C, it slows down at {g.slowdown_c:g} C")
            elif g.margin_c is not None and g.margin_c <= 0:
                make = fail if g.margin_c < 0 else warn
                yield _hot(make, g, f"{g.margin_c:g} C left to its thermal limit")
            elif g.temp_c is not None and g.max_c and g.temp_c > g.max_c:
                yield _hot(warn, g, f"{g.temp_c:g} C, it may run at {g.max_c:g} C")
            if g.memory_temp_c is not None and g.memory_max_c and g.memory_temp_c > g.memory_max_c:
                yield _hot(
                    warn, g, f"memory {g.memory_temp_c:g} C, it may run at {g.memory_max_c:g} C"
                )

    for answer in once(heat()):
        bad = True
        yield answer
    if not bad:
        yield ok("gpu", f"{len({g.label for g in gpus})} GPUs: no thermal or power slowdown")


def _hot(make: Callable[..., Judged], g: GpuState, text: str) -> Judged:
    return make(
        g.label,
        f"{g.label} is too hot: {text}",
        at(g, text),
        remedy="look at fans, airflow and inlet temperature: nvidia-smi -q -d TEMPERATURE",
    )


@check(
    "gpu.memory-errors",
    "no uncorrectable memory errors, and rows can still be remapped",
    means="FAIL for uncorrectable errors since the driver was loaded, a failed row remap, an SRAM "
    "threshold exceeded, or `pages` retired pages; WARN for a pending remap or retirement and for "
    "`rows` remapped rows or more; INFO for what the card has mended in its life.",
    why="An uncorrectable error ends the job that met it. Remapping mends the row at the next "
    "reset; when it fails the card has to go.",
    prove="nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
    mend="Pending: drain and reset (nvidia-smi --gpu-reset -i N). Remap failure: exchange the card "
    "after NVIDIA's field diagnostic.",
    source="NVIDIA GPU memory error management guide; DCGM health, memory",
    bounds={"pages": 63, "rows": 512},
)
def memory_errors(s: Seen) -> Iterator[Judged]:
    """ECC, row remapping, page retirement."""
    gpus = told(
        s, "ecc_uncorrected", "ecc_uncorrected_total", "remap_pending", "remap_failure",
        "remap_uncorrectable", "retired_pages", "retired_pending", "ecc_threshold",
    )  # fmt: skip
    found = [answer for g in gpus for answer in _memory(s, g)]
    yield from once(found)
    if not found:
        yield ok("gpu", f"{len({g.label for g in gpus})} GPUs: no memory errors that count")


def _memory(s: Seen, g: GpuState) -> Iterator[Judged]:
    reset = (
        "drain the GPU, end what uses it, then: nvidia-smi --gpu-reset "
        f"-i {g.bdf or g.label.removeprefix('GPU ')}"
    )
    if g.remap_failure:
        yield fail(
            g.label,
            f"a row of {g.label}'s memory could not be remapped",
            at(g, "Remapping Failure Occurred: Yes"),
            remedy="drain the GPU; nvidia-bug-report.sh; run NVIDIA's field diagnostic: the card "
            "has "
            "to be exchanged",
        )
    if g.ecc_uncorrected:
        yield fail(
            g.label,
            f"{g.label} had {g.ecc_uncorrected} uncorrectable memory errors since the driver was "
            "loaded",
            at(g, f"volatile uncorrectable errors {g.ecc_uncorrected}"),
            remedy=f"{reset}; exchange the card when they come again",
        )
    if g.ecc_threshold:
        yield fail(
            g.label,
            f"{g.label} exceeded its threshold of SRAM errors",
            at(g, "SRAM Threshold Exceeded: Yes"),
            remedy="drain the GPU; nvidia-bug-report.sh; run NVIDIA's field diagnostic",
        )
    if g.remap_pending:
        yield warn(
            g.label,
            f"{g.label} has a row remap pending: it is done at the next reset",
            at(g, "Remapped Rows, Pending: Yes"),
            remedy=reset,
        )
    if g.remap_uncorrectable and g.remap_uncorrectable >= s.bounds["rows"]:
        yield warn(
            g.label,
            f"{g.label} has remapped {g.remap_uncorrectable} rows for uncorrectable errors",
            at(g, f"Remapped Rows, Uncorrectable Error: {g.remap_uncorrectable}"),
            remedy="plan the exchange of the card: its spare rows run out",
        )
    elif g.remap_uncorrectable and not g.remap_failure:
        yield info(
            g.label,
            f"{g.label} has remapped {g.remap_uncorrectable} rows in its life: mended",
            at(g, f"Remapped Rows, Uncorrectable Error: {g.remap_uncorrectable}"),
        )
    if g.retired_pages and g.retired_pages >= s.bounds["pages"]:
        yield fail(
            g.label,
            f"{g.label} has retired {g.retired_pages} pages for double-bit errors",
            at(g, f"Retired Pages, Double Bit ECC: {g.retired_pages}"),
            remedy="nvidia-smi -q -d PAGE_RETIREMENT; exchange the card: at 64 retired pages it "
            "can retire no more",
        )
    elif g.retired_pages and g.retired_pages > 15:
        yield warn(
            g.label,
            f"{g.label} has retired {g.retired_pages} pages for double-bit errors",
            at(g, f"Retired Pages, Double Bit ECC: {g.retired_pages}"),
            remedy="watch it: more than one a week means the card has to be exchanged",
        )
    if g.retired_pending:
        yield warn(
            g.label,
            f"{g.label} has pages waiting to be retired: that is done at the next reset",
            at(g, "Retired Pages, Pending: Yes"),
            remedy=reset,
        )
    if g.ecc_uncorrected_total and not g.ecc_uncorrected:
        yield info(
            g.label,
            f"{g.label} had {g.ecc_uncorrected_total} uncorrectable errors in its life, none since "
            "the driver was loaded",
            at(g, f"aggregate uncorrectable errors {g.ecc_uncorrected_total}"),
        )
