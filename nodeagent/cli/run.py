"""`nodeagentctl run`: the main job in the foreground, which `script/run` starts."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from nodeagent.cli.host import open_root
from nodeagent.cli.main import Invocation
from nodeagent.cli.output import console, emit_json, note
from nodeagent.cli.standalone.job import Job, Options
from nodeagent.cli.standalone.view import View
from nodeagent.cli.standalone.workplace import Workplace
from nodeagent.errors import UsageError

RATE = 150_000
REFRESH_PER_S = 2


def examples_folder(given: str | None) -> pathlib.Path:
    """Where the example workloads are: given, named by the environment, or ./examples."""
    named = given or os.environ.get("NODEAGENT_EXAMPLES") or "examples"
    folder = pathlib.Path(named).resolve()
    if not (folder / "vwap_agent.py").is_file():
        raise UsageError(
            f"{folder}: no vwap_agent.py there, expected the project's examples folder",
            "start it by script/run, or give --examples DIR",
        )
    return folder


@contextmanager
def screen(output: str) -> Iterator[tuple[Callable[[View], None], bool]]:
    """What draws a View, and whether anybody watches: a live screen on a terminal, else nothing."""
    if output != "table" or not sys.stdout.isatty():
        yield (lambda _view: None), False
        return
    from rich.live import Live

    from nodeagent.cli.standalone.screen import render

    with Live(console=console(), screen=True, auto_refresh=False) as live:
        yield (lambda view: live.update(render(view), refresh=True)), True


@click.command(
    epilog="\b\nExample:  script/run --for 20 -o json\n"
    "Ctrl-C stops everything in order and undoes every change to the host; exit 0 then."
)
@click.option(
    "--for", "seconds", type=click.FloatRange(1), metavar="SECONDS", help="End by itself."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    help="json: one object, nodeagent.run/v1, when it ends.",
)
@click.option("--host", metavar="PATH", help="Judge and plan for a recorded machine; pins nothing.")
@click.option(
    "--rate",
    type=click.IntRange(1),
    default=RATE,
    show_default=True,
    metavar="N",
    help="Messages a second that the replayer sends.",
)
@click.option("--examples", metavar="DIR", help="The project's examples folder.")
@click.pass_obj
def run(
    invocation: Invocation,
    seconds: float | None,
    output: str | None,
    host: str | None,
    rate: int,
    examples: str | None,
) -> None:
    """Run the main job on this machine: controller, daemon, feed, two workloads, probe."""
    shape = output or invocation.output
    folder = examples_folder(examples)
    recorded = host or invocation.host
    if recorded is not None:
        # Before anything is started: a path that is no machine is wrong usage.
        open_root(recorded).close()
    with screen(shape) as (show, live):
        options = Options(
            seconds=seconds,
            rate=rate,
            host=recorded,
            config=folder / "standalone.toml",
            examples=folder,
            live=live,
        )
        job = Job(options=options, work=Workplace.default(), show=show)
        result = job.run()
    if shape == "json":
        emit_json("run", result)
        return
    from nodeagent.cli.standalone.report import report

    for sentence in job.notes if live else ():
        note(f"note: {sentence}")
    console().print(report(result))
