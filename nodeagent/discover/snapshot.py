"""One reading of the machine: every reader in turn, into one Snapshot."""

from __future__ import annotations

import msgspec

from nodeagent.discover import (
    boot,
    cgroup,
    cpu,
    derived,
    engines,
    irq,
    kfd,
    kmsg,
    net,
    numa,
    nvme,
    pci,
    power,
    settings,
)
from nodeagent.discover.gpu import GpuReading, GpuSource, NoGpus, decode
from nodeagent.discover.root import Root
from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import GpuFacts, Host, Snapshot
from nodeagent.model.topology import Topology


def read_snapshot(
    root: Root, gpus: GpuSource | None = None, now_ns: int = 0, *, asked_by_person: bool = False
) -> Snapshot:
    """Reads everything once; never raises for what it reads.

    `gpus` None: NVML is not asked; a recorded machine brings its own reading.
    `now_ns`: CLOCK_REALTIME, kept as `taken_ns`.
    `asked_by_person`: of a live machine, read its kernel log and its engines as well.
    """
    source: GpuSource = gpus if gpus is not None and root.is_live else NoGpus()
    source.start()
    cpus = cpu.read_cpus(root)
    functions = pci.read_pci(root, cpus.online)
    texts = settings.read_settings(root)
    args = boot.parse_cmdline(texts.get(boot.CMDLINE, ""))
    asked = boot.asked_isolation(root, args, cpus.possible)
    irqs, interrupt_errors = irq.read_irqs(root, functions)
    nics = net.read_nics(root)
    nvmes = nvme.read_nvmes(root)
    first = settings.first_cpu(root)
    texts |= cgroup.read_cgroups(root)
    texts |= derived.read_derived(root, texts, first)
    if interrupt_errors is not None:
        texts["derived/interrupt_errors"] = interrupt_errors
    texts |= net.read_texts(root, nics)
    texts |= kfd.read_texts(root, functions)
    isolation = boot.isolation_in_force(root, asked)
    texts |= power.read_idle(root, cpus.online, isolation.isolated | isolation.nohz_full)
    wanted = asked_by_person or not root.is_live
    log = kmsg.read_kernel_log(root) if wanted else None
    if log is not None:
        texts |= log.texts
    processes = engines.read_engines(root) if wanted else None
    kfd_nodes = kfd.read_kfd(root)
    reading = _nvml(root, source)
    nodes = numa.read_nodes(root, cpus.online, _gpu_memory_nodes(reading))
    crowded = pci.unrelated(functions)
    if crowded is not None:
        root.fail(pci.DEVICES, crowded)
    topology = Topology(
        online=cpus.online,
        possible=cpus.possible,
        present=cpus.present,
        smt_siblings=cpus.siblings,
        packages=cpus.packages,
        nodes=nodes,
        caches=cpus.caches,
        pci=functions,
        relations=pci.relate(functions, kfd.xgmi_links(kfd_nodes) | reading.links),
        isolation=isolation,
    )
    return Snapshot(
        topology=topology,
        host=_host(root, texts, first, functions),
        boot_args=args,
        irqs=irqs,
        nics=nics,
        gpus=reading.gpus + _amd_gpus(root, functions, len(reading.gpus)),
        nvml=reading.nvml,
        unread=root.unread + reading.unread,
        texts=texts,
        taken_ns=now_ns,
        live=root.is_live,
        complete=root.is_complete,
        asked=asked,
        nvmes=nvmes,
        events=None if log is None else log.events,
        processes=processes,
    )


NVML = "nvml/reading"
"""Where a capture keeps NVML's answer."""


def _nvml(root: Root, source: GpuSource) -> GpuReading:
    if root.is_live:
        reading = source.read()
        raw = reading.raw
        if raw is None:
            answer = {"available": False, "reason": reading.nvml.reason}
            raw = msgspec.json.encode(answer).decode()
        root.note(NVML, raw)
        return reading
    raw = root.text(NVML, 4 << 20)
    if not raw:
        if raw is not None:
            root.fail(NVML, "the file is empty")
        return NoGpus("the recorded machine holds no NVML reading").read()
    return decode(raw)


def _gpu_memory_nodes(reading: GpuReading) -> frozenset[int]:
    """Nodes that NVML calls a GPU's own: read_nodes() looks only at those without CPUs."""
    return frozenset(g.numa_node for g in reading.gpus if g.numa_node is not None)


def _amd_gpus(root: Root, functions: tuple[PciFunction, ...], first: int) -> tuple[GpuFacts, ...]:
    found: list[GpuFacts] = []
    for function in functions:
        memory = kfd.vram_bytes(root, function)
        if memory is not None:
            found.append(
                GpuFacts(
                    bdf=function.bdf,
                    index=first + len(found),
                    name=root.text(f"{pci.DEVICES}/{function.bdf}/product_name", 256, quiet=True)
                    or None,
                    numa_node=function.numa_node,
                    cpu_affinity=function.local_cpus,
                    memory_total_bytes=memory,
                )
            )
    return tuple(found)


def _host(
    root: Root, texts: dict[str, str], first: dict[str, str], functions: tuple[PciFunction, ...]
) -> Host:
    version = texts.get("proc/version", "").split()
    return Host(
        hostname=texts.get("proc/sys/kernel/hostname"),
        boot_id=texts.get("proc/sys/kernel/random/boot_id"),
        kernel=texts.get("proc/sys/kernel/osrelease") or (version[2] if len(version) > 2 else None),
        virtual=_virtual(texts, first) or _partition(root, first) or _emulated(functions),
        cpu_vendor=first.get("vendor_id") or first.get("CPU implementer"),
        cpu_model=first.get("model name") or first.get("cpu"),
    )


_HYPERVISORS = (
    # DMI text (sys_vendor, product_name) -> name, as systemd-detect-virt names them
    ("kvm", "kvm"),
    ("amazon ec2", "amazon"),
    ("qemu", "qemu"),
    ("vmware", "vmware"),
    ("virtualbox", "oracle"),
    ("innotek", "oracle"),
    ("xen", "xen"),
    ("bochs", "bochs"),
    ("parallels", "parallels"),
    ("google compute engine", "google"),
    ("openstack", "openstack"),
    ("virtual machine", "microsoft"),
)


def _virtual(texts: dict[str, str], cpuinfo: dict[str, str]) -> str | None:
    """The hypervisor; "unknown" when only the CPU's flag tells of one; None: none seen.

    Bare-metal instances of clouds carry the cloud's DMI name but not the CPU's flag.
    """
    flagged = "hypervisor" in cpuinfo.get("flags", "").split()
    named = texts.get("sys/hypervisor/type")
    if named:
        return named
    dmi = " ".join(
        texts.get(f"sys/class/dmi/id/{key}", "") for key in ("sys_vendor", "product_name")
    ).lower()
    for text, name in _HYPERVISORS:
        if text in dmi and (flagged or "flags" not in cpuinfo):
            return name
    return "unknown" if flagged else None


def _partition(root: Root, cpuinfo: dict[str, str]) -> str | None:
    """The hypervisor of POWER and s390, whose CPUs have no flag for it; a whole LPAR of s390 is
    taken for a machine, as there is none without.

    Source: arch/powerpc/platforms/pseries (platform pSeries runs below a hypervisor only);
    z/Architecture Principles of Operation, STORE CPU ID (version FF: under a control program).
    """
    if cpuinfo.get("vendor_id", "").startswith("IBM/S390"):
        first = next((v for k, v in cpuinfo.items() if k.startswith("processor ")), "")
        return "unknown" if first.startswith("version = FF") else None
    if not cpuinfo.get("cpu", "").startswith("POWER"):
        return None
    # The machine's own lines follow those of all CPUs.
    last = {
        key.strip(): value.strip()
        for key, _, value in (x.partition(":") for x in root.lines("proc/cpuinfo", 1 << 20))
        if key.strip() in ("platform", "machine")
    }
    if last.get("platform") != "pSeries":
        return None
    return "kvm" if "emulated by qemu" in last.get("machine", "") else "powervm"


_EMULATED = {
    ("80ee", "beef"): "oracle", ("80ee", "cafe"): "oracle",
    ("15ad", "0405"): "vmware", ("15ad", "0740"): "vmware",
    ("1414", "5353"): "microsoft", ("5853", "0001"): "xen",
    ("1234", "1111"): "qemu", ("1b36", "0008"): "qemu", ("1b36", "000c"): "qemu",
}  # fmt: skip
"""Devices that no board carries: display, message and bridge chips of hypervisors. virtio is not
among them, since cards (DPUs) show virtio devices to real machines."""


def _emulated(functions: tuple[PciFunction, ...]) -> str | None:
    """The hypervisor whose made-up chips are on the PCI bus."""
    return next(
        (name for p in functions if (name := _EMULATED.get((p.vendor or "", p.device or "")))),
        None,
    )
