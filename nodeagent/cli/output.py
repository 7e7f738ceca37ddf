"""What commands print: JSON with its schema, tables and lines on a terminal, messages on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from nodeagent.errors import NodeagentError, UsageError, visible
from nodeagent.streams import discard_stdout

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
    whole = {"schema": f"nodeagent.{schema}/v1", **body}
    try:
        line = msgspec.json.encode(whole).decode()
        if (sys.stdout.encoding or "").lower().replace("-", "") != "utf8":
            line.encode("ascii")
    except UnicodeEncodeError:
        # A file's name that is no UTF-8, or a stream that is not: escapes say the same in ASCII.
        line = json.dumps(msgspec.to_builtins(whole), separators=(",", ":"))
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def even_unheard() -> Iterator[None]:
    """Around what a judging command prints: its exit code is the verdict, whether or not its
    reader (head, grep -q) stays to the end."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def text_only(output: str, what: str) -> None:
    """For what is a text by itself, such as a shell script. Raises UsageError for -o json."""
    if output != "table":
        raise UsageError(f"{what}, and -o {output} asks for JSON", "leave -o out")


def note(message: str) -> None:
    """A message to the person, on stderr."""
    click.echo(visible(message), err=True)


def console(*, stderr: bool = False) -> Console:
    """A rich console: colour only on a terminal, NO_COLOR honoured, at most 100 columns when
    piped; no control character reaches the terminal but its own."""
    from nodeagent.cli.render.visible import Visible

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _columns()
    # No markup: names of processes, files and feeds may hold square brackets.
    return Visible(file=stream, highlight=False, markup=False, width=width, soft_wrap=width is None)


def _columns() -> int:
    """COLUMNS, where it is a number that a table can be laid out in."""
    text = os.environ.get("COLUMNS", "")
    width = int(text) if len(text) <= 6 and text.isascii() and text.isdigit() else 0
    return max(20, width) if width else 100


def write_whole(file: str, text: str, *, mode: int = 0o644, follow: bool = True) -> None:
    """Writes the whole file or none of it; `-` is stdout. Raises NodeagentError.

    `follow`: a link there is followed; not in a folder that another user owns, who could lead root
    anywhere by it.
    """
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        if follow and _is_special(file):
            with Path(file).open("w", encoding="utf-8") as out:
                out.write(text)
            return
    except OSError as error:
        raise _unwritten(file, error) from error
    try:
        # Behind a link stands the file that is meant.
        file = os.path.realpath(file) if follow else file
        temporary = f"{file}.{os.getpid()}.tmp"
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
        raise _unwritten(file, error) from error


def _is_special(file: str) -> bool:
    """Whether it is a device, pipe or socket: written into, never replaced by a file."""
    try:
        mode = Path(file).stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _unwritten(file: str, error: OSError) -> NodeagentError:
    return NodeagentError(
        f"{file} could not be written: {error.strerror}",
        "run it with sudo, or give a path with room and rights",
    )
