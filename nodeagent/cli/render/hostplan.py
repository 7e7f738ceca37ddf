"""What a placement asks of the host, for people and as part of nodeagent.placement/v1."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from nodeagent.errors import visible
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostplan import HostPlan, HostRow
from nodeagent.model.placement import Consent, Knob

if TYPE_CHECKING:
    from rich.console import Console

_WHAT = {
    Knob.IRQ_AFFINITY: "interrupts",
    Knob.IRQ_DEFAULT: "interrupts",
    Knob.XPS: "transmit queues (XPS)",
    Knob.RPS: "receive queues (RPS)",
    Knob.IRQBALANCE: "irqbalance",
    Knob.WORKQUEUE: "kernel workers",
    Knob.WAKE_LATENCY: "exit latency from idle (PM QoS)",
    Knob.NUMA_BALANCING: "NUMA balancing",
}
_MARK = {"move": ("~", "yellow"), "keep": ("=", "green"), "leave": ("-", "cyan")}


def irqs_json(plan: HostPlan) -> list[dict[str, object]]:
    """`irqs` of the contract; `queue` instead of `irq` for XPS and RPS."""
    return [
        {
            "irq": int(r.subject) if r.knob is Knob.IRQ_AFFINITY else None,
            "device": r.device,
            "action": r.action,
            "cpus": r.value,
            "before": r.before,
            "managed": r.managed,
            "reason": r.reason,
            "knob": r.knob,
            "subject": r.subject,
            "workload": r.workload or None,
        }
        for r in plan.irqs
    ]


def host_json(plan: HostPlan) -> list[dict[str, object]]:
    """`host`: the values of class host."""
    return [
        {
            "knob": r.knob,
            "subject": r.subject,
            "action": r.action,
            "value": r.value,
            "before": r.before,
            "reason": r.reason,
            "workload": r.workload or None,
        }
        for r in plan.rows
        if r.consent is Consent.HOST
    ]


def print_host(out: Console, plan: HostPlan, allow: AbstractSet[Consent]) -> None:
    """One line for what is done to one device for one reason: ~ set, = in place, - left alone."""
    from rich.padding import Padding
    from rich.text import Text

    groups: dict[tuple[Knob, str, str, str], list[HostRow]] = {}
    for row in plan.rows:
        what = "" if row.knob is Knob.IRQBALANCE else row.reason
        device = "" if row.knob in (Knob.IRQBALANCE, Knob.WAKE_LATENCY) else row.device
        groups.setdefault((row.knob, device, row.action, what), []).append(row)
    for (knob, device, action, _), rows in groups.items():
        mark, style = _MARK[action]
        out.print()
        out.print(
            Text.assemble(
                (f"  {mark} ", style),
                (_WHAT[knob], "bold"),
                f" of {visible(device)}" if device else "",
                f"  {_change(knob, rows)}",
            )
        )
        first = rows[0]
        reason = "it would move them again" if knob is Knob.IRQBALANCE else first.reason
        word = "because" if action != "leave" else "left alone:"
        out.print(Padding(f"{word} {reason}", (0, 0, 0, 6), expand=False), style="dim")
        if action == "move" and first.consent not in allow:
            text = f'not done without consent: add "{first.consent}" to [pin] allow'
            out.print(Padding(text, (0, 0, 0, 6), expand=False))
    for note in plan.notes:
        out.print()
        out.print(f"note: {note}")


def _change(knob: Knob, rows: list[HostRow]) -> str:
    subjects = [r.subject for r in rows]
    match knob:
        case Knob.IRQBALANCE:
            return f"told to leave IRQ {_numbers(subjects)} alone"
        case Knob.WAKE_LATENCY:
            before = ", ".join(sorted({r.before or "not known" for r in rows}))
            return f"CPU {_numbers(subjects)}: {before} -> {rows[0].value} us"
        case Knob.NUMA_BALANCING:
            return f"{rows[0].before} -> {rows[0].value}"
        case Knob.IRQ_AFFINITY:
            name = f"IRQ {_numbers(subjects)}: "
        case Knob.XPS | Knob.RPS:
            name = ", ".join(s.partition("/")[2] for s in subjects[:8])
            name += f" and {len(subjects) - 8} more: " if len(subjects) > 8 else ": "
        case _:
            name = ""
    before, after = _all(r.before for r in rows), _all(r.value for r in rows)
    if rows[0].action != "move":
        return f"{name}CPU {before}"
    each = ", a CPU each" if len(rows) > 1 and all(r.value.isdecimal() for r in rows) else ""
    return f"{name}CPU {before} -> {after}{each}"


def _numbers(subjects: list[str]) -> str:
    return str(CpuSet.of(int(s) for s in subjects))


def _all(texts: Iterable[str]) -> str:
    found = CpuSet()
    for text in texts:
        found |= CpuSet.parse(text)
    return str(found) or "none"
