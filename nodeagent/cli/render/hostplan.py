"""What a placement asks of the host, for people and as part of nodeagent.placement/v1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from nodeagent.cli.planned import Planned
from nodeagent.cli.render.flow import names, say
from nodeagent.cli.render.undone import brief, print_undoes
from nodeagent.cli.render.words import short
from nodeagent.errors import visible
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostplan import HostPlan, HostRow
from nodeagent.model.placement import Consent, Knob, SetValue
from nodeagent.model.words import many

if TYPE_CHECKING:
    from rich.console import Console

_WHAT = {
    Knob.IRQ_AFFINITY: "interrupts",
    Knob.IRQ_DEFAULT: "interrupts set up later",
    Knob.XPS: "transmit queues (XPS)",
    Knob.RPS: "receive queues (RPS)",
    Knob.IRQBALANCE: "irqbalance",
    Knob.WORKQUEUE: "unbound kernel workers",
    Knob.WAKE_LATENCY: "exit latency from idle (PM QoS)",
    Knob.NUMA_BALANCING: "automatic NUMA balancing",
}
UNFOLDED = 12
"""Paragraphs about the host; where there would be more, they are folded by kind."""
_OF_A_DEVICE = (Knob.IRQ_AFFINITY, Knob.XPS, Knob.RPS)
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
            "by_hand": r.by_hand or None,
            "workload": r.workload or None,
        }
        for r in plan.rows
        if r.consent is Consent.HOST
    ]


def by_hand(plan: HostPlan) -> str:
    """A sentence on what is left to a person; "": nothing is."""
    commands = list(dict.fromkeys(r.by_hand.partition(" #")[0].strip() for r in plan.rows))
    told = [c for c in commands if c]
    if not told:
        return ""
    steps = "1 step is" if len(told) == 1 else f"{len(told)} steps are"
    return f"{steps} left to a person, for the actor has no right to it: {'; '.join(told)}"


def print_host(out: Console, planned: Planned, *, unfold: bool = False) -> None:
    """One paragraph for what is done to one device for one reason: ~ set, = in place, - left
    alone. `unfold`: one for each value."""
    plan = planned.host
    by_act = {
        (a.knob, a.subject): c for c in planned.changes if isinstance(a := c.action, SetValue)
    }
    for rows in _groups(plan.rows, unfold=unfold):
        first = rows[0]
        mark, style = _MARK[first.action]
        known = planned.standing.allow
        missing = known is not None and first.consent not in known
        kind = f"  [{first.consent}{': not allowed, so not done' if missing else ''}]"
        lone = first.knob not in _OF_A_DEVICE
        devices = [] if lone else list(dict.fromkeys(r.device for r in rows if r.device))
        out.print()
        say(
            out,
            (f"  {mark} ", style),
            (_WHAT[first.knob], "bold"),
            f" of {visible(names(devices))}" if devices else "",
            f"  {_change(first.knob, rows)}",
            (kind, "yellow" if missing else "dim") if first.action == "move" else "",
            hang=6,
        )
        reason = "it would move them again" if first.knob is Knob.IRQBALANCE else first.reason
        word = "because" if first.action != "leave" else "left alone:"
        others = len({r.reason for r in rows}) - 1
        if others and first.knob is not Knob.IRQBALANCE:
            reason += f" (and {many(others, 'other reason')}; --all says each)"
        say(out, (f"{word} {reason}", "dim"), indent=6, hang=2)
        for command in dict.fromkeys(r.by_hand for r in rows if r.by_hand):
            out.print(Text(f"      {command}"), soft_wrap=True)
        undone = [c for r in rows if (c := by_act.get((r.knob, r.subject))) and c.replaced]
        for change in undone[: len(undone) if unfold else 1]:
            print_undoes(out, change, "")
        if len(undone) > 1 and not unfold:
            more = f"and {many(len(undone) - 1, 'earlier act')} more; --all shows them"
            say(out, (more, "dim"), indent=10)
    for note in plan.notes:
        out.print()
        say(out, f"note: {note}", hang=6)


def _groups(rows: Sequence[HostRow], *, unfold: bool) -> list[list[HostRow]]:
    """Alike values together: of a device and for a reason; where that makes many, of a kind."""
    groups: dict[tuple[object, ...], list[HostRow]] = {}
    for fine in (True, False):
        groups = {}
        for row in rows:
            key: tuple[object, ...] = (row.knob, row.action)
            if fine:
                what = "" if row.knob is Knob.IRQBALANCE else row.reason
                lone = row.knob not in _OF_A_DEVICE
                key += ("" if lone else row.device, what, row.subject if unfold else "")
            groups.setdefault(key, []).append(row)
        if unfold or len(groups) <= UNFOLDED:
            break
    return list(groups.values())


def _change(knob: Knob, rows: list[HostRow]) -> str:
    subjects = [r.subject for r in rows]
    match knob:
        case Knob.IRQBALANCE:
            return f"told to leave IRQ {brief(_numbers(subjects))} alone"
        case Knob.WAKE_LATENCY:
            before = ", ".join(sorted({r.before or "not known" for r in rows}))
            return f"CPU {_numbers(subjects)}: {before} -> {rows[0].value} (us)"
        case Knob.NUMA_BALANCING:
            stays = rows[0].value == rows[0].before
            return f"stays {rows[0].value}" if stays else f"{rows[0].before} -> {rows[0].value}"
        case Knob.IRQ_AFFINITY:
            name = f"IRQ {brief(_numbers(subjects))}: "
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
    return short(found) or "none"
