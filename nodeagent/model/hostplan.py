"""What a placement asks of the host besides its processes: interrupts, queues, kernel work."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.placement import CONSENT_OF_KNOB, Consent, Knob, SetValue


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """One value of the host, what becomes of it, and why."""

    knob: Knob
    subject: str
    device: str
    """Whose it is, for people: eth2, nvme0, a PCI address, or the interrupt's own name."""
    action: str
    """move: it will be set; keep: it is as it should be; leave: it cannot or should not be set."""
    value: str
    """Wanted; of what is kept or left: as it is."""
    before: str
    """As it is; empty: not known, or no CPU."""
    reason: str
    managed: bool | None = None
    """Of an interrupt: whether the kernel keeps its affinity to itself; None: nothing tells."""
    workload: str = ""
    """Whom it serves; empty: the host as a whole."""
    by_hand: str = ""
    """The command by which a person sets it, where the actor may not; then it is left."""

    @property
    def consent(self) -> Consent:
        """The class that setting it needs."""
        return CONSENT_OF_KNOB[self.knob]

    @property
    def act(self) -> SetValue | None:
        """What sets it; None: nothing is to be set."""
        if self.action != "move":
            return None
        return SetValue(
            workload=self.workload,
            knob=self.knob,
            subject=self.subject,
            value=self.value,
            before=self.before,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """In the order in which they are set; undone the other way round."""

    rows: tuple[HostRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def irqs(self) -> tuple[HostRow, ...]:
        """Interrupts and queues (class irq)."""
        return tuple(r for r in self.rows if r.consent is Consent.IRQ)
