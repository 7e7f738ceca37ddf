"""`nodeagentctl baseline accept|show|diff`: what this machine should have."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation

if TYPE_CHECKING:
    from nodeagent.model.baseline import Baseline

STATE_DIR = "NODEAGENT_STATE_DIR"
NAME = "baseline.json"
MAX_BYTES = 8 << 20
FILE = click.option(
    "--file",
    metavar="FILE",
    help=f"The baseline's file.  [default: ${STATE_DIR}/{NAME}, else /var/lib/nodeagent/{NAME}]",
)


def default_file() -> str:
    """Where this machine's baseline stands."""
    return f"{os.environ.get(STATE_DIR) or '/var/lib/nodeagent'}/{NAME}"


def find_baseline(file: str | None) -> Baseline | None:
    """The baseline in that file (None: the default one); None when there is none. Raises
    ConfigError for one that cannot be read, or is damaged."""
    from nodeagent.check.baseline import decode
    from nodeagent.check.record import AS_ROOT
    from nodeagent.errors import ConfigError
    from nodeagent.given import read_given

    path = file or default_file()
    try:
        data = read_given(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"{path}: the baseline cannot be read: {error.strerror}",
            AS_ROOT if isinstance(error, PermissionError) else "give a readable file",
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES >> 20} MiB, expected a baseline", "")
    return decode(data, path)


@click.group(
    epilog="\b\nExamples:  sudo nodeagentctl baseline accept\n           nodeagentctl baseline diff"
)
def baseline() -> None:
    """What this machine should have: accept it once, then see what is lost."""


@baseline.command(
    epilog="\b\nExamples:  sudo nodeagentctl baseline accept\n"
    "           nodeagentctl --host node.capture baseline accept --file node.base"
)
@FILE
@click.pass_obj
def accept(invocation: Invocation, file: str | None) -> int:
    """Write down what the machine has now.

    That is: devices and what their links can do, memory, nodes, isolation, versions. From then on
    `topology check` FAILs when something of it is lost.
    """
    from nodeagent.check.baseline import encode, shape
    from nodeagent.cli.host import read_host
    from nodeagent.cli.output import emit_json, write_whole
    from nodeagent.errors import ReadError, RightsError, UsageError
    from nodeagent.model.baseline import Baseline

    if invocation.host is not None and file is None:
        raise UsageError(
            f"{invocation.host} is another machine, and its baseline would replace this one's",
            "say where to put it: --file FILE",
        )
    path = file or default_file()
    before = None
    if path != "-" and Path(path).exists():
        before = find_baseline(path) if _whole(path) else None
    snapshot = read_host(invocation)
    if not snapshot.topology.online and not snapshot.topology.pci:
        raise ReadError(
            invocation.host or "/sys",
            "holds neither CPUs nor PCI devices",
            "accept a whole machine",
        )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = Baseline(accepted=now, traits=shape(snapshot), hostname=snapshot.host.hostname)
    if path != "-":
        folder = Path(path).absolute().parent
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise RightsError(
                f"{folder}: {error.strerror}, expected a folder that can be written",
                f"run it as root, or set {STATE_DIR}, or give --file FILE",
            ) from error
    # The folder is the daemon's own: its user may place links there.
    write_whole(path, encode(made), follow=file is not None)
    if path == "-":
        return 0
    if invocation.output != "table":
        emit_json("diff", {"a": path, "b": _name(invocation), **_body(before, made)})
        return 0
    kinds = [t.subject.partition(" ")[0] for t in made.traits if t.what == "device"]
    counts = ", ".join(f"{kinds.count(k)} {n}" for k, n in _KINDS if k in kinds) or "no devices"
    again = f", accepted {before.accepted} before" if before is not None else ""
    click.echo(f"{path}: {len(made.traits)} traits accepted ({counts}){again}")
    return 0


_KINDS = (("gpu", "GPUs"), ("nic", "NICs"), ("nvme", "NVMe drives"))


def _whole(path: str) -> bool:
    """Whether the file there is a baseline: a damaged one may be replaced."""
    from nodeagent.errors import ConfigError

    try:
        find_baseline(path)
    except ConfigError:
        return False
    return True


def _name(invocation: Invocation) -> str:
    return invocation.host or "-"


def _body(before: Baseline | None, made: Baseline) -> dict[str, object]:
    old = {(t.subject, t.what, t.value) for t in before.traits} if before else set()
    return {
        "same": before is not None and old == {(t.subject, t.what, t.value) for t in made.traits},
        "accepted": made.accepted,
        "traits": len(made.traits),
        "differences": [],
    }


def _must(file: str | None) -> Baseline:
    from nodeagent.errors import NodeagentError

    found = find_baseline(file)
    if found is None:
        raise NodeagentError(
            f"{file or default_file()}: there is no baseline",
            "accept what the machine has now: sudo nodeagentctl baseline accept",
        )
    return found


@baseline.command(epilog="\b\nExample:  nodeagentctl baseline show")
@FILE
@click.pass_obj
def show(invocation: Invocation, file: str | None) -> int:
    """Print what was accepted.

    Exit 3 when there is no baseline.
    """
    from nodeagent.check.baseline import text_of
    from nodeagent.cli.output import console, emit_json

    found = _must(file)
    if invocation.output != "table":
        emit_json(
            "diff",
            {
                "a": found.source,
                "b": found.source,
                "same": True,
                "accepted": found.accepted,
                "hostname": found.hostname,
                "differences": [],
                "traits": [
                    {"subject": t.subject, "what": t.what, "value": t.value} for t in found.traits
                ],
            },
        )
        return 0
    out = console()
    out.print(f"{found.source}: accepted {found.accepted}, {len(found.traits)} traits")
    groups: dict[str, list[str]] = {}
    for t in found.traits:
        groups.setdefault(t.subject, []).append(f"{t.what} {text_of(t.what, t.value) or '(none)'}")
    for subject, said in groups.items():
        out.print(f"{subject}: {', '.join(said)}", soft_wrap=True)
    return 0


@baseline.command(
    epilog="\b\nExamples:  nodeagentctl baseline diff\n"
    "           nodeagentctl --host node.capture baseline diff --file node.base\n"
    "\b\nExit codes: 0 the same, 1 something changed, 2 something is lost,\n"
    "            3 not known, or no baseline"
)
@FILE
@click.pass_obj
def diff(invocation: Invocation, file: str | None) -> int:
    """Show what is not as accepted.

    What matters most comes first: a lost GPU before a new version. Counters are no difference.
    """
    from nodeagent.check.baseline import compare, sentence, verdict
    from nodeagent.cli.diff import STYLE
    from nodeagent.cli.host import read_host
    from nodeagent.cli.output import console, emit_json, even_unheard
    from nodeagent.model.finding import EXIT_CODE

    found = _must(file)
    departures = compare(found, read_host(invocation))
    said = verdict(departures)
    with even_unheard():
        if invocation.output != "table":
            emit_json(
                "diff",
                {
                    "a": found.source,
                    "b": _name(invocation),
                    "same": not departures,
                    "verdict": said.value,
                    "accepted": found.accepted,
                    "differences": [
                        {
                            "weight": int(d.difference.weight),
                            "kind": d.difference.weight.name.lower(),
                            "subject": d.difference.subject,
                            "what": d.difference.what,
                            "a": d.difference.a,
                            "b": d.difference.b,
                            "lost": d.lost,
                            "unseen": d.unseen,
                        }
                        for d in departures
                    ],
                },
            )
            return EXIT_CODE[said]
        out = console()
        lost, unseen = sum(d.lost for d in departures), sum(d.unseen for d in departures)
        changed = len(departures) - lost - unseen
        out.print(
            f"{said.value} - {lost} lost, {changed} changed, {unseen} not to be seen, against the "
            f"baseline of {found.accepted} | lost={lost} changed={changed} unseen={unseen}",
            soft_wrap=True,
        )
        for d in departures:
            style = "bold red" if d.lost else STYLE.get(int(d.difference.weight), "default")
            word = "LOST" if d.lost else "UNSEEN" if d.unseen else "CHANGED"
            out.print(f"{word:8}{sentence(d)}", style=style, soft_wrap=True)
    return EXIT_CODE[said]
