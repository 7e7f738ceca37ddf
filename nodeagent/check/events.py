"""gpu.log: what happened by the kernel log, one finding an incident.

A fault is logged many times: warnings before it, the fault, what follows from it. The lines of
one incident become one finding, and its root is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from nodeagent.check import chains
from nodeagent.check.chains import short as _gpu
from nodeagent.check.incident import APPS, Incident, cause, grave, meaning_of, telling, xid
from nodeagent.check.meaning import AROUND, KINDS, Meaning
from nodeagent.check.record import Judged, NotApplicable, Seen, check, info, ok, saw, some
from nodeagent.model.finding import Evidence, Verdict
from nodeagent.model.kernel_event import KernelEvent

FLAPS = 3
_RANK = (Verdict.OK, Verdict.INFO, Verdict.UNKNOWN, Verdict.WARN, Verdict.FAIL)
_JOURNAL = re.compile(r"(?<=\d)-\d+$")
"""ext4's journal is named after its device and inode 8: `sda4-8`."""
_ACTION = re.compile(r"to 0x\w+ \(([^)]+)\)")


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
        if s.snapshot.pasted and set(s.snapshot.pasted.kinds) - {"log"}:
            raise NotApplicable("this log is no kernel's; other checks read it")
        yield info("log", "no line of this log is the kernel's or a driver's: nothing to judge")
    else:
        yield ok("kernel log", f"{len(events)} lines that mean something, no fault")


def _incidents(s: Seen, events: Sequence[KernelEvent]) -> list[Incident]:
    taken: set[int] = set()
    found: list[tuple[int, Incident]] = []
    parts = (
        *chains.lost_gpus(s, events),
        *chains.nvlink(events),
        *chains.gpu_memory(events),
        *chains.drives(events),
        *chains.poisoned(events),
        *chains.killed_processes(events),
    )
    for start, incident, folded in parts:
        if start not in taken:
            taken |= folded | {start}
            found.append((start, incident))
    actions = {_gpu(e.bdf): e for e in events if xid(e) == 154}
    groups: dict[tuple[str, str], list[int]] = {}
    fault: tuple[str, str] | None = None
    links = chains.pcie(events)
    broken = {links[i] for i in links if grave(events[i])}
    for i, e in enumerate(events):
        if i not in taken and e.fault and not _elsewhere(s, e):
            number = cause(e) if cause(e) is not None else xid(e)
            kind = f"xid {number}" if number is not None else e.kind
            device = links.get(i) or _gpu(e.bdf) or _JOURNAL.sub("", _device(e))
            if kind == "pcie_link" and device in broken:
                kind = "aer"  # the port went down for the error that it reports
            if fault and (chains.waits(e) or (e.kind == "nvrm_reset_required" and not e.bdf)):
                kind, device = fault
            groups.setdefault((kind, device), []).append(i)
            if number is not None and meaning_of(events, [i]).verdict is Verdict.FAIL:
                fault = (kind, device)
    faulty = {gpu for _, f in found for gpu in (_gpu(x.bdf) for x in f.lines) if gpu}
    faulty |= {gpu for kind, gpu in groups if kind.startswith("xid") and kind != "xid 45"}
    for (kind, device), members in groups.items():
        if kind == "xid 45" and device in faulty:
            continue  # the cleanup after that GPU's real fault
        incident = Incident(
            root=events[telling(events, members)],
            meaning=meaning_of(events, members),
            lines=[events[i] for i in members],
            name=f"{kind} {device}".strip(),
        )
        found.append((members[0], incident))
    for device, e in actions.items():
        advice = _advice(e)
        mine = [f for _, f in found if _gpu(f.root.bdf) == device]
        worst = max(mine, key=lambda f: _RANK.index(f.meaning.verdict), default=None)
        if advice is None or (
            worst and _RANK.index(worst.meaning.verdict) >= _RANK.index(advice.verdict)
        ):
            continue
        if worst is not None and worst.meaning.verdict is Verdict.WARN:
            worst.meaning = Meaning(
                advice.verdict, f"{worst.meaning.what}; {advice.what}", advice.remedy
            )
            worst.lines.append(e)
            continue
        found.append((0, Incident(root=e, meaning=advice, lines=[e], name=f"xid 154 {device}")))
    found += _flaps(events)
    return [incident for _, incident in sorted(found, key=lambda x: x[0])]


def _device(e: KernelEvent) -> str:
    return str(e.details.get("device") or "")


def _elsewhere(s: Seen, e: KernelEvent) -> bool:
    """cpu.tsc tells of the time stamp counter."""
    tsc = e.kind == "clocksource" and re.search(r"\btsc\b", e.text, re.IGNORECASE) is not None
    return tsc and "log/tsc-unstable" in s.snapshot.texts


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


def _flaps(events: Sequence[KernelEvent]) -> Iterator[tuple[int, Incident]]:
    """Links that went down again and again; a link that is down once may be meant so."""
    downs: dict[str, list[int]] = {}
    for i, e in enumerate(events):
        if e.kind == "nic_link":
            downs.setdefault(str(e.details.get("device") or e.bdf), []).append(i)
    for device, members in downs.items():
        if len(members) >= FLAPS:
            yield (
                members[0],
                Incident(
                    root=events[members[0]],
                    meaning=KINDS["nic_link"],
                    lines=[events[i] for i in members],
                    name=f"nic_link {device}",
                ),
            )


def _told(x: Incident) -> Judged:
    e = x.root
    number = cause(e) if cause(e) is not None else xid(e)
    if number is not None and x.name.startswith("xid"):
        sentence = f"Xid {x.name[4:]}: {x.meaning.what}"
    else:
        device = x.name.partition(" ")[2]
        sentence = f"{device}: {x.meaning.what}" if device else x.meaning.what
    if x.before:
        corrected = sum(b.details.get("correctable") is True for b in x.before)
        fatal = sum(b.details.get("correctable") is False for b in x.before)
        ports = some(sorted({_gpu(b.bdf) for b in x.before if b.bdf}))
        sentence += (
            f"; before it {ports} logged PCIe errors ({corrected} lines of corrected ones, {fatal} "
            "of others): the link gave way first"
        )
    rest = len(x.lines) - 1
    peers = sorted(
        {p for p in (_gpu(y.bdf) for y in x.lines) if p and p not in x.name} - {_gpu(e.bdf)}
    )
    if rest > 0:
        more = "line belongs" if rest == 1 else "lines belong"
        sentence += f"; {rest} more {more} to it" + (f" ({some(peers)})" if peers else "")
    grave = [b for b in x.before if b.details.get("correctable") is False]
    shown = [*x.before[:1], *grave[:1], e, *[y for y in x.lines if y is not e][:2]]
    return Judged(
        verdict=x.meaning.verdict,
        subject=x.name,
        message=sentence,
        evidence=tuple(_line(y) for y in shown),
        remedy=_pasted(x) or ("" if x.meaning.verdict is Verdict.INFO else AROUND),
    )


def _pasted(x: Incident) -> str:
    """The remedy with the incident's own device in its place."""
    remedy = x.meaning.remedy
    address = x.name.rpartition(" ")[2]
    if address.count(":") == 2 and x.root.bdf:
        remedy = remedy.replace(" BDF", f" {address}").replace("-i GPU", f"-i {address}.0")
    if drive := chains.drive(x.root):
        remedy = remedy.replace("/dev/DEVICE", f"/dev/{drive}")
    return remedy


def _line(e: KernelEvent) -> Evidence:
    return saw(e.file or "kernel log", f"line {e.line}: {e.text}")
