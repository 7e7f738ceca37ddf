"""What the files of a systemd unit set: its fragment and every drop-in, whoever wrote them.

systemd says which it has read (FragmentPath, DropInPaths): also those of a name's prefixes
(`foo-.service.d`), of its template, of its type (`service.d`), in /usr/lib as in /etc. A file that
was written since its last reload is found in the folders that a unit has by its name.
Source: systemd.unit(5), "Unit File Load Path" and "Drop-ins"; org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet

FOLDERS = tuple(
    map(
        Path,
        (
            "/etc/systemd/system.control",
            "/run/systemd/system.control",
            "/run/systemd/transient",
            "/etc/systemd/system",
            "/run/systemd/system",
            "/usr/local/lib/systemd/system",
            "/usr/lib/systemd/system",
        ),
    )
)
MAX_BYTES = 1 << 16
MAX_FILES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the lines of one key add up to. `path`: the last file that has one; `ids` None: nothing
    is set, or (`text`) it is not understood."""

    path: Path
    ids: CpuSet | None
    text: str


def names(unit: str) -> tuple[str, ...]:
    """What a unit's drop-in folders are called, without `.d`: its own name first. Pure."""
    stem, _, kind = unit.rpartition(".")
    prefix, at, _ = stem.partition("@")
    found = [unit]
    if at:
        found.append(f"{prefix}@.{kind}")
    parts = prefix.split("-")
    for count in range(len(parts) - 1, 0, -1):
        found.append(f"{'-'.join(parts[:count])}-.{kind}")
    return (*found, kind)


def drop_ins(unit: str, told: Iterable[Path], folders: Iterable[Path] = FOLDERS) -> list[Path]:
    """Those that systemd has read, and those that it will, as far as their folders are known: one
    of each file name, in the order in which they are read."""
    found = {path.name: path for path in told}
    for folder in folders:
        for name in names(unit):
            with contextlib.suppress(OSError):
                for path in (folder / f"{name}.d").iterdir():
                    if path.suffix == ".conf":
                        found.setdefault(path.name, path)
    return [found[name] for name in sorted(found)][:MAX_FILES]


def setting(key: str, files: Iterable[Path]) -> Setting | None:
    """What files, one after the other, set a list of numbers to: lines add, an empty one takes all
    back. None: no file has a line of it."""
    path: Path | None = None
    ids, wrong = CpuSet(), ""
    for file in files:
        for text in _lines(key, file):
            path = file
            if not text:
                ids, wrong = CpuSet(), ""
                continue
            try:
                ids |= CpuSet.parse(",".join(text.replace(",", " ").split()))
            except ParseError:
                wrong = text
    if path is None:
        return None
    return Setting(path=path, ids=None if wrong else ids or None, text=wrong or str(ids))


def _lines(key: str, file: Path) -> Iterator[str]:
    try:
        text = file.read_bytes()[:MAX_BYTES].decode("utf-8", "replace")
    except OSError:
        return
    for found in re.finditer(rf"^[ \t]*{key}[ \t]*=(.*)$", text, re.M):
        yield found[1].strip()
