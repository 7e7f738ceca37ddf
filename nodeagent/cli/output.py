"""What commands print: JSON with its schema, tables and lines on a terminal, messages on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
import msgspec

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
