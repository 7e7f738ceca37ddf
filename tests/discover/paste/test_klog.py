"""Lines of kernel and driver logs, in the forms that kernels and drivers print them."""

from __future__ import annotations

import time

import pytest

from nodeagent.discover.paste.klog import bare, event, read_log

FAULTS: list[tuple[str, str, dict[str, object]]] = [
    # NVIDIA
    ("xid", "NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 13, pid=77, name=app, Graphics Exception",
     {"bdf": "0000:c1:00", "xid": 13, "pid": 77, "process": "app"}),
    ("xid", "NVRM: Xid (PCI:00000000:3B:00.0): 95, pid='<unknown>', name=<unknown>, Uncontained",
     {"bdf": "00000000:3b:00.0", "xid": 95, "pid": None, "process": None}),
    ("xid", '{"log":"[ 9.1] NVRM: Xid (PCI:0000:07:00): 48, pid=9, name=VLLM::Worker_TP0, DBE"}',
     {"xid": 48, "process": "VLLM::Worker_TP0"}),
    ("sxid", "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 46 sourcetrack timeout",
     {"sxid": 24007, "nvswitch": 0, "fatal": True, "link": 46}),
    ("gpu_off_bus", "NVRM: fallen off the bus and is not responding to commands.", {"bdf": None}),
    ("gpu_off_bus", "NVRM: The NVIDIA GPU 0000:5e:00.0 has fallen off the bus and is not answering",
     {"bdf": "0000:5e:00.0"}),
    ("nvrm_reset_required", "NVRM: GPU 0000:5e:00.0: GPU reset required", {"bdf": "0000:5e:00.0"}),
    ("gpu_init", "[ 8.1] NVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x62:0x40:1784)",
     {"bdf": "0000:17:00.0"}),
    ("gpu_init", "nvidia: probe of 0000:17:00.0 failed with error -1", {"bdf": "0000:17:00.0"}),
    ("gpu_driver", "NVRM: API mismatch: the client has the version 550.54.15, but", {}),
    ("fabric_manager", "[Mar 03 2025 10:11:12] [ERROR] [tid 41] detected NVSwitch fatal error", {}),
    ("fabric_manager", "h nv-fabricmanager[88]: Fabric Manager is aborting", {}),
    # AMD
    ("amdgpu_init", "amdgpu 0000:c3:00.0: amdgpu: amdgpu_device_ip_init failed",
     {"bdf": "0000:c3:00.0"}),
    ("amdgpu_init", "[drm:amdgpu_device_init.cold [amdgpu]] *ERROR* sw_init of IP block <psp> "
     "failed -22", {}),
    ("amdgpu_init", "amdgpu: probe of 0000:c3:00.0 failed with error -110",
     {"bdf": "0000:c3:00.0"}),
    ("amdgpu_hang", "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, "
     "signaled seq=9, emitted seq=11", {}),
    ("amdgpu_ras", "amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc "
     "block", {"correctable": False, "bdf": "0000:c3:00.0"}),
    ("amdgpu_ras", "amdgpu 0000:c3:00.0: amdgpu: socket: 0, die: 0 1 correctable hardware errors "
     "detected in total in umc block", {"correctable": True}),
    # PCIe
    ("aer", "pcieport 0000:80:03.0: AER: Multiple Corrected error received: id=8018",
     {"correctable": True, "bdf": "0000:80:03.0"}),
    ("aer", "pcieport 0000:80:03.0: AER: Uncorrectable (Non-Fatal) error message received from "
     "0000:81:00.0", {"correctable": False, "bdf": "0000:80:03.0"}),
    ("aer", "pcieport 0000:80:03.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), "
     "type=Transaction Layer, (Requester ID)", {"correctable": False}),
    ("aer", "pcieport 0000:80:03.0:   TLP Header: 34000000 81000010 00000000 88c888c8",
     {"bdf": "0000:80:03.0"}),
    ("aer", "pcieport 0000:80:03.0:    [20] UnsupReq               (First)", {}),
    ("aer", "pcieport 0000:80:03.0: can't find device of ID8100", {"bdf": "0000:80:03.0"}),
    ("aer", "pcieport 0000:80:03.0: AER: broadcast error_detected message", {}),
    ("aer", "pcieport 0000:80:03.0: AER: device recovery failed", {}),
    ("aer", "pcieport 0000:80:03.0: AER: Root Port link has been reset (0)", {}),
    ("aer", "pcieport 0000:80:03.0: DPC: containment event, status:0x1f01 source:0x0000",
     {"correctable": False}),
    ("aer", "nvidia 0000:81:00.0: aer_status: 0x00001000, aer_mask: 0x00000000",
     {"bdf": "0000:81:00.0"}),
    ("pcie_link", "pcieport 0000:80:03.0: pciehp: Slot(5): Link Down", {}),
    # Machine checks, memory
    ("mce", "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 3: be00000000800400",
     {"cpu": 12, "correctable": False}),
    ("mce", "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 9: 8c00004000010092",
     {"cpu": 2, "correctable": True}),
    ("mce", "mce: [Hardware Error]: PROCESSOR 0:50657 TIME 1650000000 SOCKET 0 APIC 0", {}),
    ("mce", "[Hardware Error]: Corrected error, no action required.", {"correctable": True}),
    ("mce", "[Hardware Error]: CPU:40 (19:1:1) MC18_STATUS[Over|CE|MiscV|AddrV|-|-]: 0x9c2040",
     {"cpu": 40, "correctable": True}),
    ("mce", "mce: [Hardware Error]: Machine check events logged", {}),
    ("mce", "mce: CMCI storm detected: switching to poll mode", {}),
    ("cpu_thermal", "mce: CPU7: Core temperature above threshold, cpu clock throttled (total "
     "events = 12)", {"cpu": 7}),
    ("cpu_thermal", "CPU3: Package temperature is above threshold, cpu clock is throttled",
     {"cpu": 3}),
    ("edac", "EDAC MC2: 3 CE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1)",
     {"correctable": True}),
    ("edac", "EDAC MC0: UE page 0x0, offset 0x0, grain 0, row 1, labels \":\": i5000 UE",
     {"correctable": False}),
    ("edac", "EDAC skx MC3: MISC 0x200000c000600486", {}),
    ("edac", "EDAC i10nm MC1: HANDLING MCE MEMORY ERROR", {}),
    ("ghes", "{3}[Hardware Error]: event severity: corrected", {"correctable": True}),
    ("ghes", "{3}[Hardware Error]:  device_id: 0000:81:00.0", {}),
    ("ghes", "BERT: Error records from previous boot:", {}),
    ("memory_failure", "Memory failure: 0x7f3a: recovery action for dirty LRU page: Recovered", {}),
    ("memory_failure", "Memory failure: 0x7f3a1: Sending SIGBUS to python3:4711 due to hardware "
     "memory corruption", {"pid": 4711}),
    ("memory_failure", "soft offline: 0x12c00: hugepage migration failed", {}),
    ("iommu_fault", "DMAR: [DMA Write NO_PASID] Request device [0x5e:0x00.0] fault addr 0xfe "
     "[fault reason 0x05] PTE Write access is not set", {"bdf": "5e:00.0"}),
    ("iommu_fault", "AMD-Vi: Event logged [IO_PAGE_FAULT device=c1:00.0 domain=0x000a "
     "address=0x1000 flags=0x0020]", {"bdf": "c1:00.0"}),
    ("iommu_fault", "nvidia 0000:c1:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0b "
     "address=0x10 flags=0x0]", {"bdf": "0000:c1:00.0"}),
    # NIC
    ("nic_power", "mlx5_core 0000:5e:00.1: mlx5_pcie_event:301:(pid 9): Detected insufficient "
     "power on the PCIe slot (25W).", {"bdf": "0000:5e:00.1"}),
    ("nic_thermal", "mlx5_core 0000:5e:00.0: temp_warn:173:(pid 0): High temperature on sensors "
     "with bit set 0 1", {"bdf": "0000:5e:00.0"}),
    ("nic_fw", "mlx5_core 0000:5e:00.0: mlx5_cmd_check:782:(pid 11): CREATE_MKEY(0x200) "
     "op_mod(0x0) failed, status bad parameter(0x3)", {"bdf": "0000:5e:00.0"}),
    ("nic_fw", "mlx5_core 0000:5e:00.0: wait_func:1137:(pid 8): 2RST_QP(0x50a) timeout. Will cause "
     "a leak of a command resource", {}),
    ("nic_fw", "mlx5_core 0000:5e:00.0: poll_health:825:(pid 0): device's health compromised - "
     "reached miss count", {}),
    ("nic_tx_timeout", "NETDEV WATCHDOG: ens3f0 (ice): transmit queue 12 timed out", {}),
    # Drives
    ("nvme_timeout", "nvme nvme0: I/O 12 QID 3 timeout, aborting", {"device": "nvme0"}),
    ("nvme_timeout", "nvme nvme3: I/O tag 12 (100c) opcode 0x2 (I/O Cmd) QID 3 timeout, aborting "
     "req_op:READ(0) size:4096", {"device": "nvme3"}),
    ("nvme_timeout", "nvme nvme3: I/O 448 QID 11 timeout, completion polled", {"device": "nvme3"}),
    ("nvme_timeout", "nvme nvme3: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xff",
     {"device": "nvme3"}),
    ("nvme_dead", "nvme nvme3: Removing after probe failure status: -19", {"device": "nvme3"}),
    ("nvme_dead", "nvme nvme3: Device not ready; aborting reset, CSTS=0x1", {"device": "nvme3"}),
    ("nvme_no_path", "block nvme1n1: no usable path - requeuing I/O", {"device": "nvme1n1"}),
    ("io_error", "blk_update_request: I/O error, dev sdb, sector 8390 op 0x0:(READ) flags 0x80700",
     {"device": "sdb"}),
    ("io_error", "blk_update_request: critical medium error, dev nvme2n1, sector 100",
     {"device": "nvme2n1"}),
    ("io_error", "Buffer I/O error on device dm-3, logical block 1", {"device": "dm-3"}),
    ("io_error", "nvme2n1: I/O Cmd(0x2) @ LBA 77, 8 blocks, I/O Error (sct 0x2 / sc 0x81) ",
     {"device": "nvme2n1"}),
    ("io_error", "sd 0:0:0:0: [sdc] tag#3 Sense Key : Medium Error [current] ", {"device": "sdc"}),
    ("fs_error", "EXT4-fs error (device dm-1): ext4_lookup:1700: inode #2: comm ls: deleted inode",
     {"device": "dm-1"}),
    ("fs_error", "EXT4-fs error (device sdb1: state EA): ext4_journal_check_start:83",
     {"device": "sdb1"}),
    ("fs_error", "EXT4-fs (sdb1): Remounting filesystem read-only", {"device": "sdb1"}),
    ("fs_error", "Aborting journal on device sdb1-8.", {"device": "sdb1-8"}),
    ("fs_error", "XFS (dm-2): Log I/O Error Detected. Shutting down filesystem",
     {"device": "dm-2"}),
    ("fs_error", "XFS (dm-2): xfs_do_force_shutdown(0x2) called from line 1183",
     {"device": "dm-2"}),
    ("fs_error", "XFS (sdb1): Metadata corruption detected at xfs_agf_read_verify+0xd0",
     {"device": "sdb1"}),
    ("fs_error", "BTRFS info (device sdb1): forced readonly", {"device": "sdb1"}),
    ("raid", "md/raid1:md0: Disk failure on sdb1, disabling device.", {"device": "sdb1"}),
    ("raid", "md/raid:md127: Disk failure on nvme1n1, disabling device.", {"device": "nvme1n1"}),
    ("raid", "md/raid1:md0: active with 1 out of 2 mirrors", {}),
    ("raid", "md: kicking non-fresh sdb1 from array!", {"device": "sdb1"}),
    # Tasks
    ("oom", "Web Content invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0",
     {"process": "Web Content"}),
    ("oom", "[ 55.1] Tasks state (memory values in pages):", {}),
    ("oom", "[ 55.1] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents "
     "oom_score_adj name", {}),
    ("oom", "[ 55.1] [   4711]  1000  4711  2540711   822033  7700480        0             0 "
     "python3", {"pid": 4711}),
    ("oom", "Task in /kubepods/pod1 killed as a result of limit of /kubepods/pod1", {}),
    ("oom", "memory: usage 1048576kB, limit 1048576kB, failcnt 1833", {}),
    ("oom", "Killed process 4711 (python3) total-vm:10162844kB, anon-rss:3288132kB, file-rss:0kB",
     {"pid": 4711}),
    ("oom", "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:10162844kB",
     {"pid": 4711}),
    ("oom", "oom_reaper: reaped process 4711 (python3), now anon-rss:0kB", {"pid": 4711}),
    ("oom", "oom-kill:constraint=CONSTRAINT_MEMORY_POLICY,nodemask=1,cpuset=/,mems_allowed=0-1,"
     "global_oom,task_memcg=/,task=python3,pid=4711,uid=0", {"pid": 4711}),
    ("hung_task", "INFO: task kworker/u64:3:912 blocked for more than 241 seconds.",
     {"process": "kworker/u64:3", "pid": 912, "seconds": 241}),
    ("hung_task", "INFO: task Web Content:912 blocked for more than 120 seconds.",
     {"process": "Web Content", "pid": 912}),
    ("soft_lockup", "NMI watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:55]",
     {"cpu": 3, "seconds": 22, "process": "kworker/3:1", "pid": 55}),
    ("soft_lockup", "NMI watchdog: Watchdog detected hard LOCKUP on cpu 17", {"cpu": 17}),
    ("rcu_stall", "rcu: INFO: rcu_preempt self-detected stall on CPU", {}),
    ("rcu_stall", "INFO: rcu_sched detected stalls on CPUs/tasks: { 12} (detected by 3)", {}),
    ("panic", "---[ end Kernel panic - not syncing: Fatal exception ]---", {}),
    ("oops", "BUG: kernel NULL pointer dereference, address: 0000000000000010", {}),
    ("oops", "BUG: unable to handle page fault for address: ffffa0c4", {}),
    ("oops", "general protection fault: 0000 [#1] SMP PTI", {}),
    ("oops", "kernel BUG at mm/usercopy.c:102!", {}),
    ("clocksource", "clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as "
     "unstable because the skew is too large:", {}),
    ("rt_throttled", "sched: RT throttling activated", {}),
    # forms that drivers printed before or print since
    ("xid", "NVRM: Xid (0003:00): 13, 0001 00000000 000050c0 00000368 00000000",
     {"bdf": "0003:00", "xid": 13}),
    ("nvlink_init", "NVRM: GPU5 knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update the mask",
     {}),
    ("fabric_manager", "nv-fabricmanager[9]: fabric manager driver interface version 1.2 doesn't "
     "match with driver version 1.3.", {}),
    ("aer", "pcieport 0000:80:03.0: DPC: rp_pio_status: 0x00000000, rp_pio_mask: 0x00000303",
     {"bdf": "0000:80:03.0", "correctable": False}),
    ("aer", "pcieport 0000:80:03.0: DPC: TLP Header: 0x00000001 0xfc003e0f 0xbf30001c 0x0",
     {"bdf": "0000:80:03.0"}),
    ("aer", "pcieport 0000:80:03.0: EDR: EDR event received", {"bdf": "0000:80:03.0"}),
    ("aer", "pcieport 0000:80:03.0: AER: Device recovery failed", {"bdf": "0000:80:03.0"}),
    ("aer", "pcieport 0000:80:03.0: broadcast error_detected message", {"bdf": "0000:80:03.0"}),
    ("aer", "pcieport 0000:80:03.0: Root Port link has been reset", {"bdf": "0000:80:03.0"}),
    ("aer", "nvme 0000:81:00.0: device has no error handler", {"bdf": "0000:81:00.0"}),
    ("mce", "[Hardware Error]: Error Status: Corrected error, no action required.",
     {"correctable": True}),
    ("mce", "[Hardware Error]: System Fatal error.", {"correctable": False}),
    ("mce", "mce: Memory error not recovered", {}),
    ("edac", "EDAC i10nm MC3: 1 CE memory read error on CPU_SrcID#0_MC#3_Chan#0_DIMM#0",
     {"correctable": True}),
    ("edac", "EDAC amd64: UE ERROR_ADDRESS= 0x8a0", {"correctable": False}),
    ("nic_fw", "mlx5_core 0000:c5:00.0: wait_func:1128:(pid 4): cmd[3]: CREATE_MKEY(0x200) No done "
     "completion", {"bdf": "0000:c5:00.0"}),
    ("nic_fw", "mlx5_core 0000:c5:00.0: print_health:819:(pid 0): Fatal error detected", {}),
    ("nic_fw", "mlx5_core 0000:c5:00.0: cmd_status_err:9:(pid 1): CREATE_EQ(0x301) failed, status",
     {}),
    ("fs_error", "XFS (dm-4): Unmount and run xfs_repair", {"device": "dm-4"}),
    ("fs_error", "EXT4-fs (sdk1): unable to read superblock", {"device": "sdk1"}),
    ("oom", "Out of memory: kill process 91 (agetty) score 38 or a child", {"pid": 91}),
    ("oom", "Killed process 91 (agetty)", {"pid": 91}),
    ("fabric_manager", "[Mar 03 2025 10:11:12] [ERROR] detected number of NVSwitches don't match "
     "any topology, aborting fabric manager", {}),
    ("fabric_manager", "request to query NVSwitch data from the driver failed with error", {}),
    ("edac", "sbridge: HANDLING MCE MEMORY ERROR", {}),
    ("mce", "CPU 9: Machine Check Exception: 0 Bank 1: 940000000000009f", {"cpu": 9}),
    ("nic_fw", "mlx5_core 0000:c5:00.0: print_health_info:423:(pid 0): irisc_index 7", {}),
    ("io_error", "ata7.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6 frozen",
     {"device": "ata7.00"}),
    ("io_error", "ata7.00: failed command: WRITE DMA EXT", {"device": "ata7.00"}),
    ("cpu_thermal", "thermal thermal_zone3: acpitz: critical temperature reached, shutting down",
     {}),
    ("rcu_stall", "rcu: rcu_preempt kthread timer wakeup didn't happen for 99 jiffies! g5", {}),
    ("nic_tx_timeout", "ice 0000:c5:00.0 ens9f0: tx_timeout: VSI_num: 8, Q 12, NTC: 0x1",
     {"bdf": None}),
    ("clocksource", "clocksource: wd-tsc-wd excessive read-back delay, marking tsc unstable", {}),
    ("amdgpu_hang", "amdgpu 0000:c3:00.0: amdgpu: MES failed to respond to msg=RESET",
     {"bdf": "0000:c3:00.0"}),
    ("amdgpu_hang", "amdgpu: qcm fence wait loop timeout expired", {}),
    ("amdgpu_ras", "amdgpu 0000:c3:00.0: amdgpu: 1 new deferred hardware errors detected in umc "
     "block", {"correctable": False, "count": 1}),
    ("fs_error", "EXT4-fs (sdk1): ext4_writepages: jbd2_start: 9 pages, ino 12; err -30",
     {"device": "sdk1"}),
    ("fs_error", "XFS (dm-4): page discard on page 00000000, inode 0x83, pos 0.", {}),
    ("fs_error", "XFS (dm-4): Failing async write on buffer block 0x8. Retrying async write.", {}),
    ("raid", "md/raid0:md9: too few disks (3 of 4) - aborting!", {}),
    ("panic", "Kernel Panic - not syncing: Attempted to kill init!", {}),
    ("fs_error", "BTRFS: Remounting filesystem read-only", {}),
    ("io_error", "kworker/u9:1: attempt to access beyond end of device", {}),
    ("io_error", "dm-7: rw=0, sector=81, nr_sectors = 8 limit=64", {"device": "dm-7"}),
    ("oom", " out_of_memory+0x11/0x53", {}),
    ("oom", "Tasks in /pods/a are going to be killed due to memory.oom.group set", {}),
]  # fmt: skip

OPEN: list[tuple[str, str, dict[str, object]]] = [
    ("segfault", "segfault at 7f00 ip 00007f0a sp 00007f0b error 4 in libnccl.so", {}),
    ("segfault", "Jan 02 03:04:05 node7 kernel: Web Content[77]: segfault at 0 ip 0 sp 0 error 4",
     {"process": "Web Content", "pid": 77}),
    ("segfault", "traps: python3[78] general protection fault ip:7f sp:7f error:0 in libcuda.so",
     {"process": "python3", "pid": 78}),
    ("nic_link", "mlx5_core 0000:5e:00.0 ens3f0np0: Link down",
     {"bdf": "0000:5e:00.0", "device": "ens3f0np0"}),
    ("nic_link", "ixgbe 0000:5e:00.0 eth2: NIC Link is Down", {"device": "eth2"}),
    ("nic_link", "bond0: (slave eth2): link status definitely down, disabling slave",
     {"device": "eth2"}),
    ("workqueue_hog", "workqueue: drm_fb_helper_damage_work hogged CPU for >10000us 4 times",
     {"function": "drm_fb_helper_damage_work"}),
    ("nvrm_other", "NVRM: A GPU crash dump has been created.", {}),
]  # fmt: skip

BENIGN = [
    "pcieport 0000:00:01.0: AER: enabled with IRQ 25",
    "pcieport 0000:00:01.0: DPC: enabled with IRQ 25",
    "pcieport 0000:00:01.0: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+",
    "acpi PNP0A08:00: _OSC: OS now controls [PCIeHotplug SHPCHotplug PME AER PCIeCapability LTR]",
    "pci 0000:01:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x4 link",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
    "EDAC MC: Ver: 3.0.0",
    "EDAC DEBUG: skx_init: ",
    "mce: CPU supports 20 MCE banks",
    "mce: Using 22 MCE banks",
    "MCE: In-kernel MCE decoding enabled.",
    "HEST: Enabling Firmware First mode for corrected errors.",
    "ERST: Error Record Serialization Table (ERST) support is initialized.",
    "GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.",
    "CPU0: Thermal monitoring enabled (TM1)",
    "thermal thermal_zone0: registered as thermal zone",
    "DMAR: IOMMU enabled",
    "DMAR: DRHD base: 0x000000fed90000 flags: 0x0",
    "AMD-Vi: Interrupt remapping enabled",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
    "nvidia: loading out-of-tree module taints kernel.",
    "nv-fabricmanager[9]: Successfully configured all the available NVSwitches, 0 errors",
    "nvidia-nvswitch0: SXid (unknown): some text",
    "[drm] amdgpu kernel modesetting enabled.",
    "amdgpu 0000:c3:00.0: amdgpu: Fetched VBIOS from VFCT",
    "nvme nvme0: pci function 0000:01:00.0",
    "nvme nvme0: 8/0/0 default/read/poll queues",
    "nvme nvme0: Shutdown timeout set to 10 seconds",
    "nvme nvme0: missing or invalid SUBNQN field.",
    "EXT4-fs (sda2): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
    "EXT4-fs (sda2): re-mounted. Opts: errors=remount-ro. Quota mode: none.",
    "EXT4-fs (sda2): re-mounted 5a5f ro. Quota mode: none.",
    "EXT4-fs (sda2): INFO: recovery required on readonly filesystem",
    "EXT4-fs (sda2): write access will be enabled during recovery",
    "EXT4-fs (sda2): recovery complete",
    "XFS (dm-0): Mounting V5 Filesystem",
    "XFS (dm-0): Ending clean mount",
    "BTRFS info (device sdb1): using free space tree",
    "SGI XFS with ACLs, security attributes, realtime, quota, no debug enabled",
    "md/raid1:md0: active with 2 out of 2 mirrors",
    "md: md0: data-check done.",
    "raid6: avx512x4 gen() 18125 MB/s",
    "mlx5_core 0000:5e:00.0: PCIe slot advertised sufficient power (27W).",
    "mlx5_core 0000:5e:00.0: firmware version: 22.36.1010",
    "mlx5_core 0000:5e:00.0 ens3f0np0: Link up",
    "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
    "usb 1-1: device descriptor read/64, error -110",
    "BTRFS info (device sdq1): bdev /dev/sdq1 errs: wr 0, rd 0, flush 0, corrupt 0, gen 0",
    "sched: RT throttling is disabled",
    "EXT4-fs (sdk1): barriers disabled",
    "XFS (dm-4): Deprecated V4 format (crc=0) will not be supported after September 2030.",
    'EXT4-fs (dm-4): mounting with "discard" option, but the device does not support discard',
    "pcieport 0000:80:03.0: pciehp: Slot(5): Link Down/Up ignored",
    "systemd[1]: Killed process tree of the old unit",
    "usb 1-1: reset high-speed USB device number 2 using xhci_hcd",
    "systemd[1]: Started oomd.service - Userspace Out-Of-Memory (OOM) Killer.",
    "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PCI0], AE_NOT_FOUND",
    "Kernel command line: BOOT_IMAGE=/vmlinuz panic=10 oops=panic mce=off pcie_aspm=off",
    "hung_task: set the timeout to 120 seconds",
    "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
    "rcu: Hierarchical RCU implementation.",
    "clocksource: Switched to clocksource tsc",
    "audit: type=1400 apparmor=\"DENIED\" operation=\"open\" comm=\"memory\"",
]  # fmt: skip

PREFIXES = [
    "",
    "[   12.345678] ",
    "[  +0.000844] ",
    "<4>[   12.345678] ",
    "[Mon Jan  1 12:00:00 2024] ",
    "kern  :err   : [   12.345678] ",
    "kern  :err   : 2025-01-21T04:41:44,283302+00:00 ",
    "Jan 01 00:00:00 node7 kernel: ",
    "Mon Jan  1 12:00:00 2024 node7 kernel: ",
    "2025-03-01T10:00:00.123456+01:00 node7 kernel: [   12.345678] ",
    "2025-03-01 10:00:00.123456 node7 kernel: ",
    "<4>1 2025-03-01T10:00:00Z node7 kernel - - - [   12.345678] ",
    "2025-03-01T10:00:00.000000000Z stderr F [   12.345678] ",
    "> [   12.345678] ",
    "3,1234,5678901,-;",
    "I0301 10:00:00.123456    12 kmsg.go:41] ",
    "Jan  1 00:00:00 node7 user.warn kernel: ",
    "Wed 2025-01-01 00:00:00 CET node7 kernel: ",
    "2025-01-01T00:00:00.000Z esx7 vmkernel: cpu12:34567)",
    "(XEN) [   12.345678] ",
    "1735689600.123 ",
]


@pytest.mark.parametrize(("kind", "line", "has"), FAULTS, ids=[x[1][:50] for x in FAULTS])
def test_a_fault_is_told_by_kind_and_address(kind: str, line: str, has: dict[str, object]) -> None:
    for prefix in PREFIXES:
        found = event(7, prefix + line)
        assert found is not None, prefix
        assert (found.kind, found.fault) == (kind, True), prefix
        told = {**found.details, "bdf": found.bdf}
        assert {k: told[k] for k in has} == has, prefix


@pytest.mark.parametrize(("kind", "line", "has"), OPEN, ids=[x[1][:50] for x in OPEN])
def test_what_a_line_leaves_open_is_no_fault(kind: str, line: str, has: dict[str, object]) -> None:
    found = event(7, line)
    assert found is not None
    assert (found.kind, found.fault) == (kind, None)
    told = {**found.details, "bdf": found.bdf}
    assert {k: told[k] for k in has} == has


@pytest.mark.parametrize("line", BENIGN, ids=[x[:50] for x in BENIGN])
def test_a_frightening_word_alone_is_no_fault(line: str) -> None:
    for prefix in PREFIXES:
        found = event(7, prefix + line)
        assert found is None or not found.fault, (prefix, found)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_come_off(prefix: str) -> None:
    assert bare(prefix + "python3 invoked oom-killer") == "python3 invoked oom-killer"


def test_a_prefix_that_nobody_knows_is_no_part_of_a_task_name() -> None:
    for prefix in ('{"message":"', "shipper <7> vm3: ", "[unit|x] (a b) "):
        for line in ("nv queue 3 invoked oom-killer: order=0", "nv queue 3[7]: segfault at 0 ip 0"):
            found = event(1, prefix + line)
            assert found is not None
            assert found.details["process"] == "nv queue 3", (prefix, line)


def test_a_log_by_its_stamps_alone_is_one() -> None:
    part = read_log("[    0.1] a\n[    0.2] b\n", "x.txt", is_log=False)
    assert part is not None
    assert part.events == ()
    assert read_log("nothing\nhere\n", "x.txt", is_log=False) is None


@pytest.mark.parametrize(
    "line",
    [
        "[    1.000000] VFS: ready",
        "6,339,5140900,-;VFS: ready",
        "kern  :info  : 2026-01-21T04:41:44,285060+00:00 VFS: ready",
        "Jan 21 04:41:44 n1 kernel: VFS: ready",
    ],
)
def test_every_form_of_a_kernel_line_is_one(line: str) -> None:
    part = read_log(line, "a.txt", is_log=False)
    assert part is not None and part.texts["log/kernel-lines"] == "1"


@pytest.mark.parametrize(
    "word", ["mlx5 ", "JBD2: error ", "amdgpu ", "NVRM: ", "EXT4-fs (a): ", "mdadm ", "rcu ", "0"]
)
def test_a_line_of_one_word_takes_time_by_its_length(word: str) -> None:
    """Time by the square of it would be four times for twice the length, by the cube eight."""

    def steps(size: int) -> float:
        line = "amdgpu mlx5 error Link " + word * (size // len(word))
        begin = time.process_time()
        for _ in range(3):
            event(1, line)
        return time.process_time() - begin

    steps(500)
    assert steps(4000) < 40 * max(steps(1000), 0.001)
