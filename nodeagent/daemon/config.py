"""The configuration file on disk: read, bounded, with the files it names resolved."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from nodeagent.errors import ConfigError
from nodeagent.given import read_given
from nodeagent.model.configfile import MAX_BYTES, REMEDY, Loaded, parse
from nodeagent.model.settings import DEFAULT_PATH


def load(path: Path | None) -> Loaded:
    """Reads and parses `path`; None: the default file where there is one, else the defaults. Raises
    ConfigError with file, line and remedy."""
    if path is None and not os.path.lexists(DEFAULT_PATH):
        return parse("", DEFAULT_PATH)
    path = path or Path(DEFAULT_PATH)
    return parse(read_text(path), str(path))


def told(path: Path | None) -> str:
    """Which file `load` reads, for the first line of a log."""
    if path is not None:
        return f"configured by {path}"
    if os.path.lexists(DEFAULT_PATH):
        return f"configured by {DEFAULT_PATH} (no --config was given)"
    return f"no --config, and no {DEFAULT_PATH}: every setting has its default"


def check_roots_own(path: Path) -> None:
    """Raises ConfigError where anybody but root, or this user, could write what root carries out:
    the file, or a folder that it could be exchanged in."""
    real = Path(os.path.realpath(path))
    for place in (real, *real.parents):
        try:
            found = place.stat()
        except OSError:
            # A pipe of the shell's, which has no name; the file itself is met when it is read.
            continue
        sticky = place != real and bool(found.st_mode & stat.S_ISVTX)
        if found.st_uid not in (0, os.geteuid()):
            who = f"{_name(found.st_uid)} owns it"
        elif found.st_mode & 0o022 and not sticky:
            who = f"its mode is {stat.S_IMODE(found.st_mode):04o}"
        else:
            continue
        where = f"{path}" if place == real else f"{path}: its folder {place}"
        raise ConfigError(
            f"{where}: others than root may write it ({who}), and what [pin] allow says is done "
            "as root",
            f"chown root:root {place} && chmod go-w {place}",
        )


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def read_text(path: Path) -> str:
    """At most MAX_BYTES of UTF-8. Raises ConfigError."""
    try:
        data = read_given(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}",
            f"nodeagentctl config --example > {path} makes one; an empty file is valid",
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: over {MAX_BYTES} bytes, expected a configuration file", REMEDY)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text", REMEDY) from error


def resolve(loaded: Loaded, named: str) -> Path | None:
    """A path from the file: relative ones start at the file's folder. None for empty."""
    return Path(loaded.path).resolve().parent / named if named else None
