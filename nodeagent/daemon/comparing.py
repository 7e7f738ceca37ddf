"""The turn's part about whether pins helped: reports, and the roll-backs asked for. Pure."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.daemon import guard as guarding
from nodeagent.daemon.links import event
from nodeagent.daemon.owned import mine
from nodeagent.daemon.pins import blocked_by
from nodeagent.daemon.state import Seen, State, Undo
from nodeagent.model.event import Event, Severity
from nodeagent.model.placement import Consent, Placed, ProcessState
from nodeagent.place.beforeafter import Compared, Sign, Track, Tracks, kept, watched


def compare(
    state: State, seen: Seen, now_ns: int, events: list[Event]
) -> tuple[State, tuple[Undo, ...]]:
    """Goes on measuring, says what came out, and which workloads are put back for it."""
    if seen.probe is None or seen.reading is None:
        return state, ()
    owned = mine(state)
    delays = {d.pid: d for d in seen.probe.delays}
    tracks = kept(state.tracks, [(p.pid, p.start_time) for _, p in owned])
    fresh: list[tuple[Placed, ProcessState, Compared]] = []
    for placed, process in owned:
        key = process.pid, process.start_time
        old = tracks.get(key, Track())
        pin = state.guard.pins.get(key)
        # Of a pin that was taken over nobody knows how it was before.
        acted_ns = 0 if pin is None or pin.before is None else max(pin.at_ns, 1)
        new = watched(old, delays.get(process.pid), acted_ns, placed.cpus, now_ns)
        tracks[key] = new
        if new.result is not None and old.result is None:
            fresh.append((placed, process, new.result))
    tracks = kept(Tracks(by_key=tracks), list(tracks))
    state = replace(state, tracks=Tracks(by_key=tracks))
    for placed, process, result in fresh:
        worse = result.sign is Sign.WORSE
        events.append(
            event(
                "pin.compared",
                f"{placed.workload} pid {process.pid}",
                Severity.WARNING if worse else Severity.INFO,
                f"{placed.workload} (pid {process.pid}) before and after its pin: {result.sign}: "
                f"{result.reason}",
                now_ns,
                f"nodeagentctl place release {placed.workload}" if worse else "",
            )
        )
    return _roll_back(state, seen, {p.workload: p for p, _, _ in fresh}, now_ns, events)


def _roll_back(
    state: State, seen: Seen, placed: dict[str, Placed], now_ns: int, events: list[Event]
) -> tuple[State, tuple[Undo, ...]]:
    """A workload is put back as a whole: when it asked for it, one of its processes is worse, and
    of no other it is unknown or better. Decided at once or never: later the figures are old."""
    undo: list[Undo] = []
    for name, place in sorted(placed.items()):
        of_it = [(p.pid, p.start_time) for one, p in mine(state) if one.workload == name]
        results = [
            state.tracks.by_key[k].result if k in state.tracks.by_key else None for k in of_it
        ]
        signs = [r.sign if r is not None else None for r in results]
        if not place.rollback or Sign.WORSE not in signs:
            continue
        if any(sign not in (Sign.WORSE, Sign.SAME) for sign in signs):
            continue
        why = next(r.reason for r in results if r is not None and r.sign is Sign.WORSE)
        guard = state.guard
        stopped = blocked_by(Consent.THREADS, state, seen)
        if any(k in guard.pins and guard.pins[k].manual is not None for k in of_it):
            stopped = "somebody changed it meanwhile"
        said = f"{name} is to be put back where it was, as it asked for (rollback): {why}"
        if stopped is not None:
            said = f"{name} is worse off and is not put back: {stopped}"
        else:
            for key in of_it:
                guard = guarding.left_alone(guard, key, f"rolled back: {why}", now_ns)
            undo.append(Undo(workload=name, why=f"rolled back: {why}"))
            state = replace(state, guard=guard)
        events.append(
            event(
                "pin.rollback",
                name,
                Severity.WARNING,
                said,
                now_ns,
                "nodeagentctl place plan; nodeagentctl place apply --yes pins it again",
            )
        )
    return state, tuple(undo)
