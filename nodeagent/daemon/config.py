"""The configuration file on disk: read, bounded, with the files it names resolved."""

from __future__ import annotations

from pathlib import Path

from nodeagent.errors import ConfigError
from nodeagent.given import read_given
from nodeagent.model.configfile import MAX_BYTES, REMEDY, Loaded, parse


def load(path: Path) -> Loaded:
    """Reads and parses `path`. Raises ConfigError with file, line and remedy."""
    return parse(read_text(path), str(path))


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
