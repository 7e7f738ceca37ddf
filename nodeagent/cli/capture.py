"""`nodeagentctl capture`: this machine (or a recorded one) as one redacted text file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation
from nodeagent.errors import UsageError

if TYPE_CHECKING:
    from nodeagent.discover.redact import Masks
    from nodeagent.discover.store import Entry


@click.command(
    epilog="\b\nExamples:  nodeagentctl capture node.capture\n"
    "           nodeagentctl capture --list\n"
    "           nodeagentctl --host node.capture topology show"
)
@click.argument("file", required=False)
@click.option("--list", "list_", is_flag=True, help="Show what would leave; write nothing.")
@click.option(
    "--include-logs",
    is_flag=True,
    help="Keep the whole kernel log, and the values of boot arguments that we do not know.",
)
@click.option("--key", metavar="FILE", help="Secret that makes masks comparable between nodes.")
@click.pass_obj
def capture(
    invocation: Invocation, file: str | None, list_: bool, include_logs: bool, key: str | None
) -> int:
    """Write everything that is read into FILE (- is stdout): one text file that diffs.

    Serials, UUIDs, MACs, IPs, host and user names are masked; equal stays equal. Of the kernel log
    only lines leave that something is judged by, of command lines the program and the values of
    known options. Process environments are never read.
    """
    from nodeagent.cli.host import open_root, read_root
    from nodeagent.cli.output import emit_json, note, text_only, write_whole
    from nodeagent.discover.capture import render, written
    from nodeagent.discover.redact import Masks, redact

    if file is None and not list_:
        raise UsageError("capture needs a FILE to write", "nodeagentctl capture node.capture")
    if file == "-" and not list_:
        text_only(invocation.output, "capture - writes the capture itself to stdout")
    masks = Masks(_secret(key))
    with open_root(invocation.host, keep=True) as root:
        read_root(root)
        assert root.kept is not None
        table = redact(root.kept, masks, include_logs=include_logs)
    said = {"entries": len(written(table)), "masked": dict(sorted(masks.counts.items()))}
    if list_:
        if invocation.output != "table":
            emit_json("capture", {"file": None, **said, "folders": _folders(table)})
        else:
            _list(table, masks)
        return 0
    assert file is not None
    write_whole(file, render(table), mode=0o600)
    if invocation.output != "table":
        emit_json("capture", {"file": file, **said})
        return 0
    masked = ", ".join(f"{count} {kind}" for kind, count in sorted(masks.counts.items()))
    note(f"{file}: {said['entries']} entries; masked: {masked or 'nothing'}")
    return 0


MAX_KEY = 4096
"""Bytes of a secret; a larger file is something else."""
_NEW_KEY = "head -c 32 /dev/urandom > KEY"


def _secret(key: str | None) -> bytes | None:
    from nodeagent.given import read_given

    if key is None:
        return None
    try:
        secret = read_given(key, MAX_KEY)
    except OSError as error:
        raise UsageError(
            f"--key {key}: {error.strerror}", "head -c 32 /dev/urandom > KEY"
        ) from error
    if len(secret) > MAX_KEY:
        raise UsageError(f"--key {key}: over {MAX_KEY} bytes, expected a secret", _NEW_KEY)
    secret = secret.strip()
    if len(secret) < 16:
        raise UsageError(
            f"--key {key}: it holds {len(secret)} bytes, expected 16 or more",
            _NEW_KEY,
        )
    return secret


def _folders(table: dict[str, Entry]) -> dict[str, int]:
    """Folders, to two or three levels, with the number of files that would leave from each."""
    from nodeagent.discover.store import Failed, Link

    folders: dict[str, int] = {}
    for path, entry in table.items():
        if isinstance(entry, bytes | Link | Failed):
            folder = "/" + "/".join(path.split("/")[:4][: max(1, path.count("/"))])
            folders[folder] = folders.get(folder, 0) + 1
    return dict(sorted(folders.items()))


def _list(table: dict[str, Entry], masks: Masks) -> None:
    """Folders with the number of files, then the kinds of what is masked."""
    for folder, count in _folders(table).items():
        click.echo(f"{count:6} {'files' if count != 1 else 'file '}  {folder}")
    for kind, count in sorted(masks.counts.items()):
        click.echo(f"{count:6} masked {kind}")
