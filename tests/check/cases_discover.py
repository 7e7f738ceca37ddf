"""Cases of test_checks.py for idle states, clocks, groups, interrupts and shared memory."""

from __future__ import annotations

import dataclasses

from nodeagent.model.finding import Verdict
from nodeagent.model.pasted import Pasted
from nodeagent.model.snapshot import Irq, Snapshot
from tests.check.machines import (
    CPU,
    bare,
    cpus,
    healthy,
    isolated,
    recorded,
    unreadable,
    with_cmdline,
    with_texts,
)

H, Q, B = healthy(), isolated(), bare()
V = Verdict
CG = "sys/fs/cgroup"
POLICY = f"{CPU}/cpufreq/policy0"
EVEN = "fpu tsc msr constant_tsc nonstop_tsc"


def pasted(texts: dict[str, str]) -> Snapshot:
    s = with_texts(dataclasses.replace(H, live=False, pasted=Pasted(kinds=("values",))), texts)
    return dataclasses.replace(s, texts=texts)


def irqs(s: Snapshot, *found: Irq) -> Snapshot:
    return dataclasses.replace(s, irqs=found)


def drive(where: str, mask: str = "2", managed: bool | None = True) -> Irq:
    return Irq(
        number=31,
        name="nvme0q3",
        affinity=cpus(mask),
        effective=cpus(where),
        node=0,
        counts=((int(where), 500),),
        managed=managed,
        managed_by="name",
    )


def idle(cpu: int, **states: str) -> dict[str, str]:
    """`state2="0 133 C6"`: disable, latency, name."""
    found: dict[str, str] = {}
    for state, text in states.items():
        disable, latency, name = text.split()
        at = f"{CPU}/cpu{cpu}/cpuidle/{state}"
        found |= {f"{at}/disable": disable, f"{at}/latency": latency, f"{at}/name": name}
    return found


DEEP = with_texts(Q, idle(2, state1="0 2 C1", state2="0 133 C6"))
TOLD = Irq(number=16, name="ehci", affinity=None, effective=None, node=None, unhandled=3)

CASES: dict[str, list[tuple[str, Snapshot, Verdict]]] = {
    "cpu.c-states": [
        ("deep", DEEP, V.WARN),
        ("switched off", with_texts(Q, idle(2, state1="0 2 C1", state2="1 133 C6")), V.OK),
        ("of a CPU that is not isolated", with_texts(Q, idle(0, state2="0 133 C6")), V.OK),
        ("all held", with_texts(DEEP, {"derived/cpu_dma_latency_us": "5"}), V.OK),
        ("nobody holds", with_texts(DEEP, {"derived/cpu_dma_latency_us": "2000000000"}), V.WARN),
        ("held for this CPU",
         with_texts(DEEP, {f"{CPU}/cpu2/power/pm_qos_resume_latency_us": "n/a"}), V.OK),
        ("held loosely",
         with_texts(DEEP, {f"{CPU}/cpu2/power/pm_qos_resume_latency_us": "500"}), V.WARN),
        ("pasted, without latencies", pasted({f"{CPU}/cpu4/cpuidle/state3/disable": "0"}), V.WARN),
        ("pasted, shallow", pasted({f"{CPU}/cpu4/cpuidle/state1/disable": "0"}), V.OK),
    ],
    "cpu.tsc": [
        ("even", with_texts(H, {"derived/cpu_flags": EVEN}), V.OK),
        ("stops", with_texts(H, {"derived/cpu_flags": "fpu tsc constant_tsc"}), V.WARN),
        ("virtual", with_texts(B, {"derived/cpu_flags": "fpu tsc"}), V.INFO),
        ("found unstable", with_texts(H, {"derived/cpu_flags": EVEN,
                                          "log/tsc-unstable": "Marking TSC unstable"}), V.WARN),
        ("other architecture", with_texts(H, {"derived/cpu_flags": "fp asimd"}), V.NA),
        ("not seen", unreadable(H, "proc/cpuinfo"), V.UNKNOWN),
    ],
    "cpu.turbo": [
        ("on", with_texts(H, {f"{CPU}/cpufreq/boost": "1"}), V.OK),
        ("off", with_texts(H, {f"{CPU}/cpufreq/boost": "0"}), V.WARN),
        ("off at Intel", with_texts(H, {f"{CPU}/intel_pstate/no_turbo": "1"}), V.WARN),
        ("a share", with_texts(H, {f"{CPU}/intel_pstate/max_perf_pct": "70"}), V.WARN),
        ("off, with isolated CPUs", with_texts(Q, {f"{CPU}/cpufreq/boost": "0"}), V.INFO),
        ("capped", with_texts(H, {f"{POLICY}/scaling_max_freq": "2000000",
                                  f"{POLICY}/cpuinfo_max_freq": "3800000"}), V.WARN),
        ("not capped", with_texts(H, {f"{POLICY}/scaling_max_freq": "3800000",
                                      f"{POLICY}/cpuinfo_max_freq": "3800000"}), V.OK),
        ("blank", with_texts(H, {f"{POLICY}/scaling_max_freq": ""}), V.UNKNOWN),
        ("not seen", unreadable(H, f"{CPU}/cpufreq/boost"), V.UNKNOWN),
        ("set elsewhere", H, V.NA),
        ("nothing to hurry for", with_texts(B, {f"{CPU}/cpufreq/boost": "0"}), V.NA),
    ],
    "irq.managed": [
        ("elsewhere", irqs(Q, drive("4", "4")), V.OK),
        ("the flag would help", irqs(Q, drive("2", "0-3")), V.WARN),
        ("no other CPU", irqs(Q, drive("2", "2-3")), V.OK),
        ("with the flag", irqs(
            with_cmdline(Q, "isolcpus=managed_irq,domain,2,3,6,7"), drive("2", "0-3")), V.OK),
        ("the kernel says it is not", irqs(Q, drive("2", "0-3", managed=False)), V.NA),
        ("known by its name only", irqs(Q, drive("2", "0-3", managed=None)), V.WARN),
        ("nobody isolates", H, V.NA),
        ("not seen", unreadable(irqs(Q), "proc/interrupts"), V.UNKNOWN),
    ],
    "irq.spurious": [
        ("claimed", irqs(H, TOLD), V.OK),
        ("many", irqs(H, dataclasses.replace(TOLD, unhandled=40_000)), V.WARN),
        ("switched off", with_texts(H, {"log/irq-nobody-cared": "irq 16: nobody cared"}), V.FAIL),
        ("controller's errors", with_texts(H, {"derived/interrupt_errors": "ERR: 9000"}), V.WARN),
        ("machine checks polled", with_texts(
            irqs(H, TOLD), {"derived/interrupt_errors": "ERR: 0\nMCE: 9000"}), V.OK),
        ("nothing tells", irqs(H, dataclasses.replace(TOLD, unhandled=None)), V.NA),
        ("not seen", unreadable(irqs(H), "proc/interrupts"), V.UNKNOWN),
    ],
    "cgroup.effective": [
        ("all", with_texts(H, {f"{CG}/a/cpuset.cpus": "0-3",
                               f"{CG}/a/cpuset.cpus.effective": "0-3"}), V.OK),
        ("fewer", with_texts(H, {f"{CG}/a/cpuset.cpus": "0-7",
                                 f"{CG}/a/cpuset.cpus.effective": "0-3"}), V.WARN),
        ("handed on to a partition", with_texts(H, {
            f"{CG}/a/cpuset.cpus": "0-7", f"{CG}/a/cpuset.cpus.effective": "0-3",
            f"{CG}/a/b/cpuset.cpus.partition": "isolated",
            f"{CG}/a/b/cpuset.cpus.effective": "4-7"}), V.OK),
        ("version 1", with_texts(H, {f"{CG}/cpuset/a/cpuset.cpus": "0-7",
                                     f"{CG}/cpuset/a/cpuset.effective_cpus": "0"}), V.WARN),
        ("nobody asks", with_texts(H, {f"{CG}/a/cpuset.cpus": ""}), V.NA),
        ("not seen", unreadable(with_texts(H, {f"{CG}/a/cpuset.cpus": "0-3"}),
                                f"{CG}/a/cpuset.effective_cpus"), V.UNKNOWN),
    ],
    "cgroup.mems": [
        ("near", with_texts(H, {f"{CG}/a/cpuset.mems": "0", f"{CG}/a/cpuset.cpus": "0-3"}), V.OK),
        ("far", with_texts(H, {f"{CG}/a/cpuset.mems": "1", f"{CG}/a/cpuset.cpus": "0-3"}), V.WARN),
        ("one of them", with_texts(H, {f"{CG}/a/cpuset.mems": "1",
                                       f"{CG}/a/cpuset.cpus.effective": "0-15"}), V.OK),
        ("one node", with_texts(B, {f"{CG}/a/cpuset.mems": "0"}), V.NA),
        ("nobody asks", H, V.NA),
        ("not seen", unreadable(H, "sys/devices/system/node"), V.UNKNOWN),
    ],
    "cgroup.quota-nohz": [
        ("elsewhere", with_texts(Q, {f"{CG}/a/cpu.max": "400000 100000",
                                     f"{CG}/a/cpuset.cpus": "0-1"}), V.OK),
        ("there", with_texts(Q, {f"{CG}/a/cpu.max": "400000 100000",
                                 f"{CG}/a/cpuset.cpus": "2-3"}), V.WARN),
        ("of no CPU in particular", with_texts(Q, {f"{CG}/a/cpu.max": "400000 100000"}), V.OK),
        ("pasted", dataclasses.replace(
            with_texts(Q, {"cpu.max": "400000 100000"}), pasted=Pasted()), V.WARN),
        ("no quota", with_texts(Q, {f"{CG}/a/cpu.max": "max 100000"}), V.OK),
        ("no nohz_full", with_texts(H, {f"{CG}/a/cpu.max": "1 2"}), V.NA),
    ],
    "cgroup.partition": [
        (reason, with_texts(H, {f"{CG}/a/cpuset.cpus.partition": f"isolated invalid ({reason})"}),
         V.FAIL)
        for reason in (
            "Invalid cpu list in cpuset.cpus.exclusive", "Parent is an invalid partition root",
            "Parent is not a partition root", "Cpu list in cpuset.cpus not exclusive",
            "Parent unable to distribute cpu downstream", "No cpu available due to hotplug",
            "cpuset.cpus and cpuset.cpus.exclusive are empty", "Enable partition not permitted",
            "partition config conflicts with housekeeping setup",
            "Have remote partition underneath",
        )
    ],
    "shm.used": [
        ("empty", with_texts(H, {"derived/dev_shm_bytes": "1000", "derived/dev_shm_used_bytes":
                                 "0"}), V.OK),
        ("filling", with_texts(H, {"derived/dev_shm_bytes": "1000",
                                   "derived/dev_shm_used_bytes": "870"}), V.WARN),
        ("full", with_texts(H, {"derived/dev_shm_bytes": "1000",
                                "derived/dev_shm_used_bytes": "990"}), V.FAIL),
        ("nobody looked", recorded(H), V.NA),
    ],
}  # fmt: skip
ALWAYS_SEE = {"shm.used"}
"""What cannot be asked for in vain: it is told, or nobody looked."""
