"""All pasted texts together: recognised, read, merged, and made into one Snapshot."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nodeagent.discover import pci
from nodeagent.discover.paste.aer import read_aer
from nodeagent.discover.paste.amd_tools import read_amd_tools
from nodeagent.discover.paste.cpu_table import lscpu_json, read_cpu_table
from nodeagent.discover.paste.cpu_tools import read_lscpu, read_numactl
from nodeagent.discover.paste.environ import read_environ
from nodeagent.discover.paste.gds import read_device_paths, read_gds, read_iommu_log
from nodeagent.discover.paste.gpu_csv import read_gpu_csv
from nodeagent.discover.paste.gpu_stack import read_gpu_stack
from nodeagent.discover.paste.host_tools import read_host_tools
from nodeagent.discover.paste.hypervisor import read_hypervisor
from nodeagent.discover.paste.jitter import read_jitter
from nodeagent.discover.paste.kfd import kfd_facts
from nodeagent.discover.paste.klog import fact, read_log
from nodeagent.discover.paste.lspci import read_lspci
from nodeagent.discover.paste.matrix import read_matrix
from nodeagent.discover.paste.nccl import read_nccl, relation_facts
from nodeagent.discover.paste.nvml_json import read_nvml_json
from nodeagent.discover.paste.part import Part, Text, clean, cpulist_or_none
from nodeagent.discover.paste.pcie_lines import read_link_limits, read_pcie_lines
from nodeagent.discover.paste.pcie_tables import read_pcie_tables
from nodeagent.discover.paste.placement_table import read_placement_table
from nodeagent.discover.paste.plain import bare, blocks, tidy
from nodeagent.discover.paste.rdma import read_rdma
from nodeagent.discover.paste.rocm import amd_smi_topology, read_rocm
from nodeagent.discover.paste.slurm import read_slurm
from nodeagent.discover.paste.smi_links import read_peers, read_smi_list
from nodeagent.discover.paste.smi_q import read_smi_q
from nodeagent.discover.paste.smi_table import read_smi_table
from nodeagent.discover.paste.smi_xml import read_smi_xml
from nodeagent.discover.paste.topology_tools import (
    read_cpuinfo,
    read_dmidecode,
    read_lstopo,
    read_numastat,
)
from nodeagent.discover.paste.values import read_values
from nodeagent.discover.root import Root, is_number
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import Entry, Link, TableStore
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.kernel_event import KernelEvent
from nodeagent.model.pasted import Pasted
from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import Irq, Snapshot
from nodeagent.model.topology import PeerLink

_LOG_NAME = re.compile(r"dmesg|journal|syslog|messages|klog|kern\.log|\.log$", re.IGNORECASE)
_NOISE = (
    "No such file or directory",
    "not there, expected a CPU list",
)
"""What a reader of whole machines misses in a few pasted lines: nobody asked for it."""


_REPORTS = tuple(
    (read, re.compile(gate, re.IGNORECASE | re.MULTILINE))
    for read, gate in (
        (read_smi_q, r"NVSMI|Attached GPUs|GPU 0000|^[ \t]*(?:Fabric|Remapped|Retired|ECC|GPU Link"
                     r"|Clocks|MIG Mode|BAR1)"),
        (read_smi_table, r"MiB|NVIDIA-SMI"),
        (read_smi_list, r"GPU \d"),
        (read_peers, r"GPU\d|Access Peer"),
        (read_gpu_csv, r"gpu|pstate|pid|pcie|util|uuid|bdf|width|index"),
        (read_gpu_stack, r"nvidia|nvml|cuda|driver|fabric|nvswitch|bridge|dcgm|/dev/|allowed_list"
                         r"|rev ff|membind|gpu is|amdgpu|rsmi|amdsmi|kernel.module|10de|device"
                         r"|initialized"),
        (read_amd_tools, r"VRAM%|^GPU: \d"),
        (read_rdma, r"port|state|hca"),
        (read_environ, r"(?:CUDA|NVIDIA|NCCL|RCCL|HIP|ROCR|HSA|VLLM|SGLANG|OMP|KMP|GOMP|TORCH|UCX"
                       r"|GLOO|NVSHMEM|DEVICE)_[A-Z]"),
        (read_nvml_json, r"numa_node|affinity|driver|uuid"),
        (read_pcie_lines, r"Lnk"),
        (read_link_limits, r"available PCIe bandwidth"),
        (read_aer, r"TOTAL_ERR_"),
        (read_cpu_table, r"\bCPU\b"),
        (read_cpuinfo, r"processor"),
        (read_numastat, r"numa_hit|MemTotal"),
        (read_lstopo, r"PU L#"),
        (read_dmidecode, r"Memory Device"),
        (read_hypervisor, r"<cell|-numa"),
        (read_slurm, r"name=gpu|nodename=|gres|slurm|abs_to_mac|task/affinity|mem_bind"),
        (read_placement_table, r"placement"),
    )
)  # fmt: skip
"""Readers of what is no kernel file, each with words that its text has: a reader answers None for
a text that it does not know, and is not asked about one without any of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paste:
    """The snapshot that the input adds up to, and the contract's `facts`."""

    snapshot: Snapshot
    facts: dict[str, object]


def read_paste(texts: Sequence[Text], root: Root | None = None) -> Paste:
    """Everything that the texts (and a directory tree with sys/ or proc/, `root`) say."""
    parts: list[tuple[Text, Part]] = []
    unrecognised: list[str] = []
    empty: list[str] = []
    skipped: list[str] = []
    for text in texts:
        found = list(_parts(text))
        parts += [(text, p) for p in found]
        if not text.text.strip():
            empty.append(text.name)
        elif not found:
            unrecognised.append(text.name)
        else:
            skipped += _skipped(text)
    files, sources, conflicts = _merged(parts)
    base = _snapshot(root, files, parts)
    kfd = kfd_facts(root) if root is not None else {}
    functions = _functions(base, parts)
    links: dict[frozenset[str], tuple[PeerLink, ...]] = {}
    for _, part in parts:
        links |= part.links
    relations = pci.relate(functions, links) if functions else ()
    topology = dataclasses.replace(base.topology, pci=functions, relations=relations)
    events, log_facts = _events(parts)
    matrix = next((p.matrix for _, p in parts if p.matrix is not None and p.matrix.gpus), None)
    facts = _facts(parts) | log_facts | kfd
    if any(p.kind == "nccl" for _, p in parts):
        facts["relations"] = relation_facts(relations)
    pasted = Pasted(
        kinds=tuple(dict.fromkeys([p.kind for _, p in parts] + (["tree"] if root else []))),
        repairs=_said(parts, lambda p: p.repairs),
        unclear=_said(parts, lambda p: p.unclear),
        conflicts=tuple(conflicts),
        sources=sources,
        refused=_said(parts, lambda p: (p.refused,) if p.refused else ()),
        unrecognised=tuple(unrecognised),
        empty=tuple(empty),
        skipped=tuple(skipped),
        reports=tuple(r for _, p in parts for r in p.reports),
    )
    gpus = base.gpus or tuple(g for _, p in parts for g in p.gpus)
    snapshot = dataclasses.replace(
        base, topology=topology, matrix=matrix, events=events, pasted=pasted, gpus=gpus
    )
    return Paste(snapshot=snapshot, facts=facts)


def _parts(text: Text) -> Iterator[Part]:
    """Every reading of one text: a whole report (vLLM's collect_env) holds several kinds."""
    tidied = tidy(clean(text.text))
    nccl = read_nccl(tidied)
    if nccl is not None:
        yield nccl
        return
    smi = read_smi_xml(clean(text.text), text.name)
    if smi is not None and smi.refused:
        # Quotation marks and fences are in the way of XML; entities are not to be undone first.
        smi = read_smi_xml(tidied, text.name)
    if smi is not None:
        yield smi
        return
    is_log = _LOG_NAME.search(text.name.rpartition("/")[2]) is not None
    log = read_log(tidied, text.name, is_log=is_log)
    body = bare(tidied)
    if (listed := lscpu_json(body)) is not None:
        body = listed
    body = amd_smi_topology(body)
    rocm = read_rocm(body)
    values = read_values(body, text.name)
    found = (
        rocm if rocm is not None else read_matrix(body),
        read_lspci(body, text.name),
        read_pcie_tables(body, text.name),
        read_gds(body, text.name),
        read_device_paths(body, text.name),
        read_iommu_log(tidied, text.name),
        read_lscpu(body),
        read_numactl(body),
        *(read(body, text.name) for read, gate in _REPORTS if gate.search(body)),
        read_jitter(tidied, text.name),
        log,
        values,
    )
    for part in found:
        if part is not None:
            yield part
    # These know the prefixes of their own logs.
    yield from read_host_tools(tidied, text.name)


MAX_BLOCKS = 100
MAX_BLOCK = 256 << 10


def _skipped(text: Text) -> Iterator[str]:
    """The fenced blocks of a report that no reader knows, with their lines."""
    for count, (line, title, block) in enumerate(blocks(text.text)):
        if count >= MAX_BLOCKS:
            return
        if not block.strip() or len(block) > MAX_BLOCK:
            continue
        if next(_parts(Text(name=text.name, text=block)), None) is None:
            words = (title or block.strip().partition("\n")[0])[:60]
            yield f"{text.name}: line {line}: {words}"


_CHANGES = ("/meminfo", "/numastat", "proc/interrupts", "proc/cpuinfo", "cpu.stat", ".pressure")
"""What differs from one moment to the next: two samples do not contradict each other."""


def _merged(
    parts: Sequence[tuple[Text, Part]],
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Kernel files of all parts, and the text each came from; the first one wins, and a later one
    that differs is told."""
    files: dict[str, str] = {}
    source: dict[str, str] = {}
    conflicts: list[str] = []
    for text, part in parts:
        for path, value in part.files.items():
            if path not in files:
                files[path], source[path] = value, text.name
            elif files[path].split() != value.split() and not path.endswith(_CHANGES):
                conflicts.append(
                    f"/{path}: {source[path]} says {files[path][:60]!r}, "
                    f"{text.name} says {value[:60]!r}"
                )
    for text, part in parts:
        for path, value in part.weak.items():
            if path not in files:
                files[path], source[path] = value, text.name
    return files, source, conflicts


def _snapshot(
    root: Root | None, files: dict[str, str], parts: Sequence[tuple[Text, Part]]
) -> Snapshot:
    """What the one reader of machines makes of these files; a tree is read as it is."""
    if root is not None:
        snapshot = read_snapshot(root)
    else:
        table: dict[str, Entry] = {p: v.encode() + b"\n" for p, v in files.items() if v}
        table |= {p: b"\n" for p, v in files.items() if not v}
        for _, part in parts:
            for path, target in part.links_to.items():
                table.setdefault(path, Link(target))
        snapshot = read_snapshot(Root(TableStore(table), live=False, label="the input"))
    texts = {**snapshot.texts, **files}
    for _, part in parts:
        texts |= part.texts
    topology = snapshot.topology
    if not any("thread_siblings" in p or "core_cpus" in p for p in files) and root is None:
        # Without sibling lists the reader takes each PU for a core; here nobody said so.
        topology = dataclasses.replace(topology, smt_siblings=())
    if "sys/devices/system/cpu/possible" not in files and root is None:
        topology = dataclasses.replace(topology, possible=CpuSet())
    if "sys/devices/system/cpu/present" not in files and root is None:
        topology = dataclasses.replace(topology, present=CpuSet())
    return dataclasses.replace(
        snapshot,
        topology=topology,
        irqs=_all_irqs(snapshot.irqs, _irqs(files)) if root is None else snapshot.irqs,
        texts=texts,
        unread=tuple(
            u
            for u in snapshot.unread
            # What N is on the command line was not pasted: the checks that need it say so.
            if u.reason not in _NOISE and u.path != "/proc/cmdline"
        ),
        live=False,
    )


_IRQ = re.compile(r"proc/irq/(\d{1,6})/(node|(?:smp|effective)_affinity(?:_list)?)")


def _irqs(files: dict[str, str]) -> tuple[Irq, ...]:
    """Interrupts from pasted /proc/irq files, without the table of /proc/interrupts."""
    rows: dict[int, dict[str, str]] = {}
    for path, value in files.items():
        if m := _IRQ.fullmatch(path):
            rows.setdefault(int(m[1]), {})[m[2]] = value
    found = []
    for number, row in sorted(rows.items()):
        node = row.get("node", "")
        found.append(
            Irq(
                number=number,
                name="",
                affinity=_cpus(row, "smp_affinity"),
                effective=_cpus(row, "effective_affinity"),
                node=int(node) if is_number(node) else None,
            )
        )
    return tuple(found)


def _all_irqs(table: tuple[Irq, ...], masks: tuple[Irq, ...]) -> tuple[Irq, ...]:
    """The rows of a pasted /proc/interrupts, with the masks that were pasted beside them."""
    by_number = {i.number: i for i in masks}
    known = {i.number for i in table}
    rows = [
        dataclasses.replace(i, affinity=m.affinity, effective=m.effective, node=m.node)
        if (m := by_number.get(i.number)) is not None
        else i
        for i in table
    ]
    return tuple(sorted([*rows, *(i for i in masks if i.number not in known)],
                        key=lambda i: i.number))  # fmt: skip


def _cpus(row: dict[str, str], name: str) -> CpuSet | None:
    """A CPU set from the list, else from the mask; None for neither, or damage."""
    if f"{name}_list" in row:
        return cpulist_or_none(row[f"{name}_list"])
    try:
        return CpuSet.parse_mask(row[name]) if name in row else None
    except ParseError:
        return None


def _functions(base: Snapshot, parts: Sequence[tuple[Text, Part]]) -> tuple[PciFunction, ...]:
    found = {p.bdf: p for p in base.topology.pci}
    for _, part in parts:
        for function in part.functions:
            known = found.get(function.bdf)
            found[function.bdf] = function if known is None else _both(known, function)
    return tuple(found[bdf] for bdf in sorted(found))


def _both(first: PciFunction, second: PciFunction) -> PciFunction:
    """What two texts say of one function: the first one wins, the second fills its gaps."""
    empty: tuple[object, ...] = (None, "", ())
    gaps = {
        f.name: getattr(second, f.name)
        for f in dataclasses.fields(PciFunction)
        if getattr(first, f.name) in empty and getattr(second, f.name) not in empty
    }
    return dataclasses.replace(first, **gaps) if gaps else first


def _events(
    parts: Sequence[tuple[Text, Part]],
) -> tuple[tuple[KernelEvent, ...] | None, dict[str, object]]:
    logs = [p.events for _, p in parts if p.events is not None]
    if not logs:
        return None, {}
    events = tuple(e for log in logs for e in log)
    if len(logs) == 1:
        return events, {"kernel_events": [fact(e) for e in events]}
    return events, {"kernel_events": [{**fact(e), "file": e.file} for e in events]}


def _facts(parts: Sequence[tuple[Text, Part]]) -> dict[str, object]:
    """Facts of all parts; the first one that speaks of a key wins, lists of nodes are joined."""
    facts: dict[str, object] = {}
    for _, part in parts:
        for key, value in part.facts.items():
            if key == "numa_nodes" and isinstance(facts.get(key), list):
                facts[key] = _joined(facts[key], value)
            else:
                facts.setdefault(key, value)
    return facts


def _joined(first: object, second: object) -> list[dict[str, object]]:
    by_id: dict[object, dict[str, object]] = {}
    for nodes in (second, first):
        for node in nodes if isinstance(nodes, list) else ():
            by_id.setdefault(node["id"], {}).update(node)
    return [by_id[i] for i in sorted(by_id, key=lambda i: (not isinstance(i, int), i))]


def _said(
    parts: Sequence[tuple[Text, Part]], of: Callable[[Part], tuple[str, ...]]
) -> tuple[str, ...]:
    return tuple(f"{text.name}: {said}" for text, part in parts for said in of(part))
