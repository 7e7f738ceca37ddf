"""Interrupts: whose they are, where they may go, where they went.

Source: Documentation/core-api/irq/irq-affinity.rst, Documentation/filesystems/proc.rst 1.3.
"""

from __future__ import annotations

import re

from nodeagent.discover.pci import DEVICES, normal_bdf
from nodeagent.discover.root import Root, is_number
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import Irq

INTERRUPTS = "proc/interrupts"
MAX_BYTES = 16 << 20
"""4,096 lines for 224 CPUs are 11 MB."""
MAX_IRQS = 16_384
_NUMBER = re.compile(r"\d{1,6}")
_FLOW = re.compile(r"(?i)(\S+-)?(edge|level|fasteoi|none|simple|percpu)")
_PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


def read_irqs(root: Root, functions: tuple[PciFunction, ...]) -> tuple[Irq, ...]:
    """Numbered lines of /proc/interrupts with their affinity; ascending."""
    owners = _owners(root, functions)
    lines = root.lines(INTERRUPTS, MAX_BYTES, expected=True)
    if not lines:
        return ()
    columns = [w[3:] for w in lines[0].split()]
    if not columns or not all(map(is_number, columns)):
        root.fail(INTERRUPTS, f"{lines[0][:40]!r}, expected a header of CPUs")
        return ()
    cpus = [int(c) for c in columns]
    there = frozenset(root.names("proc/irq", _NUMBER))
    found = []
    for line in lines[1 : MAX_IRQS + 1]:
        label, _, rest = line.partition(":")
        label = label.strip()
        if is_number(label):
            found.append(_irq(root, int(label), rest, cpus, owners, label in there))
    return tuple(sorted(found, key=lambda i: i.number))


def _irq(
    root: Root, number: int, rest: str, cpus: list[int], owners: dict[int, str], there: bool
) -> Irq:
    words = rest.split()
    counts = tuple(
        (cpu, int(word))
        for cpu, word in zip(cpus, words, strict=False)
        if word != "0" and is_number(word)
    )
    tail = words[len(cpus) :]
    flow = next((i for i, w in enumerate(tail) if _FLOW.fullmatch(w)), None)
    name = " ".join(tail[flow + 1 :] if flow is not None else tail[-1:])
    bdf = owners.get(number)
    if bdf is None:
        # Newer kernels name the function in the chip's name, mlx5 in the action's.
        m = _PCI.search(" ".join(tail))
        bdf = normal_bdf(m[0]) if m else None
    affinity: CpuSet | None = None
    effective: CpuSet | None = None
    node = None
    if there:
        at = f"proc/irq/{number}"
        affinity = root.cpus(f"{at}/smp_affinity_list")
        effective = root.cpus(f"{at}/effective_affinity_list")
        node = root.number(f"{at}/node")
    return Irq(
        number=number,
        name=name,
        affinity=affinity,
        effective=effective,
        node=None if node is None or node < 0 else node,
        counts=counts,
        bdf=bdf,
    )


def _owners(root: Root, functions: tuple[PciFunction, ...]) -> dict[int, str]:
    """Function by IRQ number, from each function's msi_irqs directory."""
    found = {}
    for function in functions:
        if function.driver is None:
            continue
        at = root.resolve(f"{DEVICES}/{function.bdf}")
        for name in root.names(f"{at}/msi_irqs", _NUMBER) if at else ():
            found[int(name)] = function.bdf
    return found
