"""Settings that are no file of their own, as texts like those of files.

| key | what |
|---|---|
| `run/NAME` | how many processes of a program run (PROCESSES); absent: nobody looked |
| `run/self/COMM/PID` | what each process of ours (OURS) costs, and where it runs |
| `derived/rcu_offloaded` | CPUs with an rcuop/rcuos kernel thread; absent: none is seen at all |
| `derived/dev_shm_bytes` | size of the tmpfs on /dev/shm (statvfs, `size=`, half of memory) |
| `derived/dev_shm_used_bytes` | what lies in it; absent in a recorded tree |
| `derived/df` | /dev/shm, /tmp, /run and mounted hugetlbfs in the form of `df -k` |
| `derived/cpu_flags` | `flags` (x86) or `Features` (Arm) of the first processor in /proc/cpuinfo |
| `derived/cpu_dma_latency_us` | the bound on exit latencies in force (/dev/cpu_dma_latency; root) |
| `derived/kernel_config` | `CONFIG_X=y` lines that checks ask for, of /boot/config-RELEASE |
| `derived/interrupt_errors` | `ERR`, `MIS`, `MCE` rows of /proc/interrupts, summed over CPUs |
"""

from __future__ import annotations

import os
import re
import struct
from contextlib import suppress

from nodeagent.discover.root import Root, is_number
from nodeagent.model.cpuset import CpuSet

PROCESSES = ("irqbalance", "tuned", "numad", "kubelet", "slurmd", "dockerd", "containerd")
"""Programs whose presence matters: `texts["run/NAME"]` is the number of their processes."""
OURS = ("nodeagentd", "nodeagent-actor", "nodeagent-feede", "nodeagent-contr")
"""Our own processes as comm names them: the kernel keeps 15 characters."""
MAX_PIDS = 32_768
TICKS_PER_S = 100
"""USER_HZ, the unit of times in stat: 100 on every architecture but Alpha. Source: times(2)."""

NO_DMA_LIMIT = 2_000_000_000
"""PM_QOS_CPU_LATENCY_DEFAULT_VALUE in microseconds: nobody holds /dev/cpu_dma_latency."""
_RCU = re.compile(r"rcuo[a-z]?/(\d{1,5})")
_CONFIG = re.compile(
    r"CONFIG_(NO_HZ_FULL|NO_HZ_IDLE|HZ_PERIODIC|HZ|RCU_NOCB_CPU|CPU_ISOLATION|PREEMPT\w*|"
    r"HIGH_RES_TIMERS|CPUSETS|CFS_BANDWIDTH|NUMA_BALANCING|SCHED_AUTOGROUP|HUGETLBFS|"
    r"TRANSPARENT_HUGEPAGE\w*|PCI_P2PDMA|INTEL_IOMMU_DEFAULT_ON|IOMMU_DEFAULT_\w+|XDP_SOCKETS|"
    r"BPF_SYSCALL|DEBUG_INFO_BTF|GENERIC_IRQ_DEBUGFS)=[\w\"]{1,20}"
)
_ERRORS = ("ERR", "MIS", "MCE")


def read_derived(root: Root, texts: dict[str, str], first_cpu: dict[str, str]) -> dict[str, str]:
    """Every key above that can be told; what only a live machine tells is kept for a capture."""
    found = _live(root, texts) if root.is_live else _recorded(root)
    if "derived/dev_shm_bytes" not in found:
        size = _dev_shm(texts)
        if size is not None:
            found["derived/dev_shm_bytes"] = str(size)
    flags = first_cpu.get("flags") or first_cpu.get("Features")
    if flags:
        found["derived/cpu_flags"] = flags
    return found


def interrupt_errors(lines: list[str]) -> str | None:
    """The rows of /proc/interrupts that count what should not be, or None without any."""
    found = []
    for line in lines[-64:]:
        label, _, rest = line.partition(":")
        if label.strip() in _ERRORS:
            counts = [int(w) for w in rest.split() if is_number(w)]
            found.append(f"{label.strip()}: {sum(counts)}")
    return "\n".join(found) or None


def _recorded(root: Root) -> dict[str, str]:
    found = {}
    for key in (
        *(f"run/{name}" for name in PROCESSES),
        *("derived/rcu_offloaded", "derived/dev_shm_bytes", "derived/dev_shm_used_bytes"),
        *("derived/df", "derived/cpu_dma_latency_us", "derived/kernel_config"),
        *root.glob("run/self/*/*"),
    ):
        text = root.text(key)
        if text is not None:
            found[key] = text
    return found


def _live(root: Root, texts: dict[str, str]) -> dict[str, str]:
    found = _comms(root) | _space(texts)
    latency = _dma_latency()
    if latency is not None:
        found["derived/cpu_dma_latency_us"] = str(latency)
    config = kernel_config(root, texts.get("proc/sys/kernel/osrelease"))
    if config is not None:
        found["derived/kernel_config"] = config
    for key, text in found.items():
        root.note(key, text)
    return found


def _comms(root: Root) -> dict[str, str]:
    """One look at the name of every process, kernel threads included."""
    counts = dict.fromkeys(PROCESSES, 0)
    ours: dict[str, str] = {}
    offloaded: set[int] = set()
    kernel = False
    for pid in root.pids()[:MAX_PIDS]:
        comm = (root.peek(f"proc/{pid}/comm", 64) or b"").decode("utf-8", "replace").strip()
        if comm in counts:
            counts[comm] += 1
        elif comm in OURS:
            cost = cost_of(root, pid)
            if cost is not None:
                ours[f"run/self/{comm}/{pid}"] = cost
        elif m := _RCU.fullmatch(comm):
            offloaded.add(int(m[1]))
        kernel = kernel or comm == "kthreadd"
    found = ours | {f"run/{name}": str(count) for name, count in counts.items()}
    if kernel:
        found["derived/rcu_offloaded"] = str(CpuSet.of(offloaded))
    return found


def cost_of(root: Root, pid: int) -> str | None:
    """`cpu_s=3.20 age_s=400.0 rss_kb=71000 cpus=0-3 last=2` of one process of ours; None: it ended.

    Resident memory and not PSS: smaps_rollup takes mmap_lock. Source: proc_pid_stat(5),
    proc_pid_status(5), proc_uptime(5).
    """
    stat = (root.peek(f"proc/{pid}/stat", 4096) or b"").rpartition(b")")[2].split()
    status = (root.peek(f"proc/{pid}/status", 1 << 16) or b"").decode("utf-8", "replace")
    uptime = (root.peek("proc/uptime", 64) or b"").split()
    rows = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    rss = rows.get("VmRSS", "").split()
    cpus = rows.get("Cpus_allowed_list", "").strip()
    try:
        used, started = int(stat[11]) + int(stat[12]), int(stat[19])
        age = float(uptime[0]) - started / TICKS_PER_S
        return (
            f"cpu_s={used / TICKS_PER_S:.2f} age_s={age:.1f} rss_kb={int(rss[0])} cpus={cpus} "
            f"last={int(stat[36])}"
        )
    except (IndexError, ValueError):
        return None


_POINTS = ("/dev/shm", "/tmp", "/run")


def _space(texts: dict[str, str]) -> dict[str, str]:
    """How full the file systems in memory are. Network file systems are not asked: they may hang.

    Source: statvfs(3).
    """
    found: dict[str, str] = {}
    rows = ["Filesystem 1K-blocks Used Available Use% Mounted on"]
    done = set()
    for line in texts.get("proc/mounts", "").splitlines()[::-1]:
        words = line.split(" ")
        if len(words) < 4 or words[2] not in ("tmpfs", "hugetlbfs") or words[1] in done:
            continue
        if words[1] not in _POINTS and words[2] != "hugetlbfs":
            continue
        done.add(words[1])
        try:
            seen = os.statvfs(words[1].replace("\\040", " "))
        except OSError:
            continue
        size, free = seen.f_blocks * seen.f_frsize, seen.f_bavail * seen.f_frsize
        used = size - seen.f_bfree * seen.f_frsize
        if words[1] == "/dev/shm" and size:
            found["derived/dev_shm_bytes"] = str(size)
            found["derived/dev_shm_used_bytes"] = str(used)
        share = -(-100 * used // (used + free)) if used + free else 0
        rows.append(f"{words[2]} {size >> 10} {used >> 10} {free >> 10} {share}% {words[1]}")
    if len(rows) > 1:
        found["derived/df"] = "\n".join([rows[0], *sorted(rows[1:])])
    return found


def _dma_latency() -> int | None:
    """The bound in force, in microseconds; None: no right, or no such device.

    A descriptor adds a request of the default value, which bounds nothing.
    Source: Documentation/power/pm_qos_interface.rst.
    """
    with suppress(OSError, struct.error):
        fd = os.open("/dev/cpu_dma_latency", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return int(struct.unpack("=i", os.read(fd, 4))[0])
        finally:
            os.close(fd)
    return None


def kernel_config(root: Root, release: str | None) -> str | None:
    """The lines that checks ask for, or None when no configuration lies there."""
    data = root.peek(f"boot/config-{release}", 1 << 20) if release else None
    if data is None:
        packed = root.peek("proc/config.gz", 1 << 20)
        if packed is None:
            return None
        import zlib

        with suppress(zlib.error):
            data = zlib.decompressobj(31).decompress(packed, 4 << 20)
    lines = (data or b"").decode("ascii", "replace").splitlines()
    return "\n".join(sorted(line for line in lines if _CONFIG.fullmatch(line))) or None


_SIZE = re.compile(r"size=([0-9]{1,18})([kmg%]?)")
_UNIT = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _dev_shm(texts: dict[str, str]) -> int | None:
    """Source: Documentation/filesystems/tmpfs.rst (size=, default half of memory)."""
    m = re.search(r"^MemTotal:\s+([0-9]{1,15}) kB", texts.get("proc/meminfo", ""), re.MULTILINE)
    memory = int(m[1]) << 10 if m else None
    size = None
    for line in texts.get("proc/mounts", "").splitlines():
        words = line.split()
        if len(words) < 4 or words[1] != "/dev/shm" or words[2] != "tmpfs":
            continue
        option = _SIZE.search(words[3])
        if option is None:
            size = None if memory is None else memory // 2
        elif option[2] == "%":
            size = None if memory is None else memory * int(option[1]) // 100
        else:
            size = int(option[1]) * _UNIT[option[2]]
    return size
