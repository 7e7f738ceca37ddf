"""`nodeagentctl completion SHELL`: the script that gives a shell our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from nodeagent.cli.main import Invocation
from nodeagent.cli.output import text_only


@click.command(
    epilog="\b\nExample:  nodeagentctl completion bash > /etc/bash_completion.d/nodeagentctl\n"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    invocation = ctx.find_object(Invocation)
    assert invocation is not None
    text_only(invocation.output, "completion prints a shell script")
    found = get_completion_class(shell)
    assert found is not None
    source = found(ctx.find_root().command, {}, "nodeagentctl", "_NODEAGENTCTL_COMPLETE").source()
    click.echo(source)
