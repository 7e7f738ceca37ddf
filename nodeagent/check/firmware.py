"""contradiction: what firmware and hypervisor say of one machine, source against source."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    ASK_OPERATOR,
    MEASURE,
    Judged,
    NotApplicable,
    Seen,
    check,
    info,
    ok,
    saw,
    some,
    warn,
)
from nodeagent.model.finding import Evidence

DEVICES = "sys/bus/pci/devices"
SMT_ACTIVE = "sys/devices/system/cpu/smt/active"
SMT_CONTROL = "sys/devices/system/cpu/smt/control"


@check(
    "contradiction.bridge-node",
    "a device and the bridge above it are on one node",
    means="WARN when a GPU, NIC or NVMe drive tells another NUMA node than the bridge it is "
    "plugged into. OK when all agree; NA when no bridge tells its node.",
    why="Wires do not cross sockets below a root port: one of the two numbers is wrong, and the "
    "kernel places the driver's memory by the device's.",
    prove="lspci -tv; grep . /sys/bus/pci/devices/*/numa_node",
    mend="Update the BIOS (its ACPI _PXM objects); measure from each node before pinning.",
    source="Linux drivers/acpi/pci_root.c, pci_acpi_scan_root: the node comes from _PXM of the "
    "root bridge; Documentation/ABI/testing/sysfs-bus-pci, numa_node",
)
def bridge_node(s: Seen) -> Iterator[Judged]:
    """numa_node of each device against that of its nearest bridge."""
    s.devices()
    s.device_nodes(bridges=True)
    topology = s.snapshot.topology
    by = {p.bdf: p for p in topology.pci}
    judged, wrong = 0, []
    for p in topology.pci:
        above = by.get(p.parents[0]) if p.parents else None
        if not (p.is_gpu or p.is_nic or p.is_nvme) or above is None:
            continue
        if p.numa_node is None or above.numa_node is None:
            continue
        judged += 1
        if p.numa_node != above.numa_node:
            wrong.append((p, above))
    if not judged:
        raise NotApplicable("no device and its bridge both tell their nodes")
    if wrong:
        p, above = wrong[0]
        yield warn(
            some(x.bdf for x, _ in wrong),
            f"{p.bdf} says node {p.numa_node}, the bridge {above.bdf} above it says node "
            f"{above.numa_node}" + (f" ({len(wrong)} such devices)" if len(wrong) > 1 else ""),
            saw(f"{DEVICES}/{p.bdf}/numa_node", str(p.numa_node)),
            saw(f"{DEVICES}/{above.bdf}/numa_node", str(above.numa_node)),
            remedy=s.mend(f"{MEASURE}; update the BIOS"),
        )
    else:
        yield ok("pci", f"{judged} devices are on the node of the bridge above them")


@check(
    "contradiction.l3",
    "no L3 cache spans two packages",
    means="WARN when sysfs lets PUs of several packages share one L3 cache; INFO in a virtual "
    "machine or where each PU is a package of its own, whose caches are what the hypervisor made "
    "up, and on ARM without DMI, whose packages may be the clusters of a device tree.",
    why="Planners keep threads that share data inside one L3 group; a group that does not exist "
    "puts them on two sockets.",
    prove="grep . /sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list; lscpu -e",
    mend="Bare metal: update the BIOS (its CPUID or PPTT tables). Guest: host-passthrough with "
    "<cache mode='passthrough'/> and the host's topology.",
    source="Linux Documentation/ABI/testing/sysfs-devices-system-cpu, shared_cpu_list; ACPI "
    "specification 6.5, section 5.2.30 (PPTT)",
)
def l3(s: Seen) -> Iterator[Judged]:
    """Each L3 against the packages."""
    topology = s.snapshot.topology
    groups = s.l3_groups()
    packages = s.packages()
    if not groups or len(packages) < 2:
        raise NotApplicable("no L3 group is known, or there is one package")
    wrong = [
        (c.cpus, spanned)
        for c in groups
        if len(spanned := [p.id for p in topology.packages if p.cpus & c.cpus]) > 1
    ]
    if not wrong:
        yield ok("L3", f"{len(groups)} L3 groups, each inside one package")
        return
    cpus, spanned = wrong[0]
    sentence = f"CPUs {cpus} share one L3 cache, but are in packages {some(spanned)}"
    path = f"sys/devices/system/cpu/cpu{min(cpus.ids)}/cache/index3/shared_cpu_list"
    single = len(packages) > 2 and all(len(p.cpus) == 1 for p in packages)
    if s.snapshot.host.virtual or single:
        why = ": each PU is a socket, as hypervisors make them up" if single else ""
        yield info(f"cpu {cpus}", sentence + why, saw(path, str(cpus)), remedy=ASK_OPERATOR)
    elif _by_device_tree(s):
        yield info(
            f"cpu {cpus}",
            f"{sentence}: before Linux 5.19 the clusters of a device tree were called packages",
            saw(path, str(cpus)),
            remedy="lscpu -e=CPU,CORE,SOCKET,CACHE  # plan by the L3 column",
        )
    else:
        yield warn(
            f"cpu {cpus}",
            sentence,
            saw(path, str(cpus)),
            remedy="update the BIOS; until then plan by package: lscpu -e=CPU,SOCKET,NODE",
        )


def _by_device_tree(s: Seen) -> bool:
    """Whether the CPUs are of a kind that a device tree may describe."""
    vendor = s.snapshot.host.cpu_vendor or ""
    return vendor.startswith("0x") and not s.snapshot.texts.get("sys/class/dmi/id/sys_vendor")


@check(
    "contradiction.smt",
    "the SMT state and the siblings agree",
    means="WARN when smt/active says 1 and no core has two threads online, or 0 and a core has "
    "two; INFO in a virtual machine. Not where smt/control says notimplemented: active is then "
    "always 0.",
    why="A planner that believes the wrong one puts two workers on one core or leaves half of the "
    "machine idle.",
    prove="cat /sys/devices/system/cpu/smt/active; grep . "
    "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list",
    mend="Bare metal: update the BIOS. Guest: give it <topology threads='2'> only on a host with "
    "SMT, each pair pinned to one core.",
    source="Linux Documentation/ABI/testing/sysfs-devices-system-cpu, smt/active",
)
def smt(s: Seen) -> Iterator[Judged]:
    """One file against the sibling lists."""
    active = s.word(SMT_ACTIVE, absent="this kernel does not tell the SMT state")
    if s.snapshot.texts.get(SMT_CONTROL) == "notimplemented":
        raise NotApplicable("this architecture's kernel does not tell the SMT state")
    s.whole("sys/devices/system/cpu/cpu", leaf="thread_siblings")
    s.whole("sys/devices/system/cpu/cpu", leaf="core_cpus")
    cores = s.snapshot.topology.cores
    if not cores or active not in ("0", "1"):
        raise NotApplicable("the cores or the SMT state are not known")
    wide = [c for c in cores if len(c) > 1]
    evidence = [saw(SMT_ACTIVE, active)]
    if wide:
        evidence.append(
            saw(
                f"sys/devices/system/cpu/cpu{min(wide[0].ids)}/topology/thread_siblings_list",
                str(wide[0]),
            )
        )
    if (active == "1") == bool(wide):
        yield ok("smt", f"{len(wide)} of {len(cores)} cores have several threads", *evidence)
        return
    sentence = (
        f"smt/active is {active}, but {len(wide) or 'no'} core{'s have' if wide else ' has'} "
        "several threads online"
    )
    if s.snapshot.host.virtual:
        yield info("smt", sentence, *evidence, remedy=ASK_OPERATOR)
    else:
        yield warn("smt", sentence, *evidence, remedy="lscpu -e; update the BIOS")


@check(
    "contradiction.vnuma",
    "the guest's topology can be that of a machine",
    means="In a virtual machine only. WARN when it has GPUs and several sockets, but one NUMA "
    "node: the hypervisor tells no locality. INFO when GPUs are passed into a guest with one node "
    "and more than `pus` PUs, or when every PU is a socket of its own. OK when each "
    "socket has its node.",
    why="NCCL, vLLM and libnuma then plan as if all memory were near; the host pays the "
    "interconnect for every transfer, and nothing in the guest shows it.",
    prove="systemd-detect-virt; lscpu; numactl -H",
    mend="On the host: pin the guest's vCPUs and memory, and describe NUMA cells to it "
    "(<cpu><numa>), with the GPU on a pxb-pcie of its node. Inside nothing can be mended.",
    source="QEMU documentation, 'NUMA' and pxb-pcie; libvirt domain XML, 'CPU model and topology'",
    bounds={"pus": 32},
)
def vnuma(s: Seen) -> Iterator[Judged]:
    """Sockets, nodes and GPUs of a guest."""
    s.whole("proc/cpuinfo", "sys/class/dmi")
    virtual = s.snapshot.host.virtual
    if not virtual:
        raise NotApplicable("this is no virtual machine, as far as it tells")
    topology = s.snapshot.topology
    s.nodes()
    s.devices()
    sockets, nodes, pus = len(s.packages()), len(s.cpu_nodes), len(topology.online)
    if not sockets or not pus:
        raise NotApplicable("the sockets of this guest are not told")
    gpus = [p for p in topology.gpus if p.computes]
    evidence = [
        Evidence(path="/sys/devices/system/cpu", text=f"{pus} PUs in {sockets} packages"),
        saw("sys/devices/system/node/online", f"{nodes} nodes with CPUs"),
    ]
    if gpus and sockets > 1 and nodes == 1:
        yield warn(
            f"{virtual} guest",
            f"the hypervisor shows {sockets} sockets and {len(gpus)} GPUs, but one NUMA node: "
            "which GPU is near which CPU is not told",
            *evidence,
            remedy=ASK_OPERATOR,
        )
    elif (gpus and nodes == 1 and pus > s.bounds["pus"]) or (sockets == pus and pus > 8):
        what = f"{pus} PUs" if sockets != pus else f"{pus} sockets of one PU"
        yield info(
            f"{virtual} guest",
            f"the hypervisor shows {what} on {nodes} NUMA node{'s' if nodes > 1 else ''}: "
            "locality inside the guest is not to be relied on",
            *evidence,
            remedy=ASK_OPERATOR,
        )
    else:
        yield ok(f"{virtual} guest", f"{sockets} sockets, {nodes} NUMA nodes", *evidence)


@check(
    "contradiction.affinity",
    "the matrix and the nodes name the same CPUs",
    means="WARN when the CPU affinity that the matrix prints for a GPU has no CPU of the NUMA node "
    "that it prints beside it, by what lscpu, numactl or sysfs say of that node; or when no such "
    "node exists. NA unless both were pasted.",
    why="Binding by CPU list and binding by node then put a worker on two different sockets.",
    prove="nvidia-smi topo -m; lscpu | grep NUMA; numactl -H",
    mend="Paste both from one machine at one time; if they still differ, measure before binding: "
    "the driver and the firmware disagree.",
    source="nvidia-smi topo -h; NVML API reference, nvmlDeviceGetCpuAffinityWithinScope",
)
def affinity(s: Seen) -> Iterator[Judged]:
    """CPU affinity of each GPU against its node's list."""
    m = s.snapshot.matrix
    nodes = {n.id: n for n in s.snapshot.topology.nodes}
    if m is None or not nodes:
        raise NotApplicable("no matrix and node lists of one machine were pasted")
    judged, wrong = 0, False
    for gpu in m.gpus:
        cpus, said = m.cpu_affinity.get(gpu), m.numa_affinity.get(gpu)
        if not cpus or not said:
            continue
        known = [nodes[i] for i in said if i in nodes]
        if not known:
            judged, wrong = judged + 1, True
            yield warn(
                gpu,
                f"the matrix puts {gpu} on node {said}, but the nodes are {some(sorted(nodes))}",
                Evidence(path=m.source, text=f"{gpu}: NUMA affinity {said}"),
                remedy="paste both again from one machine: nvidia-smi topo -m; lscpu; numactl -H",
            )
            continue
        with_cpus = [n for n in known if n.cpus]
        if not with_cpus:
            continue
        judged += 1
        if not any(n.cpus & cpus for n in with_cpus):
            wrong = True
            node = with_cpus[0]
            yield warn(
                gpu,
                f"the matrix gives {gpu} the CPUs {cpus} and node {said}, but node {node.id} has "
                f"the CPUs {node.cpus}",
                Evidence(path=m.source, text=f"{gpu}: CPU affinity {cpus}, NUMA affinity {said}"),
                saw(f"sys/devices/system/node/node{node.id}/cpulist", str(node.cpus)),
                remedy=MEASURE,
            )
    if not judged:
        raise NotApplicable("no GPU's affinity and node are both told")
    if not wrong:
        yield ok(m.source, f"CPU and NUMA affinity of {judged} GPUs agree with the nodes")
