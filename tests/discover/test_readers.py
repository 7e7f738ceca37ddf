"""Each reader on small trees: what is odd about machines, one thing at a time."""

from __future__ import annotations

import pathlib

import pytest

from nodeagent.discover import boot, cpu, derived, irq, kfd, net, numa, pci
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import Entry, Link, TableStore
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import Link as PcieLink
from nodeagent.model.topology import Path

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def root_of(files: dict[str, str | Link | None]) -> Root:
    table: dict[str, Entry] = {p: t.encode() if isinstance(t, str) else t for p, t in files.items()}
    return Root(TableStore(table), live=False, label="test")


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


# ---- CPUs --------------------------------------------------------------------------------------


def old_kernel() -> dict[str, str | Link | None]:
    """Masks, no lists; CPU 2 off-line by its flag; core ids that repeat in each package."""
    files: dict[str, str | Link | None] = {}
    for c in range(4):
        at = f"{CPU}/cpu{c}"
        files[f"{at}/topology/thread_siblings"] = f"00000000,{1 << c:08x}"
        files[f"{at}/topology/core_siblings"] = "5" if c % 2 == 0 else "a"
        files[f"{at}/topology/core_id"] = "0"
        files[f"{at}/topology/physical_package_id"] = str(c % 2)
        files[f"{at}/cache/index0/level"] = "2"
        files[f"{at}/cache/index0/type"] = "Unified"
        files[f"{at}/cache/index0/shared_cpu_map"] = "f"
    files[f"{CPU}/cpu2/online"] = "0"
    files[f"{CPU}/cpu3/online"] = "1"
    return files


def test_masks_flags_and_repeated_core_ids() -> None:
    root = root_of(old_kernel())
    found = cpu.read_cpus(root)
    assert str(found.online) == "0-1,3"
    assert str(found.present) == "0-3"
    assert [(c, str(s)) for c, s in found.siblings] == [(0, "0"), (1, "1"), (3, "3")]
    assert [(p.id, str(p.cpus)) for p in found.packages] == [(0, "0"), (1, "1,3")]
    (cache,) = found.caches
    assert (str(cache.cpus), cache.size_bytes) == ("0-1,3", None)


def test_sparse_numbers_and_eight_threads_a_core() -> None:
    ids = [c for core in (0, 96) for c in range(core, core + 8)]
    files: dict[str, str | Link | None] = {f"{CPU}/online": "0-7,96-103"}
    for c in ids:
        files[f"{CPU}/cpu{c}/topology/core_cpus_list"] = "0-7" if c < 8 else "96-103"
        files[f"{CPU}/cpu{c}/topology/physical_package_id"] = "-1"
        files[f"{CPU}/cpu{c}/topology/package_cpus_list"] = "0-7,96-103"
    found = cpu.read_cpus(root_of(files))
    assert {str(s) for _, s in found.siblings} == {"0-7", "96-103"}
    assert [(p.id, str(p.cpus)) for p in found.packages] == [(-1, "0-7,96-103")]


def test_a_sibling_set_without_its_cpu_is_recorded() -> None:
    root = root_of({f"{CPU}/online": "0", f"{CPU}/cpu0/topology/core_cpus_list": "4-5"})
    assert cpu.read_cpus(root).siblings == ((0, cpus("0")),)
    assert any("CPU 0" in u.reason for u in root.unread)


def test_only_cpuinfo_tells_of_cpus() -> None:
    root = root_of({"proc/cpuinfo": "processor\t: 0\nmodel name: x\n\nprocessor : 5\n"})
    assert str(cpu.read_cpus(root).online) == "0,5"


# ---- NUMA --------------------------------------------------------------------------------------


def test_a_distance_row_of_another_length_is_none_and_recorded() -> None:
    root = root_of({f"{NODE}/node0/cpulist": "0-3", f"{NODE}/node0/distance": "10 20 30"})
    (node,) = numa.read_nodes(root, cpus("0-1"))
    assert node.distances == () and str(node.cpus) == "0-1"
    assert node.memory_bytes is None
    assert any("distance" in u.path for u in root.unread)


# ---- PCI ---------------------------------------------------------------------------------------


def tree(*paths: tuple[str, str, str]) -> dict[str, str | Link | None]:
    """Functions at device paths: (path below sys/devices, vendor, class)."""
    files: dict[str, str | Link | None] = {}
    for path, vendor, code in paths:
        bdf = path.rpartition("/")[2]
        files[f"sys/bus/pci/devices/{bdf}"] = Link(f"../../../devices/{path}")
        files[f"sys/devices/{path}/vendor"] = f"0x{vendor}"
        files[f"sys/devices/{path}/device"] = "0x1"
        files[f"sys/devices/{path}/class"] = f"0x{code}00"
    return files


def near(files: dict[str, str | Link | None], nodes: dict[str, int]) -> Path:
    """The path between the first two devices."""
    for path in list(files):
        bdf = path.rpartition("/")[2]
        if path.startswith("sys/bus") and bdf in nodes:
            target = files[path]
            assert isinstance(target, Link)
            at = target.target.removeprefix("../../../")
            files[f"sys/{at}/numa_node"] = str(nodes[bdf])
    functions = pci.read_pci(root_of(files), cpus("0-7"))
    (relation,) = pci.relate(functions, {})
    return relation.path


PORT, UP = "pci0000:10/0000:10:01.0", "pci0000:10/0000:10:01.0/0000:11:00.0"
BRIDGE, GPU, NIC = "0604", "0302", "0200"


@pytest.mark.parametrize(
    ("a", "b", "nodes", "path"),
    [
        (f"{UP}/0000:12:00.0/0000:13:00.0", f"{UP}/0000:12:01.0/0000:14:00.0", {}, Path.PIX),
        (f"{PORT}/0000:11:00.0", f"{PORT}/0000:11:00.1", {}, Path.PIX),
        (
            f"{UP}/0000:12:00.0/0000:15:00.0/0000:16:00.0/0000:17:00.0",
            f"{UP}/0000:12:01.0/0000:14:00.0",
            {},
            Path.PXB,
        ),
        (f"{PORT}/0000:13:00.0", "pci0000:10/0000:10:02.0/0000:14:00.0", {}, Path.PHB),
        (
            f"{PORT}/0000:13:00.0",
            "pci0000:40/0000:40:01.0/0000:41:00.0",
            {"0000:13:00.0": 1, "0000:41:00.0": 1},
            Path.NODE,
        ),
        (
            f"{PORT}/0000:13:00.0",
            "pci0000:40/0000:40:01.0/0000:41:00.0",
            {"0000:13:00.0": 0, "0000:41:00.0": 1},
            Path.SYS,
        ),
        (
            f"{PORT}/0000:13:00.0",
            "pci0000:40/0000:40:01.0/0000:41:00.0",
            {"0000:13:00.0": -1, "0000:41:00.0": 0},
            Path.UNKNOWN,
        ),
    ],
)
def test_how_near(a: str, b: str, nodes: dict[str, int], path: Path) -> None:
    assert near(tree((a, "10de", GPU), (b, "15b3", NIC)), nodes) is path


def test_an_amd_gpu_brings_its_own_switch() -> None:
    """GPU behind its two-port switch, NIC beside it below one external switch: still PIX."""
    down = f"{UP}/0000:12:00.0"
    files = tree(
        (PORT, "8086", BRIDGE),
        (UP, "1000", BRIDGE),
        (down, "1000", BRIDGE),
        (f"{down}/0000:13:00.0", "1002", BRIDGE),
        (f"{down}/0000:13:00.0/0000:14:00.0", "1002", BRIDGE),
        (f"{down}/0000:13:00.0/0000:14:00.0/0000:15:00.0", "1002", "1200"),
        (f"{UP}/0000:12:01.0/0000:16:00.0", "15b3", NIC),
    )
    assert near(files, {}) is Path.PIX


def test_inner_root_bus_counts_and_flattened_copies_know_nothing() -> None:
    files = tree(
        ("pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0", "144d", "0108")
    )
    (drive,) = pci.read_pci(root_of(files), cpus("0"))
    assert (drive.root_bus, drive.parents) == ("10000:e0", ("10000:e0:06.0",))
    assert drive.bdf == "10000:e1:00.0" and drive.is_nvme
    flat: dict[str, str | Link | None] = {"sys/bus/pci/devices/0000:01:00.0/class": "0x030200"}
    root = root_of(flat)
    (gpu,) = pci.read_pci(root, cpus("0"))
    assert (gpu.root_bus, gpu.parents, gpu.vendor, gpu.numa_node) == ("", (), "", None)
    assert {u.path.rpartition("/")[2] for u in root.unread} == {"vendor", "device"}


def test_links_aer_sriov_and_a_dead_device() -> None:
    at = "pci0000:00/0000:00:01.0"
    files = tree((at, "15b3", NIC))
    files |= {
        f"sys/devices/{at}/{name}": text
        for name, text in {
            "current_link_speed": "16.0 GT/s PCIe",
            "current_link_width": "8",
            "max_link_speed": "32.0 GT/s PCIe",
            "max_link_width": "16",
            "aer_dev_correctable": "RxErr 3\nTOTAL_ERR_COR 3",
            "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 1",
            "aer_dev_fatal": "TOTAL_ERR_FATAL 0",
            "sriov_numvfs": "4",
            "local_cpulist": "0-15",
        }.items()
    }
    files[f"sys/devices/{at}/iommu_group"] = Link("../../../kernel/iommu_groups/7")
    (nic,) = pci.read_pci(root_of(files), cpus("0-7"))
    assert nic.link == PcieLink(speed_gts=16.0, width=8, max_speed_gts=32.0, max_width=16)
    assert nic.aer and (nic.aer.correctable, nic.aer.nonfatal, nic.aer.fatal) == (3, 1, 0)
    assert (nic.vfs, nic.iommu_group, str(nic.local_cpus)) == (4, 7, "0-7")
    files[f"sys/devices/{at}/current_link_speed"] = "Unknown"
    files[f"sys/devices/{at}/current_link_width"] = "255"
    (dead,) = pci.read_pci(root_of(files), cpus("0-7"))
    assert dead.link and (dead.link.speed_gts, dead.link.width) == (None, None)


# ---- interrupts, interfaces --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "name", "bdf"),
    [
        ("  9:  1  0   IO-APIC   9-fasteoi   acpi", "acpi", None),
        (" 63:  1  0   IR-PCI-MSI 524288-edge      nvme0q0", "nvme0q0", None),
        (
            "186:  1  0  PCI-MSIX-0000:3b:00.0   7-edge  mlx5_comp7@pci:0000:3b:00.0",
            "mlx5_comp7@pci:0000:3b:00.0",
            "0000:3b:00.0",
        ),
        (" 12:  1  0     GICv3  27 Level     arch_timer", "arch_timer", None),
        (" 17:  1  0   IO-APIC-fasteoi   ehci_hcd:usb1, uhci_hcd", "ehci_hcd:usb1, uhci_hcd", None),
        (" 40:  1  0   ITS-PCI-MSI-0001:00:00.0   0 Edge      a b", "a b", "0001:00:00.0"),
    ],
)
def test_interrupt_rows(row: str, name: str, bdf: str | None) -> None:
    root = root_of({"proc/interrupts": f"           CPU0       CPU4\n{row}\nNMI: 3 4 Non-maskable"})
    (found,), _ = irq.read_irqs(root, ())
    assert (found.name, found.bdf, found.counts) == (name, bdf, ((0, 1),))


BARE = " 130:  0  7  PCI-MSIX-0000:3b:00.0   7-edge  mlx5_comp0"


@pytest.mark.parametrize(
    ("online", "counts", "failed"),
    [("2,6", ((6, 7),), False), ("0-3", (), True), (None, (), True)],
)
def test_interrupts_without_their_header_are_put_on_no_wrong_cpu(
    online: str | None, counts: tuple[tuple[int, int], ...], failed: bool
) -> None:
    files: dict[str, str | Link | None] = {"proc/interrupts": BARE}
    if online is not None:
        files["sys/devices/system/cpu/online"] = online
    root = root_of(files)
    (found,), _ = irq.read_irqs(root, ())
    assert (found.name, found.bdf, found.counts) == ("mlx5_comp0", "0000:3b:00.0", counts)
    assert any("no header" in u.reason for u in root.unread) is failed


def test_a_down_interface_has_no_speed() -> None:
    device = "sys/devices/pci0000:00/0000:00:01.0/virtio0/net/eth0"
    root = root_of(
        {
            "sys/class/net/eth0": Link(f"/{device}"),
            "sys/class/net/bonding_masters": "",
            f"{device}/speed": "-1",
            f"{device}/operstate": "down",
            f"{device}/queues/rx-0": None,
            f"{device}/queues/tx-0": None,
            f"{device}/queues/tx-1": None,
        }
    )
    (nic,) = net.read_nics(root)
    assert (nic.bdf, nic.speed_mbps, nic.rx_queues, nic.tx_queues) == ("0000:00:01.0", None, 1, 2)


# ---- boot arguments, settings, KFD -------------------------------------------------------------


def test_isolation_in_the_kernels_own_syntax() -> None:
    args = boot.parse_cmdline(
        'isolcpus=managed_irq,domain,2-N nohz_full=all rcu_nocbs=0-7:1/2 irqaffinity=0,1 a="b c"'
    )
    assert args[-1] == ("a", "b c")
    asked = boot.asked_isolation(root_of({}), args, cpus("0-7"))
    assert str(asked.isolated) == "2-7"
    assert str(asked.nohz_full) == "0-7"
    # nohz_full offloads RCU callbacks as well.
    assert str(asked.rcu_nocbs) == "0-7"
    assert str(asked.irqaffinity) == "0-1"
    assert boot.isolcpus("2-3", 7)[0] == frozenset(("domain",))
    assert boot.isolcpus("nohz,2-3", 7) == (frozenset(("nohz",)), cpus("2-3"))


def test_what_is_in_force_differs_from_what_was_asked_for() -> None:
    root = root_of(
        {
            "proc/cmdline": "isolcpus=1-3 nohz_full=1-3",
            f"{CPU}/online": "0-3",
            f"{CPU}/isolated": "1-3",
            f"{CPU}/nohz_full": "(null)",
        }
    )
    snapshot = read_snapshot(root)
    assert str(snapshot.topology.isolation.nohz_full) == ""
    assert str(snapshot.asked.nohz_full) == "1-3"
    assert snapshot.arg("nohz-full") == "1-3"


def test_damaged_isolcpus_is_recorded_and_nothing_guessed() -> None:
    root = root_of({})
    asked = boot.asked_isolation(root, (("isolcpus", "2-x"),), cpus("0-3"))
    assert not asked.isolated
    assert "isolcpus" in root.unread[0].reason


@pytest.mark.parametrize(
    ("options", "size"),
    [("rw", 1 << 29), ("rw,size=25%", 1 << 28), ("size=64m,rw", 64 << 20), ("size=24k", 24 << 10)],
)
def test_size_of_dev_shm(options: str, size: int) -> None:
    texts = {
        "proc/meminfo": f"MemTotal: {1 << 20} kB",
        "proc/mounts": f"tmpfs /dev/shm tmpfs {options} 0 0",
    }
    assert derived.read_derived(root_of({}), texts, {})["derived/dev_shm_bytes"] == str(size)


def test_xgmi_links_by_pair() -> None:
    at = kfd.NODES
    files: dict[str, str | Link | None] = {f"{at}/0/properties": "cpu_cores_count 8\nsimd_count 0"}
    for number, bus, peer in ((1, 0x0A, 2), (2, 0x1B, 1)):
        files[f"{at}/{number}/properties"] = f"simd_count 304\nlocation_id {bus << 8}\ndomain 0"
        files[f"{at}/{number}/io_links/0/properties"] = "type 2\nnode_from 1\nnode_to 0"
        files[f"{at}/{number}/io_links/1/properties"] = f"type 11\nnode_to {peer}\nweight 15"
    links = kfd.xgmi_links(kfd.read_kfd(root_of(files)))
    assert {tuple(sorted(k)) for k in links} == {("0000:0a:00.0", "0000:1b:00.0")}
    ((link,),) = links.values()
    assert (link.type, link.count) == ("xgmi", 1)


@pytest.mark.parametrize(
    ("dmi", "flags", "virtual"),
    [
        (("QEMU", "Standard PC (Q35 + ICH9, 2009)"), "fpu hypervisor", "qemu"),
        (("Amazon EC2", "p5.48xlarge"), "fpu hypervisor", "amazon"),
        (("Amazon EC2", "i7i.metal-48xl"), "fpu", None),
        (("Microsoft Corporation", "Virtual Machine"), "hypervisor", "microsoft"),
        (("Supermicro", "SYS-821GE"), "fpu", None),
        (("", ""), "hypervisor", "unknown"),
    ],
)
def test_hypervisors(dmi: tuple[str, str], flags: str, virtual: str | None) -> None:
    root = root_of(
        {
            "sys/class/dmi/id/sys_vendor": dmi[0],
            "sys/class/dmi/id/product_name": dmi[1],
            "proc/cpuinfo": f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor : 1",
        }
    )
    assert read_snapshot(root).host.virtual == virtual


ROWS = "processor\t: 0\ncpu\t\t: POWER9 (raw)\nrevision\t: 2.2\n\nprocessor\t: 1\n\n"
Z = "vendor_id       : IBM/S390\nprocessor 0: version = {},  identification = 29AA14\n"


@pytest.mark.parametrize(
    ("cpuinfo", "virtual"),
    [
        (ROWS + "platform\t: pSeries\nmachine\t\t: CHRP IBM,9009-22A\n", "powervm"),
        (ROWS + "platform\t: pSeries\nmachine\t\t: CHRP IBM pSeries (emulated by qemu)\n", "kvm"),
        (ROWS + "platform\t: PowerNV\nmachine\t\t: PowerNV 8335-GTW\n", None),
        (Z.format("FF"), "unknown"),
        (Z.format("00"), None),
    ],
)
def test_hypervisors_of_other_architectures(cpuinfo: str, virtual: str | None) -> None:
    assert read_snapshot(root_of({"proc/cpuinfo": cpuinfo})).host.virtual == virtual


@pytest.mark.parametrize(
    ("vendor", "device", "virtual"),
    [("0x80ee", "0xbeef", "oracle"), ("0x1b36", "0x000c", "qemu"), ("0x1af4", "0x1041", None)],
)
def test_hypervisors_by_their_chips(vendor: str, device: str, virtual: str | None) -> None:
    at = "sys/devices/pci0000:00/0000:00:02.0"
    root = root_of(
        {
            "sys/bus/pci/devices/0000:00:02.0": Link("../../../devices/pci0000:00/0000:00:02.0"),
            f"{at}/class": "0x030000",
            f"{at}/vendor": vendor,
            f"{at}/device": device,
            "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu\n",
        }
    )
    assert read_snapshot(root).host.virtual == virtual


def test_a_kernel_file_of_many_records_is_read_to_its_end() -> None:
    """The kernel hands out whole records of a page at most: a first read below 4,096 bytes is not
    the end. /proc/interrupts of 8 CPUs is longer; here is one that is longer on any machine."""
    file = pathlib.Path("/proc/kallsyms")
    if not file.exists():
        pytest.skip("this kernel has no /proc/kallsyms (CONFIG_KALLSYMS), no long file of records")
    whole = file.read_bytes().decode()
    with file.open("rb", buffering=0) as one:
        first = one.read(1 << 16) or b""
    assert len(first) < 4096 < len(whole)
    with Root.live() as root:
        assert root.text("proc/kallsyms", 64 << 20) == whole.rstrip()
