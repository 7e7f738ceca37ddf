"""A guest's NUMA layout in libvirt's domain XML or on QEMU's command line, and the host's in
`virsh capabilities`.

Source: libvirt formatdomain (cpu, numa, cputune, numatune, hostdev, controllers), formatcaps; QEMU
-numa, -smp, pxb-pcie.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.discover.root import is_number
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.host_report import GuestNuma

NODE = "sys/devices/system/node"
CPU = "sys/devices/system/cpu"
_CELL = re.compile(r"<cell\s([^<>]{1,400})>")
_ATTRIBUTE = re.compile(r"([\w-]{1,40})\s*=\s*['\"]([^'\"]{0,400})['\"]")
_THREADS = re.compile(r"<topology\s[^<>]{0,200}threads=['\"](\d{1,3})['\"]")
_HOSTDEV = re.compile(r"<hostdev\s[^<>]{0,200}type=['\"]pci['\"].{0,600}?<address\s([^<>]{1,200})>",
                      re.DOTALL)  # fmt: skip
_EXPANDER = re.compile(
    r"<controller\s[^<>]{0,200}(?:pcie-expander-bus|pci-expander-bus)['\"].{0,600}?"
    r"<node>(\d{1,4})</node>",
    re.DOTALL,
)
_QEMU = re.compile(r"-numa\s+node((?:,[\w-]+=[^\s,]+)+)")
_QEMU_CPUS = re.compile(r"cpus=(\d{1,5}(?:-\d{1,5})?)")
_HOST_CPU = re.compile(r"<cpu id=['\"](\d{1,5})['\"][^<>]{0,300}>")


MAX_UNCLEAR = 8
"""Cells that are told as damaged, one by one."""


def read_hypervisor(text: str, name: str) -> Part | None:
    """The layout in a text; None when there is none."""
    if "<cell" not in text and "-numa" not in text:
        return None
    if "<cells" in text and _HOST_CPU.search(text):
        return _host(text)
    cells: dict[int, CpuSet | None] = {}
    unclear: list[str] = []
    line = 0
    for m in _CELL.finditer(text):
        values = dict(_ATTRIBUTE.findall(m[1]))
        number = values.get("id", str(len(cells)))
        if is_number(number) and "cpus" in values:
            cells[int(number)] = cpulist_or_none(values["cpus"])
            at = text.count("\n", 0, m.start()) + 1
            line = line or at
            if cells[int(number)] is None and values["cpus"].strip():
                unclear.append(f"line {at}: cell {number}: {values['cpus'][:40]!r} is no CPU list")
    for m in _QEMU.finditer(text):
        number_of = re.search(r"nodeid=(\d{1,4})", m[1])
        node = int(number_of[1]) if number_of else len(cells)
        lists = _QEMU_CPUS.findall(m[1])
        cells[node] = cpulist_or_none(",".join(lists)) if lists else None
        line = line or text.count("\n", 0, m.start()) + 1
    if not cells:
        return None
    threads = _THREADS.search(text) or re.search(r"-smp\s+\S{0,80}threads=(\d{1,3})", text)
    devices = [_address(m[1]) for m in _HOSTDEV.finditer(text)]
    devices += re.findall(r"-device\s+vfio-pci,\S{0,120}?host=([0-9a-fA-F:.]{5,16})", text)
    expanders = {int(m[1]) for m in _EXPANDER.finditer(text)}
    expanders |= {int(n) for n in re.findall(r"pxb-pcie,\S{0,120}?numa_node=(\d{1,4})", text)}
    report = GuestNuma(
        source=name,
        line=line,
        cells=cells,
        threads=int(threads[1]) if threads else None,
        passthrough=tuple(d for d in devices if d),
        expanders=frozenset(expanders),
        pinned=len(re.findall(r"<vcpupin\s", text)),
        memory_bound="<memnode" in text or "<numatune" in text or "host-nodes=" in text,
    )
    facts = {
        "numa_nodes": [
            {"id": i, "cpus": None if c is None else str(c)} for i, c in sorted(cells.items())
        ]
    }
    return Part(
        kind="guest NUMA", facts=facts, reports=(report,), unclear=tuple(unclear[:MAX_UNCLEAR])
    )


def _address(attributes: str) -> str:
    values = dict(_ATTRIBUTE.findall(attributes))
    try:
        domain, bus, slot, function = (
            int(values.get(k, "0"), 16) for k in ("domain", "bus", "slot", "function")
        )
    except ValueError:
        return ""
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


def _host(text: str) -> Part | None:
    """`virsh capabilities`: the host's own nodes, as the kernel has them."""
    files: dict[str, str] = {}
    for part in re.split(r"<cell\s", text)[1:]:
        number = re.match(r"id=['\"](\d{1,4})['\"]", part)
        if number is None:
            continue
        cpus = []
        for m in _HOST_CPU.finditer(part.partition("</cell>")[0]):
            cpus.append(int(m[1]))
            values = dict(_ATTRIBUTE.findall(m[0]))
            if "siblings" in values and cpulist_or_none(values["siblings"]) is not None:
                files[f"{CPU}/cpu{int(m[1])}/topology/core_cpus_list"] = values["siblings"]
        files[f"{NODE}/node{int(number[1])}/cpulist"] = str(CpuSet.of(cpus))
        memory = re.search(r"<memory unit=['\"]KiB['\"]>(\d{1,15})</memory>", part)
        if memory:
            node = int(number[1])
            files[f"{NODE}/node{node}/meminfo"] = f"Node {node} MemTotal: {memory[1]} kB"
    if not files:
        return None
    told = CpuSet.of(int(m[1]) for m in _HOST_CPU.finditer(text))
    return Part(kind="virsh capabilities", files=files, weak={f"{CPU}/online": str(told)})
