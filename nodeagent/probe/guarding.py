"""The guard's programs, on the loader's side: loads, attaches, tries, hands descriptors over.

Who changes an affinity is asked in the first way that works here: LSM, fentry, kprobe.
Works: attached, and seen to run when a thread of ours sets its own mask. Being
attached says too little: a kernel whose `lsm=` list leaves bpf out attaches and never calls.

Runs in nodeagent-actor, as probe/serve.py does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeagent.errors import NodeagentError, RightsError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.notice import Kind
from nodeagent.probe import sentence
from nodeagent.probe.loader import BpfObject
from nodeagent.probe.notices import Watch, start_ns
from nodeagent.probe.serve import check_attachable, consented, possible_cpus

PROGRAMS = ("guard_fork", "guard_exec", "guard_exit", "guard_migrate", "guard_attach")

WAYS = ("lsm", "fentry", "kprobe")
"""To the author of an affinity change, best first."""

CPUSET_WAYS = {"lsm": "fentry", "fentry": "fentry", "kprobe": "kprobe"}
"""To the author of a write to a cpuset, beside each of the ways above."""

MAPS = ("watch", "notes")


@dataclass(slots=True)
class _Loaded:
    object: BpfObject
    mode: str
    gated: CpuSet
    description: dict[str, Any]
    fds: tuple[int, ...]


_held: _Loaded | None = None


def load(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Loads and attaches, or finds what this process loaded before.

    options, answers and descriptors: as of `serve.load`.
    """
    global _held
    mode, isolated, gated = consented(options)
    if _held is not None and (_held.mode, _held.gated) == (mode, gated):
        return _held.description, list(_held.fds)
    unload()
    try:
        check_attachable(mode, isolated)
        _held = _load(mode, gated, options.get("ways", ",".join(WAYS)).split(","))
    except NodeagentError as error:
        return {"available": False, "reason": sentence.text(error)}, []
    return _held.description, list(_held.fds)


def unload() -> None:
    """Detaches; readers keep their memory, which no longer changes."""
    global _held
    if _held is not None:
        _held.object.close()
        _held = None


def stats() -> dict[str, tuple[int, int]]:
    """(nanoseconds, runs) of each program that is always loaded, while somebody holds
    BPF_ENABLE_STATS; empty: nothing is loaded."""
    if _held is None:
        return {}
    return {program: _held.object.stats(program) for program in PROGRAMS}


def _load(mode: str, gated: CpuSet, ways: list[str]) -> _Loaded:
    refused: list[str] = []
    armed = CpuSet.of(range(possible_cpus())) - gated
    for way in (*(w for w in WAYS if w in ways), ""):
        try:
            programs, cpuset = _open(way)
        except NodeagentError as error:
            if not way:
                raise
            refused.append(f"{way}: {_short(error)}")
            continue
        try:
            fds = tuple(programs.map_fd(name) for name in (".data.watch", "notes"))
            if way:
                programs.attach(f"author_by_{way}")
                _try(fds[0], armed, way)
            for program in PROGRAMS:
                programs.attach(program)
            if cpuset:
                programs.attach(f"cpuset_by_{cpuset}")
            _begin(fds[0], armed)
        except NodeagentError as error:
            programs.close()
            if not way:
                raise
            refused.append(f"{way}: {_short(error)}")
            continue
        except BaseException:
            programs.close()
            raise
        description = {
            "available": True,
            "reason": "",
            "maps": list(MAPS),
            "isolated": mode,
            "gated": str(gated),
            "authors": way,
            "cpusets": cpuset,
            "refused": refused,
        }
        return _Loaded(object=programs, mode=mode, gated=gated, description=description, fds=fds)
    raise AssertionError("the last way needs nothing")


def _open(way: str) -> tuple[BpfObject, str]:
    """The object with the programs of one way, loaded; and the way to writes of cpusets, or "".
    A kernel that does not describe that function gets the object without it."""
    cpusets = (CPUSET_WAYS[way], "") if way else ("",)
    for cpuset in cpusets:
        programs = BpfObject("guard")
        try:
            words = (possible_cpus() + 63) // 64
            programs.set_constant("guard_mask_bytes", min(8 * words, 256))
            if way:
                programs.choose(f"author_by_{way}")
            if cpuset:
                programs.choose(f"cpuset_by_{cpuset}")
            programs.load()
        except NodeagentError:
            programs.close()
            if cpuset == cpusets[-1]:
                raise
            continue
        return programs, cpuset
    raise AssertionError("the last of them raises")


def _short(error: NodeagentError) -> str:
    """Why one way does not work; what is always loaded tells which rights are missing."""
    return "the kernel refuses it (EPERM)" if isinstance(error, RightsError) else str(error)


class _UnseenError(NodeagentError):
    """Attached, and not called."""


def _try(watch_fd: int, armed: CpuSet, way: str) -> None:
    """A thread of ours sets its own mask: the program must have seen it."""
    watch = Watch(watch_fd)
    me = os.getpid()
    try:
        watch.arm(armed)
        began = start_ns(me)
        assert began is not None
        watch.put(0, me, began, None)
        # Of a thread that ends: the kernel remembers a mask that was asked for.
        thread = threading.Thread(target=_set_own_mask, args=(armed,))
        thread.start()
        thread.join()
        seen = watch.count(Kind.AFFINITY)
    finally:
        watch.forget()
        watch.close()
    if not seen:
        why = "is bpf in /sys/kernel/security/lsm?" if way == "lsm" else "the kernel passed it over"
        raise _UnseenError(f"attached, and not called when an affinity was set: {why}")


def _set_own_mask(armed: CpuSet) -> None:
    """Twice: the first call may come from a CPU where nothing is to be seen."""
    here = os.sched_getaffinity(0)
    for _ in range(2):
        os.sched_setaffinity(0, here & armed.ids or here)


def _begin(watch_fd: int, armed: CpuSet) -> None:
    watch = Watch(watch_fd)
    watch.arm(armed)
    watch.own([os.getpid()])
    watch.close()
