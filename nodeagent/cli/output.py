"""What commands print: JSON with its schema, tables and lines on a terminal, messages on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from nodeagent.errors import NodeagentError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

VERDICT_STYLE = {
    "OK": "green",
    "WARN": "yellow",
    "FAIL": "bold red",
    "UNKNOWN": "magenta",
    "NA": "dim",
    "INFO": "cyan",
    "REFUSE": "bold red",
}
"""rich styles; the word itself always stands there too."""


def emit_json(schema: str, body: Mapping[str, object]) -> None:
    """One object with `"schema": "nodeagent.NAME/v1"` first, on one stdout line."""
    line = msgspec.json.encode({"schema": f"nodeagent.{schema}/v1", **body})
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()


def text_only(output: str, what: str) -> None:
    """For what is a text by itself, such as a shell script. Raises UsageError for -o json."""
    if output != "table":
        raise UsageError(f"{what}, and -o {output} asks for JSON", "leave -o out")


def note(message: str) -> None:
    """A message to the person, on stderr."""
    click.echo(message, err=True)


def console(*, stderr: bool = False) -> Console:
    """A rich console: colour only on a terminal, NO_COLOR honoured, at most 100 columns when
    piped."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS", "100"))
    return Console(file=stream, highlight=False, width=width, soft_wrap=width is None)


def write_whole(file: str, text: str, *, mode: int = 0o644) -> None:
    """Writes the whole file or none of it; `-` is stdout. Raises NodeagentError."""
    if file == "-":
        sys.stdout.write(text)
        return
    temporary = f"{file}.{os.getpid()}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            Path(temporary).replace(file)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise NodeagentError(
            f"{file} could not be written: {error.strerror}", "give a path with room and rights"
        ) from error
