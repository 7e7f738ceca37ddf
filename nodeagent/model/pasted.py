"""What is to be said about pasted input itself."""

from __future__ import annotations

from dataclasses import dataclass


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
