"""What a memory node has room for, and whether memory moved there would stay.

Source: Documentation/ABI/stable/sysfs-devices-node (meminfo), proc(5) (Mems_allowed_list).
"""

from __future__ import annotations

from pathlib import Path

from nodeagent.errors import ActError, ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import room_needed, size
from nodeagent.model.placement import MigrateMemory
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.proc import PROC, threads_of

NODES = Path("/sys/devices/system/node")
_CACHE = ("Active(file)", "Inactive(file)", "SReclaimable")


def check_room(action: MigrateMemory, comm: str, bytes_: int) -> None:
    """Raises ActError where the target has not so many bytes, and 10 % more."""
    free, need = available(action.to), room_needed(bytes_)
    if free < need:
        raise ActError(
            f"node {action.to} has {size(free)} free or reclaimable; the {size(bytes_)} of {comm} "
            f"({action.target.pid}) on other nodes need {size(need)} there, with 10 % to spare",
            f"free memory on node {action.to} (numactl -H; who has it: numastat -p), or plan "
            "another node",
        )


def available(node: int) -> int:
    """Bytes free, or page cache that can be dropped at once. Raises ActError."""
    path = NODES / f"node{node}/meminfo"
    found: dict[str, int] = {}
    try:
        text = path.read_text()
    except OSError as error:
        raise ActError(
            f"{path}: {error.strerror}, expected a node with memory", "nodeagentctl topology show"
        ) from error
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[3].isdecimal():
            found[fields[2].rstrip(":")] = int(fields[3]) << 10
    if not found.get("MemTotal"):
        raise ActError(f"node {node} has no memory", "nodeagentctl topology show lists the nodes")
    return found.get("MemFree", 0) + sum(found.get(name, 0) for name in _CACHE)


def mems_allowed(pid: int) -> CpuSet:
    """Nodes that a process may have memory of. Raises GoneError."""
    try:
        text = (PROC / str(pid) / "status").read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise GoneError(f"process {pid} has ended") from error
    for line in text.splitlines():
        if line.startswith("Mems_allowed_list:"):
            return CpuSet.parse(line.partition(":")[2].strip())
    return CpuSet()


def pulled_back(pid: int, node: int) -> str:
    """A sentence where the kernel will take the memory back to where the threads run."""
    try:
        balancing = int((PROC / "sys/kernel/numa_balancing").read_text())
        cpus = CpuSet.parse((NODES / f"node{node}/cpulist").read_text())
    except (OSError, ValueError, ParseError):
        return ""
    away = CpuSet()
    for thread in threads_of(pid):
        away |= thread.mask - cpus
    if not balancing & 1 or not away:
        return ""
    return (
        f"kernel.numa_balancing is on and its threads may run on CPU {away}, off that node, so the "
        "kernel may move it away again: pin them there first, or turn it off (class host)"
    )
