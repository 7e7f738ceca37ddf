"""gpu.log: what happened by the kernel log, one finding an incident.

A fault is logged many times: warnings before it, the fault, what follows from it. The lines of
one incident become one finding, and its root is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nodeagent.check.meaning import (
    AROUND,
    FOLLOWERS,
    KINDS,
    LAST_XID,
    LOST_XIDS,
    NVLINK_XIDS,
    OTHER_XID,
    UNCORRECTED,
    UNKNOWN_XID,
    XIDS,
    Meaning,
)
from nodeagent.check.record import Judged, NotApplicable, Seen, check, info, ok, saw, some
from nodeagent.model.finding import Evidence, Verdict
from nodeagent.model.kernel_event import KernelEvent

NEAR = 60
"""Events before a lost GPU in which its port's PCIe errors are looked for."""
FLAPS = 3
APPS = 3
"""Different processes with the same application Xid on one GPU: then it may be the GPU."""
_ACTION = re.compile(r"to 0x\w+ \(([^)]+)\)")


@dataclass(slots=True)
class _Incident:
    """Lines that belong together; `root` tells what happened."""

    root: KernelEvent
    meaning: Meaning
    lines: list[KernelEvent] = field(default_factory=list)
    before: list[KernelEvent] = field(default_factory=list)
    name: str = ""


@check(
    "gpu.log",
    "the kernel log has no hardware faults",
    means="One finding an incident: lines that follow from a fault (Xid 45 after 149, all that a "
    "lost GPU logs) and those that announced it (PCIe errors of its port) are told with it. FAIL "
    "for what needs a reset, a repair or a restart (fatal Xids, GPU off the bus, errors not "
    "corrected, dead drives, damaged file systems, kernel panic, a process killed for memory); "
    "WARN for what was corrected or repaired itself; INFO for Xids an application usually causes "
    f"itself (13, 31, 43, 45), until {APPS} different processes hit them on one GPU; UNKNOWN for "
    "Xid numbers that are in no catalogue. Xid 154 is the driver's own advice. NA when no log was "
    "read.",
    why="The log is the only place where the first of a chain of errors stands; what follows it "
    "(Xid 45, NCCL time-outs) is noise. A node taken out for an application's fault is capacity "
    "lost for nothing.",
    prove="dmesg -T | grep -iE 'xid|nvrm|aer|hardware error|mce|i/o error'",
    mend="Mend the first fault of the chain: see each finding's remedy.",
    source="NVIDIA Xid catalogue; DCGM health checks; Linux Documentation/PCI/pcieaer-howto.rst",
)
def log(s: Seen) -> Iterator[Judged]:
    """Incidents in the order of their first line."""
    events = s.snapshot.events
    if events is None:
        if (reason := s.snapshot.why_unread("dev/kmsg")) is not None:
            raise s.unread("dev/kmsg", reason)
        s.whole("derived/kernel_log")
        raise NotApplicable("no kernel log was read")
    found = _incidents(s, events)
    for incident in found:
        if incident.root.kind == "oom" and s.snapshot.pasted is None:
            # The log of a running machine is months long: a container killed once is no state.
            m = incident.meaning
            incident.meaning = Meaning(Verdict.WARN, m.what, m.remedy)
        yield _told(incident)
    if found:
        return
    if not events and s.snapshot.texts.get("log/kernel-lines", "1") == "0":
        yield info("log", "no line of this log is the kernel's or a driver's: nothing to judge")
    else:
        yield ok("kernel log", f"{len(events)} lines that mean something, no fault")


def _gpu(bdf: str | None) -> str:
    """An address without function, four digits of domain: drivers print it in several forms."""
    if not bdf:
        return ""
    short = bdf.partition(".")[0]
    return short[-10:] if short.count(":") == 2 else short


def _xid(e: KernelEvent) -> int | None:
    number = e.details.get("xid")
    return number if e.kind == "xid" and isinstance(number, int) else None


def _cause(e: KernelEvent) -> int | None:
    number = e.details.get("cause_xid")
    return number if isinstance(number, int) else None


def _incidents(s: Seen, events: Sequence[KernelEvent]) -> list[_Incident]:
    taken: set[int] = set()
    found: list[tuple[int, _Incident]] = []
    for start, incident, folded in (*_lost(s, events), *_nvlink(events)):
        if start not in taken:
            taken |= folded | {start}
            found.append((start, incident))
    actions = {_gpu(e.bdf): e for e in events if _xid(e) == 154}
    groups: dict[tuple[str, str], list[int]] = {}
    for i, e in enumerate(events):
        if i not in taken and e.fault:
            number = _cause(e) if _cause(e) is not None else _xid(e)
            kind = f"xid {number}" if number is not None else e.kind
            device = e.details.get("device")
            groups.setdefault((kind, _gpu(e.bdf) or str(device or "")), []).append(i)
    serious = {key[1] for key, m in groups.items() if _meaning(events, m).verdict is Verdict.FAIL}
    for (kind, device), members in groups.items():
        if kind == "xid 45" and device in serious:
            continue  # the cleanup after that GPU's real fault
        incident = _Incident(
            root=events[_first(events, members)],
            meaning=_meaning(events, members),
            lines=[events[i] for i in members],
            name=f"{kind} {device}".strip(),
        )
        found.append((members[0], incident))
    for device, e in actions.items():
        advice = _advice(e)
        if advice is not None and not any(_gpu(f.root.bdf) == device for _, f in found):
            found.append(
                (0, _Incident(root=e, meaning=advice, lines=[e], name=f"xid 154 {device}"))
            )
    found += _flaps(events)
    return [incident for _, incident in sorted(found, key=lambda x: x[0])]


def _lost(s: Seen, events: Sequence[KernelEvent]) -> Iterator[tuple[int, _Incident, set[int]]]:
    """GPUs off the bus, with their ports' errors before and their own lines after."""
    done: set[str] = set()
    roots = [i for i, e in enumerate(events) if _xid(e) in LOST_XIDS or e.kind == "gpu_off_bus"]
    named = {_gpu(events[i].bdf) for i in roots} - {""}
    for i in roots:
        gpu = _gpu(events[i].bdf)
        if gpu in done or (not gpu and named):
            continue
        done.add(gpu)
        members = {
            j
            for j, e in enumerate(events)
            if (_gpu(e.bdf) == gpu or (not e.bdf and len(named) < 2 and j > i))
            and (
                _xid(e) in LOST_XIDS
                or e.kind in ("gpu_off_bus", "nvrm_reset_required", "gpu_init", "nvlink_init")
                or (j > i and (_xid(e) in FOLLOWERS or e.kind == "nvrm_other"))
            )
        }
        port = {j for j in _ports(s, events, i, gpu) if j not in members}
        yield (
            i,
            _Incident(
                root=events[i],
                meaning=XIDS[79],
                lines=[events[j] for j in sorted(members)],
                before=[events[j] for j in sorted(port)],
                name=f"xid 79 {gpu}".strip(),
            ),
            members | port,
        )


def _ports(s: Seen, events: Sequence[KernelEvent], at: int, gpu: str) -> Iterator[int]:
    """PCIe errors of the GPU and of the port above it: by the topology, else by a fatal error
    logged just before."""
    function = next((p for p in s.snapshot.topology.pci if _gpu(p.bdf) == gpu), None)
    ports = {_gpu(b) for b in function.parents} if function else set()
    near = range(max(0, at - NEAR), at)
    if not ports:
        ports = {
            _gpu(events[j].bdf)
            for j in near
            if events[j].kind == "aer" and events[j].details.get("correctable") is False
        }
    ports.add(gpu)
    for j, e in enumerate(events):
        if j < at and e.kind in ("aer", "pcie_link") and _gpu(e.bdf) in ports:
            yield j


def _nvlink(events: Sequence[KernelEvent]) -> Iterator[tuple[int, _Incident, set[int]]]:
    """All NVLink Xids of the machine, and the clean-ups that name them: a link has two ends."""
    lost = {_gpu(e.bdf) for e in events if _xid(e) in LOST_XIDS}
    members = [
        i
        for i, e in enumerate(events)
        if (_xid(e) in NVLINK_XIDS or _cause(e) in NVLINK_XIDS) and _gpu(e.bdf) not in lost
    ]
    if not members:
        return

    def weight(i: int) -> tuple[int, int]:
        number = _cause(events[i]) if _cause(events[i]) is not None else _xid(events[i])
        fatal = re.search(r"\bFatal\b", events[i].text) is not None
        return (2 * fatal + (number in (149, 74)), -i)

    first = max(members, key=weight)
    root = events[first]
    number = _cause(root) if _cause(root) is not None else _xid(root)
    texts = [events[i].text for i in members]
    mild = all(re.search(r"\bNon-?fatal\b", t, re.IGNORECASE) for t in texts)
    meaning = XIDS.get(number or 0, OTHER_XID)
    verdict = Verdict.WARN if mild else Verdict.FAIL
    gpus = {_gpu(e.bdf) for e in events}
    followers = {i for i, e in enumerate(events) if _xid(e) == 154 and _gpu(e.bdf) in gpus} | set(
        members
    )
    yield (
        min(members),
        _Incident(
            root=root,
            meaning=Meaning(verdict, meaning.what, meaning.remedy),
            lines=[events[i] for i in members],
            name=f"xid {number} {_gpu(root.bdf)}".strip(),
        ),
        followers,
    )


def _meaning(events: Sequence[KernelEvent], members: Sequence[int]) -> Meaning:
    """What a group of one kind and device means."""
    first = events[members[0]]
    number = _cause(first) if _cause(first) is not None else _xid(first)
    if number is not None:
        if number > LAST_XID:
            return UNKNOWN_XID
        meaning = XIDS.get(number, OTHER_XID)
        processes = {events[i].details.get("process") for i in members} - {None}
        if meaning.verdict is Verdict.INFO and number != 45 and len(processes) >= APPS:
            return Meaning(
                Verdict.WARN,
                f"{meaning.what}; but {len(processes)} different programs hit it on this GPU",
                "drain the GPU (the test takes it for minutes), then: dcgmi diag -r 3 -i GPU",
            )
        return meaning
    meaning = KINDS.get(first.kind, Meaning(Verdict.WARN, "a fault", AROUND))
    told = [events[i].details for i in members]
    severe = any(d.get("correctable") is False or d.get("fatal") is True for d in told)
    if severe and first.kind in UNCORRECTED:
        return Meaning(Verdict.FAIL, UNCORRECTED[first.kind], meaning.remedy)
    if first.kind == "nic_fw" and any(_health(events[i].text) for i in members):
        return Meaning(Verdict.FAIL, "the NIC's firmware failed", meaning.remedy)
    return meaning


def _health(text: str) -> bool:
    return re.search(r"health|fatal|internal error|assert_var", text, re.IGNORECASE) is not None


def _first(events: Sequence[KernelEvent], members: Sequence[int]) -> int:
    """The line that says most: the first that is severe, else the first."""
    for i in members:
        details = events[i].details
        if details.get("correctable") is False or details.get("fatal") is True:
            return i
    return members[0]


def _advice(e: KernelEvent) -> Meaning | None:
    """What the driver asks for by Xid 154; None for nothing."""
    m = _ACTION.search(e.text)
    action = m[1] if m else ""
    if action.lower() in ("", "none"):
        return None
    now = re.search(r"reboot|reset required", action, re.IGNORECASE) is not None
    return Meaning(
        Verdict.FAIL if now else Verdict.WARN,
        f"the driver asks for an action: {action}",
        f"do what the driver says: {action}",
    )


def _flaps(events: Sequence[KernelEvent]) -> Iterator[tuple[int, _Incident]]:
    """Links that went down again and again; a link that is down once may be meant so."""
    downs: dict[str, list[int]] = {}
    for i, e in enumerate(events):
        if e.kind == "nic_link":
            downs.setdefault(str(e.details.get("device") or e.bdf), []).append(i)
    for device, members in downs.items():
        if len(members) >= FLAPS:
            yield (
                members[0],
                _Incident(
                    root=events[members[0]],
                    meaning=KINDS["nic_link"],
                    lines=[events[i] for i in members],
                    name=f"nic_link {device}",
                ),
            )


def _told(x: _Incident) -> Judged:
    e = x.root
    number = _cause(e) if _cause(e) is not None else _xid(e)
    name = x.name
    if number is not None and name.startswith("xid"):
        name = f"Xid {name[4:]}"
    sentence = f"{name}: {x.meaning.what}"
    if x.before:
        corrected = sum(b.details.get("correctable") is True for b in x.before)
        fatal = sum(b.details.get("correctable") is False for b in x.before)
        ports = some(sorted({_gpu(b.bdf) for b in x.before if b.bdf}))
        sentence += (
            f"; before it {ports} logged PCIe errors ({corrected} lines of corrected ones, {fatal} "
            "of others): the link gave way first"
        )
    rest = len(x.lines) - 1
    peers = sorted({_gpu(y.bdf) for y in x.lines if y.bdf} - {_gpu(e.bdf)})
    if rest > 0:
        sentence += f"; {rest} more lines belong to it" + (f" ({some(peers)})" if peers else "")
    grave = [b for b in x.before if b.details.get("correctable") is False]
    shown = [*x.before[:1], *grave[:1], e, *[y for y in x.lines if y is not e][:2]]
    return Judged(
        verdict=x.meaning.verdict,
        subject=x.name,
        message=sentence,
        evidence=tuple(_line(y) for y in shown),
        remedy=x.meaning.remedy or ("" if x.meaning.verdict is Verdict.INFO else AROUND),
    )


def _line(e: KernelEvent) -> Evidence:
    where = f"line {e.line}" + (f" of {e.file}" if e.file else "")
    return saw(e.file or "kernel log", f"{where}: {e.text}")
