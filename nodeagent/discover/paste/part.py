"""What a reader of pasted text gives back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.discover.legible import legible
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.kernel_event import KernelEvent
from nodeagent.model.matrix import LinkMatrix
from nodeagent.model.pasted import Report
from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import GpuFacts
from nodeagent.model.topology import PeerLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A pasted file: its name (for sentences, and as a last hint) and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one text says. `files` are kernel files (path below the root -> text) that say the
    same, so that the one reader of machines reads them too; `facts` is the contract's shape."""

    kind: str
    facts: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    weak: Mapping[str, str] = field(default_factory=dict)
    """Like `files`, concluded from others: anything that says it outright wins."""
    links_to: Mapping[str, str] = field(default_factory=dict)
    """Symbolic links: path below the root -> target."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """What is no file of its own, as `Snapshot.texts` keeps it (log/...)."""
    matrix: LinkMatrix | None = None
    functions: tuple[PciFunction, ...] = ()
    links: Mapping[frozenset[str], tuple[PeerLink, ...]] = field(default_factory=dict)
    events: tuple[KernelEvent, ...] | None = None
    gpus: tuple[GpuFacts, ...] = ()
    """What NVML said of GPUs, by PCI address."""
    reports: tuple[Report, ...] = ()
    """What tools said that no kernel file holds."""
    repairs: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    """Sentences about what has two readings, and was therefore left open."""
    refused: str | None = None
    """Why the text is too damaged to be judged."""


_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|(?<![\w\]])\[(?:4|0|1)m|\x1b[()][A-Z0-9]")


MAX_BLANK = 200
"""Blank characters in a row, and blank lines in a row, that mean something."""
_BLANKS = re.compile(rf"(?<!\s)[^\S\n]{{{MAX_BLANK + 1},}}")


def clean(text: str) -> str:
    """Without colour codes, byte-order mark and carriage returns at line ends; of blanks without
    an end MAX_BLANK are left, or every pattern that begins with them would try at each."""
    text = _ANSI.sub("", legible(text).lstrip("\ufeff").replace("\r\n", "\n"))
    return _blank_lines(_BLANKS.sub(" " * MAX_BLANK, text))


def _blank_lines(text: str) -> str:
    kept: list[str] = []
    blank = 0
    for line in text.split("\n"):
        blank = 0 if line and not line.isspace() else blank + 1
        if blank <= MAX_BLANK:
            kept.append(line if not blank else "")
    return "\n".join(kept)


_STRIDE = re.compile(r"(-\d+):(\d+)(?![\d/])")


def cpulist(text: str) -> CpuSet | None:
    """A CPU list in the kernel's, nvidia-smi's (`0-0,2-2`) or util-linux' form (`0-62:2`, every
    second CPU), None for blank or N/A. Raises ParseError.

    Source: util-linux lib/cpuset.c cpulist_create()."""
    text = text.strip()
    if not text or text.upper() in ("N/A", "NONE", "-"):
        return None
    return CpuSet.parse(_STRIDE.sub(r"\1:1/\2", text))


def cpulist_or_none(text: str) -> CpuSet | None:
    """Like `cpulist`, None also for what is no list."""
    try:
        return cpulist(text)
    except ParseError:
        return None
