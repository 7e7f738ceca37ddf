"""What is read besides the shape: groups, idle states, interrupts' keepers, queues."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from nodeagent.discover import cgroup, derived, irq, net, power, xdp
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import Entry, Link, TableStore
from nodeagent.model.cpuset import CpuSet

LATENCY = pathlib.Path("/dev/cpu_dma_latency")


def root_of(table: dict[str, Entry]) -> Root:
    return Root(TableStore(table), live=False, label="test")


CG = "sys/fs/cgroup"


def test_groups_of_version_2_at_every_depth() -> None:
    deep = f"{CG}/machine.slice/vm.scope/emulator"
    table: dict[str, Entry] = {
        f"{CG}/cgroup.controllers": b"cpuset cpu memory\n",
        f"{CG}/cpuset.cpus.isolated": b"8-15\n",
        f"{CG}/machine.slice/cpuset.cpus.partition": b"root\n",
        f"{CG}/machine.slice/memory.current": b"1\n",
        f"{deep}/cpuset.cpus.partition": b"isolated invalid (Parent is not a partition root)\n",
        f"{deep}/cpu.max": b"50000 100000\n",
        f"{deep}/cpu.stat": b"nr_periods 9\nnr_throttled 3\n",
        f"{CG}/free/cpu.max": b"max 100000\n",
        f"{CG}/free/cpu.stat": b"usage_usec 5\n",
    }
    root = root_of(table)
    found = cgroup.read_cgroups(root)
    assert found[f"{deep}/cpuset.cpus.partition"].startswith("isolated invalid (Parent")
    assert found[f"{deep}/cpu.stat"] == "nr_periods 9\nnr_throttled 3"
    assert found[f"{CG}/cpuset.cpus.isolated"] == "8-15"
    # A group without a quota is never held back; memory is another reader's.
    assert f"{CG}/free/cpu.stat" not in found and f"{CG}/free/cpu.max" in found
    assert not any("memory" in path for path in found)
    assert not root.unread


def test_groups_of_version_1_and_of_both() -> None:
    table: dict[str, Entry] = {
        f"{CG}/unified/cgroup.controllers": b"\n",
        f"{CG}/cpuset/cpuset.cpus": b"0-7\n",
        f"{CG}/cpuset/slurm/job_1/cpuset.cpus": b"2\n",
        f"{CG}/cpuset/slurm/job_1/cpuset.sched_load_balance": b"1\n",
        f"{CG}/cpu,cpuacct/job/cpu.cfs_quota_us": b"20000\n",
        f"{CG}/cpu,cpuacct/job/cpu.stat": b"nr_periods 5\nnr_throttled 5\n",
        f"{CG}/cpu,cpuacct/free/cpu.cfs_quota_us": b"-1\n",
        f"{CG}/cpu,cpuacct/free/cpu.stat": b"nr_periods 0\n",
    }
    found = cgroup.read_cgroups(root_of(table))
    assert found[f"{CG}/cpuset/slurm/job_1/cpuset.cpus"] == "2"
    assert found[f"{CG}/cpu,cpuacct/job/cpu.stat"].endswith("nr_throttled 5")
    assert f"{CG}/cpu,cpuacct/free/cpu.stat" not in found


def test_groups_are_bounded_and_the_rest_is_counted() -> None:
    table: dict[str, Entry] = {f"{CG}/cgroup.controllers": b"cpu\n"}
    many = cgroup.MAX_GROUPS + 100
    table |= {f"{CG}/pod{i}/cpu.max": b"max 100000\n" for i in range(many)}
    found = cgroup.read_cgroups(root_of(table))
    assert found[cgroup.LEFT_OUT] == "101"
    assert sum(p.endswith("/cpu.max") for p in found) == cgroup.MAX_GROUPS - 1
    # Deeper than MAX_DEPTH nothing is followed, so that no tree takes for ever.
    path = CG + "/d" * 40
    found = cgroup.read_cgroups(root_of({f"{CG}/cgroup.controllers": b"", f"{path}/cpu.max": b"1"}))
    assert f"{path}/cpu.max" not in found


def test_an_unreadable_group_is_recorded() -> None:
    from nodeagent.discover.store import Failed

    root = root_of(
        {
            f"{CG}/cgroup.controllers": b"cpuset\n",
            f"{CG}/a/cpuset.cpus.partition": Failed("Permission denied"),
        }
    )
    assert f"{CG}/a/cpuset.cpus.partition" not in cgroup.read_cgroups(root)
    assert [u.path for u in root.unread] == [f"/{CG}/a/cpuset.cpus.partition"]


def test_idle_states_of_isolated_cpus_and_of_one_other() -> None:
    base = "sys/devices/system/cpu"
    table: dict[str, Entry] = {}
    for cpu in range(8):
        for state, (name, latency) in enumerate((("POLL", 0), ("C1", 2), ("C6", 133))):
            at = f"{base}/cpu{cpu}/cpuidle/state{state}"
            table |= {
                f"{at}/name": name.encode(),
                f"{at}/latency": str(latency).encode(),
                f"{at}/disable": b"1" if cpu == 5 and state == 2 else b"0",
                f"{at}/time": b"99",
            }
        table[f"{base}/cpu{cpu}/power/pm_qos_resume_latency_us"] = b"n/a" if cpu == 6 else b"0"
    found = power.read_idle(root_of(table), CpuSet.parse("0-7"), CpuSet.parse("5-6,40"))
    states = {p.split("/")[4] for p in found if "/cpuidle/" in p}
    assert states == {"cpu0", "cpu5", "cpu6"}
    bounds = {p.split("/")[4] for p in found if p.endswith("_us")}
    assert bounds == {f"cpu{cpu}" for cpu in range(8)}, "of any, somebody may have set one"
    assert found[f"{base}/cpu5/cpuidle/state2/disable"] == "1"
    assert found[f"{base}/cpu6/power/pm_qos_resume_latency_us"] == "n/a"
    assert not any(p.endswith("/time") for p in found)


DEBUG = "sys/kernel/debug/irq/irqs"


def test_who_keeps_the_affinity_and_how_we_know() -> None:
    rows = (
        "           CPU0       CPU1",
        "  1:          0          9   IO-APIC   1-edge      i8042",
        " 30:          5          0   PCI-MSI 1-edge      nvme0q0",
        " 31:          5          0   PCI-MSI 2-edge      nvme0q1",
        " 32:          5          0   PCI-MSI 3-edge      virtio1-req.0",
        " 33:          5          0   PCI-MSI 4-edge      virtio0-input.0",
        " 34:          5          0   PCI-MSI 5-edge      nvme1q7",
        " 35:          5          0   PCI-MSI 6-edge      mlx5_comp3@pci:0000:3b:00.0",
        "NMI:          1          2   Non-maskable interrupts",
        "ERR:          4",
        "MIS:          0",
    )
    table: dict[str, Entry] = {
        "proc/interrupts": "\n".join(rows).encode(),
        f"{DEBUG}/34": b"dstate:   0x01400200\n            IRQD_ACTIVATED\n",
        f"{DEBUG}/35": b"dstate:   0x1\n            IRQD_AFFINITY_MANAGED\nnode: 0\n",
        "proc/irq/1/spurious": b"count 90\nunhandled 7\nlast_unhandled 4294667 ms\n",
    }
    irqs, errors = irq.read_irqs(root_of(table), ())
    found = {i.number: i for i in irqs}
    assert errors == "ERR: 4\nMIS: 0"
    assert found[1].unhandled == 7
    assert (found[30].managed, found[33].managed) == (None, None)
    assert (found[31].managed, found[31].managed_by) == (True, "name")
    assert found[32].managed is True
    # What the kernel itself says is worth more than a name.
    assert (found[34].managed, found[34].managed_by) == (False, f"{DEBUG}/34")
    assert (found[35].managed, found[35].managed_by) == (True, f"{DEBUG}/35")


def test_queues_clock_driver_and_losses_of_an_interface() -> None:
    device = "sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0"
    at = f"{device}/net/eth0"
    table: dict[str, Entry] = {
        "sys/class/net/eth0": Link(f"/{at}"),
        "sys/class/net/veth1": Link("/sys/devices/virtual/net/veth1"),
        "sys/devices/virtual/net/veth1/statistics/rx_dropped": b"5",
        f"{at}/device": Link("../.."),
        f"{device}/driver": Link("/sys/bus/pci/drivers/mlx5_core"),
        f"{device}/ptp/ptp3": None,
        f"{at}/queues/rx-0/rps_cpus": b"00000000,000000ff\n",
        f"{at}/queues/rx-10/rps_cpus": b"0\n",
        f"{at}/queues/tx-0/xps_cpus": b"1\n",
        f"{at}/statistics/rx_missed_errors": b"12\n",
        "derived/xdp_features": b"eth0 0xb\nlo 0x0\n",
    }
    root = root_of(table)
    nics = net.read_nics(root)
    texts = net.read_texts(root, nics)
    (eth0, veth1) = nics
    assert (eth0.driver, eth0.ptp_clock) == ("mlx5_core", 3)
    assert eth0.xdp == ("basic", "redirect", "xsk-zerocopy")
    assert (veth1.driver, veth1.xdp) == (None, None)
    assert texts["sys/class/net/eth0/queues/rx-0/rps_cpus"] == "00000000,000000ff"
    assert texts["sys/class/net/eth0/queues/tx-0/xps_cpus"] == "1"
    assert texts["sys/class/net/eth0/statistics/rx_missed_errors"] == "12"
    assert not any("veth" in path for path in texts)


def test_xdp_features_of_this_kernel_are_those_of_its_interfaces() -> None:
    said = xdp.read_live()
    if said is None:
        return  # Linux before 6.3: nothing to compare.
    names = {p.name for p in pathlib.Path("/sys/class/net").iterdir()}
    found = xdp.parse(said)
    assert found and set(found) <= names
    assert all(set(features) <= set(xdp.FEATURES) for features in found.values())


def test_derived_texts_of_this_machine_agree_with_its_tools() -> None:
    with Root.live() as root:
        texts = read_snapshot(root).texts
    size, used = (
        subprocess.run(
            ["df", "-B1", "--output=size,used", "/dev/shm"],
            capture_output=True,
            text=True,
            check=True,
        )
        .stdout.split("\n")[1]
        .split()
    )
    assert texts["derived/dev_shm_bytes"] == size
    assert abs(int(texts["derived/dev_shm_used_bytes"]) - int(used)) < 1 << 30
    assert " /dev/shm" in texts["derived/df"]
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    assert texts["derived/cpu_flags"] in flags
    if os.getuid() == 0 and LATENCY.exists():
        assert int(texts["derived/cpu_dma_latency_us"]) <= derived.NO_DMA_LIMIT


def test_a_held_dma_latency_is_seen() -> None:
    if os.getuid() != 0 or not LATENCY.exists():
        pytest.skip("needs root and /dev/cpu_dma_latency")
    with LATENCY.open("wb", buffering=0) as held:
        held.write((7).to_bytes(4, "little"))
        with Root.live() as root:
            assert read_snapshot(root).texts["derived/cpu_dma_latency_us"] == "7"


def test_a_kernel_configuration_gives_its_few_lines(tmp_path: pathlib.Path) -> None:
    text = "# CONFIG_X is not set\nCONFIG_NO_HZ_FULL=y\nCONFIG_HZ=1000\nCONFIG_SECRET_KEY=y\n"
    boot = tmp_path / "boot"
    boot.mkdir()
    (boot / "config-6.8.0").write_text(text)
    (tmp_path / "proc").mkdir()
    with Root.open(str(tmp_path)) as root:
        found = derived.kernel_config(root, "6.8.0")
    assert found == "CONFIG_HZ=1000\nCONFIG_NO_HZ_FULL=y"
