"""Cases of test_checks.py for what hypervisors, schedulers and CPU tables tell."""

from __future__ import annotations

from nodeagent.model.finding import Verdict
from nodeagent.model.snapshot import Snapshot
from tests.check.cases_gpu_tools import MATRIX, P

V = Verdict
CELLS = "<numa><cell id='0' cpus='0-7' memory='8'/><cell id='1' cpus='8-15' memory='8'/></numa>"
BRIDGES = "".join(
    f"<controller type='pci' model='pcie-expander-bus'><target busNr='{n}'><node>{n}</node>"
    "</target></controller>"
    for n in (0, 1)
)
TUNED = (
    "<cputune><vcpupin vcpu='0' cpuset='2'/></cputune><numatune><memnode cellid='0'/></numatune>"
)
DEVICE = (
    "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x3b' "
    "slot='0x00' function='0x0'/></source></hostdev>"
)
NODE = "NodeName=n1 CPUTot=64 CoresPerSocket=16 Sockets=2 ThreadsPerCore=2 Gres=gpu:2(S:0-1)\n"


def lscpu_e(*groups: int, nodes: bool = False) -> str:
    """`lscpu -e` of CPUs in these L3 groups, one node or a node for each group."""
    rows = [
        f"{cpu:>3} {g if nodes else 0:>4} 0 {cpu} {cpu}:{cpu}:{cpu}:{g} yes"
        for cpu, g in enumerate(groups)
    ]
    return "\n".join(["CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE", *rows]) + "\n"


def dimm(locator: str, size: str = "32 GB", speed: str = "4800 MT/s") -> str:
    """One slot of `dmidecode -t memory`."""
    return (
        f"Handle 0x11, DMI type 17, 92 bytes\nMemory Device\n\tSize: {size}\n"
        f"\tLocator: {locator}\n\tSpeed: 4800 MT/s\n\tConfigured Memory Speed: {speed}\n\n"
    )


FOUR = "".join(dimm(f"CPU{c}_DIMM_{x}1") for c in (1, 2) for x in "AB")
STAT = "      node0 node1\nnuma_hit 1000 1000\nnuma_miss 0 {}\nnuma_foreign {} 0\n"

GUEST = "CPU(s): 16\nOn-line CPU(s) list: 0-15\nSocket(s): 16\nHypervisor vendor: KVM\n"
FLAT = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-15\nGPU1\tPHB\t X \t0-15\n"

CASES: dict[str, list[tuple[str, Snapshot, Verdict]]] = {
    "cpu.l3-groups": [
        ("one for each node", P(x=lscpu_e(0, 0, 1, 1, nodes=True)), V.OK),
        ("two in a node", P(x=lscpu_e(0, 0, 1, 1)), V.INFO),
        ("beside a matrix", P(x=lscpu_e(0, 0, 1, 1), y=MATRIX), V.INFO),
        ("measured", P(x=lscpu_e(0, 0, 1, 1), y=MATRIX,
                       b="placement,tok_s\none,16.0\nsplit,12.0\n"), V.WARN),
        ("not told", P(x=MATRIX), V.NA),
    ],
    "numa.guest-cells": [
        ("described", P(x=CELLS + BRIDGES + TUNED + DEVICE), V.OK),
        ("no bridges", P(x=CELLS), V.WARN),
        ("not bound", P(x=CELLS + BRIDGES + DEVICE), V.WARN),
        ("cores cut", P(x="<topology sockets='1' cores='8' threads='2'/>" + BRIDGES
                        + "<cell id='0' cpus='0-2'/><cell id='1' cpus='3-7'/>"), V.WARN),
        ("one cell, one device", P(x="<cell id='0' cpus='0-7'/>" + DEVICE), V.OK),
        ("one cell, two devices", P(x="<cell id='0' cpus='0-7'/>" + DEVICE * 2), V.WARN),
        ("by QEMU", P(x="-smp 8 -numa node,nodeid=0,cpus=0-3 -numa node,nodeid=1,cpus=4-7"),
         V.WARN),
        ("not told", P(x=MATRIX), V.NA),
    ],
    "numa.guest-flat": [
        ("all alike", P(x=GUEST, m=FLAT), V.WARN),
        ("told apart", P(x=GUEST, m=MATRIX), V.INFO),
        ("on hardware", P(x=GUEST.replace("Hypervisor vendor: KVM\n", ""), m=FLAT), V.NA),
    ],
    "gpu.slurm-gres": [
        ("fits", P(g="NodeName=n1 Name=gpu File=/dev/nvidia[0-1] Cores=0-15\n", n=NODE), V.OK),
        ("beyond", P(g="Name=gpu File=/dev/nvidia[0-1] Cores=48-63\n", n=NODE), V.FAIL),
        ("boundaries", P(x="error: Invalid GRES data for gpu, CPUs=48-63,176-191\n"), V.WARN),
        ("drained", P(x=NODE + "   State=IDLE+DRAIN\n   Reason=gres/gpu count reported lower than "
                                "configured (7 < 8) [slurm@now]\n"), V.FAIL),
        ("one GPU too many", P(g="Name=gpu File=/dev/nvidia[0-2]\n", m=MATRIX), V.WARN),
        ("not told", P(x=MATRIX), V.NA),
    ],
    "memory.dimms": [
        ("alike", P(x=FOUR), V.OK),
        ("a socket without", P(x="".join(dimm(f"P{c} CHANNEL {x}", "No Module Installed" if c
                                              else "32 GB") for c in (0, 1) for x in "AB")),
         V.FAIL),
        ("one fewer", P(x=FOUR + dimm("CPU1_C1") + dimm("CPU2_C1", "No Module Installed")), V.WARN),
        ("two sizes", P(x=FOUR + dimm("CPU1_C1", "64 GB") + dimm("CPU2_C1", "64 GB")), V.WARN),
        ("slower", P(x=FOUR.replace("Memory Speed: 4800", "Memory Speed: 4400")), V.INFO),
        ("not told", P(x=MATRIX), V.NA),
    ],
    "numa.misses": [
        ("none", P(x=STAT.format(0, 0)), V.OK),
        ("many", P(x=STAT.format(900, 900)), V.WARN),
        ("not told", P(x=MATRIX), V.NA),
    ],
}  # fmt: skip
ALWAYS_SEE = set(CASES)
"""They judge what was pasted; the rest was never asked for."""
ONLY_TELL = {"numa.guest-flat"}
"""These have nothing to approve of."""
