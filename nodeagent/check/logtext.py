"""What each known log line means and what helps. `{name}` is a value that the line gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.model.finding import Verdict


@dataclass(frozen=True, slots=True)
class Meaning:
    """A verdict, the subject, a sentence and a remedy."""

    verdict: Verdict
    subject: str
    sentence: str
    remedy: str = ""


_F, _W, _I = Verdict.FAIL, Verdict.WARN, Verdict.INFO
_CLEAR = (
    "find /sys/fs/cgroup{group} -mindepth 1 -depth -name '{file}' -exec sh -c 'echo > \"$1\"' _ "
    "{{}} \\;  # children first, then the group itself"
)
_SYS_NICE = (
    "give it the right: --cap-add SYS_NICE (docker, podman), "
    "securityContext.capabilities.add: [SYS_NICE] (Kubernetes)"
)
_DELETE_STATE = (
    "drain the node, then: systemctl stop kubelet; rm /var/lib/kubelet/cpu_manager_state "
    "/var/lib/kubelet/memory_manager_state; systemctl start kubelet"
)
UNUSED = (
    'for f in /dev/shm/*; do fuser -s "$f" || echo rm "$f"; done  # as root: prints what nobody '
    "has open, and removes nothing"
)
_ROOM = "--shm-size=16g or --ipc=host for the container; emptyDir with medium: Memory in Kubernetes"

MEANINGS: Mapping[str, Meaning] = {
    # ---- control groups
    "cgroup/set: no space left on device": Meaning(
        _F, "{group}",
        "{file} of {group} could not be set to '{value}': not a disk error, the kernel does not "
        "leave a group without CPUs or nodes while it has processes or a child still has its own",
        _CLEAR,
    ),
    "cgroup/set: device or resource busy": Meaning(
        _F, "{group}",
        "{file} of {group} could not be set to '{value}': a child group uses CPUs outside that "
        "list, or real-time tasks run there",
        "grep . $(find /sys/fs/cgroup{group} -name {file}); narrow the children first",
    ),
    "cgroup/set: invalid argument": Meaning(
        _F, "{group}",
        "{file} of {group} could not be set to '{value}': the list names CPUs or nodes that are "
        "not "
        "there, or overlaps an exclusive sibling",
        "compare with /sys/devices/system/cpu/online and the siblings' cpuset.cpus.exclusive",
    ),
    "cgroup/set": Meaning(
        _F, "{group}", "{file} of {group} could not be set to '{value}': {error}",
        "cat /sys/fs/cgroup{group}/cgroup.controllers; systemctl show -p Delegate on the unit",
    ),
    "cgroup/write: permission denied": Meaning(
        _F, "{group}",
        "{file} of {group} was refused: on cgroup v1 a child's list must lie within its parent's",
        "widen the parent's list first: cat $(dirname {group})/{file}",
    ),
    "cgroup/write: no space left on device": Meaning(
        _F, "{group}",
        "{file} of {group} was refused: not a disk error, the group has processes and would be "
        "left "
        "without CPUs or nodes, or its own list is still empty",
        "write cpuset.cpus and cpuset.mems of the group before moving processes into it",
    ),
    "cgroup/write: device or resource busy": Meaning(
        _F, "{group}",
        "{file} of {group} was refused: a child group still uses what would be taken away",
        "grep . $(find {group} -name {file}); narrow the children first",
    ),
    "cgroup/write": Meaning(
        _F, "{group}", "{file} of {group} was refused: {error}",
        "compare the list with the parent's {file}.effective and the siblings' "
        "cpuset.cpus.exclusive",
    ),
    "cgroup/not-available": Meaning(
        _F, "container",
        "{what} {value} were asked for, but only {have} are available to containers",
        "name {what} within {have}: --cpuset-cpus / --cpuset-mems; or widen the parent group",
    ),
    "cgroup/no-controller": Meaning(
        _F, "cpuset controller", "the cpuset controller is not switched on for that group",
        "echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control, and in each group on the way; "
        "for users: Delegate=cpuset in user@.service.d",
    ),
    "cgroup/nvml": Meaning(
        _F, "NVML",
        "NVML answers Unknown Error: the container lost its rights to /dev/nvidia*, as after "
        "systemctl daemon-reload",
        "restart the container; to keep it: nvidia-ctk system create-dev-char-symlinks "
        "--create-all, or pass --device=/dev/nvidia0 --device=/dev/nvidiactl",
    ),
    "cgroup/kubelet-state": Meaning(
        _F, "kubelet",
        "the CPU manager's state file does not fit this machine or policy: kubelet does not start",
        _DELETE_STATE,
    ),
    "cgroup/kubelet-admit": Meaning(
        _F, "kubelet",
        "a pod was refused: its CPUs and devices do not fit the topology policy",
        "ask for whole cores of one node, or use topologyManagerPolicy: best-effort",
    ),
    "cgroup/unknown-key": Meaning(
        _W, "{key}", "systemd ignores {key} in [{section}]: this version does not know it there",
        "put it where it belongs (CPUAffinity= and AllowedCPUs= in [Service] or [Slice]), "
        "systemd-analyze verify UNIT",
    ),
    "cgroup/spawn": Meaning(
        _F, "{what}", "{what} does not start: its {step} setting failed with {error}",
        "systemctl cat the unit: CPUAffinity= and NUMAMask= must name CPUs and nodes that are "
        "there",
    ),
    # ---- interrupts
    "irq/vectors": Meaning(
        _F, "irq {irq}",
        "interrupt {irq} could not go where it was asked to: the target CPU has no free vector "
        "(ENOSPC is about vectors)",
        "use fewer queues (ethtool -L NIC combined N), spread the interrupts over more CPUs; "
        "cat /sys/kernel/debug/irq/domains/VECTOR",
    ),
    "irq/tuned: 5": Meaning(
        _W, "irq {irq}",
        "tuned could not move interrupt {irq}: the kernel manages its mask (EIO)",
        "isolcpus=managed_irq,domain,LIST at boot keeps managed interrupts off isolated CPUs; "
        "grep . /proc/irq/{irq}/effective_affinity_list tells where it is",
    ),
    "irq/tuned": Meaning(
        _F, "irq {irq}", "tuned could not move interrupt {irq}: error {error}",
        "grep . /proc/irq/{irq}/effective_affinity_list; dmesg | grep -i vector",
    ),
    "irq/set-failed": Meaning(
        _F, "irq {irq}", "interrupt {irq} was not moved: the kernel answers {code}",
        "cat /proc/irq/{irq}/effective_affinity_list; a managed interrupt (-5) needs "
        "isolcpus=managed_irq,...",
    ),
    "irq/write: input/output error": Meaning(
        _W, "irq {irq}",
        "the mask of interrupt {irq} cannot be written: the kernel manages it (EIO)",
        "isolcpus=managed_irq,domain,LIST at boot keeps managed interrupts away; or fewer queues",
    ),
    "irq/write: no space left on device": Meaning(
        _F, "irq {irq}", "interrupt {irq} was not moved: the target CPU has no free vector",
        "use fewer queues (ethtool -L NIC combined N) or a wider mask",
    ),
    "irq/write: value too large for defined data type": Meaning(
        _F, "irq {irq}", "the mask for interrupt {irq} is longer than this kernel's CPUs",
        "write the list instead: echo 4-7 > /proc/irq/{irq}/smp_affinity_list",
    ),
    "irq/write": Meaning(
        _F, "irq {irq}", "the mask of interrupt {irq} was refused: {error}",
        "name online CPUs: echo LIST > /proc/irq/{irq}/smp_affinity_list, then read "
        "effective_affinity_list back",
    ),
    "irq/script": Meaning(
        _F, "irq", "the vendor's affinity script could not set a mask",
        "read /proc/irq/N/effective_affinity_list back; fewer queues: ethtool -L NIC combined N",
    ),
    "irq/irqbalance": Meaning(
        _I, "irq {irq}", "irqbalance may not move interrupt {irq}: the kernel manages it",
    ),
    "irq/nobody": Meaning(
        _F, "irq {irq}", "interrupt {irq} was not handled by any driver and was switched off",
        "cat /proc/interrupts; update the driver or firmware of the devices on that line",
    ),
    "irq/no-longer": Meaning(
        _W, "irq {irq}", "interrupt {irq} was moved away from CPU {cpu}, which went offline",
        "set its mask again after the CPU is back: cat /proc/irq/{irq}/smp_affinity_list",
    ),
    "irq/no-msix": Meaning(
        _W, "irq", "a device got fewer interrupt vectors than it asked for: queues are shared",
        "ethtool -l NIC; fewer queues, or fewer virtual functions",
    ),
    # ---- isolation
    "isolation/dropped": Meaning(
        _F, "boot arguments", "the kernel dropped an isolation argument at boot",
        "mend the list on the command line (isolcpus=managed_irq,domain,4-N), update-grub, reboot",
    ),
    "isolation/rt-throttled": Meaning(
        _W, "real-time throttling",
        "a real-time thread used up its share: the kernel stops it for 50 ms of each second",
        "run spinning threads as SCHED_OTHER on isolated CPUs, or "
        "sysctl -w kernel.sched_rt_runtime_us=-1",
    ),
    "isolation/tick: sched": Meaning(
        _W, "cpu {cpu}",
        "the tick could not stop on CPU {cpu}: more than one task wants to run there, or a CPU "
        "quota needs the tick",
        "ps -eLo psr,tid,comm --no-headers | awk '$1 == {cpu}'; cat the cpu.max of the workload's "
        "group: max is needed",
    ),
    "isolation/tick: posix_timer": Meaning(
        _W, "cpu {cpu}", "the tick could not stop on CPU {cpu}: a POSIX CPU timer is armed",
        "take setitimer(ITIMER_PROF) and CPU-time timers out of the program; a profiler arms them",
    ),
    "isolation/tick: perf_events": Meaning(
        _W, "cpu {cpu}", "the tick could not stop on CPU {cpu}: a perf event rotates there",
        "sysctl -w kernel.nmi_watchdog=0; stop perf and monitors that count on CPU {cpu}",
    ),
    "isolation/tick": Meaning(
        _W, "cpu {cpu}", "the tick could not stop on CPU {cpu}: {error}",
        "cat /sys/devices/system/clocksource/clocksource0/current_clocksource /proc/cmdline  "
        "(CLOCK_UNSTABLE: the TSC was given up; RCU: rcu_nocbs=)",
    ),
    "isolation/softirq": Meaning(
        _W, "tick", "a CPU wanted to stop its tick with softirqs pending: work is late there",
        "move that device's interrupts off the CPU: grep . /proc/irq/*/effective_affinity_list",
    ),
    "isolation/tuned": Meaning(
        _F, "tuned", "tuned refuses its isolation variables: the profile is not in force",
        "name online CPUs in /etc/tuned/*-variables.conf, then tuned-adm profile NAME; reboot",
    ),
    # ---- pinning
    "pinning/membind: invalid argument": Meaning(
        _F, "memory policy",
        "numactl could not set its {what}: a node it names is not allowed here "
        "(Mems_allowed_list) or not there",
        "grep Mems_allowed_list /proc/self/status  # name an allowed node, or widen "
        "cpuset.mems of the group (docker --cpuset-mems)",
    ),
    "pinning/membind": Meaning(
        _F, "memory policy", "numactl could not set its {what}: {error}", _SYS_NICE
    ),
    "pinning/mempolicy: operation not permitted": Meaning(
        _F, "memory policy",
        "{call} is not permitted: the container's seccomp profile asks for CAP_SYS_NICE, so memory "
        "is not bound",
        _SYS_NICE,
    ),
    "pinning/mempolicy: invalid argument": Meaning(
        _F, "memory policy",
        "{call} was refused: a node it names is not allowed here (Mems_allowed_list) or has no "
        "memory",
        "grep Mems_allowed_list /proc/self/status; name an allowed node with memory",
    ),
    "pinning/mempolicy": Meaning(
        _F, "memory policy", "{call} failed: memory is not bound (errno {code})", _SYS_NICE
    ),
    "pinning/setaffinity: operation not permitted": Meaning(
        _F, "affinity", "the affinity of another user's process may not be changed",
        _SYS_NICE,
    ),
    "pinning/setaffinity": Meaning(
        _F, "affinity",
        "an affinity call failed: none of the CPUs it names is allowed here or online",
        "grep Cpus_allowed_list /proc/self/status; name CPUs of that list",
    ),
    "pinning/loader": Meaning(
        _W, "DataLoader",
        "{want} loader processes were asked for, this process may use {have} CPUs",
        "num_workers={have} or less, divided by the ranks of the node; more CPUs for the container",
    ),
    "pinning/range": Meaning(
        _F, "numactl", "numactl was given {value}, which this process may not use or is not there",
        "numactl -s; grep allowed_list /proc/self/status; name what is allowed",
    ),
    "pinning/no-numa": Meaning(
        _W, "numactl", "this kernel or container shows no NUMA nodes: nothing is bound",
        "mount /sys in the container, or boot without numa=off",
    ),
    "pinning/no-numactl": Meaning(
        _W, "numactl", "numactl is not installed: the requested binding was NOT applied",
        "apt-get install numactl  # in the image; then read the masks back: "
        "grep allowed_list /proc/PID/status",
    ),
    "pinning/no-memory-bind": Meaning(
        _W, "MPI", "MPI binds processes but not their memory: libnuma is missing on that node",
        "apt-get install libnuma1 numactl on every node",
    ),
    "pinning/omp-ids": Meaning(
        _W, "OpenMP", "the OpenMP runtime was given CPUs that it may not use: threads stay unbound",
        "name CPUs of Cpus_allowed_list in OMP_PLACES, GOMP_CPU_AFFINITY or KMP_AFFINITY",
    ),
    "pinning/omp-ignored": Meaning(
        _W, "{name}", "the OpenMP runtime ignores {name}: another variable rules it out",
        "unset one: KMP_AFFINITY, or OMP_PROC_BIND with OMP_PLACES",
    ),
    "pinning/omp-team": Meaning(
        _W, "OpenMP", "a team of {want} threads was refused: a limit is lower",
        "OMP_NUM_THREADS no higher than the CPUs; look at OMP_THREAD_LIMIT and pids.max",
    ),
    "pinning/onnx": Meaning(
        _W, "affinity",
        "threads could not be pinned: they name CPUs of the host that this container may not use",
        "set intra_op_num_threads (or OMP_NUM_THREADS) to the CPUs of the container",
    ),
    "pinning/too-many": Meaning(
        _F, "threads", "threads could not be created: a limit on processes is reached",
        "OMP_NUM_THREADS=N OPENBLAS_NUM_THREADS=N; raise pids.max or ulimit -u",
    ),
    "pinning/mpi-overload": Meaning(
        _F, "launcher", "the launcher was asked to bind outside the CPUs it was given",
        "ask for more CPUs (--cpus-per-task), or --bind-to none",
    ),
    "pinning/scheduler": Meaning(
        _W, "scheduler policy", "a real-time policy was refused: the right or RLIMIT_RTPRIO is "
        "missing",
        "--cap-add SYS_NICE --ulimit rtprio=99; LimitRTPRIO= in the unit",
    ),
    # ---- memory
    "memory/eal-no-pages": Meaning(
        _W, "huge pages", "DPDK found no free huge pages of {kb} kB{where}",
        "echo {pages} > {pool}/nr_hugepages  # as many as it asks for; not needed while it runs on "
        "pages of another size",
    ),
    "memory/eal-socket": Meaning(
        _F, "node {node}",
        "DPDK asked for {want} MB on node {node} and found {have} MB of free huge pages there",
        "n=$(( {want} / 2 )); echo $n > "
        "/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages  # 2 MiB "
        "pages for {want} MB; at boot: hugepages={node}:$n",
    ),
    "memory/eal-init": Meaning(
        _F, "DPDK memory", "DPDK got no memory: no usable huge pages",
        "dpdk-hugepages.py -s; reserve pages on the nodes of the lcores, mount -t hugetlbfs "
        "nodev /dev/hugepages",
    ),
    "memory/eal-mount": Meaning(
        _F, "hugetlbfs", "huge pages of {bytes} bytes are reserved, but no hugetlbfs of that size "
        "is mounted",
        "mount -t hugetlbfs -o pagesize={bytes} nodev /dev/hugepages-{bytes}",
    ),
    "memory/eal-file": Meaning(
        _F, "hugetlbfs", "DPDK could not open its files in hugetlbfs",
        "ls -ld /dev/hugepages; rights of the user, and leftover rtemap_* files of dead processes",
    ),
    "memory/eal-policy": Meaning(
        _F, "memory policy",
        "DPDK could not prefer a node for its memory ({error}): the node has no memory or is not "
        "allowed here",
        "grep Mems_allowed_list /proc/self/status; reserve pages on each node, --cap-add SYS_NICE",
    ),
    "memory/eal-iova": Meaning(
        _W, "IOVA", "DPDK cannot use physical addresses: it lacks the right, or the IOMMU is off",
        "boot with intel_iommu=on iommu=pt (or amd_iommu), use vfio-pci and --iova-mode=va",
    ),
    "memory/eal-vfio-viable": Meaning(
        _F, "VFIO group",
        "the IOMMU group holds a device that is still bound to a kernel driver",
        "bind or unbind every function of the group: dpdk-devbind.py -b vfio-pci BDF ...",
    ),
    "memory/eal-dma": Meaning(
        _F, "DMA mapping", "the IOMMU mapping failed: memory may not be locked, or too much of it",
        "ulimit -l unlimited (LimitMEMLOCK=infinity); vfio_iommu_type1.dma_entry_limit",
    ),
    "memory/eal-device": Meaning(
        _F, "{bdf}", "DPDK cannot use the device {bdf}",
        "dpdk-devbind.py -s; bind it to vfio-pci and give rights to /dev/vfio/GROUP",
    ),
    "memory/eal-ports": Meaning(
        _F, "ports", "DPDK found no port",
        "dpdk-devbind.py -s; bind a NIC to vfio-pci, or allow it with -a BDF",
    ),
    "memory/eal-lcore": Meaning(
        _F, "lcores", "DPDK was given CPUs that it may not use or that are not there",
        "grep Cpus_allowed_list /proc/self/status; name CPUs of that list in -l",
    ),
    "memory/eal-lock": Meaning(
        _F, "DPDK", "another primary process holds the same file prefix",
        "stop it, or give this one --file-prefix NAME",
    ),
    "memory/eal-remote": Meaning(
        _W, "port {port}", "port {port} is polled from a CPU of another node",
        "cat /sys/bus/pci/devices/BDF/numa_node; choose lcores of that node with -l",
    ),
    "memory/mbuf": Meaning(
        _F, "mbuf pool", "the packet buffers could not be allocated",
        "more huge pages on the port's node, or fewer mbufs; --socket-mem for each node",
    ),
    "memory/hugetlb-short": Meaning(
        _F, "huge pages {size}", "{want} huge pages of {size} were asked for, {have} were "
                                 "allocated",
        "reserve them at boot, before memory is fragmented: hugepagesz=1G hugepages=N",
    ),
    "memory/backing": Meaning(
        _F, "guest memory", "the guest's memory could not be backed by huge pages",
        "grep Huge /proc/meminfo; reserve more on the guest's node",
    ),
    "memory/memlock": Meaning(
        _F, "memlock", "memory could not be locked or registered: RLIMIT_MEMLOCK is too low",
        "--ulimit memlock=-1 for a container; LimitMEMLOCK=infinity in the unit; ulimit -l",
    ),
    "memory/insufficient-k8s": Meaning(
        _F, "huge pages", "no node has enough free hugepages-{size} for the pod",
        "reserve them at boot and restart kubelet; kubectl describe node shows what it counts",
    ),
    "memory/write": Meaning(
        _F, "huge pages", "the number of huge pages in {path} could not be set: {error}",
        "reserve at boot: hugepagesz=1G hugepages=N; 1 GiB pages need unfragmented memory",
    ),
    # ---- shared memory
    "shm/nccl": Meaning(
        _F, "/dev/shm", "NCCL could not make {file} of {size} bytes in /dev/shm: {error}",
        "df -h /dev/shm; " + UNUSED + "; " + _ROOM,
    ),
    "shm/allocate": Meaning(
        _F, "/dev/shm", "shared memory could not be allocated: /dev/shm is full or too small",
        "df -h /dev/shm  # " + _ROOM,
    ),
    "shm/bus": Meaning(
        _F, "/dev/shm",
        "a process died of SIGBUS: it touched shared memory (or a file) beyond what the tmpfs had "
        "left",
        "df -h /dev/shm  # " + _ROOM,
    ),
    "shm/files": Meaning(
        _F, "open files", "too many open files: each shared tensor holds a descriptor",
        "ulimit -n 1048576, or torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    "shm/ray": Meaning(
        _W, "/dev/shm", "Ray keeps its objects in {where}, on a disk: /dev/shm has only {have} "
                        "bytes",
        "--shm-size of at least 30 % of memory for the container",
    ),
    "shm/leaked": Meaning(
        _W, "/dev/shm", "a process ended and left {count} shared objects behind",
        "ls -l /dev/shm; " + UNUSED,
    ),
    "shm/gone": Meaning(
        _F, "{file}", "{file} is gone: another process unlinked the shared memory that this one "
        "wanted",
        "look at the process that made it; Python's resource tracker unlinks at its exit "
        "(track=False from 3.13)",
    ),
    "shm/waiting": Meaning(
        _W, "shared memory ring",
        "the shared-memory ring waits for a reader for {s} s: a worker is stuck or compiling; this "
        "is no lack of space",
        "py-spy dump --pid WORKER; look at the workers' CPUs: grep allowed_list /proc/PID/status",
    ),
    # ---- feeds
    "feed/xsk: operation not supported": Meaning(
        _W, "AF_XDP",
        "the AF_XDP socket was refused (EOPNOTSUPP): this driver has no zero-copy, or not for that "
        "queue",
        "use copy mode (XDP_COPY) and say so, or the in-tree driver; ethtool -i NIC, ethtool -l "
        "NIC",
    ),
    "feed/xsk: device or resource busy": Meaning(
        _F, "AF_XDP", "the queue is taken: another AF_XDP socket or program holds it",
        "bpftool net; ss --xdp -a; stop the other process or choose another queue",
    ),
    "feed/xsk: operation not permitted": Meaning(
        _F, "AF_XDP", "the AF_XDP socket is not permitted",
        "give CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and memlock: --cap-add ... --ulimit memlock=-1",
    ),
    "feed/xsk": Meaning(
        _F, "AF_XDP",
        "the AF_XDP socket could not be bound ({error}): the queue may not exist, or ring sizes do "
        "not fit",
        "ethtool -l NIC tells the queues; queue ids go from 0 to combined - 1",
    ),
    "feed/xdp-native": Meaning(
        _F, "XDP", "the NIC's driver cannot run XDP programs in native mode",
        "xdp-loader load -m skb NIC PROGRAM  (generic mode: copies, slow); for zero-copy a NIC of "
        "ice, i40e, mlx5_core or another driver with native XDP",
    ),
    "feed/xdp-attach": Meaning(
        _F, "XDP", "the XDP program was not attached in native mode",
        "ip link set NIC mtu 1500; ethtool -K NIC lro off; ethtool -L NIC combined HALF  # each "
        "may "
        "take the link down for a second",
    ),
    "feed/conntrack": Meaning(
        _F, "nf_conntrack", "the connection table is full: packets are dropped",
        "sysctl -w net.netfilter.nf_conntrack_max=1048576; better, NOTRACK for the feed",
    ),
    "feed/tx-timeout": Meaning(
        _F, "{nic}", "transmit queue {queue} of {nic} stood still: the driver reset the NIC",
        "update the NIC's driver and firmware; ethtool -S {nic}",
    ),
    "feed/link": Meaning(_I, "{nic}", "the link of {nic} went down"),
    "feed/membership": Meaning(
        _F, "multicast", "a multicast group could not be joined: {error}",
        "sysctl -w net.ipv4.igmp_max_memberships=1024; name the interface in the join, with a "
        "route",
    ),
    "feed/rcvbuf": Meaning(
        _W, "receive buffer", "the receive buffer is smaller than the program asked for",
        "sysctl -w net.core.rmem_max=67108864, and a file in /etc/sysctl.d",
    ),
    "feed/ptp-mode": Meaning(
        _F, "{nic}", "{nic} has no hardware time stamps of the kind that was asked for",
        "ethtool -T {nic}; software time stamps (ptp4l -S) are off by tens of microseconds",
    ),
    "feed/ptp-txstamp": Meaning(
        _F, "ptp4l", "the NIC did not return a transmit time stamp in time",
        "tx_timestamp_timeout 100 in ptp4l.conf; update the NIC's driver",
    ),
    "feed/ptp-faulty": Meaning(
        _F, "ptp4l", "the PTP port went to FAULTY: the clock is not synchronised",
        "journalctl -u ptp4l; look at link and time stamping: ethtool -T NIC",
    ),
    "feed/ptp-jump": Meaning(
        _W, "clock", "the clock jumped or changed its rate: somebody else sets it too",
        "only one of chronyd, ntpd, phc2sys may set the clock: systemctl list-units '*chron*' "
        "'*ntp*' 'phc2sys*'",
    ),
    "feed/gap": Meaning(
        _W, "feed", "the feed reports a gap in its sequence numbers",
        "look where it was lost: ethtool -S NIC, nstat -az 'Udp*', /proc/net/softnet_stat",
    ),
}  # fmt: skip
"""By kind, and by `kind: error` where the error tells more."""
