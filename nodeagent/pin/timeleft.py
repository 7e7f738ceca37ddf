"""How much time the step in hand has left, for whatever waits in it (model/deadlines.py)."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

from nodeagent.errors import ActError
from nodeagent.model.deadlines import STEP_S


class TimeLeft:
    """One step at a time, of `step_s` seconds; outside of a step there is no end."""

    def __init__(self, step_s: float = STEP_S) -> None:
        self._step_s = step_s
        self._end = math.inf

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """What runs inside has `step_s` from now; a step within a step begins anew."""
        before, self._end = self._end, time.monotonic() + self._step_s
        try:
            yield
        finally:
            self._end = before

    def of(self, most_s: float) -> float:
        """`most_s`, or less where the step ends before. Raises ActError where it is over."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise ActError(
                f"this took longer than the {self._step_s:g} s that it may",
                "systemd or the container's runtime is slow: see their logs, and try again",
            )
        return min(most_s, left)
