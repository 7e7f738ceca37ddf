"""How long one act may take, in one table: who asks waits longer than who acts.

What is waited for inside an act (D-Bus, a container's runtime) has a limit of its own, and no more
than what is left of its step: so an act ends, and is answered, before anybody stops to wait for it.
One that cannot be begun in time is not begun. All in seconds.
"""

from __future__ import annotations

BUS_CALL_S = 3.0
"""One call on D-Bus: systemd answers in milliseconds."""
RUNTIME_CALL_S = 6.0
"""One call of a container's runtime."""
STEP_S = 2 * RUNTIME_CALL_S + 2.0
"""To make one act, and again to put it back where that fails: a runtime is asked, then told, and
systemd starts it each time."""
ACT_S = 2 * STEP_S
"""One act to its answer. Of several that are undone in one call, the last begins within STEP_S."""
QUEUE_S = 5.0
"""How long an act may wait in the actor for others' acts before it begins."""
ANSWER_S = QUEUE_S + ACT_S
"""How long who asked for an act waits for its answer."""
READ_S = 10.0
"""The same for what changes nothing."""
WATCH_S = ANSWER_S + 7.0
"""After this long in one act the daemon feeds its watchdog no more."""
