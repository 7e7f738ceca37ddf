"""What a kind of log line means for the node, and what to do.

Source: NVIDIA Xid catalogue and GPU deployment guide; DCGM health checks; Linux
Documentation/PCI/pcieaer-howto.rst, Documentation/admin-guide/mm/hwpoison.rst.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.finding import Verdict

F, W, I, U = Verdict.FAIL, Verdict.WARN, Verdict.INFO, Verdict.UNKNOWN  # noqa: E741


@dataclass(frozen=True, slots=True)
class Meaning:
    """`what` goes on after the device's name; `remedy` is a command or one step."""

    verdict: Verdict
    what: str
    remedy: str = ""


AROUND = "dmesg -Tw  # watch whether it comes again, and read the lines around it"
RESET = "drain the node, then nvidia-smi --gpu-reset -i GPU  # all GPUs of an NVSwitch machine"
REBOOT = "drain the node and reboot it; when it comes again, reseat or replace the GPU"
SERVICE = "drain the node; nvidia-bug-report.sh; have the GPU replaced"
APPLICATION = "nothing on the node; compute-sanitizer PROGRAM finds it"
LINKS = "nvidia-smi nvlink -e; drain the node, reset its GPUs; when it comes again, service"

XIDS: dict[int, Meaning] = {
    13: Meaning(I, "graphics engine exception, usually the application's own", APPLICATION),
    31: Meaning(I, "memory page fault, usually the application's own", APPLICATION),
    32: Meaning(W, "corrupted push buffer: application, driver or PCIe", AROUND),
    38: Meaning(W, "driver firmware error", RESET),
    43: Meaning(I, "a channel was stopped, usually the application's own fault", APPLICATION),
    44: Meaning(W, "fault during a context switch", RESET),
    45: Meaning(I, "channels were cleaned up after another error or an abort", ""),
    48: Meaning(F, "double-bit ECC error", RESET),
    61: Meaning(F, "the GPU's micro-controller reports a breakpoint", RESET),
    62: Meaning(F, "the GPU's micro-controller halted", RESET),
    63: Meaning(W, "a memory row is remapped; it is pending until the next reset", RESET),
    64: Meaning(F, "remapping a memory row failed", SERVICE),
    68: Meaning(
        W,
        "video decoder exception",
        "dmesg -Tw  # restart the application, watch whether it comes again",
    ),
    69: Meaning(I, "graphics class error, usually the application's own", APPLICATION),
    74: Meaning(F, "NVLink error", LINKS),
    79: Meaning(F, "the GPU has fallen off the bus: PCIe, power or the GPU itself", REBOOT),
    80: Meaning(
        W,
        "corrupted data was sent to the GPU",
        "lspci -vvs BDF  # is the link at full speed and width?",
    ),
    92: Meaning(W, "high rate of single-bit ECC errors", "nvidia-smi -q -d ECC; plan a reset"),
    94: Meaning(
        W,
        "contained ECC error: one application was hit",
        "nvidia-smi -q -d ECC,ROW_REMAPPER; restart that application",
    ),
    95: Meaning(F, "uncontained ECC error: all applications on it are hit", RESET),
    109: Meaning(F, "context switch timeout", RESET),
    110: Meaning(F, "security fault of the GPU's firmware", REBOOT),
    119: Meaning(F, "the GPU's system processor (GSP) does not answer", RESET),
    120: Meaning(F, "error of the GPU's system processor (GSP)", RESET),
    121: Meaning(W, "corrected error of the chip-to-chip link", AROUND),
    136: Meaning(F, "link training failed", RESET),
    137: Meaning(W, "forbidden NVLink access, usually a peer's application", APPLICATION),
    140: Meaning(F, "unrecovered ECC error", RESET),
    143: Meaning(F, "the GPU did not initialise", REBOOT),
    144: Meaning(W, "NVLink error (SAW)", LINKS),
    145: Meaning(W, "NVLink error (RLW)", LINKS),
    146: Meaning(W, "NVLink error (TLW)", LINKS),
    147: Meaning(W, "NVLink error (TREX)", LINKS),
    148: Meaning(W, "NVLink error (NVLPW)", LINKS),
    149: Meaning(F, "NVLink error (NETIR)", LINKS),
    150: Meaning(W, "NVLink error (MSE)", LINKS),
    155: Meaning(W, "NVLink error told by software", LINKS),
    156: Meaning(W, "a part of the GPU was retired", RESET),
    157: Meaning(F, "retiring a part of the GPU failed", SERVICE),
    158: Meaning(F, "fatal timeout of the GPU", RESET),
    160: Meaning(W, "a memory channel was retired", RESET),
    161: Meaning(F, "retiring a memory channel failed", SERVICE),
}
"""Source: NVIDIA Xid catalogue."""
LAST_XID = 185
"""Numbers above are in no catalogue we know; what lies between is a driver error."""
UNKNOWN_XID = Meaning(
    U, "a number that no catalogue we know lists", "look it up in NVIDIA's Xid catalogue"
)
OTHER_XID = Meaning(W, "a driver error", AROUND)
NVLINK_XIDS = frozenset({74, *range(144, 151), 155})
LOST_XIDS = frozenset({79})
FOLLOWERS = frozenset({13, 31, 43, 45, 119, 120, 140, 154, *NVLINK_XIDS})
"""What a GPU that is lost goes on to log."""

DISK = "smartctl -a /dev/DEVICE; nvme smart-log /dev/DEVICE; back up, then replace the drive"
KINDS: dict[str, Meaning] = {
    "gpu_off_bus": XIDS[79],
    "nvrm_reset_required": Meaning(F, "the driver says that the GPU needs a reset", RESET),
    "nvlink_init": Meaning(
        F,
        "NVLink did not come up",
        "drain the node, then: systemctl restart nvidia-fabricmanager (its exit aborts every CUDA "
        "job); reset the GPUs",
    ),
    "gpu_init": Meaning(F, "the NVIDIA driver could not start the GPU", REBOOT),
    "gpu_driver": Meaning(
        F,
        "user-space and kernel driver are of different versions",
        "reboot after the update; or end all that uses the GPUs, then rmmod and modprobe nvidia",
    ),
    "amdgpu_init": Meaning(
        F, "amdgpu could not start the GPU", "update firmware and driver; reboot"
    ),
    "amdgpu_hang": Meaning(
        F, "the GPU hung and was reset", "rocm-smi --showrasinfo; drain the node"
    ),
    "amdgpu_ras": Meaning(W, "memory errors were corrected", "rocm-smi --showrasinfo; watch it"),
    "fabric_manager": Meaning(
        F,
        "the fabric manager reports errors",
        "systemctl status nvidia-fabricmanager; its version must be the driver's",
    ),
    "sxid": Meaning(W, "NVSwitch error that is not fatal", "nvidia-smi nvlink -e; watch it"),
    "aer": Meaning(
        W,
        "PCIe errors were corrected: an early warning of a bad link",
        "lspci -vvs BDF; reseat the card or the riser, clean contacts, look at power",
    ),
    "pcie_link": Meaning(
        F, "the PCIe link went down", "lspci -vvs BDF; reseat the card, look at its power"
    ),
    "mce": Meaning(W, "machine check", "ras-mc-ctl --summary; mcelog --client"),
    "edac": Meaning(W, "memory errors were corrected", "ras-mc-ctl --errors  # names the DIMM"),
    "ghes": Meaning(W, "firmware reports a hardware error", "ipmitool sel elist"),
    "memory_failure": Meaning(
        F, "a page of memory is poisoned", "ras-mc-ctl --errors; replace the DIMM"
    ),
    "cpu_thermal": Meaning(
        W, "the CPU was slowed down by heat", "sensors; look at fans and inlet air"
    ),
    "iommu_fault": Meaning(
        W,
        "a device's memory access was refused by the IOMMU",
        "driver bug or wrong mapping: iommu=pt, and update the driver",
    ),
    "nic_power": Meaning(
        W,
        "the PCIe slot gives the NIC too little power",
        "lspci -vvs BDF | grep -i powerlimit; move it to a slot with more",
    ),
    "nic_thermal": Meaning(
        W, "the NIC is hot", "sensors; mget_temp -d DEVICE; look at the air flow"
    ),
    "nic_fw": Meaning(
        W, "a firmware command of the NIC failed", "update the NIC's firmware; mlxfwmanager"
    ),
    "nic_module": Meaning(W, "cable or optical module error", "ethtool -m DEVICE; replace it"),
    "nic_tx_timeout": Meaning(
        F, "a transmit queue of the NIC hangs", "ethtool -S DEVICE; update driver and firmware"
    ),
    "nic_link": Meaning(W, "the link goes up and down", "ethtool -m DEVICE; replace the cable"),
    "nvme_timeout": Meaning(
        W,
        "I/O of the drive timed out",
        "nvme smart-log /dev/DEVICE; boot with "
        "nvme_core.default_ps_max_latency_us=0 when it idles badly",
    ),
    "nvme_dead": Meaning(F, "the drive was given up", DISK),
    "nvme_no_path": Meaning(F, "no path to the drive is left", "nvme list-subsys"),
    "io_error": Meaning(W, "I/O failed", DISK),
    "fs_error": Meaning(
        F,
        "the file system has errors",
        "unmount and fsck it, after a look at the drive: smartctl -a /dev/DEVICE",
    ),
    "raid": Meaning(
        F, "the array lost a disk", "cat /proc/mdstat; mdadm --detail /dev/md*; replace the disk"
    ),
    "oom": Meaning(
        F,
        "the kernel killed a process for lack of memory",
        "cat /sys/fs/cgroup/GROUP/memory.max; raise it, or see who grew in the log's task table",
    ),
    "hung_task": Meaning(
        W,
        "a task was blocked for minutes, mostly on I/O or a lock",
        "echo w > /proc/sysrq-trigger; dmesg | tail -n 200  # shows where; look at the disk or NFS",
    ),
    "soft_lockup": Meaning(
        F,
        "a CPU was stuck in the kernel",
        "dmesg -T | less  # the stack below the line; update the driver it names",
    ),
    "rcu_stall": Meaning(
        W,
        "a CPU did not pass through RCU for long",
        "ps -eLo psr,cls,rtprio,comm | grep FF  # a spinning FIFO thread does this",
    ),
    "workqueue_lockup": Meaning(
        W,
        "workers of a CPU made no progress",
        "ps -eLo psr,cls,rtprio,comm | grep FF  # a FIFO thread starves that CPU",
    ),
    "rt_throttled": Meaning(
        W,
        "real-time tasks used all of their share and were stopped",
        "find the spinning FIFO task; sysctl kernel.sched_rt_runtime_us",
    ),
    "clocksource": Meaning(
        W,
        "the TSC was given up as clock",
        "update the firmware; boot with tsc=reliable only when it is proved",
    ),
    "panic": Meaning(
        F,
        "the kernel panicked",
        "journalctl -k -b -1 -e  # what came before; kdump for the next one",
    ),
    "oops": Meaning(F, "a bug of the kernel was hit", "reboot; report the stack below the line"),
}
UNCORRECTED: dict[str, str] = {
    "aer": "PCIe errors that were not corrected",
    "mce": "machine check that was not corrected",
    "edac": "memory errors that were not corrected",
    "ghes": "firmware reports a fatal hardware error",
    "amdgpu_ras": "memory errors that were not corrected",
    "sxid": "fatal NVSwitch error",
}
"""What these kinds mean when they say that nothing was corrected: FAIL."""
