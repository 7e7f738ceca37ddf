"""Commands in what a person reads, as that person has to type them: with the daemon they named.

A line that is pasted at night must reach the daemon, the actor and the workload file that the
command before it was about, not those of `/etc/nodeagent`.
"""

from __future__ import annotations

import re
import shlex

from nodeagent.cli.main import Invocation
from nodeagent.model.settings import DEFAULT_PATH

_ASKS = re.compile(r"\bnodeagentctl (?=(?:place|undo|status|events|exec|ring|config)\b)")
"""Commands that depend on which daemon is meant; the others judge the machine."""
_START = re.compile(r"\bsystemctl start (nodeagentd|nodeagent-actor)\b")


def as_called(text: str, invocation: Invocation) -> str:
    """The text, each of our commands in it with the global options that were given."""
    if invocation.config is not None:
        given = f"--config {shlex.quote(invocation.config)}"
        if invocation.config != DEFAULT_PATH:
            # Under systemd there is one of each, and it has the default configuration.
            text = _START.sub(lambda found: f"{found[1]} {given}", text)
    elif invocation.socket is not None:
        given = f"--socket {shlex.quote(invocation.socket)}"
    else:
        return text
    return _ASKS.sub(lambda _: f"nodeagentctl {given} ", text)


def options(file: str | None, housekeeping: str | None, by: str | None) -> str:
    """What a plan was asked for with, to be asked for again; begins with a space."""
    given = {"--workloads": file, "--housekeeping": housekeeping, "--by": by}
    return "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)
