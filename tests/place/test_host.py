"""What a placement asks of the host: interrupts, queues, kernel work; applied, it asks no more."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostplan import HostPlan
from nodeagent.model.placement import (
    Consent,
    Knob,
    Match,
    Placed,
    Placement,
    SetValue,
    Sharing,
    Workload,
)
from nodeagent.model.snapshot import Host, Irq, NicFacts, Nvml, Snapshot
from nodeagent.model.topology import Topology
from nodeagent.place.host import for_people, host_actions, host_plan
from nodeagent.place.irqs import lands, queue_of
from nodeagent.place.planner import plan
from nodeagent.place.quiet import quiet
from nodeagent.place.workloads import resolve
from tests.place.machines import machine, nic

HOSTS = Path(__file__).resolve().parents[1] / "hosts"
NIC = "0000:3b:00.0"
ALL = frozenset(Consent)


def work(name: str = "w", **more: object) -> Workload:
    values: dict[str, object] = {"kind": "feeder", "match": Match(comm=name), "cpus": 1}
    return Workload(name=name, **{**values, **more})  # type: ignore[arg-type]


def placed(name: str, cpus: str, *, node: int | None = 0, shared: bool = False) -> Placed:
    return Placed(
        workload=name,
        unit=None,
        sharing=Sharing.SHARED if shared else Sharing.EXCLUSIVE,
        cpus=CpuSet.parse(cpus),
        mems=CpuSet(),
        node=node,
        gpu=None,
        reasons=(),
    )


def at(*rows: Placed, housekeeping: str = "0") -> Placement:
    return Placement(placed=rows, refused=(), housekeeping=CpuSet.parse(housekeeping))


def irq(number: int, name: str, mask: str, effective: str | None = None, *, bdf: str | None = NIC,
        managed: bool | None = None, fired: bool = True) -> Irq:  # fmt: skip
    goes = CpuSet.parse(mask if effective is None else effective)
    return Irq(
        number=number,
        name=name,
        affinity=CpuSet.parse(mask),
        effective=goes,
        node=None,
        counts=tuple((cpu, 5) for cpu in goes) if fired else (),
        bdf=bdf,
        managed=managed,
    )


def host(topology: Topology, *irqs: Irq, **texts: str) -> Snapshot:
    return Snapshot(
        topology=topology,
        host=Host(hostname="n", boot_id="b", kernel="6", virtual=None),
        boot_args=(),
        irqs=irqs,
        nics=(
            NicFacts(
                name="eth2",
                bdf=NIC,
                operstate="up",
                speed_mbps=None,
                rx_queues=4,
                tx_queues=4,
                mtu=1500,
            ),
        ),
        gpus=(),
        nvml=Nvml(available=False, reason="none"),
        unread=(),
        texts={path.replace("__", "/").replace("_in_", "-"): text for path, text in texts.items()},
    )


def with_texts(snapshot: Snapshot, **texts: str) -> Snapshot:
    return dataclasses.replace(snapshot, texts={**snapshot.texts, **texts})


TWO_NODES = machine(packages=2, cores=8, pci=[nic(NIC, 1)])
"""Node 0: CPUs 0-7, node 1: 8-15."""


def applied(snapshot: Snapshot, actions: tuple[SetValue, ...]) -> Snapshot:
    """The machine after these acts: the kernel serves a line by the first CPU of its mask."""
    values = {(a.knob, a.subject): a.value for a in actions}
    irqs = []
    for one in snapshot.irqs:
        value = values.get((Knob.IRQ_AFFINITY, str(one.number)))
        if value is not None:
            mask = CpuSet.parse(value)
            goes = CpuSet.of([min(mask)])
            one = dataclasses.replace(one, affinity=mask, effective=goes)
        irqs.append(one)
    texts = dict(snapshot.texts)
    for (knob, subject), value in values.items():
        name, _, queue = subject.partition("/")
        path = {
            Knob.IRQ_DEFAULT: "proc/irq/default_smp_affinity",
            Knob.WORKQUEUE: "sys/devices/virtual/workqueue/cpumask",
            Knob.NUMA_BALANCING: "proc/sys/kernel/numa_balancing",
            Knob.RPS: f"sys/class/net/{name}/queues/{queue}/rps_cpus",
            Knob.XPS: f"sys/class/net/{name}/queues/{queue}/xps_cpus",
            Knob.WAKE_LATENCY: f"sys/devices/system/cpu/cpu{subject}/power/"
            "pm_qos_resume_latency_us",
        }.get(knob)
        if path is not None:
            hexadecimal = knob in (Knob.IRQ_DEFAULT, Knob.WORKQUEUE, Knob.RPS, Knob.XPS)
            texts[path] = CpuSet.parse(value).mask() if hexadecimal else value
    return dataclasses.replace(snapshot, irqs=tuple(irqs), texts=texts)


def moves(found: HostPlan) -> dict[str, str]:
    return {f"{a.knob} {a.subject}": a.value for a in host_actions(found, ALL)}


def test_without_a_placed_workload_nothing_is_asked() -> None:
    snapshot = with_texts(
        host(TWO_NODES, irq(24, "eth2-TxRx-0", "3")),
        **{"proc/sys/kernel/numa_balancing": "1", "proc/irq/default_smp_affinity": "ffff"},
    )
    assert host_plan(snapshot, (work(near=NIC),), at()) == HostPlan()


def test_queues_of_a_near_nic_go_to_its_node_one_cpu_each() -> None:
    irqs = [irq(30 + i, f"mlx5_comp{i}@pci:{NIC}", str(i)) for i in range(4)]
    irqs.append(irq(29, f"mlx5_async@pci:{NIC}", "0-15", "2"))
    snapshot = host(TWO_NODES, *irqs)
    found = host_plan(snapshot, (work(near=NIC),), at(placed("w", "8-11", node=1)))
    cpus = {r.subject: r.value for r in found.irqs if r.action == "move"}
    assert sorted(cpus) == ["30", "31", "32", "33"]
    assert sorted(cpus.values(), key=int) == ["12", "13", "14", "15"], "off the workload's own"
    assert all("node 1 is where w and its NIC are" in r.reason for r in found.irqs
               if r.action == "move")  # fmt: skip
    (control,) = [r for r in found.irqs if r.subject == "29"]
    assert control.action == "keep" and control.device == "eth2"


def test_what_is_well_where_it_is_stays() -> None:
    irqs = [irq(30 + i, f"eth2-TxRx-{i}", "12-15", str(15 - i)) for i in range(4)]
    found = host_plan(host(TWO_NODES, *irqs), (work(near=NIC),), at(placed("w", "8-11", node=1)))
    assert moves(found) == {} and {r.action for r in found.irqs} == {"keep"}


def test_a_workload_that_reads_a_queue_itself_has_its_interrupt() -> None:
    snapshot = with_texts(
        host(TWO_NODES, *(irq(30 + i, f"eth2-TxRx-{i}", "12") for i in range(4))),
        **{f"sys/class/net/eth2/queues/tx-{i}/xps_cpus": CpuSet.of([8 + i, 9 + i]).mask()
           for i in range(4)},
    )  # fmt: skip
    wanted = work(near=NIC, cpus=2, queues=CpuSet.parse("0-1"))
    found = moves(host_plan(snapshot, (wanted,), at(placed("w", "10-11", node=1))))
    assert found["irq-affinity 30"] == "10" and found["irq-affinity 31"] == "11"
    assert found["xps eth2/tx-0"] == "10" and found["xps eth2/tx-1"] == "11"
    assert found["xps eth2/tx-2"] == "" and found["xps eth2/tx-3"] == "12"
    others = {found.get("irq-affinity 32", "12"), found.get("irq-affinity 33", "12")}
    assert len(others) == 2 and not others & {"8", "9", "10", "11"} - {"8", "9"}


def test_managed_interrupts_are_left_alone_with_a_sentence() -> None:
    nvme = irq(50, "nvme0q3", "4", bdf="0000:01:00.0", managed=True)
    found = host_plan(host(TWO_NODES, nvme), (work(),), at(placed("w", "4-5")))
    (row,) = found.irqs
    assert row.action == "leave" and row.act is None and row.managed is True
    assert "EIO" in row.reason and moves(found) == {}


def test_others_leave_exclusive_cpus_for_housekeeping_of_their_node() -> None:
    there = irq(60, "ahci", "0-15", "9", bdf=NIC)
    never = irq(61, "i915", "9", bdf="0000:02:00.0", fired=False)
    away = irq(62, "xhci", "3", bdf="0000:04:00.0")
    snapshot = host(TWO_NODES, there, never, away)
    found = host_plan(snapshot, (work(),), at(placed("w", "9-10", node=1), housekeeping="0,8"))
    assert moves(found) == {"irq-affinity 60": "8"}
    assert "exclusive CPU 9; housekeeping of node 1" in found.irqs[0].reason


def test_an_isolated_cpu_is_left_by_interrupts_and_named_so() -> None:
    topology = machine(packages=2, cores=8, isolated="9-10")
    snapshot = host(topology, irq(60, "ahci", "9", bdf=None))
    found = host_plan(snapshot, (work(),), at(placed("w", "2", node=0), housekeeping="0,8"))
    assert moves(found) == {"irq-affinity 60": "0,8"}
    assert "isolated CPU 9" in found.irqs[0].reason


def test_a_mask_that_only_waits_for_the_next_interrupt_is_not_written_again() -> None:
    waiting = irq(60, "ahci", "0", "9", bdf=None)
    found = host_plan(host(TWO_NODES, waiting), (work(),), at(placed("w", "9", node=1)))
    assert moves(found) == {} and "when it fires next" in found.irqs[0].reason


def test_a_device_whose_node_is_not_told_is_not_guessed() -> None:
    topology = machine(packages=2, cores=8, pci=[nic(NIC, None)])
    snapshot = host(topology, irq(30, "eth2-TxRx-0", "1"), irq(31, "eth2-TxRx-1", "9"))
    found = host_plan(snapshot, (work(near=NIC),), at(placed("w", "9", node=1)))
    left, moved = found.irqs
    assert left.action == "leave" and "names no node" in left.reason
    assert moved.action == "move" and moved.value == "0", "but off the exclusive CPU"


def test_receive_steering_leaves_quiet_cpus_and_stays_off_where_it_is_off() -> None:
    paths = [f"sys/class/net/eth2/queues/rx-{i}/rps_cpus" for i in range(3)]
    snapshot = with_texts(host(TWO_NODES), **dict(zip(paths, ("0", "0300", "0001"), strict=True)))
    found = moves(host_plan(snapshot, (work(),), at(placed("w", "9", node=1))))
    assert found == {"rps eth2/rx-1": "8"}
    near = moves(host_plan(snapshot, (work(near=NIC),), at(placed("w", "9", node=1))))
    assert near == {"rps eth2/rx-1": "8", "rps eth2/rx-2": "8,10-15"}


def test_the_host_as_a_whole() -> None:
    snapshot = with_texts(
        host(TWO_NODES, irq(60, "ahci", "9", bdf=None)),
        **{
            "proc/sys/kernel/numa_balancing": "1",
            "proc/irq/default_smp_affinity": "ffff",
            "sys/devices/virtual/workqueue/cpumask": "ffff",
            "run/irqbalance": "1",
        },
    )
    wanted = work(wake_latency_us=0)
    found = host_plan(snapshot, (wanted,), at(placed("w", "9", node=1)))
    assert list(moves(found).items()) == [
        ("irqbalance 60", "banned"),
        ("irq-affinity 60", "0"),
        ("irq-default new", "0-8,10-15"),
        ("workqueue *", "0-8,10-15"),
        ("wake-latency 9", "n/a"),
        ("numa-balancing kernel", "0"),
    ], "irqbalance is told first"
    assert "irqbalance runs" in found.notes[0]
    assert all(row.reason for row in found.rows)
    only = host_actions(found, frozenset({Consent.HOST}))
    assert [a.knob for a in only] == [Knob.WORKQUEUE, Knob.WAKE_LATENCY, Knob.NUMA_BALANCING]
    assert host_actions(found, frozenset({Consent.THREADS, Consent.CGROUP})) == ()
    # What the actor has no right to set is a step for a person, and no act.
    lacks = {"numa-balancing": "the actor has no CAP_SYS_ADMIN", "workqueue": "no command for it"}
    left = for_people(found, lacks)
    assert [a.knob for a in host_actions(left, frozenset({Consent.HOST}))] == [
        Knob.WORKQUEUE, Knob.WAKE_LATENCY
    ]  # fmt: skip
    (row,) = [r for r in left.rows if r.by_hand]
    assert (row.action, row.value, row.before) == ("leave", "1", "1")
    assert row.by_hand.split("   ")[0] == "sysctl -w kernel.numa_balancing=0"
    assert "the actor has no CAP_SYS_ADMIN: a step for a person" in row.reason
    assert for_people(found, {}) == found
    tiering = with_texts(snapshot, **{"proc/sys/kernel/numa_balancing": "3"})
    assert moves(host_plan(tiering, (wanted,), at(placed("w", "9", node=1))))[
        "numa-balancing kernel"
    ] == "2"  # fmt: skip


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("mlx5_comp7@pci:0000:3b:00.0", 7),
        ("mlx5_async0@pci:0000:3b:00.0", None),
        ("ice-eth0-TxRx-12", 12),
        ("i40e-0000:3b:00.0:misc", None),
        ("virtio3-input.1", 1),
        ("virtio3-config", None),
        ("eth2", None),
        ("eth2-rx-0", 0),
    ],
)
def test_which_queue_an_interrupt_serves(name: str, queue: int | None) -> None:
    assert queue_of(irq(1, name, "0"), "eth2") == queue


def test_one_interrupt_for_everything_is_brought_near_too() -> None:
    found = host_plan(
        host(TWO_NODES, irq(30, "eth2", "1")), (work(near=NIC),), at(placed("w", "9", node=1))
    )
    assert moves(found) == {"irq-affinity 30": "8"}


masks = st.frozensets(st.integers(0, 15), min_size=1).map(CpuSet)


@given(
    st.lists(
        st.tuples(masks, st.booleans(), st.booleans(), st.sampled_from([True, None])), max_size=12
    ),
    st.frozensets(st.integers(1, 15), max_size=14),
    st.sampled_from(["", "4-5", "12-15"]),
    st.sampled_from(["", "3", "15"]),
    masks,
    masks,
)
@settings(max_examples=300, deadline=None)
def test_applied_it_asks_no_more_and_quiet_cpus_are_left(
    lines: list[tuple[CpuSet, bool, bool, bool | None]],
    mine: frozenset[int],
    isolated: str,
    offline: str,
    later: CpuSet,
    workers: CpuSet,
) -> None:
    topology = machine(packages=2, cores=8, isolated=isolated, offline=offline, pci=[nic(NIC, 1)])
    online = topology.online
    irqs = tuple(
        irq(
            20 + i,
            f"eth2-TxRx-{i}" if near else f"ahci{i}",
            str(mask),
            str(CpuSet.of([min(mask & online or online)])),
            bdf=NIC if near else None,
            managed=managed,
            fired=fired,
        )
        for i, (mask, near, fired, managed) in enumerate(lines)
    )
    snapshot = with_texts(
        host(topology, *irqs),
        **{
            "proc/irq/default_smp_affinity": later.mask(),
            "sys/devices/virtual/workqueue/cpumask": workers.mask(),
            "sys/class/net/eth2/queues/rx-0/rps_cpus": (workers & online).mask(),
            "proc/sys/kernel/numa_balancing": "1",
        },
    )
    cpus = CpuSet(mine) & online
    placement = at(*([placed("w", str(cpus), node=1)] if cpus else []))
    workloads = (work(near=NIC),)
    calm = quiet(topology, placement)
    found = host_plan(snapshot, workloads, placement)
    actions = host_actions(found, ALL)
    for action in actions:
        if action.knob in (Knob.IRQ_AFFINITY, Knob.IRQ_DEFAULT, Knob.WORKQUEUE, Knob.RPS):
            goal = CpuSet.parse(action.value)
            assert goal & online and not goal & calm.cpus, action
    after = applied(snapshot, actions)
    if cpus:
        left = {r.subject for r in found.irqs if r.action == "leave"}
        for one in after.irqs:
            fired = any(c in calm.cpus for c, _ in one.counts)
            if str(one.number) not in left and fired and calm.rest:
                assert not lands(one) & calm.cpus, one
    again = host_plan(after, workloads, placement)
    assert host_actions(again, ALL) == ()


@pytest.mark.parametrize("capture", sorted(HOSTS.glob("*.capture")), ids=lambda p: p.stem)
def test_recorded_machines(capture: Path) -> None:
    """Each machine's own interrupts, under a workload near each NIC that is placed."""
    with Root.open(str(capture)) as root:
        snapshot = read_snapshot(root)
    wanted = tuple(work(f"n{i}", near=f.bdf) for i, f in enumerate(snapshot.topology.nics)) or (
        work("n0"),
    )
    workloads = resolve(wanted, snapshot)
    placement = plan(snapshot.topology, workloads, ())
    calm = quiet(snapshot.topology, placement)
    actions = host_actions(host_plan(snapshot, workloads, placement), ALL)
    for action in actions:
        if action.knob is Knob.IRQ_AFFINITY:
            goal = CpuSet.parse(action.value)
            assert goal and goal <= calm.rest, action
    after = applied(snapshot, actions)
    assert host_actions(host_plan(after, workloads, placement), ALL) == ()
