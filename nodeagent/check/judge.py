"""All checks in their order, and the judgement: Snapshot x Policy -> Findings. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator

from nodeagent.check import (
    baseline,
    cgroup,
    cgroup_cpus,
    clock,
    contradiction,
    cores,
    cpu,
    cpu_groups,
    declared,
    events,
    feed,
    firmware,
    gds,
    gpu,
    gpu_fabric,
    gpu_health,
    gpu_modes,
    gpu_state,
    gpu_users,
    grants,
    irq,
    irqset,
    irqstate,
    isolation,
    jitter,
    jitter_cpu,
    jitter_stall,
    jitter_waits,
    layout,
    link_sample,
    locality,
    log,
    memnode,
    memory,
    nic,
    numa,
    numa_misses,
    own,
    paste,
    pcie,
    pcie_control,
    pinning,
    quota,
    reading,
    reserves,
    runtime,
    shm,
    unit,
    upkeep,
)
from nodeagent.check.policy import Policy
from nodeagent.check.record import Check, Judged, Missing, NotApplicable, Seen, saw
from nodeagent.errors import visible
from nodeagent.model.finding import Evidence, Finding, Verdict
from nodeagent.model.snapshot import Snapshot

_ALL: tuple[Check, ...] = (
    baseline.holds,
    isolation.syntax,
    isolation.unknown_parameters,
    isolation.in_force,
    isolation.nohz_full_in_force,
    isolation.consistent,
    isolation.irqaffinity_overlap,
    isolation.default_affinity,
    isolation.kthread_cpus,
    isolation.workqueue,
    isolation.housekeeping,
    isolation.no_balancing,
    runtime.run_time,
    runtime.tuned,
    runtime.rt_throttling,
    cpu.smt_split,
    cpu.zero_isolated,
    cores.numbering,
    cores.hybrid,
    cores.priority_cores,
    cpu.offline,
    cpu.mask_names_offline,
    cpu.sum_of_nodes,
    cpu.l3_split,
    cpu.governor,
    cpu.c_states,
    cpu.idle_poll,
    cpu.clocksource,
    clock.tsc,
    clock.turbo,
    cpu.watchdog,
    irq.on_isolated,
    irq.remote_node,
    irqstate.managed_on_isolated,
    irqstate.spurious,
    irqset.one_cpu,
    irqset.effective,
    irqset.irqbalance,
    numa.memoryless,
    numa.no_whole_node,
    numa.uneven,
    memnode.dimms,
    memnode.interleaved,
    memnode.exhausted,
    numa.memory_only,
    numa.subnodes,
    numa.distances,
    memnode.flat_distances,
    memnode.gpu_order,
    numa.balancing,
    numa.zone_reclaim,
    memnode.demotion,
    memnode.ecc,
    memory.hugepages_reserved,
    memory.hugepages_per_node,
    upkeep.hugepages_need,
    memory.thp,
    upkeep.thp_defrag,
    upkeep.ksm,
    memory.swap,
    memory.overcommit,
    upkeep.memlock,
    unit.unit,
    locality.gpu_nic,
    unit.nic_share,
    locality.gpu_peers,
    locality.gpu_nvme,
    locality.alone,
    gds.gpu_direct_storage,
    contradiction.gpu_node_unknown,
    contradiction.local_cpus,
    contradiction.nvml,
    contradiction.matrix,
    firmware.affinity,
    firmware.bridge_node,
    firmware.l3,
    firmware.smt,
    firmware.vnuma,
    pcie.width,
    pcie.speed,
    pcie.bottleneck,
    pcie.aer,
    pcie_control.generation,
    pcie_control.acs_redirect,
    pcie_control.iommu,
    pcie_control.iommu_faults,
    pcie_control.payload,
    pcie_control.relaxed_ordering,
    pcie_control.resizable_bar,
    pcie_control.sriov,
    pcie.virtual_tree,
    cgroup.version,
    cgroup.partition,
    cgroup_cpus.effective,
    cgroup_cpus.mems,
    cgroup.throttled,
    quota.changed,
    quota.nohz,
    quota.crowded,
    quota.pressure,
    gpu.driver,
    gpu.nvml,
    gpu.alike,
    events.log,
    gpu_state.answers,
    gpu_state.link_width,
    gpu_state.link_replays,
    gpu_state.link_speed,
    link_sample.link_sample,
    link_sample.boot_bandwidth,
    gpu_health.throttled,
    gpu_health.memory_errors,
    gpu_modes.ghost,
    gpu_modes.mode,
    gpu_fabric.fabric,
    gpu_fabric.nvlink,
    gpu_fabric.peer_access,
    gpu_fabric.rdma_port,
    gpu_fabric.versions,
    gpu_users.visible_devices,
    gpu_users.environment,
    gpu_users.holders,
    gpu_users.cpuset,
    cpu_groups.l3_groups,
    layout.guest_cells,
    layout.guest_flat,
    layout.slurm_gres,
    layout.dimms,
    numa_misses.misses,
    shm.size,
    shm.used,
    feed.socket_buffer,
    feed.rp_filter,
    feed.nic_link,
    feed.queues,
    feed.irq_on_feeder,
    feed.nic_drops,
    feed.ptp,
    feed.memberships,
    own.cpu,
    own.memory,
    own.placement,
    declared.boot_file,
    declared.kernel_config,
    declared.tuned_verify,
    declared.irqbalance_says,
    declared.irq_asked,
    grants.affinity_remembered,
    grants.devices,
    grants.changed,
    grants.exclusive_cpus,
    grants.container,
    grants.unit,
    pinning.collapsed,
    pinning.outside,
    pinning.ranks,
    pinning.remote_memory,
    pinning.oversubscribed,
    pinning.spread,
    pinning.slower,
    pinning.tools,
    reserves.usage,
    reserves.files,
    reserves.hugepages_changed,
    reserves.dpdk,
    reserves.use,
    reserves.dpdk_ports,
    nic.loss,
    nic.nic_driver,
    nic.queues,
    nic.nic_settings,
    nic.timestamps,
    nic.xdp_mode,
    nic.clock,
    nic.groups,
    log.isolation,
    log.irq,
    log.cgroup,
    log.pinning,
    log.memory,
    log.shm,
    log.feed,
    jitter.latency,
    jitter.blocking,
    jitter.noise,
    jitter.hardware,
    jitter_waits.run_queue,
    jitter_waits.function,
    jitter_stall.machine_stall,
    jitter_waits.switches,
    jitter_waits.told_by_log,
    jitter_cpu.tick,
    jitter_cpu.interrupts,
    jitter_cpu.steal,
    jitter_cpu.clock,
    paste.damaged,
    paste.recognised,
    paste.agrees,
    reading.complete,
)
GROUPS = (
    *("baseline", "isolation", "cpu", "irq", "numa", "memory", "locality", "contradiction"),
    *("pcie", "cgroup", "pinning", "gpu", "shm", "feed", "jitter", "self", "paste", "reading"),
)
"""What an id begins with, in the order in which findings are listed: what the machine lost, its
CPUs and memory, its devices, what runs there, and last how all this was seen."""
CHECKS = tuple(sorted(_ALL, key=lambda c: GROUPS.index(c.id.partition(".")[0])))
"""Every check, group by group; inside a group in the order above."""

BY_ID = {c.id: c for c in CHECKS}


def judge(snapshot: Snapshot, policy: Policy, now_ns: int) -> tuple[Finding, ...]:
    """Every finding of every enabled check, NA and OK included, in the order of CHECKS.

    `now_ns` (CLOCK_REALTIME, nanoseconds) tells which waivers have run out. Never raises for what
    a snapshot holds.
    """
    today = datetime.datetime.fromtimestamp(now_ns / 1e9, datetime.UTC).date()
    found = []
    for check in CHECKS:
        rule = policy.rule(check.id)
        if not rule.enabled:
            continue
        seen = Seen(snapshot, {**check.bounds, **rule.bounds}, asked=check.id in policy.rules)
        for judged in _answers(check, seen):
            verdict = judged.verdict
            if rule.grade is not None and verdict in (Verdict.INFO, Verdict.WARN, Verdict.FAIL):
                verdict = rule.grade
            finding = Finding(
                id=check.id,
                verdict=verdict,
                # One line each, with nothing that moves a cursor: they quote what was read.
                subject=visible(judged.subject),
                message=visible(judged.message),
                evidence=tuple(dict.fromkeys(_sourced(judged.evidence, snapshot))),
                remedy=visible(judged.remedy),
            )
            waive = policy.waived(finding, today)
            if waive is not None:
                finding = dataclasses.replace(finding, waived_until=waive.until.isoformat())
            elif (old := policy.lapsed(finding, today)) is not None:
                told = f"{finding.message} (its waiver ran out on {old.until}: {old.reason})"
                finding = dataclasses.replace(finding, message=told)
            found.append(finding)
    if (
        snapshot.pasted is not None
        and all(
            f.verdict is Verdict.NA
            or (f.verdict is Verdict.INFO and not f.evidence)
            or f.id.startswith(_ABOUT_INPUT)
            for f in found
        )
        and not any(f.id == _NOTHING.id and f.verdict is Verdict.UNKNOWN for f in found)
    ):
        found.append(_NOTHING)
    return tuple(found)


_ABOUT_INPUT = ("paste.", "reading.")
_NOTHING = Finding(
    id="paste.recognised",
    verdict=Verdict.UNKNOWN,
    subject="input",
    message="no check applies to what was pasted: there is nothing to judge",
    evidence=(Evidence(path="input", text="every check is not applicable"),),
    remedy="paste more of the machine, e.g. nvidia-smi topo -m, lscpu, /proc/cmdline, dmesg",
)


def _sourced(evidence: tuple[Evidence, ...], snapshot: Snapshot) -> tuple[Evidence, ...]:
    """What was pasted is shown with the text it stood in: nobody gave us that kernel file."""
    sources = snapshot.pasted.sources if snapshot.pasted is not None else {}
    if not sources:
        return evidence
    return tuple(
        dataclasses.replace(e, path=f"{e.path} (from {source})")
        if (source := sources.get(e.path.lstrip("/"))) is not None
        else e
        for e in evidence
    )


def _answers(check: Check, seen: Seen) -> Iterator[Judged]:
    """A check's answers; what it could not see becomes UNKNOWN, what is not there NA."""
    group = check.id.partition(".")[0]
    try:
        yield from check.run(seen)
    except Missing as missing:
        yield Judged(
            verdict=Verdict.UNKNOWN,
            subject=group,
            message=str(missing),
            evidence=(saw(missing.path, missing.reason),),
            remedy=missing.remedy,
        )
    except NotApplicable as reason:
        yield Judged(verdict=Verdict.NA, subject=group, message=str(reason))
