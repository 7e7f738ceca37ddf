"""The turn: (state, what was seen, now) -> (state, decisions). Pure; time is an argument.

Each turn looks at everything anew and says what should be done now: the queue it returns replaces
the one before, so nothing that was decided on older facts is ever carried out. The actor performs
one action at a time; its results are part of what the next turn sees.
"""

from __future__ import annotations

from dataclasses import replace

from nodeagent.daemon import guard as guarding
from nodeagent.daemon import hostvalues, pins
from nodeagent.daemon.fold import fold
from nodeagent.daemon.links import event, feed_events, finding_events, state_events
from nodeagent.daemon.state import CONNECTING, Decisions, Identity, Seen, State, Wanted
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity
from nodeagent.model.finding import Verdict, worst
from nodeagent.model.freeze import frozen
from nodeagent.model.placement import Consent, Held, ProcessState
