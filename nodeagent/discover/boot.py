"""Boot arguments in the kernel's own syntax, and the isolation that they ask for.

Source: lib/cmdline.c next_arg(), Documentation/admin-guide/kernel-parameters.txt,
kernel/sched/isolation.c.
"""

from __future__ import annotations

import re

from nodeagent.discover.root import Root
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.topology import Isolation

Args = tuple[tuple[str, str | None], ...]
CMDLINE = "proc/cmdline"
_ISOLCPUS_FLAGS = ("nohz", "domain", "managed_irq")


def parse_cmdline(text: str) -> Args:
    """(name, value or None for a flag) in order. What follows `--` belongs to init.

    Quotes hold spaces together, around the value (`a="b c"`) or the whole (`"a=b c"`).
    """
    found: list[tuple[str, str | None]] = []
    for word in _words(text):
        if word == "--":
            break
        if word.startswith('"'):
            word = word[1:].removesuffix('"')
        name, equals, value = word.partition("=")
        if value.startswith('"'):
            value = value[1:].removesuffix('"')
        if name:
            found.append((name, value if equals else None))
    return tuple(found)


def _words(text: str) -> list[str]:
    words: list[str] = []
    word, quoted = "", False
    for char in text:
        if char == '"':
            quoted = not quoted
        if char.isspace() and not quoted:
            if word:
                words.append(word)
            word = ""
        else:
            word += char
    if word:
        words.append(word)
    return words


_FLAG = re.compile(r"(?!all\b)[a-z_]+")


def isolcpus(value: str, last: int) -> tuple[frozenset[str], CpuSet]:
    """Flags and CPUs of `isolcpus=`; `domain` is the flag when none is given. Raises ParseError."""
    flags = set()
    rest = value
    while True:
        head, comma, tail = rest.partition(",")
        if not comma or not _FLAG.fullmatch(head):
            break
        # The kernel skips a flag that it does not know ("isolcpus: Skipped unknown flag").
        flags |= {head} & {*_ISOLCPUS_FLAGS}
        rest = tail
    return frozenset(flags or {"domain"}), CpuSet.parse(rest, last=last)


def asked_isolation(root: Root, args: Args, possible: CpuSet) -> Isolation:
    """What the arguments ask for. `N` and `all` mean the last possible CPU and all of them."""
    last = max(possible.ids, default=0)

    def cpus(name: str) -> CpuSet:
        values = [v for n, v in args if n == name and v is not None]
        if not values:
            return CpuSet()
        try:
            if name == "isolcpus":
                return isolcpus(values[-1], last)[1]
            return CpuSet.parse(values[-1], last=last)
        except ParseError as error:
            root.fail(CMDLINE, f"{name}={error.seen}: expected {error.expected}")
            return CpuSet()

    nohz_full = cpus("nohz_full")
    return Isolation(
        isolated=cpus("isolcpus"),
        nohz_full=nohz_full,
        # Source: kernel/rcu/tree_nocb.h rcu_init_nohz(): nohz_full CPUs are offloaded as well.
        rcu_nocbs=cpus("rcu_nocbs") | nohz_full,
        irqaffinity=cpus("irqaffinity"),
    )


def isolation_in_force(root: Root, asked: Isolation) -> Isolation:
    """What sysfs says is in force; what was asked for where sysfs has no file for it."""
    isolated = root.cpus("sys/devices/system/cpu/isolated")
    nohz_full = root.cpus("sys/devices/system/cpu/nohz_full")
    return Isolation(
        isolated=asked.isolated if isolated is None else isolated,
        nohz_full=asked.nohz_full if nohz_full is None else nohz_full,
        rcu_nocbs=asked.rcu_nocbs,
        irqaffinity=asked.irqaffinity,
    )
