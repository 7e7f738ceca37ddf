"""`nodeagentctl run`: the main job in the foreground, which `script/run` starts."""

from __future__ import annotations

import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from nodeagent.cli.host import open_root
from nodeagent.cli.main import Invocation
from nodeagent.cli.output import console, emit_json, note
from nodeagent.cli.standalone.job import Job
from nodeagent.cli.standalone.view import View
from nodeagent.cli.standalone.watch import Options, Watch
from nodeagent.cli.standalone.workplace import RUN_DIR, STATE_DIR, Workplace
from nodeagent.errors import UsageError

RATE = 150_000
SCREEN_S = 2.0
"""Pause between two pictures."""
SILENT_S = 10.0
"""Pause between two questions to the daemon where nobody is shown anything."""
PROGRESS_S = 4.0
"""Pause between two lines of progress where there is no screen."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What draws a View, and how often it wants a new one."""

    show: Callable[[View], None]
    period_s: float
    live: bool = False


@contextmanager
def screen(output: str) -> Iterator[Shown]:
    """The live screen on a terminal; else a line on stderr every few seconds: for a table always,
    for JSON where stderr is a terminal."""
    if output == "table" and sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live

        from nodeagent.cli.standalone.screen import render

        # One that wraps: what is longer than a line is shown whole.
        wrapping = Console(file=sys.stdout, highlight=False)
        with Live(console=wrapping, screen=True, auto_refresh=False) as live:

            def draw(view: View) -> None:
                size = live.console.size
                live.update(render(view, (size.width, size.height)), refresh=True)

            yield Shown(show=draw, period_s=SCREEN_S, live=True)
    elif output == "table" or sys.stderr.isatty():
        yield Shown(show=Lines(), period_s=PROGRESS_S)
    else:
        yield Shown(show=lambda _view: None, period_s=SILENT_S)


class Lines:
    """A line on stderr for each new step, and one every PROGRESS_S while it runs."""

    def __init__(self) -> None:
        self._step = ""
        self._next_s = 0.0

    def __call__(self, view: View) -> None:
        """Says it when it is time to."""
        now_s = time.monotonic()
        if view.step != self._step or now_s >= self._next_s:
            self._step, self._next_s = view.step, now_s + PROGRESS_S
            from nodeagent.cli.standalone.report import progress

            note(progress(view))


@click.command(
    epilog="\b\nExample:     script/run --for 20 -o json\n"
    f"Environment: {RUN_DIR}    sockets and logs, removed at the end; must\n"
    "             be empty or absent (default /run/nodeagent-run, without root\n"
    "             below XDG_RUNTIME_DIR)\n"
    f"             {STATE_DIR}  undo journal, audit record, controller's\n"
    "             store; stays (default /var/lib/nodeagent-run, without root\n"
    "             below XDG_STATE_HOME)\n"
    "             NODEAGENT_KEEP_LOGS=1  keep the children's output in log/ below\n"
    "             the latter\n"
    "Exit codes:  0 it ran and everything was undone, 1 a part of it failed and\n"
    "             the host is as it was, 2 a change could not be undone, 3 it could\n"
    "             not start; 64 wrong usage\n\n"
    "Ctrl-C stops everything in order and undoes every change to the host; exit 0\n"
    "then."
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
) -> int:
    """Run the main job on this machine: controller, daemon, feed, two workloads, probe."""
    shape = output or invocation.output
    if shape == "jsonl":
        raise UsageError("run prints one object, when it ends", "nodeagentctl run -o json")
    folder = examples_folder(examples)
    recorded = host or invocation.host
    if recorded is not None:
        # A path that is none is wrong usage: said now, not by a daemon that does not come up.
        open_root(recorded).close()
        recorded = str(pathlib.Path(recorded).absolute())
    watch: Watch | None = None
    try:
        with screen(shape) as shown:
            options = Options(
                seconds=seconds,
                rate=rate,
                host=recorded,
                config=folder / "standalone.toml",
                examples=folder,
                live=shown.live,
                period_s=shown.period_s,
            )
            watch = Watch(options=options, work=Workplace.default(), show=shown.show)
            result = Job(watch).run()
    finally:
        # While the screen was there, there was no place for them.
        for sentence in watch.notes if watch is not None and watch.options.live else ():
            note(f"note: {sentence}")
    if shape == "json":
        emit_json("run", result)
    else:
        from nodeagent.cli.standalone.report import report

        # In a file a line stays a line, so that it can be searched for.
        piped = not sys.stdout.isatty()
        console().print(report(result, watch.status), soft_wrap=piped)
    undo = result["undo"]
    assert isinstance(undo, dict)
    return 0 if undo["verified"] else 2
