"""Kernel and driver logs: the lines that mean something (contract: facts, Kernel and driver log).

The rules stand beside, by subsystem: klog_gpu, klog_hardware, klog_io, klog_kernel.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste import klog_gpu, klog_hardware, klog_io, klog_kernel
from nodeagent.discover.paste.klog_rule import Topic
from nodeagent.discover.paste.part import Part
from nodeagent.model.kernel_event import KernelEvent

MAX_EVENTS = 100_000
"""More lines than this are counted, not kept."""
MAX_LINE = 4096
"""Characters of a line that are looked at; the kernel's own end at about 1,000. Some rules take
time by the square of it, on lines made for that."""

# Begins where a word does: from the middle of one it would be tried again and again.
_DEVICE = re.compile(
    r"(?<![\w-])-*\w[\w-]* ((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]):"
)
_PREFIX = re.compile(
    r"\s*(?:<\d+>(?:1 )?|\[[^\]]*\]|(?:kern|user|daemon)\s*:\w+\s*:"
    r"|(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*(?: [A-Z]{3,4}(?= ))?"
    r"|(?:stdout|stderr) [FP] |\d{9,10}\.\d+(?=\s)"
    r"|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2}\s+\d+ \d\d:\d\d:\d\d(?:\.\d+)?(?: \d{4})?"
    r"|[\w.-]+ (?:\w+\.\w+ )?kernel(?:\[\d*\])?(?: - - -|:)|kernel:"
    # Quote and diff marks, prompts; records of /dev/kmsg; klog of Kubernetes; ESXi; Xen.
    r"|[>|+$#]+(?=\s)|\d+,\d+,\d+,[-c+][^;\s]*;"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.]+:\d+\]"
    r"|[\w.-]+ vmk(?:ernel|warning): (?:cpu\d+:\d+\))?|\(XEN\))\s*"
)
_STAMPED = re.compile(
    r"\s*(?:<\d+>)?\[\s*\d+\.\d+\]|\s*\[[A-Z][a-z]{2} [A-Z][a-z]{2} |.*\bkernel: "
    r"|\d{1,3},\d{1,20},\d{1,20},[-c+][^;]{0,80};|kern {1,4}:[a-z]{3,6} {0,3}: "
)
"""Lines of the kernel: dmesg's stamps and `dmesg --decode`, records of /dev/kmsg, or journal lines
by `kernel:`."""

TOPICS: tuple[Topic, ...] = (
    klog_kernel.PANIC,
    klog_gpu.NVIDIA,
    klog_gpu.AMD,
    klog_hardware.PCIE,
    klog_hardware.MEMORY,
    klog_hardware.IOMMU,
    klog_io.NIC,
    klog_io.NVME,
    klog_io.BLOCK,
    klog_io.RAID,
    klog_kernel.STALL,
    klog_kernel.OOM,
    klog_kernel.CRASH,
)
"""First match wins, in this order."""
_UNKNOWN = re.compile(r'Unknown kernel command line parameters "([^"]*)"')
_NO_NOHZ = re.compile(r"nohz unsupported|Build with CONFIG_NO_HZ_FULL|NO_HZ_FULL.*not")

_TSC = re.compile(
    r"[Mm]arking (?:TSC|tsc) unstable|Marking clocksource '?\"?tsc'?\"? as unstable|TSC unstable|"
    r"TSC synchronization (?!.*passed)|tsc: .*unstable"
)
"""A quick calibration that failed is none of these: the kernel then takes a slower clock for it."""
_NOBODY = re.compile(r"irq (\d+): nobody cared|Disabling IRQ #(\d+)")


def tells(line: str) -> bool:
    """Whether a line is one that anything is judged by."""
    return (
        event(0, line) is not None
        or any(p.search(line) for p in (_UNKNOWN, _NO_NOHZ, _TSC, _NOBODY))
        or "ommand line: " in line
    )


def bare(line: str) -> str:
    """A line without time stamps, level, host and `kernel:`."""
    at = 0
    while m := _PREFIX.match(line, at):
        at = m.end()
    return line[at:]


def event(number: int, line: str, file: str | None = None) -> KernelEvent | None:
    """What a line means; None when it means nothing."""
    message: str | None = None
    for topic in TOPICS:
        if not topic.words.search(line):
            continue
        for rule in topic.rules:
            text = line
            if rule.anchored:
                message = text = bare(line) if message is None else message
            m = rule.pattern.search(text)
            if m is None:
                continue
            if not rule.kind:
                return None
            details = dict(rule.details(m))
            bdf = m[rule.bdf] if rule.bdf is not None else None
            if bdf is None and (found := _DEVICE.search(line)):
                bdf = found[1]
            fault = rule.fault
            if rule.kind == "xid" and details["xid"] in klog_gpu.INFORMATION_XIDS:
                fault = False
            return KernelEvent(
                line=number,
                kind=rule.kind,
                fault=fault,
                text=line.strip()[:300],
                bdf=bdf.lower().replace("0x", "") if bdf else None,
                details=details,
                file=file,
            )
    return None


def read_log(text: str, name: str, *, is_log: bool) -> Part | None:
    """The events in a text; None when nothing in it looks like a log. `is_log`: its name says that
    it is one."""
    events: list[KernelEvent] = []
    texts: dict[str, str] = {}
    lines = text.split("\n")
    stamped = 0
    for number, whole in enumerate(lines, 1):
        line = whole[:MAX_LINE]
        stamped += bool(_STAMPED.match(line))
        if len(events) < MAX_EVENTS and (found := event(number, line, name)) is not None:
            events.append(found)
        if m := _UNKNOWN.search(line):
            texts["log/unknown-parameters"] = m[1]
        if "ommand line: " in line:
            texts["log/from-boot"] = line.partition("ommand line: ")[2].strip()
        if _NO_NOHZ.search(line):
            texts["log/nohz-unsupported"] = bare(line).strip()
        if _TSC.search(line):
            texts.setdefault("log/tsc-unstable", bare(line).strip()[:300])
        if _NOBODY.search(line):
            said = texts.get("log/irq-nobody-cared", "")
            texts["log/irq-nobody-cared"] = f"{said}\n{bare(line).strip()[:200]}".strip()[:2000]
    if not events and not texts and not is_log and stamped * 2 < len(lines):
        return None
    texts["log/kernel-lines"] = str(stamped)
    return Part(
        kind="log",
        facts={"kernel_events": [fact(e) for e in events]},
        events=tuple(events),
        texts=texts,
    )


def fact(e: KernelEvent) -> dict[str, object]:
    """The contract's shape of an event; `file` is added where several logs are judged."""
    return {"line": e.line, "kind": e.kind, "fault": e.fault, "bdf": e.bdf, **e.details}
