"""What is to be said about pasted input itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one run of a tool said, where that is no kernel file; each kind is a subclass with
    typed fields. `source` names the pasted file, for evidence."""

    source: str


_R = TypeVar("_R", bound=Report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pasted:
    """How the input was read: sentences, each naming file and line."""

    kinds: tuple[str, ...] = ()
    """What was recognised: matrix, lscpu, numactl, nccl, rocm, log, values, tree."""
    repairs: tuple[str, ...] = ()
    """Damage that had one reading, and which."""
    unclear: tuple[str, ...] = ()
    """Damage with several readings: left open."""
    conflicts: tuple[str, ...] = ()
    """Two texts that say different things of the same."""
    refused: tuple[str, ...] = ()
    """Why a text cannot be judged at all."""
    unrecognised: tuple[str, ...] = ()
    """Files that no reader knows."""
    empty: tuple[str, ...] = ()
    """Files without a character."""
    skipped: tuple[str, ...] = ()
    """Blocks of a report that no reader knows, while others of it were read."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Kernel file below the root -> the pasted text that told it, for evidence."""
    reports: tuple[Report, ...] = ()
    """What tools said, in the order of the input; a check takes its own kind with `of`."""

    def of(self, kind: type[_R]) -> tuple[_R, ...]:
        """The reports of one kind."""
        return tuple(r for r in self.reports if isinstance(r, kind))
