"""rtla: timerlat (top, hist, auto-analysis), osnoise (top), and the kernel's hwlat tracer.

Source: Linux Documentation/tools/rtla, tools/tracing/rtla/src, kernel/trace/trace_hwlat.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.model.latency import Analysis, Held, Latencies, LatencyRow, Noise, NoiseRow
from nodeagent.model.pasted import Report

MAX_LINE = 400
_HIT = re.compile(r"## CPU (\d+) hit stop tracing")
_VALUE = re.compile(r"^[ \t]*(.*?):?\s+(\d+(?:\.\d+)?) us\b")
_STACK = re.compile(r"^[ \t]*-> (\S+)")
_IDLE = re.compile(r"Max timerlat IRQ latency from idle: (\d+(?:\.\d+)?) us in cpu (\d+)")
_HEADINGS = {
    "blocking thread": "blocking",
    "thread interference": "thread",
    "irq interference": "irq",
    "softirq interference": "softirq",
    "nmi interference": "nmi",
    "previous irq interference": "irq",
}


def read_analyses(text: str, source: str) -> Iterator[Report]:
    """Every auto-analysis in the text; what rtla says about idle after it belongs to its CPU."""
    blocks = _HIT.split(text)
    for cpu_text, block in zip(blocks[1::2], blocks[2::2], strict=True):
        cpu = int(cpu_text)
        single: dict[str, float] = {}
        held: list[Held] = []
        stack: list[str] = []
        kind = ""
        for whole in block.split("\n"):
            line = whole[:MAX_LINE]
            if frame := _STACK.match(line):
                stack.append(frame[1].split("+")[0])
                continue
            heading = line.strip().partition(":")[0].lower().rstrip()
            heading = re.sub(r"\s+\d.*", "", heading)
            if heading in _HEADINGS:
                kind = _HEADINGS[heading]
                continue
            m = _VALUE.match(line)
            if m is None:
                continue
            name = m[1].strip().rstrip(":")
            if name.lower() in _SINGLE:
                single[name.lower()] = float(m[2])
                kind = ""
            elif kind:
                held.append(Held(kind=kind, name=name, us=float(m[2])))
        idle = [(float(us), int(c)) for us, c in _IDLE.findall(block)]
        mine = next((us for us, c in idle if c == cpu), None)
        if single or held or idle:
            yield Analysis(
                source=source,
                cpu=cpu,
                thread_us=single.get("thread latency"),
                irq_delay_us=single.get("irq handler delay"),
                irq_us=single.get("irq latency"),
                held=tuple(held),
                stack=tuple(stack[:64]),
                from_idle="exit from idle" in block.lower(),
                from_idle_us=mine,
            )


_SINGLE = {"irq handler delay", "irq latency", "timerlat irq duration", "thread latency"}
_TOP = re.compile(r"Timer Latency")
_TOP_ROW = re.compile(r"^[ \t>#*]*(\d+)\s+#(\d+)\s*\|(.*)$", re.MULTILINE)


def read_timerlat(text: str, source: str) -> Iterator[Report]:
    """`rtla timerlat top`: cur, min, avg, max of IRQ, thread and (with -u) return to user space;
    microseconds unless the heading says ns."""
    if not _TOP.search(text) or "COUNT" not in text:
        return
    scale = 1e-3 if re.search(r"Timer Latency \(ns\)", text) else 1.0
    # rtla redraws: the last line of a CPU counts.
    last: dict[int, tuple[int, str]] = {
        int(m[1]): (int(m[2]), m[3]) for m in _TOP_ROW.finditer(text)
    }
    rows = []
    for cpu, (count, rest) in sorted(last.items()):
        for what, cells in zip(("IRQ", "thread", "user"), rest.split("|"), strict=False):
            words = cells.split()
            if len(words) == 4 and words[3].isdigit():
                rows.append(
                    LatencyRow(
                        cpu=cpu,
                        what=what,
                        max_us=int(words[3]) * scale,
                        avg_us=int(words[2]) * scale if words[2].isdigit() else None,
                        samples=count,
                    )
                )
    if rows:
        yield Latencies(source=source, tool="rtla timerlat", rows=tuple(rows))


_HIST = re.compile(r"RTLA (timerlat|osnoise) histogram", re.IGNORECASE)
_COLUMN = re.compile(r"(IRQ|Thr|Usr|CPU)-(\d+)")


def read_histogram(text: str, source: str) -> Iterator[Report]:
    """`rtla timerlat hist` and `rtla osnoise hist`: the summary under the columns."""
    if not _HIST.search(text):
        return
    columns: list[tuple[str, int]] = []
    lines: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line.lstrip("# ").startswith("Index"):
            columns = [(a, int(b)) for a, b in _COLUMN.findall(line)]
        elif line.lstrip().startswith("ALL"):
            break
        elif columns and (m := re.match(r"[^\w\n]{0,99}(over|count|min|avg|max):(.*)$", line)):
            lines[m[1]] = m[2].split()
    names = {"IRQ": "IRQ", "Thr": "thread", "Usr": "user", "CPU": "noise"}
    scale = 1e-3 if re.search(r"unit is nanoseconds", text) else 1.0
    rows = []
    for i, (what, cpu) in enumerate(columns):

        def cell(key: str, i: int = i) -> float | None:
            words = lines.get(key, [])
            known = i < len(words) and re.fullmatch(r"\d+(?:\.\d+)?", words[i])
            return float(words[i]) if known else None

        worst = cell("max")
        if worst is not None:
            avg = cell("avg")
            rows.append(
                LatencyRow(
                    cpu=cpu,
                    what=names[what],
                    max_us=worst * scale,
                    avg_us=avg * scale if avg is not None else None,
                    samples=int(cell("count") or 0),
                    overflows=int(cell("over") or 0),
                )
            )
    if rows:
        tool = "rtla " + _HIST.search(text)[1].lower()  # type: ignore[index]
        yield Latencies(source=source, tool=tool, rows=tuple(rows))


_NOISE_ROW = re.compile(
    r"^[ \t>#*]*(\d+)\s+#(\d+)\s+(\d+)\s+(\d+)\s+(\d+\.\d+)\s+(\d+)\s+(\d+)((?:\s+\d+){3,5})\s*?$",
    re.MULTILINE,
)


def read_noise(text: str, source: str) -> Iterator[Report]:
    """`rtla osnoise top`: period, runtime, noise, % available, max noise, max single, then how
    often hardware, NMI, IRQ, softirq and thread; microseconds."""
    if "Operating System Noise" not in text and not re.search(r"Max Single\s+HW", text):
        return
    last: dict[int, NoiseRow] = {}
    for m in _NOISE_ROW.finditer(text):
        counts = [int(x) for x in m[8].split()] + [0] * 5
        last[int(m[1])] = NoiseRow(
            cpu=int(m[1]),
            runtime_us=float(m[3]),
            noise_us=float(m[4]),
            available_percent=float(m[5]),
            max_single_us=float(m[7]),
            hardware=counts[0],
            nmi=counts[1],
            irq=counts[2],
            softirq=counts[3],
            thread=counts[4],
        )
    if last:
        yield Noise(source=source, rows=tuple(last[c] for c in sorted(last)))


_TRACER = re.compile(r"\[(\d+)\].{0,200}?inner/outer\(us\):\s*(\d+)/(\d+)")


def read_hwlat(text: str, source: str) -> Iterator[Report]:
    """Lines of the kernel's hwlat tracer."""
    worst: dict[int, float] = {}
    count: dict[int, int] = {}
    if "inner/outer" not in text:
        return
    for line in text.split("\n"):
        m = _TRACER.search(line[:MAX_LINE]) if "inner/outer" in line else None
        if m is None:
            continue
        cpu = int(m[1])
        worst[cpu] = max(worst.get(cpu, 0.0), float(m[2]), float(m[3]))
        count[cpu] = count.get(cpu, 0) + 1
    if worst:
        yield Latencies(
            source=source,
            tool="hwlat tracer",
            hardware=True,
            rows=tuple(
                LatencyRow(cpu=c, max_us=worst[c], samples=count[c], what="gap")
                for c in sorted(worst)
            ),
        )
