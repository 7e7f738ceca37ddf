"""nodeagentctl: the command table, global options, and the one place where errors become sentences.

Command modules are imported only when their command runs: `--help` costs no numpy and no grpc.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from nodeagent.errors import NodeagentError, UsageError, sentence
from nodeagent.streams import STREAM_FAULTS, discard_stdout, stand_in

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:attribute, short help)
    "topology": ("nodeagent.cli.topology:topology", "The machine: show it, check it."),
    "diagnose": ("nodeagent.cli.diagnose:diagnose", "Judge what somebody pasted, no agent needed."),
    "explain": ("nodeagent.cli.explain:explain", "What a check means, and how to mend it."),
    "capture": ("nodeagent.cli.capture:capture", "The machine as one redacted text file."),
    "diff": ("nodeagent.cli.diff:diff", "What differs between two machines, or two times."),
    "baseline": ("nodeagent.cli.baseline:baseline", "What this machine should have."),
    "place": ("nodeagent.cli.place:place", "Where workloads belong: plan, apply, status, release."),
    "undo": ("nodeagent.cli.undo:undo", "Put back every change nodeagent made to this host."),
    "exec": ("nodeagent.cli.exec:exec_command", "Start a program on its CPUs and memory nodes."),
    "probe": ("nodeagent.cli.probe:probe", "Latency jitter, measured with eBPF."),
    "feed": ("nodeagent.cli.feed:feed", "Market-data feeds: status, replay, synthetic captures."),
    "ring": ("nodeagent.cli.ring:ring", "The rings: segments, readers, records as they come."),
    "status": ("nodeagent.cli.status:status", "One screen of what the daemon knows."),
    "events": ("nodeagent.cli.status:events", "What happened on this node."),
    "fleet": ("nodeagent.cli.fleet:fleet", "All nodes, as their controller knows them."),
    "run": ("nodeagent.cli.run:run", "The main job in the foreground, on this machine."),
    "config": ("nodeagent.cli.config:config", "The daemon's settings, each with its source."),
    "completion": ("nodeagent.cli.completion:completion", "Shell completion for bash, zsh, fish."),
}
"""Every command, its home, and the line that `nodeagentctl --help` shows for it."""

EXIT_UNKNOWN = 3
EXIT_USAGE = 64
EXIT_FAULT = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The global options, handed to each command as `click.Context.obj`."""

    host: str | None
    """Path of a recorded machine; None: this one."""
    output: str
    """table, json or jsonl."""
    socket: str | None
    """Path of the daemon's api.sock; None: the default one. Beside `config`: in its run_dir."""
    config: str | None = None
    """Path of the daemon's configuration file; None: the default one."""


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def __init__(
        self, *args: object, commands_at: dict[str, tuple[str, str]], **kw: object
    ) -> None:
        super().__init__(*args, **kw)  # type: ignore[arg-type]  # click's own signature is Any
        self._at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the table's order."""
        return list(self._at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module."""
        if cmd_name not in self._at:
            return None
        module, _, attribute = self._at[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """A reader that has what it wanted (head) is no fault; click's exit 1 would mean WARN. A
        remedy names the daemon that was named."""
        try:
            return super().invoke(ctx)
        except NodeagentError as error:
            if isinstance(ctx.obj, Invocation):
                from nodeagent.cli.called import as_called

                error.remedy = as_called(error.remedy, ctx.obj)
            raise
        except BrokenPipeError:
            discard_stdout()
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command list from the table alone."""
        rows = [(name, text) for name, (_, text) in self._at.items()]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    commands_at=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExamples:  nodeagentctl topology check\n"
    "           nodeagentctl -o json --host node.capture topology show\n"
    "\b\nExit codes: 0 OK or done, 1 WARN or partly refused, 2 FAIL or neither as\n"
    "            planned nor as before, 3 UNKNOWN or nothing could be read or\n"
    "            tried; 64 wrong usage, 70 our own fault",
)
@click.option(
    "--host", metavar="PATH", help="Read a recorded machine (directory, archive or capture)."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "jsonl"]),
    default="table",
    show_default=True,
    help="jsonl: one object a line, for what streams.",
)
@click.option(
    "--socket",
    metavar="PATH",
    help="The daemon's api.sock; its other sockets stand beside it.  [default: "
    "/run/nodeagent/api.sock]",
)
@click.option(
    "--config",
    metavar="FILE",
    help="The daemon's configuration: its sockets, workloads, housekeeping CPUs.  [default: "
    "/etc/nodeagent/nodeagent.toml]",
)
@click.version_option(package_name="nodeagent")
@click.pass_context
def cli(
    ctx: click.Context, host: str | None, output: str, socket: str | None, config: str | None
) -> None:
    """See, check, place and watch one bare-metal GPU node."""
    if config is not None and socket is None:
        from nodeagent.cli.workloads import configuration

        socket = f"{configuration(config).config.daemon.run_dir}/api.sock"
    ctx.obj = Invocation(host=host, output=output, socket=socket, config=config)


def fail(message: str, remedy: str, code: int) -> NoReturn:
    """One sentence, one remedy, no traceback."""
    click.echo(f"error: {sentence(message)}", err=True)
    if remedy:
        click.echo(f"remedy: {sentence(remedy)}", err=True)
    sys.exit(code)


def _main_job(message: str) -> str:
    """For whoever asked the default daemon while script/run has its own one running."""
    if "/run/nodeagent/" not in message:
        return ""
    try:
        from nodeagent.cli.standalone.workplace import Workplace
    except ModuleNotFoundError:
        return ""
    socket = Workplace.default().run_dir / "api.sock"
    return f"; script/run runs here: nodeagentctl --socket {socket} ..." if socket.exists() else ""


def _has_folder() -> bool:
    """Whether relative names lead anywhere."""
    try:
        return bool(Path.cwd())
    except OSError:
        return False


def _usage_remedy(error: click.ClickException) -> str:
    """Where to read on; for a global option after the command, where it belongs."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    where = ctx.command_path if ctx else "nodeagentctl"
    if isinstance(error, click.NoSuchOption) and error.option_name in _GLOBAL:
        rest = where.removeprefix("nodeagentctl").strip()
        value = _GLOBAL[error.option_name]
        return f"it goes before the command: nodeagentctl {error.option_name} {value} {rest}"
    unknown = re.match(r"No such command '(.*?)'\.", error.message)
    if unknown and ctx is not None and isinstance(ctx.command, click.Group):
        elsewhere = _elsewhere(unknown[1])
        if elsewhere:
            return f"it is: {' or: '.join(elsewhere)}"
        near = difflib.get_close_matches(unknown[1], ctx.command.list_commands(ctx), 2)
        if near:
            return f"did you mean {' or '.join(near)}? {where} --help"
    return f"{where} --help"


def _elsewhere(name: str) -> list[str]:
    """Whole commands of that very name in other groups, or at the top."""
    found = ["nodeagentctl undo"] if name == "undo" else []
    for group in _GROUPS:
        command = cli.get_command(click.Context(cli), group)
        if isinstance(command, click.Group) and name in command.list_commands(
            click.Context(command)
        ):
            found.append(f"nodeagentctl {group} {name}")
    return found


_GROUPS = ("place", "topology")
"""Groups whose commands people type without the group."""

_GLOBAL = {
    "-o": "json",
    "--output": "json",
    "--host": "PATH",
    "--socket": "PATH",
    "--config": "FILE",
}
"""Options of `nodeagentctl` itself, each with a value for an example."""


_NODE_ONLY = frozenset(
    {"cffi", "grpc", "google", "numpy", "psutil", "fcntl", "grp", "pwd", "resource"}
    | {"nodeagent.native._core", "nodeagent.native._bpf"}
)
"""Modules that the wheel without native parts (docs/adr/0010) does not bring."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `nodeagentctl`."""
    stand_in()
    try:
        result = cli.main(args=argv, prog_name="nodeagentctl", standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        fail(str(error), error.remedy, EXIT_USAGE)
    except NodeagentError as error:
        fail(str(error), error.remedy + _main_job(str(error)), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        fail(error.format_message(), _usage_remedy(error), EXIT_USAGE)
    except click.exceptions.Abort:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has what it wanted.
        discard_stdout()
        sys.exit(0)
    except Exception as error:
        if isinstance(error, OSError) and not error.filename and error.errno in STREAM_FAULTS:
            discard_stdout()
            fail(
                f"standard output: {error.strerror}, not everything was written",
                "give it a file system with room",
                EXIT_UNKNOWN,
            )
        if isinstance(error, FileNotFoundError) and not error.filename and not _has_folder():
            fail("the current directory no longer exists", "cd / and try again", EXIT_UNKNOWN)
        if os.environ.get("NODEAGENT_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name in _NODE_ONLY:
            fail(
                f"this installation has no {error.name}: it judges recorded machines, and lacks "
                "what a node needs",
                "run it on the node, or install there by script/setup",
                NodeagentError.exit_code,
            )
        fail(
            f"nodeagent met its own fault: {type(error).__name__}: {error}",
            "run it again with NODEAGENT_TRACEBACK=1 and report what it prints",
            EXIT_FAULT,
        )
    sys.exit(result if isinstance(result, int) else 0)
