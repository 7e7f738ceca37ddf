"""A machine in a line of TOML, and the arguments that QEMU and the kernel get for it. Pure.

Node by node: `cores` x `threads` CPUs in a row, memory, a PCIe root complex of its own; on it a
switch with the GPUs (ati-vga: a display of AMD's vendor id; there is no driver for it) and the
NVMe drives, and the NICs on root ports beside the switch.
"""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

FILE = pathlib.Path(__file__).with_name("machines.toml")
MAX_NODES = 8
MAX_SLOTS = 16
"""Devices of one node, so that the bus numbers of all root complexes fit in 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. Counts and sizes are those of each node."""

    name: str
    kernel: str
    nodes: int
    cores: int
    threads: int = 1
    sockets: int = 0
    """0: one for each node; fewer than nodes: several dies in a socket, as with NPS4 and SNC."""
    memory_mb: int = 512
    memory_only: int = 0
    """Nodes behind the others that have memory and no CPU."""
    hugepages: int = 0
    gpus: int = 0
    nvmes: int = 0
    device_nodes: tuple[int, ...] | None = None
    """Nodes that have GPUs and drives; None: all."""
    nics: tuple[str, ...] = ()
    nic_nodes: tuple[int, ...] | None = None
    isolated: str = ""
    """CPU list for isolcpus=, nohz_full= and rcu_nocbs=."""
    append: str = ""
    """More boot arguments."""

    def __post_init__(self) -> None:
        sockets = self.sockets or self.nodes
        if not 1 <= self.nodes <= MAX_NODES or self.nodes % sockets:
            raise ValueError(f"{self.name}: {self.nodes} nodes on {sockets} sockets")
        if self.gpus + self.nvmes + len(self.nics) > MAX_SLOTS:
            raise ValueError(f"{self.name}: over {MAX_SLOTS} devices on a node")

    @property
    def cpus(self) -> int:
        """PUs of the whole machine."""
        return self.nodes * self.cores * self.threads

    @property
    def total_mb(self) -> int:
        """Memory of the whole machine."""
        return (self.nodes + self.memory_only) * self.memory_mb

    def boot(self) -> str:
        """Boot arguments that make the machine what its line says."""
        words = []
        if self.hugepages:
            each = ",".join(f"{node}:{self.hugepages}" for node in range(self.nodes))
            words.append(f"hugepagesz=2M hugepages={each}")
        if self.isolated:
            house = ",".join(str(c) for c in range(self.cpus) if c not in expand(self.isolated))
            words.append(
                f"isolcpus=domain,managed_irq,{self.isolated} nohz_full={self.isolated} "
                f"rcu_nocbs={self.isolated} irqaffinity={house}"
            )
        return " ".join([*words, self.append]).strip()

    def arguments(self, drive: str) -> list[str]:
        """QEMU's, for processors, memory and devices; `drive` is an empty file for NVMe drives."""
        return [word for line in self._lines(drive) for word in line.split()]

    def _lines(self, drive: str) -> Iterator[str]:
        sockets = self.sockets or self.nodes
        dies, each = self.nodes // sockets, self.cores * self.threads
        yield f"-m {self.total_mb}M"
        yield (
            f"-smp {self.cpus},sockets={sockets},dies={dies},cores={self.cores},"
            f"threads={self.threads}"
        )
        everywhere = self.nodes + self.memory_only
        for node in range(everywhere):
            yield f"-object memory-backend-ram,id=m{node},size={self.memory_mb}M"
            cpus = f",cpus={node * each}-{(node + 1) * each - 1}" if node < self.nodes else ""
            yield f"-numa node,nodeid={node}{cpus},memdev=m{node}"
        for a in range(everywhere):
            for b in range(a + 1, everywhere):
                yield f"-numa dist,src={a},dst={b},val={self._distance(a, b)}"
        for node in range(self.nodes):
            yield from self._devices(node, drive)

    def _distance(self, a: int, b: int) -> int:
        """As ACPI SLIT has it: 12 in a socket, 21 next to it, 32 across."""
        dies = self.nodes // (self.sockets or self.nodes)
        if b >= self.nodes:
            return 17 if a == 0 else 28
        if a // dies == b // dies:
            return 12
        return 21 if self.nodes <= 2 or dies > 1 or b == a ^ 1 else 32

    def _devices(self, node: int, drive: str) -> Iterator[str]:
        here = self.device_nodes is None or node in self.device_nodes
        gpus, nvmes = (self.gpus, self.nvmes) if here else (0, 0)
        nics = self.nics if self.nic_nodes is None or node in self.nic_nodes else ()
        if not gpus + nvmes + len(nics):
            return
        yield f"-device pxb-pcie,id=p{node},bus=pcie.0,bus_nr={16 + 28 * node},numa_node={node}"
        slot = 32 * node + 1
        if gpus + nvmes:
            yield f"-device pcie-root-port,id=r{node},bus=p{node},addr=0,chassis={slot},slot={slot}"
            yield f"-device x3130-upstream,id=u{node},bus=r{node}"
        for k in range(gpus + nvmes):
            slot += 1
            port = f"d{node}-{k}"
            yield (
                f"-device xio3130-downstream,id={port},bus=u{node},addr={k:x},"
                f"chassis={slot},slot={slot}"
            )
            if k < gpus:
                yield f"-device ati-vga,x-device-id=0x5046,bus={port},vgamem_mb=4,romfile="
            else:
                yield f"-drive file={drive},format=raw,if=none,id=f{port},snapshot=on"
                yield (
                    f"-device nvme,bus={port},drive=f{port},serial=vm-{port},"
                    f"max_ioqpairs={self.cpus}"
                )
        for k, model in enumerate(nics):
            slot += 1
            port = f"e{node}-{k}"
            yield (
                f"-device pcie-root-port,id={port},bus=p{node},addr={k + 1},"
                f"chassis={slot},slot={slot}"
            )
            # A hub of its own: a NIC with link, and no way out.
            yield f"-netdev hubport,id=n{port},hubid={slot}"
            yield f"-device {model},netdev=n{port},bus={port},mac=52:54:00:00:{node:02x}:{k:02x}"


def expand(cpus: str) -> set[int]:
    """A CPU list as numbers."""
    found: set[int] = set()
    for part in cpus.split(","):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found


def machines(text: str | None = None) -> dict[str, Machine]:
    """Those of the file, by name. Raises ValueError naming the machine and the key."""
    found = tomllib.loads(FILE.read_text() if text is None else text)["machine"]
    known = {f.name for f in fields(Machine)}
    result = {}
    for name, table in found.items():
        if not table.keys() <= known:
            raise ValueError(f"{name}: unknown keys {sorted(table.keys() - known)}")
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in table.items()
        }
        result[name] = Machine(name=name, **values)
    return result
