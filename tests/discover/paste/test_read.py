"""The other kinds of pasted text, and all of them together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.paste.cpu_tools import read_lscpu, read_numactl
from nodeagent.discover.paste.klog import bare, event
from nodeagent.discover.paste.nccl import read_nccl
from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import Paste, read_paste
from nodeagent.discover.paste.values import read_values
from nodeagent.model.finding import Verdict, worst

LSCPU = """\
Architecture:             x86_64
CPU(s):                   16
  On-line CPU(s) list:    0-7,9-15
  Off-line CPU(s) list:   8
Vendor ID:                GenuineIntel
  Model name:             Intel(R) Xeon(R)
    Thread(s) per core:   2
    Core(s) per socket:   4
    Socket(s):            2
NUMA:
  NUMA node(s):           2
  NUMA node0 CPU(s):      0,1,2,3,9-11
  NUMA node1 CPU(s):
"""
NUMACTL = """\
available: 2 nodes (0-1)
node 0 cpus: 0 1 2 3
node 0 size: 1024 MB
node 0 free: 512 MB
node 1 cpus: 4 5 6 7
node 1 size: 0 MB
node 1 free: 0 MB
node distances:
node   0   1
  0:  10  21
  1:  21  10
"""
XML = """\
<!-- made by hand -->
<system version="1">
  <cpu numaid="0" affinity="00000000,0000ffff" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x2330"
           link_speed="" link_width="0">
        <gpu dev="0" sm="90"><nvlink target="0000:12:00.0" count="4"/>
          <nvlink target="0000:12:00.0" count="2"/></gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020000" vendor="0x15b3" device="0x1021"
           link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1"><nic><net name="eth0" dev="1" speed="25000"/></nic></cpu>
</system>
"""


def paste(**texts: str) -> Paste:
    return read_paste([Text(name=name, text=text) for name, text in texts.items()])


def test_lscpu() -> None:
    part = read_lscpu(LSCPU)
    assert part is not None
    assert part.facts == {
        "cpu": {
            "architecture": "x86_64", "cpus": 16, "online": "0-7,9-15", "offline": "8",
            "vendor": "GenuineIntel", "model": "Intel(R) Xeon(R)", "threads_per_core": 2,
            "cores_per_socket": 4, "sockets": 2, "numa_node_count": 2,
        },
        "numa_nodes": [{"id": 0, "cpus": "0-3,9-11"}, {"id": 1, "cpus": ""}],
    }  # fmt: skip
    stride = read_lscpu(LSCPU.replace("0,1,2,3,9-11", "0-6:2,9-15:3,20"))
    assert stride is not None and not stride.unclear
    assert "0,2,4,6,9,12,15,20" in [n["cpus"] for n in stride.facts["numa_nodes"]]  # type: ignore[attr-defined]
    assert read_lscpu("Model name: something\nVendor ID: other\n") is None
    open_ = read_lscpu(LSCPU.replace("0,1,2,3,9-11", "0,1,banana"))
    assert open_ is not None
    assert open_.facts["numa_nodes"] == [{"id": 0, "cpus": None}, {"id": 1, "cpus": ""}]
    assert len(open_.unclear) == 1


def test_numactl_finds_the_node_without_memory() -> None:
    found = paste(numactl=NUMACTL)
    assert found.facts["numa_nodes"] == [
        {"id": 0, "cpus": "0-3", "memory_bytes": 1 << 30, "distances": {"0": 10, "1": 21}},
        {"id": 1, "cpus": "4-7", "memory_bytes": 0, "distances": {"0": 21, "1": 10}},
    ]
    verdicts = {f.id: f.verdict for f in judge(found.snapshot, Policy(), 0)}
    assert verdicts["numa.memoryless"] is Verdict.FAIL
    assert verdicts["memory.thp"] is Verdict.NA
    assert read_numactl("node 0 is fine") is None


def test_nccl_xml() -> None:
    facts = paste(topo=XML).facts
    assert facts["numa_nodes"] == [{"id": 0, "cpus": "0-15"}, {"id": 1, "cpus": None}]
    assert facts["gpus"] == ["0000:11:00.0"]
    assert facts["nics"] == ["0000:12:00.0"]
    assert facts["gpu_links"] == {"0000:11:00.0-0000:12:00.0": 6}
    assert facts["nets"] == [
        {"name": "mlx5_0", "bdf": "0000:12:00.0", "numa_node": 0, "speed_mbps": 400000},
        {"name": "eth0", "bdf": None, "numa_node": 1, "speed_mbps": 25000},
    ]
    assert facts["relations"] == [
        {"a": "0000:11:00.0", "b": "0000:12:00.0", "path": "PIX", "same_numa": True}
    ]
    pci = facts["pci"]
    assert isinstance(pci, list)
    assert pci[1]["parents"] == ["0000:10:00.0"]
    assert pci[1]["link"] is None
    assert pci[2]["link"] == {"speed_gts": 32.0, "width": 16}


@pytest.mark.parametrize(
    "text",
    [
        XML.replace("</cpu>", "", 1),
        XML.replace('busid="0000:11:00.0"', 'busid="here"'),
        "<!DOCTYPE x [<!ENTITY a 'b'>]>" + XML,
        XML.replace("0000ffff", "zz"),
    ],
)
def test_damaged_xml_is_refused(text: str) -> None:
    part = read_nccl(text)
    assert part is not None
    assert part.refused is not None
    assert worst(judge(paste(topo=text).snapshot, Policy(), 0)) is Verdict.REFUSE


@pytest.mark.parametrize(
    ("line", "kind", "fault", "bdf", "details"),
    [
        ("[1.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=vllm, GPU has fallen off the bus.",
         "xid", True, "0000:3b:00", {"xid": 79, "pid": 7, "process": "vllm"}),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid='<unknown>', name=<unknown>, Graphics",
         "xid", True, "0000:3b:00", {"xid": 13, "pid": None, "process": None}),
        ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed", "xid", False,
         "0000:3b:00", {"xid": 154, "pid": None, "process": None}),
        ("Dec  1 14:54:40 node7 kernel: mlx5_core 0000:5c:00.0: mlx5_cmd_out_err:1:(pid 2): failed",
         "nic_fw", True, "0000:5c:00.0", {}),
        ("pcieport 0000:00:02.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
         "aer", True, "0000:00:02.0", {"correctable": True}),
        ("pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: id=0010",
         "aer", True, "0000:00:02.0", {"correctable": False}),
        ("<4>[ 9.1] python3 invoked oom-killer: gfp_mask=0x1", "oom", True, None,
         {"process": "python3"}),
        ("INFO: task jbd2/sda1-8:88 blocked for more than 120 seconds.", "hung_task", True, None,
         {"process": "jbd2/sda1-8", "pid": 88, "seconds": 120}),
        ("a.out[9]: segfault at 0 ip 0 sp 0 error 4", "segfault", None, None,
         {"process": "a.out", "pid": 9}),
    ],
)  # fmt: skip
def test_log_lines(
    line: str, kind: str, fault: bool | None, bdf: str | None, details: dict[str, object]
) -> None:
    found = event(1, line)
    assert found is not None
    assert (found.kind, found.fault, found.bdf) == (kind, fault, bdf)
    assert dict(found.details) == details


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: Xid (invalid): some error",
        "NVRM: GPU Board Serial Number: 0",
        "mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "pcieport 0000:00:1c.0: AER: enabled with IRQ 24",
        "nvme nvme0: pci function 0000:01:00.0",
    ],
)
def test_lines_that_mean_nothing(line: str) -> None:
    assert event(1, line) is None


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "<6>[   1.5] ",
        "[Mon Jan  1 12:00:00 2024] ",
        "kernel: ",
        "Oct 16 20:47:19 host kernel: [1.2] ",
        "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ",
    ],
)
def test_prefixes(prefix: str) -> None:
    assert bare(f"{prefix}word word") == "word word"


def test_kernel_files_in_every_form() -> None:
    part = read_values(
        "/sys/devices/system/cpu/isolated: 2-3\n"
        "/proc/irq/4/smp_affinity:ff,ffffc000\n"
        "/sys/bus/pci/devices/0000:c1:00.0/numa_node: -1\n"
        "kernel.numa_balancing = 1\n"
        "/sys/block/x -> ../devices/pci0000:00/x\n",
        "notes.txt",
    )
    assert part is not None
    assert part.files == {
        "sys/devices/system/cpu/isolated": "2-3",
        "proc/irq/4/smp_affinity": "ff,ffffc000",
        "sys/bus/pci/devices/0000:c1:00.0/numa_node": "-1",
        "proc/sys/kernel/numa_balancing": "1",
    }
    assert part.links_to == {"sys/block/x": "../devices/pci0000:00/x"}
    by_name = read_values("4-15\n", "cpu-isolated.txt")
    assert by_name is not None
    assert by_name.files == {"sys/devices/system/cpu/isolated": "4-15"}
    by_content = read_values("BOOT_IMAGE=/vmlinuz isolcpus=2-3", "clipboard")
    assert by_content is not None
    assert list(by_content.files) == ["proc/cmdline"]
    assert read_values("hello: world", "notes.txt") is None


LSPCI = """\
0000:00:00.0 Host bridge: Intel Corporation Device 09a2
0000:00:01.0 PCI bridge: Intel Corporation Device 352a (prog-if 00 [Normal decode])
\tBus: primary=00, secondary=10, subordinate=14, sec-latency=0
\t\tLnkCap:\tPort #1, Speed 32GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 32GT/s, Width x16
0000:10:00.0 PCI bridge: Broadcom / LSI PEX890xx (prog-if 00 [Normal decode])
\tBus: primary=10, secondary=11, subordinate=14, sec-latency=0
0000:11:00.0 PCI bridge: Broadcom / LSI PEX890xx (prog-if 00 [Normal decode])
\tBus: primary=11, secondary=12, subordinate=12, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
0000:11:01.0 PCI bridge: Broadcom / LSI PEX890xx (prog-if 00 [Normal decode])
\tBus: primary=11, secondary=13, subordinate=13, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
0000:12:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
\tNUMA node: 0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)
\tKernel driver in use: nvidia
0000:13:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 [15b3:1021]
\tNUMA node: 0
"""


def test_lspci() -> None:
    found = paste(lspci=LSPCI)
    by = {p.bdf: p for p in found.snapshot.topology.pci}
    gpu, nic = by["0000:12:00.0"], by["0000:13:00.0"]
    assert (gpu.class_code, gpu.vendor, gpu.driver) == ("0302", "10de", "nvidia")
    assert gpu.parents == ("0000:11:00.0", "0000:10:00.0", "0000:00:01.0")
    assert gpu.root_bus == "0000:00"
    assert (nic.vendor, nic.device, nic.numa_node) == ("15b3", "1021", 0)
    verdicts = {f.id: f.verdict for f in judge(found.snapshot, Policy(), 0)}
    assert verdicts["pcie.width"] is Verdict.WARN
    assert verdicts["pcie.acs-redirect"] is Verdict.FAIL
    assert verdicts["locality.gpu-nic"] is Verdict.OK
    # 2.5 GT/s alone is an idle GPU, and a paste of lspci says nothing of the firmware's nodes.
    assert Verdict.WARN not in {
        f.verdict for f in judge(found.snapshot, Policy(), 0) if f.id == "pcie.speed"
    }
    plain = paste(lspci="3b:00.0 3D controller: NVIDIA Corporation GA100\n")
    assert worst(judge(plain.snapshot, Policy(), 0)) is Verdict.UNKNOWN


def test_minus_one_is_unknown_and_a_remote_irq_is_far() -> None:
    found = paste(
        values="/sys/bus/pci/devices/0000:c1:00.0/numa_node: -1\n"
        "/proc/irq/4/node:0\n/proc/irq/4/smp_affinity:ff,ffffc000,000fffff,fc000000\n",
        lscpu="NUMA node0 CPU(s): 0-25,52-77\nNUMA node1 CPU(s): 26-51,78-103\n",
    )
    by = {f.id: f for f in judge(found.snapshot, Policy(), 0)}
    assert by["contradiction.gpu-node-unknown"].verdict is Verdict.WARN
    assert by["irq.remote-node"].verdict is Verdict.WARN
    assert "26-51,78-103" in by["irq.remote-node"].message


def test_a_whole_report_is_several_kinds() -> None:
    topo = "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n"
    found = paste(report=f"GPU topology:\n{topo}\nCPU:\n{LSCPU}")
    assert found.facts["gpus"] == ["GPU0"]
    assert "cpu" in found.facts
    assert found.snapshot.pasted is not None
    assert found.snapshot.pasted.kinds == ("matrix", "lscpu")


def test_texts_that_contradict_each_other_are_told() -> None:
    found = paste(lscpu=LSCPU, numactl=NUMACTL)
    verdicts = {f.id: f for f in judge(found.snapshot, Policy(), 0)}
    assert verdicts["paste.agrees"].verdict is Verdict.WARN
    assert "node0/cpulist" in verdicts["paste.agrees"].message


def test_silence_about_a_file_is_no_approval() -> None:
    found = paste(lscpu=LSCPU, letter="Dear all,\nit is slow.\n")
    by = {f.id: f for f in judge(found.snapshot, Policy(), 0)}
    assert by["paste.recognised"].verdict is Verdict.UNKNOWN
    assert "letter" in by["paste.recognised"].message
    assert worst(judge(paste(letter="it is slow").snapshot, Policy(), 0)) is Verdict.UNKNOWN


def test_n_needs_the_last_cpu() -> None:
    by = {
        f.id: f for f in judge(paste(cmdline="isolcpus=4-N irqaffinity=0-7").snapshot, Policy(), 0)
    }
    assert by["isolation.irqaffinity-overlap"].verdict is Verdict.UNKNOWN
    told = paste(cmdline="isolcpus=4-N irqaffinity=0-7", **{"cpu-possible": "0-7"})
    by = {f.id: f for f in judge(told.snapshot, Policy(), 0)}
    assert by["isolation.irqaffinity-overlap"].verdict is Verdict.FAIL


PIECES = st.sampled_from(
    [LSCPU, NUMACTL, XML, LSPCI, "isolcpus=1-N", "/sys/a/b: c", "NVRM: Xid (PCI:0000:3b:00): 79, x",
     "\tGPU0\tGPU1\nGPU0\t X \tPIX\n", "/proc/irq/4/node: 0", "node 0 cpus: 999999999999"]
)  # fmt: skip


@given(st.lists(st.tuples(PIECES, st.text(max_size=40), st.integers(0, 300)), max_size=4))
def test_no_paste_breaks_a_reader(pieces: list[tuple[str, str, int]]) -> None:
    texts = [
        Text(name=f"file{i}", text=piece[:cut] + noise + piece[cut:])
        for i, (piece, noise, cut) in enumerate(pieces)
    ]
    judge(read_paste(texts).snapshot, Policy(), 0)


def test_a_graph_of_nccl_is_no_machine() -> None:
    found = paste(graph='<graphs version="1">\n  <graph id="0" pattern="4" nchannels="2">\n')
    assert found.snapshot.pasted is not None
    assert "NCCL_TOPO_DUMP_FILE" in found.snapshot.pasted.refused[0]
    assert not found.snapshot.topology.pci


def test_nothing_is_said_to_be_empty_once() -> None:
    for text in ("", " \n"):
        both = paste(stdin=text)
        told = [f for f in judge(both.snapshot, Policy(), 0) if f.verdict is Verdict.UNKNOWN]
        assert [(f.id, f.message) for f in told] == [("paste.recognised", "empty: stdin")]
