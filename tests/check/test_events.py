"""gpu.log: one finding an incident, the root named, consequences and warnings folded in."""

from __future__ import annotations

import pytest

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.model.finding import Finding, Verdict

V = Verdict


def told(*lines: str) -> list[Finding]:
    """The findings about a log of these lines."""
    paste = read_paste([Text(name="dmesg.txt", text="\n".join(lines) + "\n")])
    return [f for f in judge(paste.snapshot, Policy(), 0) if f.id == "gpu.log"]


def xid(number: int, gpu: str = "3b", rest: str = "pid=7, name=app, text") -> str:
    return f"[ 9.1] NVRM: Xid (PCI:0000:{gpu}:00): {number}, {rest}"


def test_a_lost_gpu_is_one_finding_with_all_that_follows() -> None:
    (found,) = told(
        xid(79, rest="pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        "[ 9.2] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        xid(154, rest="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
        xid(45),
        xid(119),
        "[ 9.3] NVRM: A GPU crash dump has been created. Run the bug report tool.",
    )
    assert (found.verdict, found.subject) == (V.FAIL, "xid 79 0000:3b:00")
    assert "5 more lines" in found.message


def test_pcie_errors_of_the_port_announce_a_lost_gpu() -> None:
    (found,) = told(
        "[ 1.1] pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3a:00.0",
        "[ 1.2] pcieport 0000:3a:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer",
        "[ 8.0] pcieport 0000:3a:00.0: DPC: containment event, status:0x1f01 source:0x0000",
        xid(79, rest="GPU has fallen off the bus."),
    )
    assert found.verdict is V.FAIL
    assert "2 lines of corrected ones, 1 of others" in found.message
    assert [e.text.split(":")[0] for e in found.evidence[:3]] == ["line 1", "line 3", "line 4"]
    assert {e.path for e in found.evidence} == {"dmesg.txt"}


def test_errors_of_another_port_stay_apart() -> None:
    found = told(
        "[ 1.1] pcieport 0000:80:01.0: AER: Corrected error received: 0000:80:01.0",
        xid(79, rest="GPU has fallen off the bus."),
    )
    assert [f.verdict for f in found] == [V.WARN, V.FAIL]


def test_two_lost_gpus_are_two_findings() -> None:
    found = told(xid(79, "3b"), xid(79, "5e"), xid(45, "5e"))
    assert [f.subject for f in found] == ["xid 79 0000:3b:00", "xid 79 0000:5e:00"]


def test_an_nvlink_error_has_two_ends_and_one_finding() -> None:
    (found,) = told(
        xid(145, "5e", "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4)"),
        xid(149, "3b", "NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x2)"),
        xid(45, "5e", "pid=9, name=app, Ch 00000003 caused by previous Xid 145"),
        xid(45, "9b", "pid=8, name=app, Ch 00000003 caused by previous Xid 149"),
    )
    assert (found.verdict, found.subject) == (V.FAIL, "xid 149 0000:3b:00")
    assert "0000:5e:00, 0000:9b:00" in found.message


def test_nvlink_errors_that_are_not_fatal_are_watched() -> None:
    (found,) = told(xid(145, "5e", "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4)"))
    assert found.verdict is V.WARN


@pytest.mark.parametrize(
    ("number", "verdict"),
    [(13, V.INFO), (31, V.INFO), (43, V.INFO), (45, V.INFO), (48, V.FAIL), (62, V.FAIL),
     (63, V.WARN), (64, V.FAIL), (74, V.FAIL), (92, V.WARN), (94, V.WARN), (95, V.FAIL),
     (119, V.FAIL), (140, V.FAIL), (170, V.WARN), (4711, V.UNKNOWN)],
)  # fmt: skip
def test_each_number_has_its_own_verdict(number: int, verdict: Verdict) -> None:
    (found,) = told(xid(number))
    assert found.verdict is verdict
    assert found.remedy or verdict is V.INFO


def test_the_same_fault_of_many_programs_may_be_the_gpu() -> None:
    (found,) = told(*(xid(31, rest=f"pid={i}, name=prog{i}, MMU Fault") for i in range(3)))
    assert found.verdict is V.WARN
    (one,) = told(*(xid(31, rest=f"pid={i}, name=prog, MMU Fault") for i in range(3)))
    assert one.verdict is V.INFO


def test_the_cleanup_after_a_fault_is_no_finding_of_its_own() -> None:
    (found,) = told(xid(95), xid(45))
    assert found.subject == "xid 95 0000:3b:00"


@pytest.mark.parametrize(
    ("action", "verdict"),
    [("0x1 (GPU Reset Required)", V.FAIL), ("0x2 (Node Reboot Required)", V.FAIL),
     ("0x4 (Drain and Reset)", V.WARN), ("0x0 (None)", V.OK)],
)  # fmt: skip
def test_the_drivers_own_advice(action: str, verdict: Verdict) -> None:
    (found,) = told(xid(154, rest=f"GPU recovery action changed from 0x9 (X) to {action}"))
    assert found.verdict is verdict


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", V.WARN),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", V.FAIL),
        ("nvme nvme0: I/O 12 QID 3 timeout, aborting", V.WARN),
        ("nvme nvme0: Disabling device after reset failure: -19", V.FAIL),
        ("EXT4-fs (sda1): Remounting filesystem read-only", V.FAIL),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", V.FAIL),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress", V.WARN),
        ("mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:838:(pid 2): ACCESS_REG(0x805) op_mod(0x1) "
         "failed", V.WARN),
        ("mlx5_core 0000:5e:00.0: poll_health:825:(pid 0): device's health compromised - reached "
         "miss count", V.FAIL),
        ("INFO: task x:1 blocked for more than 120 seconds.", V.WARN),
        ("Out of memory: Killed process 4711 (python3) total-vm:1kB", V.FAIL),
        ("x[9]: segfault at 0 ip 0 sp 0 error 4 in libc.so", V.OK),
        ("mlx5_core 0000:5e:00.0 ens3f0np0: Link down", V.OK),
    ],
)  # fmt: skip
def test_each_kind_has_its_own_verdict(line: str, verdict: Verdict) -> None:
    (found,) = told(f"[ 9.1] {line}")
    assert found.verdict is verdict


def test_a_link_that_flaps_is_told_and_one_that_went_down_once_is_not() -> None:
    (found,) = told(*(f"[ {i}.1] mlx5_core 0000:5e:00.0 ens3f0np0: Link down" for i in range(3)))
    assert (found.verdict, found.subject) == (V.WARN, "nic_link ens3f0np0")


def test_a_device_that_cannot_recover_is_told_with_its_ports_error() -> None:
    (found,) = told(
        "[ 1.1] pcieport 0000:3a:00.0: DPC: containment event, status:0x1f01 source:0x0000",
        "[ 1.2] pcieport 0000:3a:00.0: DPC: unmasked uncorrectable error detected",
        "[ 1.3] nvidia 0000:3b:00.0: AER: can't recover (no error_detected callback)",
        "[ 1.4] pcieport 0000:3a:00.0: AER: device recovery failed",
        "[ 1.5] pcieport 0000:3a:00.0: pciehp: Slot(7): Link Down",
    )
    assert (found.verdict, found.subject) == (V.FAIL, "aer 0000:3a:00")
    assert "not corrected" in found.message
    assert "4 more lines" in found.message


def test_a_device_that_cannot_recover_alone_was_not_corrected() -> None:
    (found,) = told("nvidia 0000:3b:00.0: AER: can't recover (no error_detected callback)")
    assert found.verdict is V.FAIL


def test_the_port_speaks_of_the_device_that_it_names() -> None:
    flood = [
        f"[ {i}.{j}] {line}"
        for i in range(50)
        for j, line in enumerate((
            "pcieport 0000:3a:00.0: AER: Multiple Corrected error received: 0000:3b:00.0",
            "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (R)",
            "nvidia 0000:3b:00.0:   device [10de:2330] error status/mask=00000001/0000a000",
            "nvidia 0000:3b:00.0:    [ 0] RxErr                  (First)",
        ))
    ]  # fmt: skip
    (found,) = told(*flood)
    assert (found.verdict, found.subject) == (V.WARN, "aer 0000:3b:00")
    other = "pcieport 0000:3a:00.0: AER: Corrected error received: 0000:5e:00.0"
    assert [f.subject for f in told(*flood, other)] == ["aer 0000:3b:00", "aer 0000:5e:00"]


def test_what_a_lost_gpu_takes_along_is_told_with_it() -> None:
    (found,) = told(
        xid(79, rest="GPU has fallen off the bus."),
        "[ 9.2] pcieport 0000:3a:00.0: DPC: containment event, status:0x1f01 source:0x0000",
        "[ 9.3] nvidia 0000:3b:00.0: AER: can't recover (no error_detected callback)",
        "[ 9.4] pcieport 0000:3a:00.0: pciehp: Slot(7): Link Down",
        "[ 9.5] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
        "[ 99.5] INFO: task nvidia-smi:77 blocked for more than 120 seconds.",
    )
    assert (found.verdict, found.subject) == (V.FAIL, "xid 79 0000:3b:00")


def test_a_task_that_waits_for_a_disk_is_no_part_of_a_lost_gpu() -> None:
    found = told(
        xid(79, rest="GPU has fallen off the bus."),
        "[ 99.5] INFO: task jbd2/sda1-8:77 blocked for more than 120 seconds.",
    )
    assert [f.subject for f in found] == ["xid 79 0000:3b:00", "hung_task"]


@pytest.mark.parametrize("number", [13, 31, 43, 48, 63, 64, 92, 94, 95, 109, 119, 149])
def test_the_cleanup_is_told_with_whatever_came_before(number: int) -> None:
    (found,) = told(xid(number), xid(45), xid(45))
    assert found.subject == f"xid {number} 0000:3b:00"


def test_the_drivers_advice_outranks_a_milder_fault() -> None:
    reset = xid(154, rest="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    (found,) = told(xid(63), reset)
    assert (found.verdict, found.subject) == (V.FAIL, "xid 63 0000:3b:00")
    assert "GPU Reset Required" in found.message
    assert [(f.subject, f.verdict) for f in told(xid(13), reset)] == [
        ("xid 13 0000:3b:00", V.INFO), ("xid 154 0000:3b:00", V.FAIL),
    ]  # fmt: skip
    (found,) = told(xid(95), reset)
    assert found.subject == "xid 95 0000:3b:00"


def test_the_switchs_end_of_a_link_is_told_with_the_gpus() -> None:
    (found,) = told(
        "[ 1.0] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
        "[ 1.1] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Data {0x10000000, 0x10000000}",
        xid(74, rest="pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14"),
        xid(45),
    )
    assert (found.verdict, found.subject) == (V.FAIL, "xid 74 0000:3b:00")


def test_a_process_killed_for_memory_leaves_channels_behind() -> None:
    (found,) = told(
        "[ 1.0] app invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "[ 1.1] Memory cgroup out of memory: Killed process 7 (app) total-vm:1kB, anon-rss:1kB",
        xid(45),
        xid(43),
    )
    assert (found.verdict, found.subject) == (V.FAIL, "oom")
    assert "Killed process 7" in found.evidence[0].text


def test_a_dead_drive_takes_its_file_system_and_array_along() -> None:
    (found,) = told(
        "[ 1.0] nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset",
        "[ 2.0] nvme nvme4: Disabling device after reset failure: -19",
        "[ 2.1] I/O error, dev nvme4n1, sector 4 op 0x1:(WRITE) flags 0x0",
        "[ 2.2] Aborting journal on device nvme4n1p1-8.",
        "[ 2.3] EXT4-fs (nvme4n1p1): Remounting filesystem read-only",
        "[ 2.4] md/raid1:md0: Disk failure on nvme4n1p2, disabling device.",
        "[ 2.5] md/raid1:md0: Operation continuing on 1 devices.",
    )
    assert (found.verdict, found.subject) == (V.FAIL, "nvme_dead nvme4")
    assert "/dev/nvme4" in found.remedy
    both = told(
        "[ 1.0] nvme nvme4: Disabling device after reset failure: -19",
        "[ 2.0] nvme nvme5: I/O 22 QID 0 timeout, reset controller",
    )
    assert [f.subject for f in both] == ["nvme_dead nvme4", "nvme_timeout nvme5"]


def test_a_journal_is_its_devices() -> None:
    (found,) = told(
        "[ 1.0] Aborting journal on device dm-3-8.",
        "[ 2.3] EXT4-fs (dm-3): Remounting filesystem read-only",
    )
    assert found.subject == "fs_error dm-3"


def test_a_poisoned_page_is_told_with_what_the_firmware_said() -> None:
    (found,) = told(
        "[ 1.0] {1}[Hardware Error]: event severity: recoverable",
        "[ 1.1] {1}[Hardware Error]:   section_type: memory error",
        "[ 1.2] Memory failure: 0x40fa6: recovery action for dirty LRU page: Recovered",
    )
    assert (found.verdict, found.subject) == (V.FAIL, "memory_failure")


def test_the_time_stamp_counter_is_told_once() -> None:
    text = "[ 1.1] tsc: Marking TSC unstable due to clocksource watchdog\n"
    paste = read_paste([Text(name="dmesg.txt", text=text)])
    judged = judge(paste.snapshot, Policy(), 0)
    assert [f.id for f in judged if f.verdict is V.WARN] == ["cpu.tsc"]


def test_a_finding_says_each_thing_once_and_names_its_device() -> None:
    (found,) = told(
        "[ 14.1] nvme nvme1: Device not ready; aborting initialisation, CSTS=0x2",
        "[ 14.2] nvme nvme1: Removing after probe failure status: -19",
    )
    assert found.subject == "nvme_dead nvme1"
    assert found.message == "nvme1: the drive was given up; 1 more line belongs to it"
    assert "smartctl -a /dev/nvme1;" in found.remedy
    (found,) = told("[ 9.1] pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3a:00.0")
    assert found.remedy.startswith("lspci -vvs 0000:3a:00;")
    (found,) = told(xid(48))
    assert "--gpu-reset -i 0000:3b:00.0" in found.remedy
    (found,) = told("[ 9.1] EDAC MC0: 1 CE memory read error on DIMM_A1 (channel:0 slot:0)")
    assert found.message == "memory errors were corrected"


def test_rows_are_remapped_for_the_error_before() -> None:
    (found,) = told(xid(48), xid(63), xid(94), xid(45))
    assert (found.verdict, found.subject) == (V.FAIL, "xid 48 0000:3b:00")
    assert "Xid 63" in found.message and "Xid 94" in found.message
    (found,) = told(xid(94), xid(64))
    assert found.subject == "xid 64 0000:3b:00"
    assert [f.subject for f in told(xid(94), xid(63, "5e"))] == [
        "xid 94 0000:3b:00", "xid 63 0000:5e:00",
    ]  # fmt: skip


def test_what_waits_for_a_hung_gpu_is_told_with_it() -> None:
    (found,) = told(
        xid(119, rest="pid=9, name=nvidia-smi, Timeout after 45s of waiting for RPC response"),
        "[ 9.2] NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required "
        "[NV_ERR_RESET_REQUIRED] (0x00000062) returned from x",
        "[ 99.5] INFO: task nvidia-smi:9 blocked for more than 120 seconds.",
    )
    assert (found.verdict, found.subject) == (V.FAIL, "xid 119 0000:3b:00")
    assert "2 more lines" in found.message
    assert len(told("INFO: task nvidia-smi:9 blocked for more than 120 seconds.")) == 1
