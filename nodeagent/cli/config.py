"""nodeagentctl config: settings with their source."""

from __future__ import annotations

from pathlib import Path

import click

from nodeagent.cli.main import Invocation
from nodeagent.cli.output import console, emit_json, text_only
from nodeagent.errors import ConfigError
from nodeagent.given import read_given
from nodeagent.model.configfile import MAX_BYTES, REMEDY, Loaded, document, example, parse, shown
from nodeagent.model.settings import DEFAULT_PATH


@click.command(
    epilog="\b\nExample:  nodeagentctl config --example > /etc/nodeagent/nodeagent.toml\n"
    "          nodeagentctl config --file /etc/nodeagent/nodeagent.toml"
)
@click.option(
    "--file",
    "path",
    metavar="FILE",
    help=f"File to read.  [default: that of --config, else {DEFAULT_PATH}]",
)
@click.option("--show", "what", flag_value="show", default=True, help="Settings with their source.")
@click.option("--example", "what", flag_value="example", help="A complete file with the defaults.")
@click.option(
    "--markdown",
    "what",
    flag_value="markdown",
    help="Every setting, as Markdown (docs/configuration.md).",
)
@click.pass_obj
def config(invocation: Invocation, path: str | None, what: str) -> None:
    """Check the daemon's configuration file and show every setting with its source.

    A missing file at the default path means the defaults: the daemon observes and changes nothing.
    """
    if what != "show":
        text_only(invocation.output, f"config --{what} prints a text")
    if what == "example":
        click.echo(example(), nl=False)
        return
    if what == "markdown":
        click.echo(document(), nl=False)
        return
    loaded = _read(path or invocation.config or DEFAULT_PATH)
    rows = shown(loaded)
    if invocation.output != "table":
        emit_json(
            "config",
            {
                "file": loaded.path,
                "settings": [{"name": n, "value": v, "source": s} for n, v, s in rows],
            },
        )
        return
    from rich.table import Table

    view = Table(box=None, pad_edge=False)
    for column in ("SETTING", "VALUE", "SOURCE"):
        view.add_column(column, overflow="fold")
    for name, value, source in rows:
        view.add_row(name, value, source, style="dim" if source == "default" else None)
    console().print(view)


def _read(path: str) -> Loaded:
    file = Path(path)
    if path == DEFAULT_PATH and not file.exists():
        return parse("", path)
    try:
        data = read_given(file, MAX_BYTES)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"{path}: {said}", "name a file with --file, or make one with --example"
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: over {MAX_BYTES} bytes, expected a configuration file", REMEDY)
    loaded = parse(text, path)
    named = loaded.config.place.workloads
    if named and not (file.parent / named).is_file():
        raise ConfigError(
            f"{path}: [place] workloads: {file.parent / named} is not there, expected a workload "
            "file",
            "make that file like examples/workloads.toml, or take the setting out",
        )
    return loaded
