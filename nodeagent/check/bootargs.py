"""CPU lists on the kernel command line: who is asked to leave which CPUs alone.

Source: Documentation/admin-guide/kernel-parameters.rst ("cpu lists", isolcpus=, nohz_full=,
rcu_nocbs=, irqaffinity=); kernel/sched/isolation.c for the flags of isolcpus=.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet

FLAGS = ("domain", "managed_irq", "nohz")
_FLAG = re.compile(r"([a-z_]+),")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One argument with a CPU list. `cpus` is empty when `error` says why it could not be read;
    `needs_last` tells that the list says N or all and the highest CPU is not known."""

    name: str
    value: str
    cpus: CpuSet
    flags: frozenset[str] = frozenset()
    unknown_flags: tuple[str, ...] = ()
    error: str | None = None
    needs_last: bool = False

    @property
    def text(self) -> str:
        """As it stands on the command line."""
        return f"{self.name}={self.value}"

    @property
    def domain(self) -> bool:
        """Whether isolcpus= takes its CPUs out of the scheduler's domains (its default)."""
        return not self.flags or "domain" in self.flags


def asked(name: str, value: str, last: int | None) -> Asked:
    """Reads an argument's CPU list; `last` is the highest possible CPU (what `N` means)."""
    rest, flags, odd = value, set(), []
    if name == "isolcpus":
        while m := _FLAG.match(rest):
            if m[1] in FLAGS:
                flags.add(m[1])
            elif m[1] != "all":
                odd.append(m[1])
            else:
                break
            rest = rest[m.end() :]
    speaks_of_last = re.search(r"\b(N|all)\b", rest) is not None
    # rcu_nocbs without a list offloads what nohz_full names; the other arguments need one.
    try:
        cpus, error = CpuSet.parse(rest, last=last), None
        if not cpus and name != "rcu_nocbs":
            error = "no CPU is named"
    except ParseError as wrong:
        cpus, error = CpuSet(), str(wrong)
    return Asked(
        name=name,
        value=value,
        cpus=cpus,
        flags=frozenset(flags),
        unknown_flags=tuple(odd),
        error=error,
        needs_last=speaks_of_last and last is None,
    )
