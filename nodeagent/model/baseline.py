"""What a machine should have: its shape at the time when somebody said that it is right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """One thing that stays as it is on a machine that is whole: the width of a link, the memory of
    a node. Numbers in the base unit (bytes, lanes, GT/s, pieces); text where more is no better."""

    subject: str
    """What has it: `gpu 0000:3b:00.0`, `node 0`, `machine`."""
    what: str
    value: int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An accepted shape. `accepted` is a time of day as text (ISO 8601, UTC)."""

    accepted: str
    traits: tuple[Trait, ...]
    hostname: str | None = None
    source: str = ""
    """The file it was read from, for evidence."""
    trouble: str = ""
    """Why the file that is there cannot be used; it has no traits then."""
    remedy: str = ""
    """What to do about the trouble."""


def unusable(source: str, trouble: str, remedy: str) -> Baseline:
    """What stands for a file that is there and cannot be used."""
    return Baseline(accepted="", traits=(), source=source, trouble=trouble, remedy=remedy)
