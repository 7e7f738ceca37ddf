"""Where an action may be cut, so that tests can cut it there for real.

`NODEAGENT_KILL_AT=N` ends the process by SIGKILL at the N-th step passed, `NODEAGENT_KILL_AT=NAME`
at the first step of that name. Unset (always, outside tests), a step is one look at a dictionary.
"""

from __future__ import annotations

import os
import signal

_passed = 0


def step(name: str) -> None:
    """A point between two effects."""
    wanted = os.environ.get("NODEAGENT_KILL_AT")
    if wanted is None:
        return
    global _passed
    _passed += 1
    if wanted in (name, str(_passed)):
        os.kill(os.getpid(), signal.SIGKILL)
