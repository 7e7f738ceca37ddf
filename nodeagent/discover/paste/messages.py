"""Lines of logs and error outputs with a known meaning for placement, memory and feeds. What each
means, and what helps, is in nodeagent/check/log.py, by `kind`.

Source: systemd src/core/cgroup.c; runc libcontainer/cgroups; Linux kernel/cgroup/cpuset.c,
kernel/irq, arch/x86/kernel/apic/vector.c; numactl; libgomp, LLVM OpenMP; DPDK lib/eal; NCCL
src/misc/shmutils.cc; PyTorch torch/csrc/DataLoader.cpp; libxdp; linuxptp.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part
from nodeagent.model.hostreport import Said

MAX_LINE = 2_000
MAX_SAID = 200
"""Lines kept of one kind in one text."""

_ERRNO = (
    r"(?P<error>(?i:No space left on device|Device or resource busy|Invalid argument"
    r"|Permission denied|Operation not permitted|Input/output error|Numerical result out of range"
    r"|Value too large for defined data type|Cannot allocate memory|Operation not supported"
    r"|Resource temporarily unavailable|Too many open files|No such device))"
)
_ROWS: tuple[tuple[str, str], ...] = (
    # ---- control groups
    ("cgroup/set", r"Failed to set '(?P<file>(?:cpuset|cpu|memory)\.[\w.]+)' attribute on "
                   r"'(?P<group>[^']*)' to '(?P<value>[^']*)': " + _ERRNO),
    ("cgroup/write", r"(?:failed to write|writing|cannot write|write)[^:\n]*"
                     r"[:\s](?:open )?(?P<group>/sys/fs/cgroup/\S*?)/?(?P<file>cpuset\.[\w.]+)"
                     r"[\"']?:\s*(?:write error: )?" + _ERRNO),
    ("cgroup/not-available", r"Requested (?P<what>CPUs|memory nodes) are not available - requested "
                             r"(?P<value>[\d,-]+), available: (?P<have>[\d,-]*)"),
    ("cgroup/no-controller", r"cpuset\.\w+(?:\.effective)?: no such file or directory"
                             r"|controller [`'\"]?cpuset[`'\"]? is not available"
                             r"|cgroup\.subtree_control.*cpuset.*No such file"),
    ("cgroup/nvml", r"Failed to initialize NVML: Unknown Error"),
    ("cgroup/kubelet-state", r"(?:could not restore state from checkpoint|current set of available "
                             r"CPUs .{0,200} doesn't match with CPUs in state|policy .{0,40} "
                             r"differs from state checkpoint policy|invalid state, please drain"
                             r"|delete the CPU manager (?:checkpoint|state) file)"),
    ("cgroup/kubelet-admit", r"(?:TopologyAffinityError|Resources cannot be allocated with Topology"
                             r" locality|SMTAlignmentError|not enough cpus available to satisfy "
                             r"request|UnexpectedAdmissionError)"),
    ("cgroup/unknown-key", r"Unknown (?:key name|lvalue|key) '"
                           r"(?P<key>(?:CPU|NUMA|Memory|Allowed|Startup|Delegate|Slice|Limit|IO"
                           r"|IRQ|Block|Tasks|Device|Managed|OOM|Nice)\w*)' in section "
                           r"'(?P<section>[^']+)'"),
    ("cgroup/spawn", r"Failed at step (?P<step>CPUAFFINITY|NUMA_POLICY|CGROUP|SETSCHEDULER|LIMITS)"
                     r" spawning (?P<what>\S+): (?P<error>.*)"),
    # ---- interrupts
    ("irq/vectors", r"(?:IRQ|irq) ?(?P<irq>\d+)?:? ?(?:set[_ ]affinity failed\(-28\)|Affinity "
                    r"broken due to vector space exhaustion)"),
    ("irq/set-failed", r"(?:IRQ|irq) ?(?P<irq>\d+):? ?set[_ ]affinity failed ?\(?(?P<code>-\d+)"),
    ("irq/write", r"(?:irq/(?P<irq>\d+)/)?smp_affinity(?:_list)?[\"']?:? .{0,80}?" + _ERRNO),
    ("irq/tuned", r"Failed to set SMP affinity of IRQ (?P<irq>\d+) to .{0,60}"
                  r"\[Errno (?P<error>\d+)\]"),
    ("irq/script", r"SMP_AFFINITY setting failed|(?:affinity|IRQ) setting failed"),
    ("irq/irqbalance", r"Cannot change IRQ (?P<irq>\d+) affinity: " + _ERRNO
                       + r"|IRQ (?P<irq2>\d+) affinity is now unmanaged"),
    ("irq/nobody", r"irq (?P<irq>\d+): nobody cared|Disabling IRQ #(?P<irq2>\d+)"),
    ("irq/no-longer", r"(?:IRQ|irq) ?(?P<irq>\d+): no longer affine to CPU(?P<cpu>\d+)"),
    ("irq/no-msix", r"not enough (?:device )?MSI-X vectors.*|(?:Failed|Unable) to (?:allocate|"
                    r"enable|acquire) MSI-?X (?:vectors|interrupts).*|-ENOSPC.{0,40}MSI"),
    # ---- isolation
    ("isolation/dropped", r"(?:Housekeeping: nohz_full= or isolcpus= incorrect CPU range|"
                          r"Housekeeping: .{0,20}must match.{0,40}|isolcpus: "
                          r"(?:Invalid|Error).{0,80}"
                          r"|Malformed early option '(?:isolcpus|nohz_full|rcu_nocbs|irqaffinity)'"
                          r"|nohz_full=?.{0,20}(?:doesn't match|incorrect).{0,60})"),
    ("isolation/rt-throttled", r"sched: (?:DL replenish lagged|RT throttling activated)"),
    ("isolation/tick", r"\[0*(?P<cpu>\d+)\].{0,60}tick_stop: success=0 "
                       r"dependency=(?P<error>[A-Z_]+)"),
    ("isolation/softirq", r"NOHZ(?: tick-stop error)?: (?:local_softirq_pending|Non-RCU local "
                          r"softirq|local softirq work is pending)"),
    ("isolation/tuned", r"tuned\.\S+.{0,20}(?:assertion .{0,100} "
                        r"failed.{0,80}|isolated_cores.{0,80})"
                        r"|assertion '[^']*(?:isolated|cores|cpu)[^']*' failed.{0,80}"),
    # ---- pinning
    ("pinning/membind", r"setting (?P<what>membind|interleave mask|preferred node): " + _ERRNO),
    ("pinning/mempolicy", r"(?P<call>set_mempolicy|get_mempolicy|mbind|migrate_pages|move_pages|"
                          r"numa_migrate_pages|set_mempolicy_home_node)\w*(?:\(\))?(?: failed)?"
                          r"[.:]?\s*(?:errno:? ?(?P<code>\d+)|" + _ERRNO + r")"),
    ("pinning/setaffinity", r"(?:sched_setaffinity|numa_sched_setaffinity\w*\(?\)?|taskset: failed "
                            r"to set pid \d+'s affinity|setaffinity)(?: failed)?:?\s*" + _ERRNO),
    ("pinning/loader", r"DataLoader will create (?P<want>\d+) worker processes in total\. Our "
                       r"suggested max number of worker in current system is (?P<have>\d+)"),
    ("pinning/range", r"libnuma: Warning: (?P<what>cpu|node) argument (?P<value>\S+) is out of "
                      r"range|<(?P<value2>[\d,-]+)> is invalid"),
    ("pinning/no-numa", r"libnuma: Warning: /sys not mounted or no numa system|No NUMA (?:support "
                        r")?"
                        r"available on this system"),
    ("pinning/no-numactl", r"numactl: (?:command )?not found|No such file or directory: "
                           r"'?numactl|numactl.{0,30}(?:is )?not (?:installed|available|found)"
                           r"|exec: \"?numactl\"?: executable file not found"),
    ("pinning/no-memory-bind", r"does NOT\s+support binding memory to the process location"),
    ("pinning/omp-ids", r"OMP: Warning #\d+: (?:Ignoring invalid OS proc ID (?P<cpu>\d+)|No valid "
                        r"OS proc IDs|.{0,60}not using affinity)|libgomp: (?:Invalid value for "
                        r"environment variable (?:GOMP_CPU_AFFINITY|OMP_PLACES)|Number of places "
                        r"reduced|Logical CPU number \d+ out of range|CPU affinity.{0,40})"),
    ("pinning/omp-ignored", r"OMP: Warning #\d+: (?P<name>OMP_\w+|KMP_\w+|GOMP_\w+)\S* ignored"
                            r"|OMP: Warning #\d+: .{0,60}ignored because (?P<name2>\w+) has been"),
    ("pinning/omp-team", r"OMP: Warning #\d+: Cannot form a team with (?P<want>\d+) threads"),
    ("pinning/onnx", r"pthread_setaffinity_np failed.{0,160}"),
    ("pinning/too-many", r"pthread_create failed.{0,80}Resource temporarily unavailable|can't start"
                         r" new thread|RLIMIT_NPROC"),
    ("pinning/mpi-overload", r"binding more\s+(?:processes|CPUs) than cpus|CPU binding outside of "
                             r"job(?: step)? allocation.{0,80}|not enough slots available"),
    ("pinning/scheduler", r"(?:chrt: failed to set|sched_setscheduler|Failed to set scheduler|"
                          r"pthread_setschedparam).{0,80}Operation not permitted"),
    # ---- memory
    ("memory/eal-no-pages", r"EAL: No (?:free|available) (?:(?P<kb>\d+) kB )?hugepages reported"
                            r"(?: in hugepages-(?P<kb2>\d+)kB)?(?: on (?:node|socket) "
                            r"(?P<node>\d+))?"),
    ("memory/eal-socket", r"EAL: Not enough memory available on socket (?P<node>\d+)! Requested: "
                          r"(?P<want>\d+)MB, available: (?P<have>\d+)MB"),
    ("memory/eal-init", r"EAL: (?:FATAL: )?(?:Cannot get hugepage information|Cannot init memory|"
                        r"Cannot allocate memzone|Invalid memory)"),
    ("memory/eal-mount", r"EAL: \d+ hugepages of size (?P<bytes>\d+) reserved, but no mounted "
                         r"hugetlbfs found"),
    ("memory/eal-file", r"EAL: (?:get_seg_fd|map_all_hugepages|Couldn't get fd|Cannot open).{0,80}?"
                        r"(?:hugepage|get_seg_fd|rtemap).{0,80}"),
    ("memory/eal-policy", r"(?:EAL: )?set_mempolicy(?:\(MPOL_\w+\))? failed: (?P<error>.*)"),
    ("memory/eal-iova", r"EAL: .*Cannot use IOVA as 'PA'.*|EAL: (?:FATAL: )?Cannot use IOVA.*"),
    ("memory/eal-vfio-viable", r"(?:VFIO )?group (?:\d+ )?is not viable"),
    ("memory/eal-dma", r"cannot set up DMA remapping|VFIO_MAP_DMA.{0,40}failed|DMA remapping "
                       r"failed"),
    ("memory/eal-device", r"EAL: (?:Requested device (?P<bdf>\S+) cannot be used|Driver cannot "
                          r"attach the device|failed to open (?:VFIO group|/dev/vfio)\S*.*)"),
    ("memory/eal-ports", r"No probed ethernet devices|No Ethernet ports - bye|0 ports? (?:found|"
                         r"available)"),
    ("memory/eal-lcore", r"EAL: (?:lcore (?P<cpu>\d+) unavailable|invalid "
                         r"(?:core(?:list|mask)|lcore"
                         r").*|Cannot set affinity.*|core \d+ .{0,20}not (?:present|available))"),
    ("memory/eal-lock", r"EAL: Cannot create lock on '[^']*'"),
    ("memory/eal-remote", r"(?:port|Port) (?P<port>\d+) is on remote NUMA node to polling thread|"
                          r"NIC .{0,30}different (?:NUMA )?(?:socket|node)"),
    ("memory/mbuf", r"Cannot (?:create|init) (?:mbuf|mempool|pktmbuf)\w* ?(?:pool)?.*|"
                    r"MEMPOOL: .{0,60}(?:Cannot|failed).*|RING: Cannot reserve memory"),
    ("memory/hugetlb-short", r"HugeTLB: allocating (?P<want>\d+) of page size (?P<size>[\d.]+ "
                             r"[KMG]i?B) "
                             r"failed(?: node(?P<node>\d+))?\.\s*Only allocated (?P<have>\d+) "
                             r"hugepages"),
    ("memory/backing", r"(?:unable to map backing store|can't open backing store|unable to "
                       r"allocate).{0,40}(?:guest RAM|guest memory).{0,80}"),
    ("memory/memlock", r"RLIMIT_MEMLOCK.{0,60}|(?:ibv_reg_mr|ibv_create_\w+|ibv_reg_mr_iova2?|"
                       r"mlockall|mlock)\b.{0,60}(?:Cannot allocate memory|failed.{0,20}12|"
                       r"Operation not permitted)|memlock (?:limit|rlimit).{0,60}(?:low|small)"),
    ("memory/insufficient-k8s", r"[Ii]nsufficient hugepages-(?P<size>\w+)"),
    # ---- shared memory
    ("shm/nccl", r"Error while (?:creating|attaching to) shared memory segment (?P<file>\S+)"
                 r"(?: \(size (?P<size>\d+)\))?(?:, error: (?P<error>.*))?"),
    ("shm/allocate", r"(?:posix_fallocate|ftruncate|shm_open)\b.{0,60}(?P<error>No space left on "
                     r"device|Cannot allocate memory)|unable to allocate shared memory.{0,80}"
                     r"|(?:/dev/shm|shared memory|psm_|torch_).{0,120}No space left on device"
                     r"|No space left on device.{0,80}(?:/dev/shm|/psm_|/torch_|shared_memory)"),
    ("shm/bus", r"[Uu]nexpected bus error.{0,160}|killed by signal: Bus error.{0,160}|insufficient "
                r"shared memory.{0,40}|\bBus error\b.{0,40}|\bSIGBUS\b.{0,60}"),
    ("shm/files", r"unable to open shared memory object <(?P<file>[^>]*)>.{0,40}Too many open files"
                  r"|received 0 items of ancdata"),
    ("shm/ray", r"object store is using (?P<where>\S+) instead of /dev/shm because /dev/shm has "
                r"only (?P<have>\d+) bytes"),
    ("shm/leaked", r"There appear to be (?P<count>\d+) leaked (?:shared_memory|semaphore) objects"),
    ("shm/gone", r"FileNotFoundError:.{0,80}'/?(?P<file>(?:psm_|torch_|dev/shm/)\S+?)'"),
    ("shm/waiting", r"No available shared memory broadcast block found in (?P<s>\d+) second"),
    # ---- feeds, NICs, clocks
    ("feed/xsk", r"(?:AF_XDP|xsk|XSK|[Bb]ind).{0,80}?(?:\"|'|: "
                 r"|\()?(?P<error>Operation not "
                 r"supported|EOPNOTSUPP|Device or resource busy|EBUSY|Invalid argument|EINVAL|"
                 r"Operation not permitted|EPERM|-95|No buffer space available|ENOBUFS)"),
    ("feed/xdp-native", r"[Dd]river does not support XDP in native mode.{0,80}"),
    ("feed/xdp-attach", r"(?:XDP|xdp).{0,80}(?:MTU|mtu).{0,60}(?:too "
                        r"(?:large|big)|larger|exceeds).*"
                        r"|(?:Failed to set xdp|Too few free TX rings|can't set XDP while|XDP "
                        r"expects"
                        r"|XDP is not (?:allowed|supported)|Error attaching XDP).{0,120}"
                        r"|[Nn]ative (?:mode|XDP).{0,40}not supported.{0,60}"),
    ("feed/conntrack", r"nf_conntrack: (?:nf_conntrack: )?table full, dropping packet"),
    ("feed/tx-timeout", r"NETDEV WATCHDOG: (?P<nic>\S+) .{0,40}transmit queue (?P<queue>\d+) "
                        r"timed out"),
    ("feed/link", r"\b(?P<nic>\w{1,15}): NIC Link is Down|\b(?P<nic2>\w{1,15}): Link is down|Link "
                  r"status.{0,10}down"),
    ("feed/membership", r"(?:IP_ADD_MEMBERSHIP|IPV6_JOIN_GROUP|mcast join|multicast group|add "
                        r"membership).{0,80}(?P<error>No buffer space available|No such device|"
                        r"Cannot assign requested address)"),
    ("feed/rcvbuf", r"failed to sufficiently increase receive buffer size.{0,100}|SO_RCVBUF.{0,60}"
                    r"(?:fail|limit|less|small|only).{0,60}"),
    ("feed/ptp-mode", r"interface '?(?P<nic>[\w.@-]+)'? does not support (?:the )?requested "
                      r"timestamping mode|(?:ioctl )?SIOC[GS]HWTSTAMP\b.{0,60}(?:failed|not "
                      r"supported"
                      r")|[Nn]o PTP (?:hardware )?clock.{0,60}"),
    ("feed/ptp-txstamp", r"timed out while polling for tx timestamp"),
    ("feed/ptp-faulty", r"port \d+.{0,40} to FAULTY|FAULT_DETECTED"),
    ("feed/ptp-jump", r"clockcheck: clock(?:\w+)? (?:jumped|frequency).{0,80}"),
    ("feed/gap", r"(?:[Ss]equence(?: number)? gap|gap detected|missed "
                 r"(?:sequence|messages)).{0,80}"),
)  # fmt: skip
_TARGET = re.compile(r">+\s*(?P<path>/(?:sys|proc)/\S+)|\btee (?:-a )?(?P<path2>/(?:sys|proc)/\S+)")
_WRITE_ERROR = re.compile(r"(?:write error|/(?:sys|proc)/\S+): " + _ERRNO)
_TARGETS = (
    ("smp_affinity", "irq/write"),
    ("cpuset.", "cgroup/write"),
    ("cgroup.", "cgroup/write"),
    ("hugepages", "memory/write"),
)
"""What a shell's `write error` means, by the file it wrote to."""
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _ROWS)
_HINT = re.compile(
    r"no space|denied|busy|fail|error|warn|unable|cannot|can't|not "
    r"|invalid|drop|gap|full|leaked|timed out|throttl|"
    r"nobody|no longer|housekeeping|nohz|isolcpus|malformed|eal:|memlock|bus|down|unknown|fault|"
    r"tick_stop|requested|insufficient|suggested|exhaust|libnuma|omp:|libgomp|clockcheck|unmanaged|disabling|instead|"
    r"no (?:free|available|probed|ptp|numa)|ancdata|binding|assertion|lagged|smtal|topologyaff|"
    r"remote numa|xdp|xsk",
    re.IGNORECASE,
)
"""A line without any of these means nothing here: most lines of a log cost one search."""


_OS_ERROR = re.compile(
    r"(?:OSError|PermissionError): \[Errno \d+\] (Invalid argument|Operation not permitted)"
)


def read_messages(text: str, name: str) -> Part | None:
    """The lines that the catalogue knows, each once, first row that fits."""
    said: list[Said] = []
    counts: dict[str, int] = {}
    target, binds = "", False
    for raw in text.split("\n"):
        line = raw.strip()[:MAX_LINE]
        if ">" in line or "tee " in line:
            m = _TARGET.search(line)
            target = (m["path"] or m["path2"]) if m else target
        if "os.sched_setaffinity(" in line:
            binds = True  # Python prints the call, and the error some lines below it
        if not line or _HINT.search(line) is None:
            continue
        found = _known(line, target)
        if found is None and binds and (m := _OS_ERROR.match(line)) is not None:
            found = "pinning/setaffinity", {"error": m[1]}
        if found is None:
            continue
        kind, values = found
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= MAX_SAID:
            said.append(Said(source=name, kind=kind, line=line[:400], values=values))
    return Part(kind="messages", reports=tuple(said)) if said else None


def _known(line: str, target: str) -> tuple[str, dict[str, str]] | None:
    """Kind and values of a line; `target` is the kernel file that a shell wrote to before it."""
    m = _WRITE_ERROR.search(line)
    if m is not None:
        path = re.search(r"/(?:sys|proc)/[^\s:'\"]+", line)
        at = path[0] if path else target
        kind = next((k for word, k in _TARGETS if word in at), None)
        if kind is not None:
            group, _, leaf = at.rpartition("/")
            irq = re.search(r"irq/(\d+)/", at)
            values = {"error": m["error"], "file": leaf, "group": group, "path": at}
            return kind, values | ({"irq": irq[1]} if irq else {})
    for kind, pattern in _PATTERNS:
        m = pattern.search(line)
        if m is not None:
            values = {k.rstrip("2"): v for k, v in m.groupdict().items() if v is not None}
            return kind, values | (_pool(values) if kind == "memory/eal-no-pages" else {})
    return None


def _pool(values: dict[str, str]) -> dict[str, str]:
    """The pool of huge pages that a line of DPDK speaks of: its folder, a number to write."""
    kb, node = values.get("kb", "2048"), values.get("node")
    at = "kernel/mm" if node is None else f"devices/system/node/node{node}"
    return {
        "pool": f"/sys/{at}/hugepages/hugepages-{kb}kB",
        "kb": kb,
        "where": "" if node is None else f" on node {node}",
        "pages": str(max(1, (2 << 20) // max(1, int(kb)))),
    }
