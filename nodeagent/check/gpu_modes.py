"""gpu: use without a process, and modes that are not in force, by what tools print."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.gpu_state import at, once, server, states, told
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
    warn,
)
from nodeagent.model.gpu_report import GpuListed, GpuState


@check(
    "gpu.ghost",
    "use and memory of each GPU have a process",
    means="WARN when a GPU shows full use with no process, little memory and idle power (its "
    "counter is stuck: the card works), or holds memory with no process and no use (a process that "
    "died, or one in another PID namespace). INFO when a busy GPU lists no process: in a container "
    "the others are not seen.",
    why="A monitor that takes a stuck counter for a hung GPU drains a good node; leaked memory "
    "makes the next job fail.",
    prove="nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv; fuser -v "
    "/dev/nvidia*",
    mend="Stuck counter: nothing now, it clears when the GPU is initialised again. Leaked memory: "
    "fuser -v /dev/nvidia*, end what holds it.",
    source="NVML API reference, nvmlDeviceGetUtilizationRates, "
    "nvmlDeviceGetComputeRunningProcesses",
    bounds={"leaked_mib": 1024},
)
def ghost(s: Seen) -> Iterator[Judged]:
    """Use and memory against the list of processes."""
    gpus = [
        g
        for g in states(s)
        if g.util_percent is not None or (g.used_mib is not None and g.count is not None)
    ]
    if not gpus:
        raise NotApplicable("no GPU tells its use beside its processes")
    bad = False
    for g in gpus:
        used = g.used_mib or 0.0
        small = used < _own(g) if g.used_mib is not None else g.used_percent == 0
        amount = f"{used:g} MiB" if g.used_mib is not None else f"{g.used_percent} % of memory"
        cool = g.power_w is not None and g.power_w < _idle_power(g)
        busy = (g.util_percent or 0) >= 90
        none = g.count == 0
        if busy and small and (none or (g.count is None and cool)) and (cool or g.power_w is None):
            bad = True
            power = f", {g.power_w:g} W" if g.power_w is not None else ""
            processes = "no process" if none else "no memory of a process"
            yield warn(
                g.label,
                f"{g.label} shows {g.util_percent} % use with {processes} and {amount} used"
                f"{power}: its counter is stuck, the card is idle and works",
                at(g, f"{g.util_percent} % used, {amount}, {g.count or 0} processes{power}"),
                remedy="do not drain it; it clears when the GPU is initialised again: "
                + (
                    "amd-smi reset --gpureset with no job on it"
                    if g.vendor == "amd"
                    else "nvidia-smi -pm 0; nvidia-smi -pm 1, or nvidia-smi --gpu-reset with no "
                    "job on it"
                ),
            )
        elif none and used >= s.bounds["leaked_mib"] and not (g.util_percent or 0):
            bad = True
            yield warn(
                g.label,
                f"{g.label} holds {used:g} MiB and lists no process: one that died and was not "
                "reaped, or one in another PID namespace (container)",
                at(g, f"{used:g} MiB used, no process"),
                remedy="on the host: fuser -v /dev/nvidia*; end what holds it, else reset the GPU",
            )
        elif none and busy:
            yield info(
                g.label,
                f"{g.label} is {g.util_percent} % used and lists no process: in a container the "
                "others' are not seen",
                at(g, f"{g.util_percent} % used, {used:g} MiB, no process"),
            )
    if not bad:
        yield ok("gpu", f"{len({g.label for g in gpus})} GPUs: use and memory have an owner")


def _own(g: GpuState) -> float:
    """MiB that driver and firmware take themselves."""
    return max(700.0, 0.01 * (g.total_mib or 0))


def _idle_power(g: GpuState) -> float:
    """Watts below which a GPU does nothing."""
    return 0.3 * g.power_limit_w if g.power_limit_w else 150.0


@check(
    "gpu.mode",
    "modes of the GPUs are in force and let jobs run",
    means="FAIL when the compute mode forbids every context; WARN when MIG or ECC mode waits for a "
    "reset, when MIG is on without a MIG device, when persistence is off on a server's GPU, and "
    "when GPUs of one model have different power limits. INFO for what is only worth knowing.",
    why="A mode that is pending is not in force; without persistence the driver is torn down after "
    "each job and the next one waits seconds; the lowest power limit sets the pace.",
    prove="nvidia-smi -q | grep -A2 -E 'MIG Mode|ECC Mode|Persistence|Compute Mode'",
    mend="nvidia-smi --gpu-reset -i N for pending modes; systemctl enable --now "
    "nvidia-persistenced; nvidia-smi -i N -c DEFAULT; nvidia-smi -i N -pl WATTS.",
    source="nvidia-smi(1), MIG mode, ECC mode, persistence mode, compute mode, power limit",
)
def mode(s: Seen) -> Iterator[Judged]:
    """Pending modes, persistence, compute mode, power limits."""
    gpus = told(s, "mig", "ecc_mode", "persistence", "compute_mode", "power_limit_w")
    found = [answer for g in gpus for answer in _modes(g)]
    found += _undivided(s, gpus)
    off = list(dict.fromkeys(g.label for g in gpus if g.persistence is False and server(g)))
    if off:
        first = next(g for g in gpus if g.label == off[0])
        found.append(
            warn(
                f"gpu {some(off)}",
                f"persistence mode is off on {len(off)} GPUs: the driver is loaded anew for each "
                "job",
                at(first, "Persistence Mode: Disabled"),
                remedy="systemctl enable --now nvidia-persistenced  # or nvidia-smi -pm 1",
            )
        )
    limits: dict[str, dict[float, list[str]]] = {}
    for g in gpus:
        if g.name and g.power_limit_w:
            limits.setdefault(g.name, {}).setdefault(g.power_limit_w, []).append(g.label)
    for name, by in limits.items():
        if len(by) > 1:
            low = min(by)
            found.append(
                warn(
                    f"gpu {some(dict.fromkeys(by[low]))}",
                    f"{name}: power limits differ, {low:g} W on {some(dict.fromkeys(by[low]))}, "
                    f"up to {max(by):g} W on others",
                    saw("nvidia-smi", some(f"{w:g} W: {some(g)}" for w, g in sorted(by.items()))),
                    remedy=f"nvidia-smi -i {by[low][0].removeprefix('GPU ')} -pl {max(by):g}",
                )
            )
    yield from once(found)
    if not any(f.verdict.value in ("WARN", "FAIL") for f in found):
        yield ok("gpu", f"{len({g.label for g in gpus})} GPUs: modes are in force")


def _undivided(s: Seen, gpus: list[GpuState]) -> Iterator[Judged]:
    """GPUs in MIG mode that nvidia-smi -L lists without a MIG device."""
    pasted = s.snapshot.pasted
    listed = {g.index: g for g in (pasted.of(GpuListed) if pasted is not None else ())}
    for g in gpus:
        block = listed.get(g.index) if g.index is not None else None
        if block is not None and not block.mig and (g.mig or "").lower() == "enabled":
            yield warn(
                g.label,
                f"MIG mode of {g.label} is on and it has no MIG device: CUDA can use nothing of it",
                at(g, f"MIG Mode, Current: {g.mig}"),
                saw(block.source, f"line {block.line}: GPU {block.index}: no MIG device"),
                remedy=f"nvidia-smi mig -i {block.index} -lgip; nvidia-smi mig -i {block.index} "
                f"-cgi PROFILE -C; or MIG off: nvidia-smi -i {block.index} -mig 0",
            )


def _modes(g: GpuState) -> Iterator[Judged]:
    index = g.label.removeprefix("GPU ")
    for what, now, then in (("MIG", g.mig, g.mig_pending), ("ECC", g.ecc_mode, g.ecc_pending)):
        if now and then and now.lower() != then.lower():
            yield warn(
                g.label,
                f"{what} mode of {g.label} is {now} and becomes {then} at the next reset",
                at(g, f"{what} Mode, Current: {now}, Pending: {then}"),
                remedy=f"end what uses the GPU, then: nvidia-smi --gpu-reset -i {index}",
            )
    compute = (g.compute_mode or "").lower().replace(" ", "_").replace(".", "")
    if compute.startswith("prohib"):
        yield fail(
            g.label,
            f"the compute mode of {g.label} is Prohibited: no CUDA context can be made",
            at(g, f"Compute Mode: {g.compute_mode}"),
            remedy=f"nvidia-smi -i {index} -c DEFAULT",
        )
    elif compute.startswith(("exclusive", "e_process", "e_thread")):
        yield info(
            g.label,
            f"the compute mode of {g.label} lets one process in at a time",
            at(g, f"Compute Mode: {g.compute_mode}"),
            remedy=f"nvidia-smi -i {index} -c DEFAULT, where several processes share the GPU",
        )
    if (
        (g.ecc_mode or "").lower() == "disabled"
        and server(g)
        and (g.ecc_pending or "") != "Enabled"
    ):
        yield info(
            g.label,
            f"ECC is switched off on {g.label}: memory errors go unseen",
            at(g, "ECC Mode: Disabled"),
            remedy=f"nvidia-smi -i {index} -e 1, then reset the GPU",
        )
    if g.bar1_total_mib and g.bar1_total_mib <= 256 and (g.total_mib or 0) >= 16_000 and server(g):
        yield info(
            g.label,
            f"{g.label} shows {g.bar1_total_mib:g} MiB of its memory on the bus (BAR1): resizable "
            "BAR is off, GPUDirect is limited",
            at(g, f"BAR1 Memory Usage, Total: {g.bar1_total_mib:g} MiB"),
            remedy="lspci -vv | grep -i BAR; switch on Above 4G Decoding and Resizable BAR in "
            "the BIOS",
        )
