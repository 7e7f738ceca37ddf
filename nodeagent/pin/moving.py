"""One moving of a process's memory: what is known of it between two steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.model.memory import FIRST_STEP_BYTES, next_step, outside, room_needed, size
from nodeagent.model.placement import ActionResult, MigrateMemory, Outcome
from nodeagent.pin.mover import Walked
from nodeagent.pin.records import Entry


@dataclass(slots=True, kw_only=True)
class Moving:
    """One moving under way. `entry` None: still looking. Times on the monotonic clock."""

    action: MigrateMemory
    comm: str
    before: Walked = field(default_factory=Walked)
    now: Walked = field(default_factory=Walked)
    entry: Entry | None = None
    resumed: bool = False
    """The entry is that of an earlier try, which moved something."""
    opened: bool = False
    """The child stands at the first mapping, for the pass that is under way."""
    step_bytes: int = FIRST_STEP_BYTES
    began_s: float
    at_s: float
    """When its last step ended."""

    @property
    def key(self) -> tuple[int, int]:
        """(pid, start time) of whose memory it is."""
        return self.action.target.pid, self.action.target.start_time

    def far(self) -> str:
        """How far it came."""
        total = outside(self.before.by_node, self.action.nodes)
        return f"{size(self.now.moved)} of {size(total)} moved to node {self.action.to}"

    def no_room(self, free: int) -> str | None:
        """Why no further step may begin with so many bytes on the target; None: one may."""
        if free >= room_needed(self.step_bytes):
            return None
        return f"node {self.action.to} has {size(free)} free or reclaimable left"

    def after(self, walked: Walked) -> str | None:
        """Takes a step in: how large the next one may be. Why there may be none; None: go on."""
        self.now.add(walked)
        if walked.full:
            return f"node {self.action.to} had no page left to give"
        if walked.done or not walked.calls:
            return None
        took_ms = walked.longest_ns / 1e6
        wanted = next_step(self.step_bytes, took_ms, self.action.stall_ms)
        if wanted is None:
            return (
                f"a step of {size(self.step_bytes)}, the smallest, kept its pages for "
                f"{took_ms:.0f} ms, over the stall bound of {self.action.stall_ms} ms"
            )
        self.step_bytes = wanted
        return None

    @property
    def outcome(self) -> Outcome:
        """Of one that came to its end: nothing that moved, and something that stays, is refused."""
        stays = self.now.moved == 0 and self.now.staying.total > 0
        return Outcome.REFUSED if stays else Outcome.DONE

    def facts(self) -> dict[str, int]:
        """Bytes and times of what was done so far."""
        wanted = outside(self.before.by_node, self.action.nodes) if self.before.done else 0
        return {
            "wanted_bytes": wanted,
            "moved_bytes": self.now.moved,
            "staying_bytes": self.now.staying.total,
            "step_bytes": self.step_bytes,
            "longest_ns": self.now.longest_ns,
            "moving_ns": self.now.moving_ns,
            "calls": self.now.calls,
        }

    def more(self, text: str) -> Step:
        """The next step is to be asked for; `text` says what this one did."""
        result = ActionResult(
            outcome=Outcome.DONE,
            message=f"{self.comm} ({self.action.target.pid}): {text}",
            journal_id=None if self.entry is None else self.entry.id,
        )
        return Step(result=result, more=True, facts=self.facts())


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one call did. `more`: ask for the next."""

    result: ActionResult
    before: str = ""
    more: bool = False
    facts: dict[str, int] = field(default_factory=dict)
