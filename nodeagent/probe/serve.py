"""The loader's side: loads and attaches, keeps the links, hands map descriptors over.

Runs in nodeagent-actor, which has the rights; the links end with that process, killed or not.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nodeagent.errors import NodeagentError, UsageError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.probe import Capability
from nodeagent.probe import capability, sentence
from nodeagent.probe.loader import BpfObject
from nodeagent.probe.memory import MAPS, Memory

ISOLATION_FILES = (
    "/sys/devices/system/cpu/isolated",
    "/sys/devices/system/cpu/nohz_full",
    "/sys/fs/cgroup/cpuset.cpus.isolated",
)
"""CPUs that boot arguments or cpuset partitions keep free of others."""

MODES = ("off", "gate", "full")

INIT_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the first PID namespace. Source: Linux include/linux/proc_ns.h, PROC_PID_INIT_INO."""

PROGRAMS = ("sched_wakeup", "sched_wakeup_new", "sched_switch")


@dataclass(slots=True)
class _Loaded:
    """What this process holds."""

    object: BpfObject
    mode: str
    gated: CpuSet
    description: dict[str, Any]
    fds: tuple[int, ...]


_held: _Loaded | None = None


def isolated_cpus() -> CpuSet:
    """CPUs isolated just now, whoever did it."""
    found = CpuSet()
    for path in ISOLATION_FILES:
        with contextlib.suppress(OSError):
            text = pathlib.Path(path).read_text().strip()
            # nohz_full reads "(null)" where it is built in and not used.
            found |= CpuSet.parse("" if text.startswith("(") else text)
    return found


def in_first_pid_namespace() -> bool:
    """Whether our pids are the kernel's own."""
    return pathlib.Path("/proc/self/ns/pid").stat().st_ino == INIT_PID_NAMESPACE


def possible_cpus() -> int:
    """Size of an array with an entry for every CPU."""
    text = pathlib.Path("/sys/devices/system/cpu/possible").read_text()
    return max(CpuSet.parse(text)) + 1


def consented(options: Mapping[str, Any]) -> tuple[str, CpuSet, CpuSet]:
    """(mode, the isolated CPUs, those whose events are gated out). Raises UsageError."""
    mode = options.get("isolated", "off")
    if mode not in MODES:
        raise UsageError(
            f"[probe] isolated is {mode!r}, expected one of {', '.join(MODES)}",
            'write isolated = "off"',
        )
    isolated = isolated_cpus() | CpuSet.parse(options.get("isolated_cpus", ""))
    gated = CpuSet() if mode == "full" else isolated
    return mode, isolated, gated


def check_attachable(mode: str, isolated: CpuSet) -> None:
    """Raises UnavailableError where nothing may be attached, or pids would not be the kernel's."""
    if mode == "off" and isolated:
        raise sentence.isolated(isolated)
    if not in_first_pid_namespace():
        raise sentence.foreign_pids()


def load(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Loads and attaches, or finds what this process loaded before.

    options: `isolated` = off | gate | full, and `isolated_cpus` (a cpulist) to be treated as
    isolated besides those the kernel names. Never raises for what the kernel refuses: the
    description then has `available` false and the sentence in `reason`.

    The descriptors stay ours: send them (SCM_RIGHTS) or `os.dup` them, do not close them.
    """
    global _held
    mode, isolated, gated = consented(options)
    if _held is not None and (_held.mode, _held.gated) == (mode, gated):
        return _held.description, list(_held.fds)
    unload()
    kinds = capability.matrix(attach=mode == "full" or not isolated)
    try:
        check_attachable(mode, isolated)
        _held = _load(mode, gated, kinds)
    except NodeagentError as error:
        return _describe(kinds, error=error), []
    return _held.description, list(_held.fds)


def unload() -> None:
    """Detaches; readers keep their memory, which no longer changes."""
    global _held
    if _held is not None:
        _held.object.close()
        _held = None


def stats() -> dict[str, tuple[int, int]]:
    """(nanoseconds, runs) of each program while somebody holds BPF_ENABLE_STATS; empty: nothing
    is loaded."""
    if _held is None:
        return {}
    return {program: _held.object.stats(program) for program in PROGRAMS}


def _load(mode: str, gated: CpuSet, kinds: tuple[Capability, ...]) -> _Loaded:
    cpus = possible_cpus()
    programs = BpfObject("sched")
    try:
        limits = programs.limits
        shards = min(cpus, limits.max_shards)
        programs.set_entries("cpus", cpus)
        programs.set_entries("slots", limits.slots * shards)
        programs.set_constant("shards", shards)
        programs.set_constant("shared_shards", cpus > shards)
        programs.load()
        fds = tuple(programs.map_fd(name) for name in (".data.gate", "cpus", "slots"))
        armed = CpuSet.of(range(cpus)) - gated
        memory = Memory(dict(zip(MAPS, fds, strict=True)), cpus=cpus, shards=shards)
        memory.arm(armed)
        memory.close()
        for program in PROGRAMS:
            programs.attach(program)
        for cpu in armed:
            # An offline CPU has nothing to say.
            with contextlib.suppress(NodeagentError):
                programs.test_run("seed", cpu=cpu)
    except BaseException:
        programs.close()
        raise
    return _Loaded(
        object=programs,
        mode=mode,
        gated=gated,
        description=_describe(
            kinds, maps=list(MAPS), cpus=cpus, shards=shards, isolated=mode, gated=str(gated)
        ),
        fds=fds,
    )


def _describe(
    kinds: tuple[Capability, ...], *, error: NodeagentError | None = None, **more: object
) -> dict[str, Any]:
    """Plain values only: it travels as JSON or msgpack."""
    return {
        "available": error is None,
        "reason": None if error is None else sentence.text(error),
        "sentence": "" if error is None else str(error),
        "remedy": "" if error is None else error.remedy,
        "capabilities": [asdict(kind) for kind in kinds],
        **more,
    }
