"""The turn: (state, what was seen, now) -> (state, decisions). Pure; time is an argument.

Each turn looks at everything anew and says what should be done now: the queue it returns replaces
the one before, so nothing that was decided on older facts is ever carried out. The actor performs
one action at a time; its results are part of what the next turn sees.
"""

from __future__ import annotations

from dataclasses import replace

from nodeagent.daemon import adopting, clock, comparing, hostvalues, pins, results, rows
from nodeagent.daemon import guard as guarding
from nodeagent.daemon.fold import fold
from nodeagent.daemon.links import event, feed_events, finding_events, state_events
from nodeagent.daemon.state import CONNECTING, Decisions, Identity, Seen, State, Wanted
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity
from nodeagent.model.finding import Verdict, worst
from nodeagent.model.freeze import frozen
from nodeagent.model.placement import Consent, Held, ProcessState
from nodeagent.model.words import many
from nodeagent.place.facts import facts_of
from nodeagent.place.held import observed
from nodeagent.place.limits import NOBODY
from nodeagent.place.match import claims
from nodeagent.place.planner import plan
from nodeagent.place.taken import elsewhere, without
from nodeagent.place.workloads import resolve


def turn(state: State, seen: Seen, now_ns: int) -> tuple[State, Decisions]:
    """One turn."""
    events: list[Event] = list(seen.notices)
    state = replace(state, turns=state.turns + 1)
    seen = clock.not_later(seen, now_ns)
    state = clock.followed(state, now_ns, events)
    state = _freeze(state, seen, now_ns, events)
    state = _judge(state, seen, now_ns, events)
    state = results.take_results(state, seen, events)
    state = replace(state, journal_id=_newest_act(state, seen))
    state = _read(state, seen)
    state = hostvalues.adopt(state, seen, now_ns, events)
    if seen.journal is not None:
        state = replace(state, entries=seen.journal.entries)
    state = _plan(state, seen, now_ns, events)
    # After the plan: what a unit holds is told by its workload, whose processes that claims.
    state = adopting.adopt(state, seen, now_ns, events)
    state = pins.watch_over(state, seen, now_ns, events)
    state, undo = comparing.compare(state, seen, now_ns, events)
    state = hostvalues.replanned(state)
    state, queue = pins.queue_up(state, seen, now_ns, events)

    def blocked(consent: Consent) -> str | None:
        return pins.blocked_by(consent, state, seen)

    state, more = hostvalues.queue_up(state, seen, now_ns, events, blocked)
    queue = (*queue, *more)
    state = _links(state, seen, now_ns, events)
    state = replace(
        state,
        guard=guarding.numbered(state.guard, state.journal_id),
        values=hostvalues.numbered(state.values, state.journal_id),
    )
    state, held = rows.rows(state, seen)
    folded, said = fold(state.fold, events, now_ns)
    state = replace(state, fold=folded)
    watch = frozenset(t.pid for targets in state.claimed.values() for t in targets)
    return state, Decisions(
        queue=queue,
        events=said,
        sentence=_sentence(state, seen, queue, held),
        held=held,
        watch=watch,
        masks=_masks(state, watch),
        undo=undo,
        ask_journal=any(p.suspect_ns for p in state.guard.pins.values())
        or any(v.suspect_ns for v in state.values.values()),
    )


def _newest_act(state: State, seen: Seen) -> int | None:
    known = [state.journal_id, None if seen.journal is None else seen.journal.newest]
    known += [d.result.journal_id for d in seen.done]
    return max((number for number in known if number is not None), default=None)


def _masks(state: State, watch: frozenset[int]) -> dict[int, CpuSet | None]:
    """Where the guarded processes' threads belong."""
    held = {pid: pin.cpus for (pid, _), pin in state.guard.pins.items() if pin.manual is None}
    return {pid: held.get(pid) for pid in watch}


def _freeze(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    why = frozen(seen.consents.freeze, seen.freeze_file, now_ns)
    if why is not None and state.frozen is None:
        events.append(
            event("freeze.on", "freeze", Severity.INFO, f"nothing is changed: {why}", now_ns)
        )
    if why is None and state.frozen is not None:
        over = f"it is over; it was: {state.frozen}"
        events.append(event("freeze.off", "freeze", Severity.INFO, over, now_ns))
    return replace(state, frozen=why)


def _judge(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    if seen.snapshot is None or seen.snapshot is state.snapshot:
        return state
    findings = seen.judge(seen.snapshot, now_ns)
    events += finding_events(state.findings, findings, now_ns)
    return replace(state, snapshot=seen.snapshot, findings=findings, verdict=worst(findings))


def _read(state: State, seen: Seen) -> State:
    if seen.reading is None:
        return state
    alive = {(p.pid, p.start_time) for p in seen.reading.processes}
    pids = {pid for pid, _ in alive}
    return replace(
        state,
        processes=seen.reading.processes,
        read_ns=seen.reading.at_ns,
        memory=seen.reading.memory or state.memory,
        guard=guarding.ended(state.guard, alive),
        failures={k: f for k, f in state.failures.items() if k[0] in alive or k[0] == (0, 0)},
        run_base={k: b for k, b in state.run_base.items() if k in pids},
    )


def identity(process: ProcessState) -> Identity:
    """What a match looks at, as far as it can change while a process runs."""
    box = process.container
    name = box.name if box is not None else None
    return process.pid, process.start_time, process.title, process.parent_title, name


def _plan(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    snapshot = state.snapshot
    if snapshot is None:
        return state
    identities = frozenset(identity(p) for p in state.processes)
    fixed = state.workloads == seen.workloads and state.housekeeping == seen.housekeeping
    planned = state.planned_on is snapshot and fixed
    if planned and state.planned_for == identities and state.planned_by == state.entries:
        return state
    workloads = resolve(seen.workloads, snapshot)
    claimed, _ = claims(workloads, state.processes)
    others = elsewhere(workloads, state.processes, state.entries)
    state = replace(state, planned_for=identities, planned_by=state.entries)
    if planned and claimed == state.claimed and others == state.elsewhere:
        return state
    topology = snapshot.topology
    # A first plan keeps what it finds: a restart moves nobody.
    current = (
        state.placement if state.planned_on else observed(topology, workloads, state.processes)
    )
    pinned = state.guard.pins.values()
    ours = {p.workload: p.cpus for p in pinned if p.before is not None}
    isolating = seen.facts.isolating if seen.facts is not None else NOBODY
    facts = facts_of(snapshot, ours, isolating)
    placement = plan(topology, workloads, state.processes, current, seen.housekeeping, facts)
    placement = without(placement, workloads, others)
    was = {r.workload: r.reason for r in state.placement.refused}
    for refused in placement.refused:
        if was.get(refused.workload) != refused.reason:
            events.append(
                event(
                    "place.refused",
                    refused.workload,
                    Severity.WARNING,
                    f"{refused.workload} has no place: {refused.reason}",
                    now_ns,
                    refused.would_fit_if,
                )
            )
    places = {p.workload: p.cpus for p in current.placed}
    for placed in placement.placed:
        if places.get(placed.workload) != placed.cpus:
            because = f": {placed.reasons[0]}" if placed.reasons else ""
            events.append(
                event(
                    "place.planned",
                    placed.workload,
                    Severity.INFO,
                    f"{placed.workload} belongs on {placed.cpus}{because}",
                    now_ns,
                )
            )
    return replace(
        state,
        workloads=seen.workloads,
        housekeeping=seen.housekeeping,
        claimed=claimed,
        placement=placement,
        planned_on=snapshot,
        elsewhere=others,
    )


def _links(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    links, more = feed_events(state.links, seen.feeds, seen.rings, now_ns)
    events += more
    states: dict[str, str | None] = dict(seen.troubles)
    if seen.actor != CONNECTING:
        states["actor"] = seen.actor
    if seen.controller is not None and seen.controller.configured:
        link = seen.controller
        # Without a reason the first try is still under way: no news.
        if link.connected or link.reason:
            states["controller"] = None if link.connected else link.reason
    if seen.probe is not None and (seen.probe.available or seen.actor != CONNECTING):
        states["probe"] = None if seen.probe.available else seen.probe.reason or "not attached"
    links, more = state_events(links, {**links.states, **states}, now_ns)
    events += more
    return replace(state, links=links)


def _sentence(state: State, seen: Seen, queue: tuple[Wanted, ...], held: tuple[Held, ...]) -> str:
    """What was decided and why."""
    if state.snapshot is None:
        return "nothing decided: the first reading of the machine is not there yet"
    parts: list[str] = []
    if queue:
        names = ", ".join(dict.fromkeys(w.action.workload or "the host" for w in queue))
        parts.append(f"putting {names} where the plan says ({len(queue)} actions)")
    if state.waiting:
        name, why = next(iter(state.waiting.items()))
        more = f" and {len(state.waiting) - 1} more" if len(state.waiting) > 1 else ""
        parts.append(f"left {name}{more} alone ({why})")
    there = [h for h in held if h.pid is not None]
    if there:
        parts.append(f"{sum(h.held for h in there)} of {len(there)} processes held")
    absent = [h.workload for h in held if h.pid is None]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        parts.append(f"no process of {absent[0]}{more} runs")
    if not held and not seen.workloads:
        parts.append("nothing to place: no workloads are configured")
    if state.placement.refused:
        parts.append(f"{len(state.placement.refused)} workloads have no place")
    if state.frozen is not None:
        parts.append(f"frozen: {state.frozen}")
    if seen.actor not in (None, CONNECTING) and seen.consents.allow:
        parts.append(f"no actor: {seen.actor}")
    bad = [f for f in state.findings if f.counts and f.verdict is not Verdict.OK]
    parts.append(f"verdict {state.verdict}" + (f" by {many(len(bad), 'finding')}" if bad else ""))
    return "; ".join(parts)
