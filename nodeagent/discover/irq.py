"""Interrupts: whose they are, where they may go, where they went.

Source: Documentation/core-api/irq/irq-affinity.rst, Documentation/filesystems/proc.rst 1.3.
"""

from __future__ import annotations

import re
from itertools import compress, takewhile

from nodeagent.discover.derived import interrupt_errors
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


DEBUG = "sys/kernel/debug/irq/irqs"
MANAGED = "IRQD_AFFINITY_MANAGED"
_BARE = re.compile(r"\s*[\w-]+:\s+\d+\s")
_MANAGED_NAMES = re.compile(
    # Drivers that ask for PCI_IRQ_AFFINITY (or virtio's find_vqs with an affinity), by the names
    # they give their queues; nvmeNq0 is the admin queue, which stays out of it.
    r"nvme\d+q[1-9]\d*|virtio\d+-(req\.\d+|request(\.\d+|s)?)|megasas\d+-msix\d+|mp[ti]3sas\d+.*|"
    r"smartpqi|hpsa\d*-msix\d+|lpfc.*|qla2xxx.*|pvscsi|hisi_sas_v3_hw cq.*"
)


def read_irqs(root: Root, functions: tuple[PciFunction, ...]) -> tuple[tuple[Irq, ...], str | None]:
    """Numbered lines of /proc/interrupts with their affinity, ascending; and the rows that count
    errors, `NAME: SUM` a line."""
    owners = _owners(root, functions)
    lines = root.lines(INTERRUPTS, MAX_BYTES, expected=True)
    if not lines:
        if root.exists(INTERRUPTS):
            root.fail(INTERRUPTS, "the file is empty, expected a header of CPUs")
        return (), None
    columns = [w[3:] for w in lines[0].split()]
    if columns and all(map(is_number, columns)):
        cpus = [int(c) for c in columns]
        lines = lines[1:]
    elif _BARE.match(lines[0]):
        cpus = _unheaded(root, lines)
    else:
        root.fail(INTERRUPTS, f"{lines[0][:40]!r}, expected a header of CPUs")
        return (), None
    there = frozenset(root.names("proc/irq", _NUMBER))
    # Only root, and only where debugfs is mounted: the name of the queue tells as well.
    debug = frozenset(root.names(DEBUG, _NUMBER, quiet=True))
    # Kernels before Linux 2.6.24, and trees recorded by hand, do not have the file at all.
    claims = any(root.exists(f"proc/irq/{n}/spurious") for n in sorted(there)[:1])
    found = []
    for line in lines[:MAX_IRQS]:
        label, _, rest = line.partition(":")
        label = label.strip()
        if is_number(label):
            know = (label in there, label in debug, claims)
            found.append(_irq(root, int(label), rest, cpus, owners, know))
    return tuple(sorted(found, key=lambda i: i.number)), interrupt_errors(lines)


def _unheaded(root: Root, lines: list[str]) -> list[int]:
    """The CPUs of the columns where grep took the header away: those online, where there are as
    many; else none, so that no count is put on a wrong CPU."""
    widths = {
        len(list(takewhile(is_number, line.partition(":")[2].split())))
        for line in lines
        if is_number(line.partition(":")[0].strip())
    }
    online = root.cpus("sys/devices/system/cpu/online", expected=True)
    if online is not None and widths == {len(online)}:
        return list(online.ids)
    root.fail(INTERRUPTS, "no header of CPUs (grep drops it): give the whole file")
    return []


def _irq(
    root: Root,
    number: int,
    rest: str,
    cpus: list[int],
    owners: dict[int, str],
    know: tuple[bool, bool, bool],
) -> Irq:
    there, debug, claims = know
    words = rest.split()
    # Most of them are 0: a line has a column for each CPU.
    told = compress(zip(cpus, words, strict=False), map("0".__ne__, words))
    counts = tuple((cpu, int(word)) for cpu, word in told if is_number(word))
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
    managed, managed_by = _managed(root, number, name, debug)
    return Irq(
        number=number,
        name=name,
        affinity=affinity,
        effective=effective,
        node=None if node is None or node < 0 else node,
        counts=counts,
        bdf=bdf,
        managed=managed,
        managed_by=managed_by,
        unhandled=_unhandled(root, number) if there and claims and counts else None,
    )


def _managed(root: Root, number: int, name: str, debug: bool) -> tuple[bool | None, str]:
    """Whether the kernel keeps this line's affinity to itself, and what tells so."""
    text = root.text(f"{DEBUG}/{number}") if debug else None
    if text is not None and "dstate" in text:
        return MANAGED in text, f"{DEBUG}/{number}"
    if any(_MANAGED_NAMES.fullmatch(n.strip()) for n in name.split(",")):
        return True, "name"
    return None, ""


def _unhandled(root: Root, number: int) -> int | None:
    """Times that no handler knew the interrupt for its own, of the last 100,000.

    Source: kernel/irq/proc.c irq_spurious_proc_show(), kernel/irq/spurious.c note_interrupt().
    """
    for line in root.lines(f"proc/irq/{number}/spurious", 4096):
        words = line.split()
        if len(words) == 2 and words[0] == "unhandled" and is_number(words[1]):
            return int(words[1])
    return None


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
