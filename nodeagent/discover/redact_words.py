"""Command lines, log lines, processes and groups, with what belongs to nobody kept."""

from __future__ import annotations

import re

import msgspec

from nodeagent.discover import engines
from nodeagent.discover.boot import parse_cmdline
from nodeagent.discover.masks import MASK, Masks, Scrubber
from nodeagent.discover.paste import klog

# Values of these boot arguments say how the kernel was set up, and nothing of who it belongs to.
BOOT_ARGS = re.compile(
    r"isolcpus|nohz(_full)?|rcu_nocb\w*|rcu\w*\..+|irqaffinity|kthread_cpus|housekeeping|"
    r"(intel_|amd_)?iommu(\..+)?|(default_)?hugepages(z)?|hugetlb\w*|transparent_hugepage|"
    r"numa\w*|mitigations|spectre\w*|spec_\w+|mds|l1tf|tsx\w*|retbleed|(no)?pti|"
    r"intel_idle\..+|processor\..+|idle|cpuidle\w*(\..+)?|haltpoll\..+|intel_pstate|amd_pstate\w*|"
    r"cpufreq\..+|tsc|clocksource|hpet|nmi_watchdog|watchdog\w*|softlockup\w*|skew_tick|mce|audit|"
    r"selinux|apparmor|security|lsm|console|earlyprintk|loglevel|log_buf_len|printk\..+|"
    r"crashkernel|pci|pcie_\w+|pcie_aspm\..+|vfio\w*(\..+)?|nvme\w*\..+|nvidia\w*\..+|amdgpu\..+|"
    r"mlx\w+\..+|cgroup\w*|systemd\.(unified_cgroup_hierarchy|legacy_\w+)|psi|swiotlb|kvm\w*\..+|"
    r"panic\w*|reboot|random\..+|sched\w*|preempt|threadirqs|workqueue\..+|maxcpus|nr_cpus|"
    r"possible_cpus|(no)?smt|smt-enabled|mem|memmap|movable\w*|kernelcore|init_on_\w+|page_\w+|"
    r"slub_\w+|acpi\w*(\..+)?|efi|x2apic\w*|lapic|nomodule|deferred_init|nested_\w+|movablecore|"
    r"elevator|net\.ifnames|biosdevname|ipv6\.disable|module\.sig_enforce|lockdown|bgrt_disable|"
    r"no_timer_check|nox2apic|tboot|amd_prefcore|split_lock_detect|vsyscall|raid|"
    r"trace_\w+|ftrace\w*|bpf\w*|perf\w*"
)
_FLAGS = re.compile(
    r"ro|rw|quiet|splash|nosplash|rhgb|debug|text|single|emergency|rescue|auto|[1-5Ss]|nomodeset|"
    r"nofb|no[a-z]{2,12}|nr?d\.[a-z.]+|rd\.[a-z.]+|threadirqs|preempt|skew_tick|kdump|fips|"
    r"rootwait|ima_\w+|toram|live|boot|verbose|mce|apparmor|kvm|tsc|<[a-z]+-[0-9a-f]+>"
)
"""Words of a command line that stand alone and say nothing of who it belongs to."""


def cmdline(text: str, scrub: Scrubber) -> str:
    """A kernel command line with the values of known arguments only."""
    words = []
    for name, value in parse_cmdline(text):
        if value is None:
            known = _FLAGS.fullmatch(name) or BOOT_ARGS.fullmatch(name.replace("-", "_"))
            words.append(name if known else scrub.masks.of("flag", name))
        elif BOOT_ARGS.fullmatch(name) or MASK.fullmatch(value):
            words.append(f'{name}="{value}"' if " " in value else f"{name}={value}")
        else:
            words.append(f"{name}={scrub.masks.of('value', value)}")
    if re.search(r"(^|\s)--(\s|$)", text):
        rest = text.partition(" -- ")[2]
        words += ["--", rest if MASK.fullmatch(rest) else scrub.masks.of("init", rest)]
    return " ".join(words)


def log_line(line: str, scrub: Scrubber) -> str:
    """A line of the kernel log that something is judged by; "" for all others, so that lines keep
    their numbers."""
    if not klog.tells(line):
        return ""
    head, mark, rest = line.partition("ommand line: ")
    if mark:
        return head + mark + cmdline(rest, scrub)
    if m := re.search(r'(command line parameters ")([^"]*)', line):
        line = line[: m.start(2)] + cmdline(m[2], scrub) + line[m.end(2) :]
    found = klog.event(0, line)
    told = None if found is None else found.details.get("process")
    names = {m[m.lastindex or 0] for m in _NAMED.finditer(line)}
    for name in sorted({*names, told if isinstance(told, str) else ""}):
        if name and not _PROGRAM.fullmatch(name) and name[0] != "<":
            line = line.replace(name, scrub.masks.of("program", name))
    for kind, pattern in _WHOSE:
        line = pattern.sub(lambda m, kind=kind: masked(kind, m[0], scrub), line)  # type: ignore[misc]
    return line


_WHOSE = (
    # Groups and folders; a library's name before where it is mapped; a group without its path.
    ("path", re.compile(r"(?<![\w./<>])/(?!(?:sys|proc|dev)/)[\w.@+-][^\s,;\"')]*(?<!:)")),
    (
        "program",
        re.compile(
            r"(?<= in )(?!lib(?:c|m|cuda|nv\w*|nccl|torch\w*|c10\w*|stdc\+\+|pthread|python)[-.\d])"
            r"[\w.+-]+(?=\[[0-9a-f]+\+)"
        ),
    ),
    ("path", re.compile(r"(?<=\bcpuset=)[^\s,/<][^\s,]*")),
)
"""What else in a line of the kernel log people have named."""
_NAMED = re.compile(
    # Who was killed, stuck or at fault; the last column of the table of an out-of-memory kill.
    r"Killed process \d+ \(([^)]+)\)|\btask=([^,\s]+)|\b[Cc]omm: ?(\S+)|\bcomm (\S+?):|"
    r"\bname=([^,\s]+)|"
    r"oom_reaper: reaped process \d+ \(([^)]+)\)|\[ *\d+\] +\d+ +\d+ .* (\S+)$"
)
_PROGRAM = re.compile(
    r"python[\d.]*|pt_main_thread|(ba|da|z)?sh|mpirun|mpiexec|srun|node|java|vllm|VLLM::\w+|"
    r"ray(let|::\w+)?|torchrun|sglang::\w+|nodeagent\S*|irqbalance|tuned|numad|tritonserver|"
    r"trtllm\S*|nv(idia)?-\S+|dcgm\S*|llama-server|ollama|gcs_server|\w+_perf|kworker\S*|"
    r"khugepaged|kswapd\d*|migration/\d+|swapper/\d+|systemd\S*|containerd\S*|dockerd|kubelet"
)
_ARGUMENTS = re.compile(
    r"--?(tensor[-_]parallel[-_]size|tp(-size)?|pipeline[-_]parallel[-_]size|pp(-size)?|"
    r"data[-_]parallel[-_]size|dp(-size)?|nnodes|nproc[-_]per[-_]node|node[-_]rank|"
    r"gpu[-_]memory[-_]utilization|max[-_]model[-_]len|max[-_]num[-_]\w+|block[-_]size|dtype|"
    r"kv[-_]cache[-_]dtype|swap[-_]space|mem[-_]fraction[-_]static|numa\S*|cpunodebind|membind|"
    r"interleave|physcpubind|num[-_]\w+|ngpus|minbytes|maxbytes|stepfactor|banirq|policyscript|"
    r"source|first-seq|count|rate|cpu|threads|n_threads|t|b|e|f|g|o)"
)
"""Options whose values say how a program was set up."""
_VALUE = re.compile(
    r"[\d.,:+-]{0,24}\d[kKmMgGtTiBb]{0,3}|auto|half|b?float(16|32)?|fp(8|16|32)\w{0,10}|int[48]|all|"
    r"none|isolate|distribute|numactl|mirror|capture|socket|xdp|af_xdp|dpdk|file"
)
"""Such values: numbers, CPU lists, sizes, and words that programs bring."""
_THREAD = re.compile(
    r"pt_\w+|cuda[-\w]*|(nccl|NCCL|gloo|grpc|ZMQbg|tokio|rte|eal|lcore|dpdk|iou)[-\w /:]*|"
    r"jemalloc_bg\w*|asyncio_\d+|ThreadPool\w*|EngineCore\w*|worker-?\d*|rx-?\d*|Thread-\d+"
)
"""Threads that runtimes name."""


_INTERPRETER = re.compile(r"python[\d.]*|(ba|da|z)?sh|node|java|mpirun|mpiexec|srun")


def command(title: str, scrub: Scrubber) -> str:
    """A command line with the program, its options, and the values of known ones."""
    found: list[str] = []
    keep = module = False
    for i, word in enumerate(title.split()):
        name, equals, value = word.partition("=")
        base = name.rpartition("/")[2]
        if i == 0 or (i == 1 and word[0] != "-" and _INTERPRETER.fullmatch(found[0])):
            known = _PROGRAM.fullmatch(base) or engines.role_of(base, base) is not None
            found.append(base if known else masked("program", word, scrub))
        elif word.startswith("-"):
            keep, module = _ARGUMENTS.fullmatch(name) is not None, word == "-m"
            value = value if keep and _VALUE.fullmatch(value) else masked("value", value, scrub)
            found.append(name + equals + value)
            keep = keep and not equals
        else:
            plain = _VALUE.fullmatch(word) is not None
            own = module and engines.role_of("", f"{word} ") is not None
            good = own or (keep and plain) or (word in ("serve", "-") and i < 4)
            found.append(word if good else masked("value", word, scrub))
            keep = module = False
    return " ".join(found)


def masked(kind: str, value: str, scrub: Scrubber) -> str:
    return value if not value or MASK.fullmatch(value) else scrub.masks.of(kind, value)


def processes(text: str, scrub: Scrubber) -> str:
    lines = []
    for line in text.splitlines():
        try:
            p = msgspec.json.decode(line, type=engines.Coded)
        except (msgspec.DecodeError, RecursionError):
            continue
        p.comm = _comm(p.comm, scrub)
        p.title = command(p.title, scrub)
        p.cgroup = cgroup_path(p.cgroup, scrub.masks)
        for thread in p.threads:
            known = _THREAD.fullmatch(thread.comm)
            thread.comm = thread.comm if known else _comm(thread.comm, scrub)
        lines.append(msgspec.json.encode(p).decode())
    return "\n".join(lines)


def _comm(name: str, scrub: Scrubber) -> str:
    """A process's or thread's name, if it is one that an engine or the system brings."""
    known = _PROGRAM.fullmatch(name) or engines.role_of(name, "") is not None
    return name if known else masked("program", name, scrub)


_CGROUP_TOPS = re.compile(
    r"/((system|user|machine|kubepods\w*|kube\w*|docker|containerd|slurm\w*|lxc|podman|libpod\w*)"
    r"(\.slice|\.scope)?|init\.scope|nodeagent\S*)?"
)


_CGROUP_FILE = re.compile(
    r"(cgroup|cpuset|cpu|cpuacct|memory|io|blkio|pids|hugetlb|rdma|misc|irq|dmem|devices|freezer|"
    r"net_cls|net_prio|perf_event)\..+|tasks|notify_on_release|release_agent|unified|"
    # Version 1: the hierarchies themselves.
    r"(cpu|cpuset|cpuacct|memory|blkio|pids|hugetlb|rdma|misc|devices|freezer|systemd|elogind|"
    r"net_cls|net_prio|perf_event)(,(cpu|cpuacct|net_cls|net_prio))*"
)
_CGROUP_PART = re.compile(
    r"(system|user|machine|kube\w*|docker|crio|cri-containerd|containerd|slurm\w*|lxc|podman|"
    r"libpod\w*|session|nodeagent)-(.+?)(\.slice|\.scope|\.service)?"
)
_CGROUPS = "sys/fs/cgroup/"


def cgroup_folder(path: str, masks: Masks) -> str:
    """A cgroup's folder: what rules it stays, which user, pod or container it is for does not."""
    if not path.startswith(_CGROUPS):
        return path
    parts = []
    for part in path.removeprefix(_CGROUPS).split("/"):
        known = _CGROUP_TOPS.fullmatch(f"/{part}") or _CGROUP_FILE.fullmatch(part)
        whose = _CGROUP_PART.fullmatch(part)
        if known or not part or "<" in part:
            # A capture of a capture has its masks already.
            parts.append(part)
        elif whose:
            parts.append(f"{whose[1]}-{masks.of('path', whose[2])}{whose[3] or ''}")
        else:
            parts.append(masks.of("path", part))
    return _CGROUPS + "/".join(parts)


def cgroup_path(path: str, masks: Masks) -> str:
    """A group as /proc/PID/cgroup names it, with the masks that its folder has."""
    return "/" + cgroup_folder(_CGROUPS + path.strip("/"), masks)[len(_CGROUPS) :]
