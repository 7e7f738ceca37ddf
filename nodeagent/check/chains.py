"""Which lines of a log belong to one event, where several devices log it.

Source: Linux drivers/pci/pcie/{aer,err,dpc}.c (who is named by which line), drivers/nvme/host/pci.c
(namespaces and partitions carry their controller's name).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from nodeagent.check.incident import (
    Incident,
    Part,
    cause,
    fatal_text,
    killed,
    part,
    telling,
    xid,
)
from nodeagent.check.meaning import (
    FOLLOWERS,
    LOST_XIDS,
    NVLINK_XIDS,
    OTHER_XID,
    XIDS,
    Meaning,
)
from nodeagent.check.record import Seen
from nodeagent.model.finding import Verdict
from nodeagent.model.kernel_event import KernelEvent

NEAR = 60
"""Events before a lost GPU in which its port's PCIe errors are looked for."""

WITHIN = 40
"""Events after an uncorrected error in which its recovery is logged."""
NEAR_LINES = 30
"""Lines between two records of one memory error."""

_NVIDIA_TASK = re.compile(r"nvidia|nv[-_ ]|UVM|irq/\d+-nvidia")
_ECC = (64, 95, 48, 140, 94, 63)
"""Xids of a GPU's memory, the worst first."""
_SOURCE = re.compile(
    r"\bAER: .*received(?: from)?:? ((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
)
_RECOVERY = re.compile(
    r"recover|broadcast \w+ message|link has been reset|subordinate device|has no \w|EDR: "
)
_DRIVE = re.compile(r"nvme\d+|[shv]d[a-z]+|xvd[a-z]+|mmcblk\d+")


def short(bdf: str | None) -> str:
    """An address without function, four digits of domain: drivers print it in several forms."""
    if not bdf:
        return ""
    address = bdf.partition(".")[0]
    return address[-10:] if address.count(":") == 2 else address


def pcie(events: Sequence[KernelEvent]) -> dict[int, str]:
    """The device whose link each PCIe line speaks of: a port tells of the device below it, and the
    devices below a failed port tell that they could not be recovered."""
    owner: dict[int, str] = {}
    last: tuple[str, frozenset[str]] = ("", frozenset())
    grave: tuple[int, str] | None = None
    failed: dict[str, str] = {}
    for i, e in enumerate(events):
        if e.kind not in ("aer", "pcie_link"):
            continue
        device = short(e.bdf)
        severity = e.details.get("correctable")
        if e.kind == "pcie_link":
            owner[i] = failed.get(device, device)
        elif severity is not None and not (grave and "DPC: " in e.text and device in failed):
            m = _SOURCE.search(e.text)
            source = short(m[1]) if m else device
            owner[i] = source
            last = (source, frozenset({device, source}))
            if severity is False:
                grave = (i, source)
                failed |= {device: source, source: source}
        elif grave and i - grave[0] <= WITHIN and _RECOVERY.search(e.text):
            owner[i] = grave[1]
        elif device in last[1]:
            owner[i] = last[0]
        else:
            owner[i] = failed.get(device, device)
    return owner


def drive(e: KernelEvent) -> str:
    """The drive or controller of a device name: `nvme4` of `nvme4n1p1-8`; "" of anything else."""
    m = _DRIVE.match(str(e.details.get("device") or ""))
    return m[0] if m else ""


def memory(events: Sequence[KernelEvent]) -> list[list[int]]:
    """Records of one memory error: what firmware or the machine check says, the memory
    controller's line, and the page that is given up. Only runs that give up a page."""
    runs: list[list[int]] = []
    for i, e in enumerate(events):
        if e.kind not in ("ghes", "mce", "edac", "memory_failure"):
            continue
        if runs and (p := events[runs[-1][-1]]).file == e.file and e.line - p.line <= NEAR_LINES:
            runs[-1].append(i)
        else:
            runs.append([i])
    return [
        r
        for r in runs
        if any(events[i].kind == "memory_failure" for i in r)
        and any(events[i].kind != "memory_failure" for i in r)
    ]


def lost_gpus(s: Seen, events: Sequence[KernelEvent]) -> Iterator[Part]:
    """GPUs off the bus, with their ports' errors before and their own lines after."""
    done: set[str] = set()
    roots = [i for i, e in enumerate(events) if xid(e) in LOST_XIDS or e.kind == "gpu_off_bus"]
    named = {short(events[i].bdf) for i in roots} - {""}
    for i in roots:
        gpu = short(events[i].bdf)
        if gpu in done or (not gpu and named):
            continue
        done.add(gpu)
        members = {
            j
            for j, e in enumerate(events)
            if (short(e.bdf) == gpu or (not e.bdf and len(named) < 2 and j > i))
            and (
                xid(e) in LOST_XIDS
                or e.kind in ("gpu_off_bus", "nvrm_reset_required", "gpu_init", "nvlink_init")
                or (j > i and (xid(e) in FOLLOWERS or e.kind == "nvrm_other"))
            )
        }
        if len(named) < 2:
            members |= {j for j, e in enumerate(events) if j > i and (e.kind == "sxid" or waits(e))}
        related = set(_ports(s, events, i, gpu, alone=len(named) < 2)) - members
        port = {j for j in related if j < i}
        members |= related - port
        yield (
            i,
            Incident(
                root=events[i],
                meaning=XIDS[79],
                lines=[events[j] for j in sorted(members)],
                before=[events[j] for j in sorted(port)],
                name=f"xid 79 {gpu}".strip(),
            ),
            members | port,
        )


def waits(e: KernelEvent) -> bool:
    """A task of NVIDIA's driver or tools that is blocked: it waits for the GPU."""
    task = str(e.details.get("process") or "")
    return e.kind == "hung_task" and _NVIDIA_TASK.match(task) is not None


def gpu_memory(events: Sequence[KernelEvent]) -> Iterator[Part]:
    """An ECC error of a GPU with the rows that are remapped for it: the worst is the root."""
    gpus: dict[str, list[int]] = {}
    for i, e in enumerate(events):
        if xid(e) in _ECC and (gpu := short(e.bdf)):
            gpus.setdefault(gpu, []).append(i)
    for gpu, members in gpus.items():
        numbers = sorted({xid(events[i]) or 0 for i in members}, key=_ECC.index)
        if len(numbers) < 2:
            continue
        root = next(i for i in members if xid(events[i]) == numbers[0])
        found = part(events, root, set(members), f"xid {numbers[0]} {gpu}")
        m = found[1].meaning
        also = "; ".join(f"Xid {n}: {XIDS[n].what}" for n in numbers[1:])
        found[1].meaning = Meaning(m.verdict, f"{m.what}; with it {also}", m.remedy)
        yield found


def _ports(
    s: Seen, events: Sequence[KernelEvent], at: int, gpu: str, *, alone: bool
) -> Iterator[int]:
    """PCIe errors of the GPU and of the port above it: by the topology, else by a fatal error
    logged just before, or just after when no other GPU was lost (`alone`)."""
    function = next((p for p in s.snapshot.topology.pci if short(p.bdf) == gpu), None)
    ports = {short(b) for b in function.parents} if function else set()
    near = range(max(0, at - NEAR), min(len(events), at + NEAR // 3) if alone else at)
    if not ports:
        ports = {
            short(events[j].bdf)
            for j in near
            if events[j].kind == "pcie_link"
            or (events[j].kind == "aer" and events[j].details.get("correctable") is False)
        }
    ports.add(gpu)
    for j, e in enumerate(events):
        if e.kind in ("aer", "pcie_link") and short(e.bdf) in ports and j < at + NEAR:
            yield j


def nvlink(events: Sequence[KernelEvent]) -> Iterator[Part]:
    """All NVLink Xids of the machine, and the clean-ups that name them: a link has two ends."""
    lost = {short(e.bdf) for e in events if xid(e) in LOST_XIDS}
    members = [
        i
        for i, e in enumerate(events)
        if (xid(e) in NVLINK_XIDS or cause(e) in NVLINK_XIDS) and short(e.bdf) not in lost
    ]
    if not members:
        return
    if any(fatal_text(events[i]) or xid(events[i]) == 74 for i in members):
        # The switch's end of the same links: a fatal SXid, and its lines of data.
        members = sorted({*members, *(i for i, e in enumerate(events) if e.kind == "sxid")})

    def weight(i: int) -> tuple[int, int]:
        number = cause(events[i]) if cause(events[i]) is not None else xid(events[i])
        fatal = fatal_text(events[i]) and events[i].kind == "xid"
        return (2 * fatal + (number in (149, 74)), -i)

    first = max(members, key=weight)
    root = events[first]
    number = cause(root) if cause(root) is not None else xid(root)
    texts = [events[i].text for i in members if events[i].kind == "xid"]
    mild = all(re.search(r"\bNon-?fatal\b", t, re.IGNORECASE) for t in texts)
    meaning = XIDS.get(number or 0, OTHER_XID)
    verdict = Verdict.WARN if mild else Verdict.FAIL
    gpus = {short(e.bdf) for e in events}
    followers = {i for i, e in enumerate(events) if xid(e) == 154 and short(e.bdf) in gpus} | set(
        members
    )
    yield (
        min(members),
        Incident(
            root=root,
            meaning=Meaning(verdict, meaning.what, meaning.remedy),
            lines=[events[i] for i in members],
            name=f"xid {number} {short(root.bdf)}".strip(),
        ),
        followers,
    )


def drives(events: Sequence[KernelEvent]) -> Iterator[Part]:
    """All that follows from a drive that was given up or lost, up to the file system and the
    array on it."""
    order = ("nvme_dead", "nvme_no_path", "raid", "fs_error", "io_error", "nvme_timeout")
    by_name: dict[str, list[int]] = {}
    for i, e in enumerate(events):
        if e.kind in order and (name := drive(e)):
            by_name.setdefault(name, []).append(i)
    for name, members in by_name.items():
        first = min(members, key=lambda i: (order.index(events[i].kind), i))
        if len({events[i].kind for i in members}) > 1:
            after = {
                i + 1
                for i in members
                if events[i].kind == "raid"
                and i + 1 < len(events)
                and events[i + 1].kind == "raid"
                and not events[i + 1].details.get("device")
            }
            yield part(events, first, {*members, *after}, f"{events[first].kind} {name}")


def poisoned(events: Sequence[KernelEvent]) -> Iterator[Part]:
    """A page that is given up, with what firmware and machine check say of it."""
    for run in memory(events):
        first = next(i for i in run if events[i].kind == "memory_failure")
        yield part(events, first, set(run), "memory_failure")


def killed_processes(events: Sequence[KernelEvent]) -> Iterator[Part]:
    """Killed processes, with the GPU channels that the driver cleaned up after them."""
    pids = {e.details.get("pid") for e in events if killed(e)} - {None}
    members = {i for i, e in enumerate(events) if e.kind == "oom"}
    xids = {i for i, e in enumerate(events) if xid(e) in (43, 45) and e.details.get("pid") in pids}
    if members and xids:
        yield part(events, telling(events, sorted(members)), members | xids, "oom")
