"""Who asks for an act, and how its troubles are told."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.errors import NodeagentError

TROUBLE = (NodeagentError, OSError)
"""What an act may meet: a sentence, or a read of /proc or cgroup that failed as none foresaw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who asks, and why. `override_freeze`: the reason to act in spite of a freeze; empty: none."""

    by: str
    why: str = ""
    override_freeze: str = ""


def words(error: NodeagentError | OSError) -> str:
    """One sentence, with the remedy where there is one."""
    if isinstance(error, OSError):
        return f"{error.filename or 'a system call'}: {error.strerror}"
    return str(error) + (f"; {error.remedy}" if error.remedy else "")
