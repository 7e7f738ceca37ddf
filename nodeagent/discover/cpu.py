"""CPUs: which are there, who shares a core, a package, a cache.

Source: Documentation/admin-guide/cputopology.rst,
Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.discover.root import Root, is_number
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.topology import Cache, Package

CPU = "sys/devices/system/cpu"
_DIR = re.compile(r"cpu\d{1,5}")
_INDEX = re.compile(r"index\d{1,2}")
_SIZE = re.compile(r"([0-9]{1,9})([KMG]?)")
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpus:
    """The CPU side of a topology; all sets hold online CPUs but `possible` and `present`."""

    online: CpuSet
    possible: CpuSet
    present: CpuSet
    siblings: tuple[tuple[int, CpuSet], ...]
    packages: tuple[Package, ...]
    caches: tuple[Cache, ...]


def read_cpus(root: Root) -> Cpus:
    """All of it. Sparse numbers, CPUs that are off-line and old kernels' masks are usual."""
    dirs = CpuSet.of(int(n[3:]) for n in root.names(CPU, _DIR, expected=True))
    online = _online(root, dirs)
    possible = root.cpus(f"{CPU}/possible")
    present = root.cpus(f"{CPU}/present")
    if present is not None and not present:
        root.fail(f"{CPU}/present", "empty, expected a CPU list")
    topology = {c: _names(root, f"{CPU}/cpu{c}/topology") for c in online}
    return Cpus(
        online=online,
        possible=(dirs | online) if possible is None else possible | online,
        present=(dirs | online) if present is None else present | online,
        siblings=tuple(
            (c, _shared(root, c, online, topology[c], "core_cpus", "thread_siblings"))
            for c in online
        ),
        packages=_packages(root, online, topology),
        caches=_caches(root, online),
    )


def _names(root: Root, path: str) -> frozenset[str]:
    return frozenset(root.names(path, _TOPOLOGY, expected=True))


_TOPOLOGY = re.compile(
    r"(core_cpus|thread_siblings|package_cpus|core_siblings)(_list)?|physical_package_id"
)


def _online(root: Root, dirs: CpuSet) -> CpuSet:
    listed = root.cpus(f"{CPU}/online")
    if listed:
        return listed
    if listed is not None:
        root.fail(f"{CPU}/online", "empty, expected a CPU list")
    if dirs:
        # Before Linux 2.6.26 there was no list. A CPU without a flag cannot be switched off.
        return CpuSet.of(c for c in dirs if root.number(f"{CPU}/cpu{c}/online") != 0)
    found = set()
    for line in root.lines("proc/cpuinfo", 4 << 20):
        key, _, value = line.partition(":")
        if key.strip() == "processor" and is_number(value.strip()):
            found.add(int(value))
    return CpuSet.of(c for c in found if c < 1 << 16)


def _shared(root: Root, cpu: int, online: CpuSet, there: frozenset[str], *stems: str) -> CpuSet:
    """The CPU's set from the first file that is there (newest name first); itself when none is."""
    for stem in stems:
        path = f"{CPU}/cpu{cpu}/topology/{stem}"
        found = None
        if f"{stem}_list" in there:
            found = root.cpus(f"{path}_list")
        if found is None and stem in there:
            found = root.mask(path)
        if found is not None:
            found &= online
            if cpu in found:
                return found
            root.fail(path, f"{str(found)!r}, expected a set with CPU {cpu} in it")
    return CpuSet.of((cpu,))


def _packages(
    root: Root, online: CpuSet, topology: dict[int, frozenset[str]]
) -> tuple[Package, ...]:
    """Packages by the kernel's mask: ids may be -1 or repeat (book ids, drawers, firmware)."""
    stems = ("package_cpus", "core_siblings")
    seen: dict[CpuSet, Package] = {}
    done: set[int] = set()
    for cpu in online:
        there = topology[cpu]
        if cpu in done or not there.intersection(s + e for s in stems for e in ("", "_list")):
            continue
        cpus = _shared(root, cpu, online, there, *stems)
        number = root.number(f"{CPU}/cpu{cpu}/topology/physical_package_id")
        done |= cpus.ids
        if cpus not in seen:
            seen[cpus] = Package(id=-1 if number is None else number, cpus=cpus)
    return tuple(sorted(seen.values(), key=lambda p: (p.id, min(p.cpus.ids))))


def _caches(root: Root, online: CpuSet) -> tuple[Cache, ...]:
    found: dict[tuple[int, str, CpuSet], Cache] = {}
    # Level, type and size are read once for each cache, not once for each CPU that shares it.
    known: set[tuple[str, CpuSet]] = set()
    for cpu in online:
        base = f"{CPU}/cpu{cpu}/cache"
        for index in root.names(base, _INDEX):
            at = f"{base}/{index}"
            cpus = root.cpus(f"{at}/shared_cpu_list")
            if cpus is None:
                cpus = root.mask(f"{at}/shared_cpu_map")
            if cpus is None:
                cpus = CpuSet()
            cpus &= online
            if (index, cpus) in known:
                continue
            known.add((index, cpus))
            level, kind = root.number(f"{at}/level"), root.text(f"{at}/type", 64)
            if level is None or kind is None:
                continue
            if not cpus:
                root.fail(f"{at}/shared_cpu_list", "empty or not there, expected a CPU list")
                continue
            key = (level, kind, cpus)
            if key not in found:
                found[key] = Cache(
                    level=level, type=kind, size_bytes=_size(root, f"{at}/size"), cpus=cpus
                )
    return tuple(sorted(found.values(), key=lambda c: (c.level, c.type, min(c.cpus.ids))))


def _size(root: Root, path: str) -> int | None:
    text = root.text(path, 64)
    if text is None:
        return None
    m = _SIZE.fullmatch(text)
    if m is None:
        root.fail(path, f"{text!r}, expected a size such as 32K")
        return None
    return int(m[1]) * _UNIT[m[2]]
