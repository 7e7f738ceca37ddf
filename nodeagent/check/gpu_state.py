"""gpu: what pasted tool output says of each GPU's own health."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

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
from nodeagent.model.finding import Evidence
from nodeagent.model.gpu_report import GpuState, ToolFailure

DATA_CENTRE = re.compile(
    r"\b(?:[ABHL]\d{2,3}S?|V100S?|P100|P40|T4|GB\d{3}|GH200|K80|M60|MI\d{3}\w?|A10G?|HGX|DGX|Tesla)\b"
)
"""Names of cards for servers; the others sit in desktops too."""


def states(s: Seen) -> tuple[GpuState, ...]:
    """All GPUs that tools described. Raises NotApplicable without any."""
    found = s.snapshot.pasted.of(GpuState) if s.snapshot.pasted is not None else ()
    if not found:
        raise NotApplicable("no tool's output about GPUs was pasted")
    return found


def told(s: Seen, *fields: str) -> list[GpuState]:
    """Those that tell at least one of these fields. Raises NotApplicable without any."""
    found = [g for g in states(s) if any(getattr(g, f) is not None for f in fields)]
    if not found:
        raise NotApplicable(f"no GPU tells its {' or '.join(fields).replace('_', ' ')}")
    return found


def at(g: GpuState, text: str) -> Evidence:
    """Evidence: file, line and value."""
    return saw(g.source, f"line {g.line}: {g.label}: {text}")


def once(answers: Iterable[Judged]) -> Iterator[Judged]:
    """Each sentence about a GPU once, however many tables say so."""
    seen: set[tuple[str, str]] = set()
    for answer in answers:
        key = (answer.subject, answer.message)
        if key not in seen:
            seen.add(key)
            yield answer


def server(g: GpuState) -> bool:
    """Whether this is a card for servers."""
    return DATA_CENTRE.search(g.name or "") is not None


@check(
    "gpu.answers",
    "every GPU and its tools answer",
    means="FAIL when a vendor's tool or library could not be started or an error stands where a "
    "GPU's value belongs (ERR!, GPU is lost, Unknown Error), when the driver asks for a reset or a "
    "reboot; WARN when it asks to drain peer traffic.",
    why="A GPU that is lost keeps its PCI address and its place in scheduling; jobs then hang or "
    "start with one GPU fewer.",
    prove="nvidia-smi; nvidia-smi -q -d PERFORMANCE; dmesg | grep -iE 'nvrm|xid'",
    mend="See the remedy of the finding; the driver's own recovery action goes first.",
    source="NVIDIA NVML API reference, return values and nvmlDeviceGetFieldValues (field 230, "
    "recovery action); nvidia-smi(1), GPU Reset Status",
)
def answers(s: Seen) -> Iterator[Judged]:
    """Failures of tools, errors in cells, recovery actions."""
    pasted = s.snapshot.pasted
    failures = pasted.of(ToolFailure) if pasted is not None else ()
    gpus = pasted.of(GpuState) if pasted is not None else ()
    if not failures and not gpus:
        raise NotApplicable("no tool's output about GPUs was pasted")
    bad = False
    for sentence in dict.fromkeys(f.text for f in failures):
        first = next(f for f in failures if f.text == sentence)
        bad = True
        yield fail(
            "gpu",
            f"the GPU cannot be used: {sentence[:160]}{_ONES if '(rev ff)' in sentence else ''}",
            saw(first.source, f"line {first.line}: {sentence}"),
            remedy=_failure_remedy(sentence),
        )
    for g in gpus:
        if g.errors:
            bad = True
            yield fail(
                g.label,
                f"{g.label} does not answer: {some((e.partition(': ')[2] for e in g.errors), 2)}",
                *(saw(g.source, e) for e in g.errors[:3]),
                remedy="dmesg | grep -iE 'nvrm|xid'; drain the node, then nvidia-smi --gpu-reset "
                f"-i {g.bdf or g.label.removeprefix('GPU ')}; reboot where that fails",
            )
        action = (g.recovery or "None").strip().lower()
        if action not in ("none", "n/a", "[n/a]", ""):
            bad = True
            make = warn if "p2p" in action else fail
            yield make(
                g.label,
                f"the driver asks for a recovery action of {g.label}: {g.recovery}",
                at(g, f"GPU Recovery Action: {g.recovery}"),
                remedy=_recovery_remedy(action),
            )
        elif g.reset_required or g.drain:
            bad = True
            what = "a reset" if g.reset_required else "to be drained and reset"
            yield fail(
                g.label,
                f"the driver says {g.label} needs {what}",
                at(g, "Reset Required: Yes" if g.reset_required else "Drain and Reset: Yes"),
                remedy="drain the node; nvidia-smi --gpu-reset -i "
                f"{g.bdf or g.label.removeprefix('GPU ')}",
            )
    if not bad:
        yield ok("gpu", f"{len({g.label for g in gpus})} GPUs answered")


_ONES = ": its registers read as ones, it fell off the bus or has no power"


def _recovery_remedy(action: str) -> str:
    if "reboot" in action:
        return "drain the node and reboot it: systemctl reboot"
    if "p2p" in action:
        return "end the jobs that use peer-to-peer, then look again: nvidia-smi -q | grep Recovery"
    return "drain the node, end what uses the GPU, then: nvidia-smi --gpu-reset"


def _failure_remedy(text: str) -> str:
    low = text.lower()
    if "(rev ff)" in low:
        return (
            "dmesg | grep -iE 'xid|aer|fallen'  # drain the node and power it off and on: a GPU "
            "that left the bus comes back by a cold start only; then look at power cables and "
            "seating"
        )
    if "mismatch" in low or "insufficient for" in low:
        return (
            "the loaded kernel module is of another version than the library: reboot, or end all "
            "GPU users and run: rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia"
        )
    if "unknown error" in low and "nvml" in low:
        return (
            "in a container: its device permissions were lost (systemctl daemon-reload with the "
            "systemd cgroup driver); start the container again, and create /dev/char links with: "
            "nvidia-ctk system create-dev-char-symlinks --create-all"
        )
    if any(w in low for w in ("system_not_ready", "system not yet", "802")):
        return (
            "the fabric is not set up: nvidia-smi -q | grep -A3 Fabric; drain the node, then: "
            "systemctl restart nvidia-fabricmanager (its exit aborts every CUDA job)"
        )
    if any(w in low for w in ("communicate", "driver not loaded", "not loaded", "no devices")):
        return "modprobe nvidia; dmesg | grep -i nvrm says why the driver does not load"
    if "insufficient permissions" in low:
        return "ls -l /dev/nvidia*; give the user or the container these devices"
    if "uncorrectable" in low:
        return "end the job; nvidia-smi -q -d ECC,ROW_REMAPPER; drain and reset the GPU"
    return "dmesg | grep -iE 'nvrm|xid'; drain the node, then reset the GPU or reboot"


@check(
    "gpu.link-width",
    "each GPU has all its PCIe lanes",
    means="FAIL when a GPU under load has fewer lanes than card and slot can do, WARN when the "
    "paste does not show load; INFO in a virtual machine. Width does not shrink to save power.",
    why="Half the lanes is half the bandwidth: bifurcation, a riser, a dirty or half-seated card.",
    prove="nvidia-smi --query-gpu=index,pcie.link.width.current,pcie.link.width.max --format=csv",
    mend="All GPUs alike: BIOS bifurcation first, then riser; one alone: reseat it.",
    source="PCI Express Base Specification 6.0, section 7.5.3.8; nvidia-smi(1), Link Width",
)
def link_width(s: Seen) -> Iterator[Judged]:
    """Lanes now against lanes possible."""
    gpus = [g for g in told(s, "width") if g.width_max]
    if not gpus:
        raise NotApplicable("no GPU tells both its lanes and the most it can have")
    short = [g for g in gpus if (g.width or 0) < (g.width_max or 0)]
    alike = len({g.label for g in short}) == len({g.label for g in gpus}) > 1
    cause = (
        "all GPUs alike: look at BIOS bifurcation first, then at the risers"
        if alike
        else "reseat the card, look at its riser and at the slot's bifurcation in the BIOS"
    )

    def each() -> Iterator[Judged]:
        for g in short:
            sentence = f"{g.label} runs on x{g.width} of x{g.width_max}"
            evidence = at(g, f"link width {g.width}, max {g.width_max}")
            if s.snapshot.host.virtual or _virtual(g):
                yield info(g.label, sentence + " (a hypervisor made these numbers)", evidence)
            elif g.busy:
                yield fail(g.label, sentence + " under load", evidence, remedy=_look(g, cause))
            else:
                yield warn(g.label, sentence, evidence, remedy=_look(g, cause))

    yield from once(each())
    if not short:
        yield ok("gpu", f"{len({g.label for g in gpus})} GPUs have all their lanes")


REPLAYS = 1000
"""Replays that stay from training and power states are a handful."""


@check(
    "gpu.link-replays",
    "GPUs' PCIe links do not repeat packets",
    means="WARN when a GPU counts 1000 PCIe replays or more since its last reset, INFO from 100 "
    "on; a handful stays from link training.",
    why="Each replay is a packet that came damaged: latency and bandwidth go first, then the GPU "
    "falls off the bus (Xid 79).",
    prove="nvidia-smi -q | grep -A1 -i 'replays since reset', twice, a minute apart",
    mend="Reseat the card, change riser or cable; lspci -vv shows BadTLP, BadDLLP and Timeout.",
    source="nvidia-smi(1), Replays Since Reset; PCI Express Base Specification 6.0, section 3.6",
)
def link_replays(s: Seen) -> Iterator[Judged]:
    """The replay counters."""
    gpus = told(s, "replays")
    if not gpus:
        raise NotApplicable("no GPU tells its PCIe replays")

    def each() -> Iterator[Judged]:
        for g in gpus:
            count = g.replays or 0
            sentence = f"{g.label} repeated {count} PCIe packets since its last reset"
            evidence = at(g, f"replays since reset: {count}")
            if count >= REPLAYS:
                cause = "reseat the card, change its riser or cable"
                yield warn(g.label, sentence, evidence, remedy=_look(g, cause))
            elif count >= REPLAYS // 10:
                yield info(g.label, sentence, evidence)

    found = list(once(each()))
    yield from found
    if not found:
        yield ok("gpu", f"{len({g.label for g in gpus})} GPUs repeat no PCIe packets")


def _look(g: GpuState, cause: str) -> str:
    return f"{cause}; lspci -vv -s {g.bdf or 'BDF'} | grep Lnk"


def _virtual(g: GpuState) -> bool:
    return (g.virtualization or "").lower() in ("pass-through", "vgpu", "passthrough")


@check(
    "gpu.link-speed",
    "each GPU's PCIe link runs at full speed when it works",
    means="WARN when a GPU that is in P0 to P2 or has load runs at a lower PCIe generation than "
    "card and slot can do. A low generation at idle (P5 to P12, no use) is power saving: OK. INFO "
    "when the slot can do less than the card, and when nothing tells whether the GPU works.",
    why="An idle GPU trains its link down to 2.5 GT/s and up again under load, so only a sample "
    "under load says anything.",
    prove="nvidia-smi --query-gpu=index,pstate,utilization.gpu,pcie.link.gen.gpucurrent,"
    "pcie.link.gen.max --format=csv -l 1, with a job running",
    mend="Reseat the card; set the slot's speed in the BIOS to Auto; exchange riser or retimer.",
    source="nvidia-smi(1), PCIe Generation: may be reduced when the GPU is not in use",
)
def link_speed(s: Seen) -> Iterator[Judged]:
    """Generation now against generation possible, by load."""
    gpus = [g for g in told(s, "gen") if g.gen_max]
    if not gpus:
        raise NotApplicable("no GPU tells both its PCIe generation and the most it can have")
    bad = 0
    idle: list[GpuState] = []
    open_: list[GpuState] = []
    fast = {g.label for g in gpus if (g.gen or 0) >= (g.gen_max or 0)}
    for g in gpus:
        if (g.gen or 0) >= (g.gen_max or 0):
            continue
        at_work = g.busy or (g.busy is None and g.pstate is not None and g.pstate <= 2)
        if at_work and not (s.snapshot.host.virtual or _virtual(g)):
            bad += 1
            yield warn(
                g.label,
                f"{g.label} works at PCIe generation {g.gen}, card and slot can do {g.gen_max}",
                at(g, f"generation {g.gen}, max {g.gen_max}, {_load(g)}"),
                remedy=_look(g, "reseat the card, set the slot to Auto in the BIOS"),
            )
        elif g.busy is False or g.label in fast:
            idle.append(g)
        else:
            open_.append(g)
    if open_:
        yield info(
            f"gpu {some({g.label for g in open_})}",
            f"{len(open_)} GPUs run at a lower PCIe generation than they can: normal when idle, "
            "and nothing pasted tells whether they work",
            *(at(g, f"generation {g.gen}, max {g.gen_max}") for g in open_[:3]),
            remedy="nvidia-smi --query-gpu=index,pstate,utilization.gpu,pcie.link.gen.gpucurrent "
            "--format=csv, with a job running",
        )
    slot = [
        g for g in gpus if g.gen_host_max and g.gen_device_max and g.gen_host_max < g.gen_device_max
    ]
    if slot:
        yield info(
            f"gpu {some(dict.fromkeys(g.label for g in slot))}",
            f"the slot can do PCIe generation {slot[0].gen_host_max}, the card "
            f"{slot[0].gen_device_max}",
            at(slot[0], f"host max {slot[0].gen_host_max}, device max {slot[0].gen_device_max}"),
        )
    if not bad and not open_:
        quiet = f"; {len(idle)} samples at idle run lower, which is normal" if idle else ""
        yield ok("gpu", f"{len({g.label for g in gpus})} PCIe links are as fast as they can{quiet}")


def _load(g: GpuState) -> str:
    words = [
        f"P{g.pstate}" if g.pstate is not None else "",
        f"{g.util_percent} % used" if g.util_percent is not None else "",
        {True: "under load", False: "idle"}.get(g.loaded, "") if g.loaded is not None else "",
    ]
    return ", ".join(w for w in words if w)
