"""Counters by CPU, taken at a time: /proc/interrupts, /proc/softirqs, /proc/stat; and rates as
mpstat -I prints them.

Source: Linux Documentation/filesystems/proc.rst 1.3, arch/x86/kernel/irq.c (the letters).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.model.latency import Counts, Rates
from nodeagent.model.pasted import Report

_HEAD = re.compile(r"^[ \t]*(CPU\d+(?:[ \t]+CPU\d+)*)[ \t]*$", re.MULTILINE)
_LINE = re.compile(r"^[ \t]*([A-Z][A-Z_0-9]{1,9}|\d{1,6}):[ \t]+(\d.*)$")
_STAT = re.compile(r"^cpu(\d+)((?:[ \t]+\d+){8,10})[ \t]*$", re.MULTILINE)
FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest",
          "guest_nice")  # fmt: skip
"""Columns of /proc/stat, in ticks of 1/100 s."""
_SOFT = frozenset({"HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED",
                   "HRTIMER", "RCU"})  # fmt: skip
_AT = re.compile(r"(?<![a-z0-9])(?:t|at|sec|after)[-_=]?(\d+(?:\.\d+)?)(ms|s)?(?![0-9])", re.I)
_PLAIN = re.compile(r"[-_.](\d+(?:\.\d+)?)(ms|s)?(?:\.(?:txt|log|out))?$")
_UPTIME = re.compile(r"^(\d+\.\d\d) (\d+\.\d\d)[ \t]*$", re.MULTILINE)
_DATE = re.compile(r"^#?.*?\b(\d\d):(\d\d):(\d\d)(\.\d+)?\b", re.MULTILINE)


def read_counts(text: str, source: str) -> Iterator[Report]:
    """Each table in the text. A paste may hold two of them, one below the other."""
    heads = list(_HEAD.finditer(text))
    for i, head in enumerate(heads):
        end = heads[i + 1].start() if i + 1 < len(heads) else len(text)
        before = text[heads[i - 1].end() if i else 0 : head.start()]
        cpus = [int(w[3:]) for w in head[1].split()]
        rows: dict[str, dict[int, int]] = {}
        titles: dict[str, str] = {}
        for line in text[head.end() : end].split("\n"):
            m = _LINE.match(line)
            if m is None:
                continue
            words = m[2].split()
            numbers = [w for w in words[: len(cpus)] if w.isdigit()]
            if len(numbers) == len(cpus):
                rows[m[1]] = {c: int(n) for c, n in zip(cpus, numbers, strict=True)}
                titles[m[1]] = " ".join(words[len(cpus) :])
        if rows:
            kind = "softirqs" if rows.keys() <= _SOFT else "interrupts"
            yield Counts(
                source=source,
                kind=kind,
                rows=rows,
                titles=titles,
                at_s=_when(before, source if len(heads) == 1 else ""),
            )
    stat = {int(c): [int(n) for n in rest.split()] for c, rest in _STAT.findall(text)}
    if stat and re.search(r"^(?:ctxt|btime|processes|intr) ", text, re.MULTILINE):
        named: dict[str, dict[int, int]] = {}
        for cpu, ticks in stat.items():
            for field, value in zip(FIELDS, ticks, strict=False):
                named.setdefault(field, {})[cpu] = value
        yield Counts(source=source, kind="stat", rows=named, at_s=_when("", source))


def _when(before: str, source: str) -> float | None:
    """Seconds, from an uptime or a time of day above the table, else from the file's name."""
    lines = before.strip().split("\n")[-3:]
    for line in reversed(lines):
        if m := _UPTIME.search(line):
            return float(m[1])
        if m := _DATE.search(line):
            return int(m[1]) * 3600 + int(m[2]) * 60 + int(m[3]) + float(m[4] or 0)
    leaf = source.rpartition("/")[2].lower()
    m = _AT.search(leaf) or _PLAIN.search(leaf)
    if m is None:
        return None
    return float(m[1]) * (1e-3 if m[2] and m[2].lower() == "ms" else 1.0)


_MPSTAT_HEAD = re.compile(r"^\S*[ \t]*(?:[AP]M[ \t]+)?CPU((?:[ \t]+\S+/s)+)[ \t]*$")


def read_rates(text: str, source: str) -> Iterator[Report]:
    """`mpstat -I CPU` or `SCPU`: interrupts a second; the last line of a CPU (its average) wins."""
    names: list[str] = []
    rows: dict[str, dict[int, float]] = {}
    for line in text.split("\n"):
        if m := _MPSTAT_HEAD.match(line):
            names = [w.removesuffix("/s") for w in m[1].split()]
            continue
        words = line.split()
        values = words[-len(names) :] if names else []
        if len(words) <= len(names) or not all(re.fullmatch(r"\d+(?:\.\d+)?", v) for v in values):
            names = names if words else []
            continue
        cpu = words[-len(names) - 1]
        if cpu.isdigit():
            for name, value in zip(names, values, strict=True):
                rows.setdefault(name, {})[int(cpu)] = float(value)
    if rows:
        yield Rates(source=source, rows=rows)
