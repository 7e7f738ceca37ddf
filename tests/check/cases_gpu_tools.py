"""Cases of test_checks.py for what GPU tools print: (name, what was pasted, verdict)."""

from __future__ import annotations

import itertools

from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.model.finding import Verdict
from nodeagent.model.snapshot import Snapshot

V = Verdict


def P(**texts: str) -> Snapshot:  # noqa: N802  # short, for a table
    """What somebody pasted, each text under its name."""
    return read_paste([Text(name=name, text=text) for name, text in texts.items()]).snapshot


def q(*changes: tuple[str, str], name: str = "NVIDIA A100-SXM4-80GB") -> str:
    """`nvidia-smi -q` of one healthy GPU, with (key as printed, new value) changes."""
    text = Q.replace("NAME", name)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


Q = """\
==============NVSMI LOG==============

Driver Version                            : 550.54.15
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NAME
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-aaaa
    Minor Number                          : 0
    GPU Virtualization Mode
        Virtualization Mode               : None
    GPU Reset Status
        Reset Required                    : No
        Drain and Reset Recommended       : No
    GPU Recovery Action                   : None
    PCI
        Bus                               : 0x3B
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 4
                Device Current            : 4
                Device Max                : 4
                Host Max                  : 4
            Link Width
                Max                       : 16x
                Current                   : 16x
        Replays Since Reset               : 0
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 81920 MiB
        Reserved                          : 600 MiB
        Used                              : 40000 MiB
        Free                              : 41320 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
    Compute Mode                          : Default
    Utilization
        Gpu                               : 97 %
        Memory                            : 40 %
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 2
            DRAM Uncorrectable            : 0
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 640 bank(s)
    Temperature
        GPU Current Temp                  : 55 C
        GPU Slowdown Temp                 : 89 C
        GPU Max Operating Temp            : 85 C
        Memory Current Temp               : 60 C
        Memory Max Operating Temp         : 95 C
    GPU Power Readings
        Power Draw                        : 320.10 W
        Current Power Limit               : 400.00 W
        Default Power Limit               : 400.00 W
    Fabric
        State                             : Completed
        Status                            : Success
        Health
            Bandwidth                     : Full
            Route Unhealthy               : False
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 4242
            Type                          : C
            Name                          : python3
            Used GPU Memory               : 39000 MiB
"""
IDLE = (
    ("Current                   : 4", "Current                   : 1"),
    (": P0", ": P8"),
    (": 97 %", ": 0 %"),
)

TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:3B:00.0 Off |                    0 |
| N/A   33C    P0             62W /  400W |       4MiB /  81920MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
"""
RUNNING = TABLE.replace(
    "|  No running processes found                                                             |",
    "|    0   N/A  N/A      4242      C   python3                                    70000MiB |",
)

LIST = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aaaa)
  MIG 3g.40gb     Device  0: (UUID: MIG-1111)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bbbb)
"""


ACCESS = """\
=============================== Link accessibility between two GPUs ===========================
       GPU0         GPU1
GPU0   True         True
GPU1   True         True
"""
AMD_TOPOLOGY = """\
ACCESS TABLE:
             0001:05:00.0 0002:05:00.0
0001:05:00.0 ENABLED      ENABLED
0002:05:00.0 ENABLED      ENABLED

LINK TYPE TABLE:
             0001:05:00.0 0002:05:00.0
0001:05:00.0 SELF         XGMI
0002:05:00.0 XGMI         SELF
"""


def xgmi(apart: set[int]) -> str:
    """Four GPUs joined by XGMI but for some."""
    rows = ["==== Link Type between two GPUs ====", "GPU0 GPU1 GPU2 GPU3"]
    for a in range(4):
        far = "PCIE2-3" if {a} <= apart == {2, 3} else "PCIE"
        cells = ["0" if a == b else far if far != "PCIE" and b in apart
                 else "PCIE" if {a, b} & apart else "XGMI" for b in range(4)]  # fmt: skip
        rows.append(" ".join([f"GPU{a}", *cells]))
    return "\n".join(rows) + "\n"


def matrix(*pairs: str) -> str:
    """Four GPUs; the classes of 0-1, 0-2, 0-3, 1-2, 1-3 and 2-3."""
    said = dict(zip(itertools.combinations(range(4), 2), pairs, strict=True))
    rows = ["\t" + "\t".join(f"GPU{i}" for i in range(4))]
    for a in range(4):
        cells = [" X " if a == b else said[min(a, b), max(a, b)] for b in range(4)]
        rows.append("\t".join([f"GPU{a}", *cells]))
    return "\n".join(rows) + "\n"


LIMIT = (
    "[   10.7] pci 0000:04:00.0: 100.5 Gb/s available PCIe bandwidth, limited by {speed} GT/s PCIe "
    "x{width} link at 0000:01:00.0 (capable of 504.1 Gb/s with 32.0 GT/s PCIe x16 link)\n"
)


def links(name: str, *states: str, gpu: int = 0) -> str:
    """One block of `nvidia-smi nvlink -s`."""
    lines = [f"GPU {gpu}: {name} (UUID: GPU-{gpu:04x})"]
    return "\n".join(lines + [f"\t Link {i}: {s}" for i, s in enumerate(states)]) + "\n"


SXM, PCIE = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe"
MATRIX = """\
\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tPIX\t0-15\t0
GPU1\tNV12\t X \tSYS\t16-31\t1
mlx5_0\tPIX\tSYS\t X \t\t
"""
IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tLink layer: InfiniBand
"""
P2P = " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n"
CSV = "index, pstate, pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, "
CSV += "pcie.link.width.max, utilization.gpu [%]\n"

ROCM = """\
==================== ROCm System Management Interface ====================
GPU  Temp (DieEdge)  AvgPwr  SCLK    MCLK     Fan   Perf  PwrCap  VRAM%  GPU%
0    45.0c           90.0W   132Mhz  900Mhz   0%    auto  750.0W    0%   100%
1    43.0c           610.0W  2100Mhz 900Mhz   0%    auto  750.0W   80%   100%
==================== End of ROCm SMI Log ====================
"""
AMD = """\
GPU: 0
    USAGE:
        GFX_ACTIVITY: 98 %
    PCIE:
        WIDTH: 16
        SPEED: 32 GT/s
        MAX_PCIE_WIDTH: 16
        MAX_PCIE_SPEED: 32 GT/s
    ECC:
        TOTAL_UNCORRECTABLE_COUNT: 0
"""

CASES: dict[str, list[tuple[str, Snapshot, Verdict]]] = {
    "gpu.answers": [
        ("gone from the bus", P(x="65:00.0 3D controller [0302]: NVIDIA Corporation GA100 "
                                  "[10de:20b5] (rev ff)\n\tKernel driver in use: nvidia\n"),
         V.FAIL),
        ("healthy", P(q=q()), V.OK),
        ("lost", P(smi=TABLE.replace("P0             62W", "ERR!           N/A").replace(
            " 33C", "ERR!")), V.FAIL),
        ("mismatch", P(x="Failed to initialize NVML: Driver/library version mismatch\n"), V.FAIL),
        ("reset", P(q=q(("Recovery Action                   : None",
                         "Recovery Action                   : GPU Reset"))), V.FAIL),
        ("drain P2P", P(q=q(("Recovery Action                   : None",
                             "Recovery Action                   : Drain P2P"))), V.WARN),
        ("reset required", P(q=q(("Reset Required                    : No",
                                  "Reset Required                    : Yes"))), V.FAIL),
        ("nothing of GPUs", P(x=MATRIX), V.NA),
    ],
    "gpu.link-width": [
        ("all lanes", P(q=q()), V.OK),
        ("half under load", P(q=q(("Current                   : 16x",
                                   "Current                   : 8x"))), V.FAIL),
        ("half, load not told", P(x=CSV + "0, [N/A], 4, 4, 8, 16, [N/A]\n"), V.WARN),
        ("in a guest", P(q=q(("Current                   : 16x", "Current                   : 8x"),
                             ("Virtualization Mode               : None",
                              "Virtualization Mode               : Pass-Through"))), V.INFO),
        ("amd-smi", P(x=AMD.replace("WIDTH: 16", "WIDTH: 8", 1)), V.FAIL),
        ("not told", P(x=TABLE), V.NA),
    ],
    "gpu.link-replays": [
        ("none", P(q=q()), V.OK),
        ("a handful", P(q=q(("Replays Since Reset               : 0",
                             "Replays Since Reset               : 12"))), V.OK),
        ("some", P(q=q(("Replays Since Reset               : 0",
                        "Replays Since Reset               : 140"))), V.INFO),
        ("many", P(q=q(("Replays Since Reset               : 0",
                        "Replays Since Reset               : 53412"))), V.WARN),
        ("not told", P(x=TABLE), V.NA),
    ],
    "gpu.link-speed": [
        ("full", P(q=q()), V.OK),
        ("slow at idle", P(q=q(*IDLE)), V.OK),
        ("slow under load", P(q=q(IDLE[0])), V.WARN),
        ("slow, load not told", P(x=CSV + "0, [N/A], 1, 4, 16, 16, [N/A]\n"), V.INFO),
        ("not told", P(x=TABLE), V.NA),
    ],
    "pcie.boot-bandwidth": [
        ("fewer lanes", P(x=LIMIT.format(speed="16.0", width=8)), V.WARN),
        ("older generation", P(x=LIMIT.format(speed="16.0", width=16)), V.INFO),
        ("saving power", P(x=LIMIT.format(speed="2.5", width=16)), V.OK),
        ("a small device", P(x=LIMIT.replace("x16 link)", "x4 link)").format(speed="8.0", width=1)),
         V.OK),
        ("not told", P(x=TABLE), V.NA),
    ],
    "gpu.link-sample": [
        ("full", P(x="LnkCap: Port #0, Speed 16GT/s, Width x16\nLnkSta: Speed 16GT/s, Width x16\n"),
         V.OK),
        ("half", P(x="LnkCap: Port #0, Speed 16GT/s, Width x16\n"
                     "LnkSta: Speed 16GT/s, Width x8 (downgraded)\n"), V.WARN),
        ("half under load", P(**{"lspci-load": "LnkCap: Port #0, Speed 16GT/s, Width x16\n"
                                               "LnkSta: Speed 16GT/s, Width x4\n"}), V.FAIL),
        ("slow, load not told", P(x="LnkCap: Port #0, Speed 16GT/s, Width x16\n"
                                    "LnkSta: Speed 2.5GT/s (downgraded), Width x16\n"), V.UNKNOWN),
        ("slow in P8", P(x="LnkCap: Port #0, Speed 16GT/s, Width x16\n"
                           "LnkSta: Speed 2.5GT/s (downgraded), Width x16\n",
                         y="index, pstate, utilization.gpu [%]\n0, P8, 0\n"), V.INFO),
        ("none", P(x=TABLE), V.NA),
    ],
    "gpu.throttled": [
        ("power cap only", P(q=q()), V.OK),
        ("thermal", P(q=q(("HW Thermal Slowdown           : Not Active",
                           "HW Thermal Slowdown           : Active"))), V.WARN),
        ("old words", P(q=q(("Clocks Event Reasons", "Clocks Throttle Reasons"),
                            ("HW Power Brake Slowdown       : Not Active",
                             "HW Power Brake Slowdown       : Active"))), V.WARN),
        ("six times", P(x="index, clocks_throttle_reasons.active\n"
                        + "0, 0x0000000000000048\n" * 6), V.FAIL),
        ("idle and cap by bits", P(x="index, clocks_event_reasons.active, temperature.gpu\n"
                                     "0, 0x0000000000000005, 40\n"), V.OK),
        ("at the limit", P(q=q(("Current Temp                  : 55 C",
                                "Current Temp                  : 89 C"))), V.FAIL),
        ("above max", P(q=q(("Current Temp                  : 55 C",
                             "Current Temp                  : 86 C"))), V.WARN),
        ("not told", P(x=LIST), V.NA),
    ],
    "gpu.memory-errors": [
        ("none", P(q=q()), V.OK),
        ("none of AMD's", P(x=AMD), V.OK),
        ("volatile", P(q=q(("DRAM Uncorrectable            : 0",
                            "DRAM Uncorrectable            : 3"))), V.FAIL),
        ("pending", P(q=q(("Pending                           : No\n        Remapping",
                           "Pending                           : Yes\n        Remapping"))), V.WARN),
        ("remap failed", P(q=q(("Failure Occurred        : No", "Failure Occurred        : Yes"))),
         V.FAIL),
        ("in its life", P(q=q(("Uncorrectable Error               : 0",
                               "Uncorrectable Error               : 2"))), V.INFO),
        ("retired", P(q=q(("Double Bit ECC                    : N/A",
                           "Double Bit ECC                    : 64"))), V.FAIL),
        ("amd-smi", P(x=AMD.replace("COUNT: 0", "COUNT: 4")), V.FAIL),
        ("in the table", P(x=TABLE.replace("                   0 |", "                   7 |")),
         V.FAIL),
        ("not told", P(x=LIST), V.NA),
    ],
    "gpu.ghost": [
        ("a process", P(q=q()), V.OK),
        ("stuck counter", P(x=TABLE.replace("     0%  ", "   100%  ")), V.WARN),
        ("AMD's stuck counter", P(x=ROCM), V.WARN),
        ("AMD at work", P(x=ROCM.replace("    0%   100%", "   70%   100%")), V.OK),
        ("leaked", P(x=TABLE.replace("      4MiB", "  70000MiB")), V.WARN),
        ("in a container", P(x=TABLE.replace("      4MiB", "  70000MiB").replace(
            "     0%  ", "   100%  ").replace(" 62W", "380W")), V.INFO),
        ("idle", P(x=TABLE), V.OK),
        ("with its process", P(x=RUNNING.replace("      4MiB", "  70000MiB")), V.OK),
        ("not told", P(x=LIST), V.NA),
    ],
    "gpu.mode": [
        ("MIG without a device", P(x="index, mig.mode.current\n1, Enabled\n", y=LIST), V.WARN),
        ("in force", P(q=q()), V.OK),
        ("MIG pending", P(q=q(("Pending                           : Disabled",
                               "Pending                           : Enabled"))), V.WARN),
        ("prohibited", P(q=q(("Compute Mode                          : Default",
                              "Compute Mode                          : Prohibited"))), V.FAIL),
        ("persistence off", P(x=TABLE.replace("On  |", "Off |")), V.WARN),
        ("off on a desktop", P(x=TABLE.replace("On  |", "Off |").replace(
            "NVIDIA A100-SXM4-80GB  ", "NVIDIA GeForce RTX 4090")), V.OK),
        ("not told", P(x=LIST), V.NA),
    ],
    "gpu.fabric": [
        ("completed", P(q=q()), V.OK),
        ("not started", P(q=q(("State                             : Completed",
                               "State                             : Not Started"))), V.FAIL),
        ("in progress", P(q=q(("State                             : Completed",
                               "State                             : In Progress"))), V.WARN),
        ("ended badly", P(q=q((": Success", ": Insufficient Resources"))), V.FAIL),
        ("a piece of the log", P(x="    Fabric\n        State          : Completed\n"
                                   "        Status         : Success\n--\n    Fabric\n"
                                   "        State          : In Progress\n"
                                   "        Status         : N/A\n"), V.WARN),
        ("unhealthy", P(q=q(("Route Unhealthy               : False",
                             "Route Unhealthy               : True"))), V.FAIL),
        ("service dead", P(x="● nvidia-fabricmanager.service - NVIDIA fabric manager service\n"
                             "     Loaded: loaded (/lib/systemd/system/x.service; enabled)\n"
                             "     Active: failed (Result: exit-code) since Mon\n"), V.FAIL),
        ("inactive, no switch", P(x="nvidia-fabricmanager.service: inactive (dead)\n",
                                  y=links(PCIE, "<inactive>")), V.INFO),
        ("versions", P(x="driver 580.95.05\nfabricmanager 575.57.08\n"), V.FAIL),
        ("same versions", P(x="driver 580.95.05\nfabricmanager 580.95.05\n"), V.OK),
        ("not told", P(x=LIST), V.NA),
    ],
    "gpu.nvlink": [
        ("all up", P(x=links(SXM, *["25 GB/s"] * 12)), V.OK),
        ("one down", P(x=links(SXM, *["25 GB/s"] * 11, "<inactive>")), V.FAIL),
        ("no bridge", P(x=links(PCIE, *["<inactive>"] * 18)), V.OK),
        ("none up on a board", P(x=links(SXM, *["<inactive>"] * 12)), V.FAIL),
        ("one fewer", P(x=links(SXM, *["25 GB/s"] * 12) + links(SXM, *["25 GB/s"] * 12, gpu=1)
                        + links(SXM, *["25 GB/s"] * 11, gpu=2)), V.FAIL),
        ("replays", P(x=links(SXM, "25 GB/s").replace(
            "25 GB/s", "Replay Errors: 4\n\t Link 0: Recovery Errors: 0")), V.FAIL),
        ("CRC", P(x=links(SXM, "CRC Errors: 9")), V.WARN),
        ("MIG", P(x=LIST + "\n" + links(SXM, *["<inactive>"] * 12)), V.INFO),
        ("switched", P(x=matrix("NV18", "NV18", "NV18", "NV18", "NV18", "NV18")), V.OK),
        ("one GPU poorer", P(x=matrix("NV18", "NV16", "NV18", "NV16", "NV18", "NV16")), V.WARN),
        ("one pair poorer", P(x=matrix("NV4", "NV4", "NV3", "NV4", "NV4", "NV4")), V.WARN),
        ("no XGMI to one", P(x=xgmi({2})), V.FAIL),
        ("XGMI to all", P(x=xgmi(set())), V.OK),
        ("two boards of XGMI", P(x=xgmi({2, 3}).replace("PCIE2-3", "XGMI")), V.OK),
        ("mesh of one and two", P(x=matrix("NV1", "NV1", "NV2", "NV2", "NV1", "NV2")), V.NA),
        ("not told", P(x=TABLE), V.NA),
    ],
    "gpu.peer-access": [
        ("all", P(x=P2P), V.OK),
        ("chipset", P(x=P2P.replace("OK", "CNS")), V.WARN),
        ("tested", P(x="Device=0 CAN Access Peer Device=1\nDevice=1 CAN Access Peer Device=0\n"),
         V.OK),
        ("tested, not all", P(x="Device=0 CAN Access Peer Device=1\n"
                                "Device=0 CANNOT Access Peer Device=2\n"), V.WARN),
        ("tested, simply", P(x="> Peer access from NVIDIA A (GPU0) -> NVIDIA A (GPU1) : No\n"),
         V.WARN),
        ("AMD, all", P(x=ACCESS), V.OK),
        ("AMD, one way", P(x=ACCESS.replace("GPU1   True", "GPU1   False")), V.WARN),
        ("amd-smi", P(x=AMD_TOPOLOGY), V.OK),
        ("amd-smi, denied", P(x=AMD_TOPOLOGY.replace("0 ENABLED", "0 DISABLED")), V.WARN),
        ("cards cannot", P(x=P2P.replace("OK", "GNS")), V.INFO),
        ("not told", P(x=TABLE), V.NA),
    ],
    "gpu.rdma-port": [
        ("up", P(x=IBSTAT), V.OK),
        ("down", P(x=IBSTAT.replace("Active", "Down")), V.WARN),
        ("no subnet manager", P(x=IBSTAT.replace("Active", "Initializing")), V.FAIL),
        ("by netdev", P(x="mlx5_0 port 1 ==> ib0 (Up)\nmlx5_1 port 1 ==> ib1 (Down)\n"), V.WARN),
        ("by rdma link", P(x="link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth1\n"),
         V.OK),
        ("not told", P(x=TABLE), V.NA),
    ],
    "gpu.versions": [
        ("one", P(q=q(), x=TABLE), V.OK),
        ("module and library", P(x="NVML library version: 570.86\n"
                                   "NVRM version: NVIDIA UNIX Kernel Module  550.54.15  x\n"),
         V.FAIL),
        ("persistenced failed", P(x="nvidia-persistenced.service: failed\n"), V.WARN),
        ("not told", P(x=LIST), V.NA),
    ],
    "gpu.visible-devices": [
        ("there", P(x=LIST, e="CUDA_VISIBLE_DEVICES=0,1\n"), V.OK),
        ("not there", P(x=LIST, e="CUDA_VISIBLE_DEVICES=0,2\n"), V.FAIL),
        ("twice", P(x=LIST, e="export CUDA_VISIBLE_DEVICES=1,1\n"), V.FAIL),
        ("a range", P(x=LIST, e="CUDA_VISIBLE_DEVICES=0-1\n"), V.FAIL),
        ("a UUID", P(x=LIST, e="CUDA_VISIBLE_DEVICES=GPU-bbbb\n"), V.OK),
        ("another UUID", P(x=LIST, e="CUDA_VISIBLE_DEVICES=GPU-cccc\n"), V.FAIL),
        ("a slice", P(x=LIST, e="CUDA_VISIBLE_DEVICES=MIG-1111\n"), V.WARN),
        ("no such slice", P(x=LIST, e="CUDA_VISIBLE_DEVICES=MIG-2222\n"), V.FAIL),
        ("hidden", P(e="CUDA_VISIBLE_DEVICES=\n"), V.WARN),
        ("two models", P(x=LIST + "GPU 2: NVIDIA A2 (UUID: GPU-dddd)\n",
                         e="CUDA_VISIBLE_DEVICES=0\n"), V.WARN),
        ("not told", P(e="NCCL_DEBUG=INFO\n"), V.NA),
    ],
    "gpu.environment": [
        ("harmless", P(e="NCCL_DEBUG=INFO\n"), V.OK),
        ("P2P off with NVLink", P(x=MATRIX, e="NCCL_P2P_DISABLE=1\n"), V.WARN),
        ("P2P and SHM off", P(x=MATRIX, e="NCCL_P2P_DISABLE=1\nNCCL_SHM_DISABLE=1\n"), V.FAIL),
        ("P2P off, nothing known", P(e="NCCL_P2P_DISABLE=1\n"), V.INFO),
        ("no such HCA", P(x=MATRIX, e="NCCL_IB_HCA=mlx4_0\n"), V.FAIL),
        ("HCA by prefix", P(x=MATRIX, e="NCCL_IB_HCA=mlx5\n"), V.OK),
        ("IB off", P(x=IBSTAT, e="NCCL_IB_DISABLE=1\n"), V.WARN),
        ("blocking", P(e="CUDA_LAUNCH_BLOCKING=1\n"), V.WARN),
        ("too many threads", P(x="CPU(s): 4\nOn-line CPU(s) list: 0-3\nSocket(s): 1\n",
                               e="OMP_NUM_THREADS=64\n"), V.WARN),
        ("not told", P(x=TABLE), V.NA),
    ],
    "gpu.holders": [
        ("a monitor", P(x="/dev/nvidia0:        root       4242 F...m dcgm-exporter\n"), V.FAIL),
        ("a job", P(x="python3 4242 joe 12u CHR 195,0 0t0 507 /dev/nvidia0\n"), V.WARN),
        ("not told", P(x=TABLE), V.NA),
    ],
    "gpu.cpuset": [
        ("all", P(x=MATRIX, y="Cpus_allowed_list:\t0-31\nMems_allowed_list:\t0-1\n"), V.OK),
        ("cut", P(x=MATRIX.replace("16-31", ""),
                  y="Cpus_allowed_list:\t0-15\nMems_allowed_list:\t0\n"), V.FAIL),
        ("blank alone", P(x=MATRIX.replace("16-31", "")), V.WARN),
        ("elsewhere", P(x=MATRIX, y="Cpus_allowed_list:\t0-15\nMems_allowed_list:\t0\n"), V.FAIL),
        ("no affinity", P(x="\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"), V.NA),
    ],
}  # fmt: skip
CASES["gpu.holders"].append(("the persistence daemon", P(
    x="/dev/nvidiactl:  root 900 F.... nvidia-persiste\n"), V.WARN))  # fmt: skip
ALWAYS_SEE = set(CASES) - {"gpu.link-sample", "pcie.boot-bandwidth"}
"""They judge what was pasted; the rest was never asked for."""
ONLY_TELL = {"gpu.holders"}
