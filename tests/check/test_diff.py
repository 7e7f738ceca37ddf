"""Pairs of machines, one class of difference each, and all of them at once in their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from nodeagent.check.diff import Weight, diff, two_machines
from nodeagent.check.difference import same
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import Link, TableStore
from nodeagent.model.kernel_event import KernelEvent
from nodeagent.model.snapshot import Snapshot
from tests.hosts.generate import MACHINES
from tests.hosts.tree import Table


def read(table: Table) -> Snapshot:
    return read_snapshot(Root(TableStore(table), live=False, label="test"))


@pytest.fixture(scope="module")
def whole() -> Table:
    return MACHINES["two-socket-8gpu"]()


ENO = "sys/devices/pci0000:00/0000:00:1f.6/net/eno1"
GPU, NIC, NVME = "0000:18:00.0", "0000:19:00.0", "0000:1a:00.0"


def device(table: Table, bdf: str) -> str:
    link = table[f"sys/bus/pci/devices/{bdf}"]
    assert isinstance(link, Link)
    return "sys/" + link.target.removeprefix("../../../")


def without(table: Table, bdf: str) -> Table:
    at = device(table, bdf)
    return {
        p: e
        for p, e in table.items()
        if not p.startswith(at + "/") and p != f"sys/bus/pci/devices/{bdf}"
    }


def put(table: Table, values: dict[str, str]) -> Table:
    return {**table, **{p: f"{v}\n".encode() for p, v in values.items()}}


def nvml_without(table: Table, bdf: str) -> Table:
    text = table["nvml/reading"]
    assert isinstance(text, bytes)
    import json

    answer = json.loads(text)
    answer["gpus"] = [g for g in answer["gpus"] if bdf.upper() not in g["bdf"]]
    return put(table, {"nvml/reading": json.dumps(answer)})


Change = Callable[[Table], Table]
CPUS = "sys/devices/system/cpu"
CLASSES: dict[str, tuple[Change, Weight, str, str]] = {
    # name: (change, weight, what, a word of the subject)
    "gpu gone": (lambda t: without(t, GPU), Weight.GPU, "missing", GPU),
    "gpu lost by its driver": (lambda t: nvml_without(t, GPU), Weight.GPU, "missing", GPU),
    "gpu without driver": (
        lambda t: {p: e for p, e in t.items() if p != f"{device(t, GPU)}/driver"},
        Weight.GPU, "driver", GPU),
    "nic gone": (lambda t: without(t, NIC), Weight.DEVICE, "missing", NIC),
    "nvme gone": (lambda t: without(t, NVME), Weight.DEVICE, "missing", NVME),
    "cpus offline": (lambda t: put(t, {f"{CPUS}/online": "0-30"}),
                     Weight.CPU_MEMORY, "online CPUs", "machine"),
    "a DIMM less": (
        lambda t: put(t, {"sys/devices/system/node/node1/meminfo":
                          "Node 1 MemTotal: 495000000 kB\nNode 1 MemFree: 1 kB"}),
        Weight.CPU_MEMORY, "memory", "node 1"),
    "narrower link": (lambda t: put(t, {f"{device(t, NIC)}/current_link_width": "8"}),
                      Weight.LINK, "link width", NIC),
    "slower link": (lambda t: put(t, {f"{device(t, NVME)}/current_link_speed": "8.0 GT/s PCIe"}),
                    Weight.LINK, "link speed", NVME),
    "an idle GPU's link": (
        lambda t: put(t, {f"{device(t, GPU)}/current_link_speed": "2.5 GT/s PCIe"}),
        Weight.COUNTER, "link speed", GPU),
    "interface down": (lambda t: put(t, {f"{device(t, NIC)}/net/eth0/operstate": "down"}),
                       Weight.LINK, "state", NIC),
    "slower port": (lambda t: put(t, {f"{device(t, NIC)}/net/eth0/speed": "100000"}),
                    Weight.LINK, "speed", NIC),
    "other node": (lambda t: put(t, {f"{device(t, GPU)}/numa_node": "1"}),
                   Weight.LOCALITY, "numa node", GPU),
    "bios": (lambda t: put(t, {"sys/class/dmi/id/bios_version": "2.0"}),
             Weight.FIRMWARE, "text", "bios_version"),
    "isolation": (lambda t: put(t, {f"{CPUS}/isolated": "4-7"}),
                  Weight.ISOLATION, "isolated", "isolation"),
    "boot argument": (lambda t: put(t, {"proc/cmdline":
                                        "BOOT_IMAGE=<value-1> ro quiet numa_balancing=disable"}),
                      Weight.ISOLATION, "iommu", "boot argument"),
    "setting": (lambda t: put(t, {"proc/sys/vm/swappiness": "60"}),
                Weight.SETTING, "text", "swappiness"),
    "mtu": (lambda t: put(t, {f"{device(t, NIC)}/net/eth0/mtu": "1500"}),
            Weight.SETTING, "mtu", NIC),
    "aer": (lambda t: put(t, {f"{device(t, NIC)}/aer_dev_correctable": "RxErr 9\nTOTAL_ERR_COR 9"}),
            Weight.COUNTER, "aer", NIC),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_one_class_at_a_time(whole: Table, name: str) -> None:
    change, weight, what, word = CLASSES[name]
    changed = diff(read(whole), read(change(whole)))
    assert changed, name
    first = changed[0]
    assert (first.weight, first.what) == (weight, what), changed
    assert word in f"{first.subject} {first.what}"
    # One cause is not ten differences.
    assert len(changed) <= 3, changed
    back = diff(read(change(whole)), read(whole))
    assert back and back[0].weight == weight


def test_all_at_once_in_their_order(whole: Table) -> None:
    table = whole
    for name in ("gpu gone", "nic gone", "a DIMM less", "bios", "setting", "isolation"):
        table = CLASSES[name][0](table)
    table = put(table, {f"{ENO}/statistics/rx_errors": "7"})
    start = put(whole, {f"{ENO}/statistics/rx_errors": "6"})
    found = diff(read(start), read(table))
    assert [d.weight for d in found] == sorted(d.weight for d in found)
    assert found[0].subject == f"gpu {GPU}" and found[0].what == "missing"
    assert found[-1].weight is Weight.COUNTER


def test_what_always_moves_is_no_difference(whole: Table) -> None:
    start = put(whole, {f"{ENO}/statistics/rx_packets": "1", "proc/buddyinfo": "a"})
    later = put(
        start,
        {
            f"{ENO}/statistics/rx_packets": "9",
            "proc/buddyinfo": "b",
            "proc/meminfo": "MemTotal: 1056000000 kB\nMemFree: 7 kB",
            "derived/df": "x",
            "derived/dev_shm_used_bytes": "77",
            "proc/sys/kernel/random/boot_id": "other",
        },
    )
    assert diff(read(start), read(later)) == ()


def test_a_setting_of_every_cpu_is_one_difference(whole: Table) -> None:
    later = {p: b"powersave\n" if p.endswith("/scaling_governor") else e for p, e in whole.items()}
    (found,) = diff(read(whole), read(later))
    assert found.subject.endswith("cpu*/cpufreq/scaling_governor (32 files)")
    assert (found.a, found.b) == ("performance", "powersave")


def test_a_new_fault_in_the_log_comes_first(whole: Table) -> None:
    a = dataclasses.replace(read(whole), events=())
    xid = KernelEvent(line=1, kind="xid", fault=True, text="x", bdf=GPU, details={"xid": 79})
    oom = KernelEvent(line=2, kind="oom", fault=True, text="x")
    b = dataclasses.replace(a, events=(oom, xid, xid))
    found = diff(a, b)
    assert [(d.weight, d.b) for d in found] == [(Weight.GPU, "2"), (Weight.SETTING, "1")]
    assert diff(b, a) == ()


def test_two_machines_are_told_from_two_times(whole: Table) -> None:
    named = read(put(whole, {"proc/sys/kernel/hostname": "a"}))
    other = read(put(whole, {"proc/sys/kernel/hostname": "b"}))
    no_gpus = dataclasses.replace(named, gpus=()), dataclasses.replace(other, gpus=())
    assert two_machines(*no_gpus) is True
    assert two_machines(no_gpus[0], no_gpus[0]) is False
    # Masks without a key say nothing.
    assert two_machines(read(whole), read(whole)) is None

    def with_uuids(s: Snapshot, prefix: str) -> Snapshot:
        gpus = tuple(dataclasses.replace(g, uuid=f"GPU-{prefix}{g.index}") for g in s.gpus)
        return dataclasses.replace(s, gpus=gpus)

    a, b = with_uuids(named, "1"), with_uuids(other, "2")
    assert two_machines(a, b) is True
    # All cards are others: by nature, between two machines.
    assert diff(a, b) == ()
    # One card of one machine: somebody exchanged it.
    one = dataclasses.replace(a, gpus=(dataclasses.replace(a.gpus[0], uuid="GPU-9"), *a.gpus[1:]))
    (found,) = diff(a, one)
    assert (found.weight, found.what) == (Weight.GPU, "uuid")


def test_the_same_device_in_another_slot_has_moved(whole: Table) -> None:
    at, other = device(whole, NIC), "0000:1e:00.0"
    there = at.replace(NIC, other)
    moved: Table = {}
    for path, entry in whole.items():
        name = path.replace(at, there).replace(f"devices/{NIC}", f"devices/{other}")
        target = entry.target.replace(NIC, other) if isinstance(entry, Link) else ""
        moved[name] = Link(target) if target else entry
    found = diff(read(whole), read(moved))
    assert ("moved", NIC, other) in {(d.what, d.a, d.b) for d in found}
    assert not any(d.what in ("missing", "added") for d in found)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ("<ip-1>", "<ip-2>", True),
        ("<ip-1>", "10.0.0.1", True),
        ("root=<value-1> ro", "root=/dev/sda1 ro", True),
        ("root=<value-1> ro", "root=/dev/sda1 rw", False),
        ("<uuid-0123456789ab>", "<uuid-0123456789ab>", True),
        ("<uuid-0123456789ab>", "<uuid-0123456789ac>", False),
        ("a", "b", False),
    ],
)
def test_masks_compare_as_far_as_they_tell(a: str, b: str, equal: bool) -> None:
    assert same(a, b) is equal
