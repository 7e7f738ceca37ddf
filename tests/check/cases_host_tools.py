"""Cases of test_checks.py for what tools of a host's configuration print: (name, what was pasted,
verdict)."""

from __future__ import annotations

from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.model.finding import Verdict
from nodeagent.model.snapshot import Snapshot

V = Verdict


def P(*texts: str, **named: str) -> Snapshot:  # noqa: N802  # short, for a table
    """What somebody pasted: texts without a telling name, and texts with one."""
    given = [Text(name=f"paste-{i}.txt", text=t) for i, t in enumerate(texts)]
    given += [Text(name=n.replace("__", "-"), text=t) for n, t in named.items()]
    return read_paste(given).snapshot


N = P("hello: world")
ONLY_TELL = {f"{t}.log" for t in ("isolation", "irq", "cgroup", "pinning", "memory", "shm", "feed")}
EAL = "EAL: Not enough memory available on socket 1! Requested: 1024MB, available: 64MB"
STATE = (
    '{"policyName":"static","defaultCpuSet":"0-1,6-7","entries":{"a1":{"c":"2-5"}},"checksum":1}'
)
NODES = "NUMA node0 CPU(s): 0-3\nNUMA node1 CPU(s): 4-7\n"
POD = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: a
    resources:
      limits:
        cpu: {cpu}
        memory: 64Gi
      requests:
        cpu: {cpu}
        memory: 64Gi
    volumeMounts:
    - mountPath: /dev/shm
  volumes:
  - emptyDir:
      medium: Memory
      sizeLimit: 16Gi
"""
FREE = (
    "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages: 1024\n"
    "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages: 0\n"
)
FREE_M = """\
               total        used        free      shared  buff/cache   available
Mem:             100          10          50           0           5          {available}
Swap:              8           {swap}           8
"""
NUMASTAT = """\
Per-node process memory usage (in MBs) for PID 4242 (python3)
                           Node 0          Node 1           Total
                  --------------- --------------- ---------------
Huge                         0.00            0.00            0.00
Heap                       100.00          100.00          200.00
Private                   4000.00         5000.00         9000.00
----------------  --------------- --------------- ---------------
Total                     4100.00         5100.00         9200.00
"""
CASES: dict[str, list[tuple[str, Snapshot, Verdict]]] = {
    "isolation.log": [
        ("dropped", P("[    0.0] Housekeeping: nohz_full= or isolcpus= incorrect CPU "
                      "range"), V.FAIL),
        ("throttled", P("[  812.4] sched: RT throttling activated"), V.WARN),
        ("nothing", N, V.NA),
    ],
    "irq.log": [
        ("vectors", P("irq 212: Affinity broken due to vector space exhaustion."), V.FAIL),
        ("managed", P("root@n1:~# echo 2 > /proc/irq/91/smp_affinity\n"
                      "bash: echo: write error: Input/output error"), V.WARN),
        ("irqbalance", P("irqbalance: Cannot change IRQ 44 affinity: Input/output error"), V.INFO),
        ("nothing", N, V.NA),
    ],
    "cgroup.log": [
        ("child", P("x.service: Failed to set 'cpuset.cpus' attribute on '/system.slice/x.service' "
                    "to '': No space left on device"), V.FAIL),
        ("runc", P('failed to write "4-7": write /sys/fs/cgroup/cpuset/pods/p1/cpuset.cpus: '
                   "permission denied"), V.FAIL),
        ("key", P("x.service:7: Unknown key name 'AllowedCPUS' in section 'Service', ignoring."),
         V.WARN),
        ("nothing", N, V.NA),
    ],
    "pinning.log": [
        ("membind", P("setting membind: Invalid argument"), V.FAIL),
        ("seccomp", P("set_mempolicy: Operation not permitted"), V.FAIL),
        ("no numactl", P("bash: line 1: numactl: command not found"), V.WARN),
        ("nothing", N, V.NA),
    ],
    "memory.log": [
        ("socket", P(EAL), V.FAIL),
        ("one size", P("EAL: No free hugepages reported in hugepages-1048576kB"), V.WARN),
        ("nothing", N, V.NA),
    ],
    "shm.log": [
        ("nccl", P("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size "
                   "9637888), error: No space left on device (28)"), V.FAIL),
        ("leaked", P("UserWarning: resource_tracker: There appear to be 3 leaked shared_memory "
                     "objects to clean up at shutdown"), V.WARN),
        ("nothing", N, V.NA),
    ],
    "feed.log": [
        ("copy", P("xsk_socket__create: Operation not supported"), V.WARN),
        ("queue", P('ERROR: Can\'t setup AF_XDP socket "Invalid argument"'), V.FAIL),
        ("nothing", N, V.NA),
    ],
    "isolation.boot-file": [
        ("not booted with it", P(grub='GRUB_CMDLINE_LINUX_DEFAULT="quiet isolcpus=4-7"',
                                 cmdline="BOOT_IMAGE=/v root=/dev/sda quiet"), V.WARN),
        ("booted with it", P(grub='GRUB_CMDLINE_LINUX="isolcpus=4-7"',
                             cmdline="BOOT_IMAGE=/v isolcpus=4-7"), V.OK),
        ("nothing", N, V.NA),
    ],
    "isolation.kernel-config": [
        ("asked", P(**{"config-6.1.0": "# CONFIG_NO_HZ_FULL is not set",
                       "cmdline": "BOOT_IMAGE=/v nohz_full=2-3"}), V.FAIL),
        ("not asked", P("# CONFIG_NO_HZ_FULL is not set\nCONFIG_HZ=250"), V.WARN),
        ("debugging", P("CONFIG_NO_HZ_FULL=y\nCONFIG_KASAN=y"), V.WARN),
        ("good", P("CONFIG_NO_HZ_FULL=y\nCONFIG_RCU_NOCB_CPU=y"), V.OK),
        ("of another kernel", P(**{"config-6.1.0": "# CONFIG_NO_HZ_FULL is not set",
                                   "uname-r": "6.8.0"}), V.NA),
    ],
    "isolation.tuned-verify": [
        ("differs", P("Verification failed, current system settings differ from the profile."),
         V.WARN),
        ("none", P("No current active profile."), V.WARN),
        ("active", P("Current active profile: throughput-performance"), V.OK),
        ("nothing", N, V.NA),
    ],
    "irq.irqbalance-says": [
        ("none", P("Isolated CPUs: 00000000\nBanned CPUs: 00000001", **{"cpu-isolated": "2-3"}),
         V.FAIL),
        ("all", P("Isolated CPUs: 0000000c", **{"cpu-isolated": "2-3"}), V.OK),
        ("nothing", N, V.NA),
    ],
    "irq.asked": [
        ("elsewhere", P(**{"proc-irq-90-smp_affinity": "00000001,00000000", "wanted": "5"}),
         V.FAIL),
        ("written", P("root@a:~# echo 20 > /proc/irq/90/smp_affinity\n"
                      "root@a:~# cat /proc/irq/90/smp_affinity\n01"), V.FAIL),
        ("there", P(**{"proc-irq-90-smp_affinity": "00000020", "wanted": "5"}), V.OK),
        ("nothing", N, V.NA),
    ],
    "cgroup.affinity-remembered": [
        ("inherited", P("pid 77's current affinity list: 0-3", **{
            "kubelet.service": "[Service]\nCPUAffinity=0 1 2 3", "uname-r": "6.8.0",
            "cpuset.cpus.effective": "0-31"}), V.WARN),
        ("pinned", P("pid 77's current affinity mask: f", **{"cpuset.cpus.effective": "0-31"}),
         V.INFO),
        ("all", P("pid 77's current affinity mask: f", **{"cpuset.cpus.effective": "0-3"}), V.OK),
        ("nothing", N, V.NA),
    ],
    "cgroup.devices": [
        ("lost", P(**{"devices.list.before": "c 195:* rwm", "devices.list.after": "c 1:3 rwm"}),
         V.FAIL),
        ("kept", P(**{"devices.list.before": "c 195:* rwm", "devices.list.after": "a *:* rwm"}),
         V.OK),
        ("closed", P(**{"job.service": "DevicePolicy=closed\nDeviceAllow=/dev/null rw"}), V.FAIL),
        ("nothing", N, V.NA),
    ],
    "cgroup.changed": [
        ("cpuset", P(**{"cpuset.cpus.before": "4-7", "cpuset.cpus.after": "0-15"}), V.WARN),
        ("same", P(**{"cpuset.cpus.before": "4-7", "cpuset.cpus.after": "4-7"}), V.OK),
        ("nothing", N, V.NA),
    ],
    "cgroup.exclusive-cpus": [
        ("reserved", P(STATE, reserved="0,5"), V.FAIL),
        ("offline", P(STATE, **{"cpu-online": "0-4"}), V.FAIL),
        ("twice", P('{"policyName":"static","defaultCpuSet":"0","entries":'
                    '{"p":{"a":"1-3"},"q":{"b":"3-4"}}}'), V.FAIL),
        ("well", P(STATE, **{"reserved": "0-1", "cpu-online": "0-7"}), V.OK),
        ("nothing", N, V.NA),
    ],
    "cgroup.container": [
        ("default", P("docker run --gpus all --cpuset-cpus 0-7 vllm/vllm-openai"), V.WARN),
        ("inspect", P('[{"Name":"/x","HostConfig":{"ShmSize":67108864,"IpcMode":"private"}}]'),
         V.WARN),
        ("far memory", P("docker run --shm-size=16g --cpuset-cpus 0-7 --cpuset-mems 1 img", NODES),
         V.WARN),
        ("burstable", P(POD.format(cpu="1500m")), V.WARN),
        ("whole", P(POD.format(cpu="8")), V.OK),
        ("host", P("docker run --ipc=host img"), V.OK),
        ("nothing", N, V.NA),
    ],
    "cgroup.unit": [
        ("offline", P(**{"a.service": "CPUAffinity=4-9", "cpu-online": "0-7"}), V.FAIL),
        ("isolated", P(**{"kubelet.service": "AllowedCPUs=0-7", "cpu-isolated": "4-7"}), V.WARN),
        ("no mask", P(**{"a.service": "NUMAPolicy=bind"}), V.WARN),
        ("good", P(**{"a.service": "CPUAffinity=0-3", "cpu-online": "0-7"}), V.OK),
        ("nothing", N, V.NA),
    ],
    "pinning.collapsed": [
        ("all", P("tid,comm,cpus_allowed\n7,python,0\n8,python,0\n9,python,0",
                  **{"cpuset.cpus.effective": "0-7"}), V.FAIL),
        ("bound", P("OMP_PROC_BIND=true", "pid 7's current affinity list: 3"), V.FAIL),
        ("called", P("OMP_PROC_BIND=true", "sched_setaffinity(7, 8, [0]) = 0",
                     "pid 7's current affinity list: 0-3"), V.WARN),
        ("own", P("tid,comm,cpus_allowed\n7,python,0\n8,python,1"), V.OK),
        ("nothing", N, V.NA),
    ],
    "pinning.outside-group": [
        ("refused", P("set_mempolicy(MPOL_BIND, [0x0000000000000002], 65) = -1 EINVAL (Invalid "
                      "argument)", "Mems_allowed_list:\t0"), V.FAIL),
        ("rights", P("mbind(0x7f00, 4096, MPOL_BIND, [0x1], 64, 0) = -1 EPERM (Operation not "
                     "permitted)"), V.FAIL),
        ("fine", P("sched_setaffinity(0, 128, [4 5 6 7]) = 0"), V.OK),
        ("nothing", N, V.NA),
    ],
    "pinning.ranks": [
        ("node 0", P("rank,gpu_node,cpus_allowed\n0,0,0-3\n1,1,0-3", NODES), V.FAIL),
        ("wide", P("rank,gpu_node,cpus_allowed\n0,0,0-7\n1,1,0-7", NODES), V.WARN),
        ("near", P("rank,gpu_node,cpus_allowed\n0,0,0-3\n1,1,4-7", NODES), V.OK),
        ("nothing", N, V.NA),
    ],
    "pinning.remote-memory": [
        ("far", P("rank,node0_mb,node1_mb\na,100,900", "rank,bdf,node\na,0000:11:00.0,0"), V.WARN),
        ("numastat", P(NUMASTAT), V.WARN),
        ("maps", P("7f0000000000 default anon=10 dirty=10 N0=9 N1=1 kernelpagesize_kB=4"), V.OK),
        ("nothing", N, V.NA),
    ],
    "pinning.oversubscribed": [
        ("quota", P("OMP_NUM_THREADS=64", **{"cpu.max": "800000 100000"}), V.WARN),
        ("fits", P("OMP_NUM_THREADS=8", **{"cpuset.cpus.effective": "0-7"}), V.OK),
        ("nothing", N, V.NA),
    ],
    "pinning.spread": [
        ("slower", P("cpus,search_ms\n0-7,10\n0-15,9\n0-31,20"), V.WARN),
        ("faster", P("cpus,qps\n0-7,10\n0-15,19"), V.OK),
        ("nothing", N, V.NA),
    ],
    "pinning.slower": [
        ("slower", P("instance,before_tok_s,after_tok_s\na,100,80"), V.WARN),
        ("faster", P("instance,before_ms,after_ms\na,100,80"), V.OK),
        ("nothing", N, V.NA),
    ],
    "pinning.tools": [
        ("missing", P(**{"which-numactl": ""}), V.WARN),
        ("there", P("$ which numactl\n/usr/bin/numactl"), V.OK),
        ("nothing", N, V.NA),
    ],
    "shm.usage": [
        ("nearly full", P("shm             1.0G  883M  142M  87% /dev/shm"), V.WARN),
        ("full", P("Filesystem 1K-blocks Used Available Use% Mounted on\n"
                   "shm 8388608 8388608 0 100% /dev/shm"), V.FAIL),
        ("small", P("shm  64M  0  64M  0% /dev/shm"), V.WARN),
        ("inodes", P("Filesystem Inodes IUsed IFree IUse% Mounted on\n"
                     "/dev/sda2 1000 990 10 99% /var"), V.FAIL),
        ("wrapped", P("/dev/mapper/a-very-long-name\n   50G 49G 1G 98% /"), V.FAIL),
        ("room", P("tmpfs tmpfs 252G 1.0G 251G 1% /dev/shm\n/dev/loop3 56M 56M 0 100% /snap/x/1"),
         V.OK),
        ("nothing", N, V.NA),
    ],
    "shm.files": [
        ("orphans", P("name,size,mapped_by\nnccl-a,9637888,\nnccl-b,9637888,"), V.WARN),
        ("too large", P("-rw------- 1 root root 134217728 Jan  2 10:00 psm_a",
                        "shm /dev/shm tmpfs rw,size=65536k 0 0"), V.FAIL),
        ("sysv", P("0x00000000 32768 root 600 1048576 0 dest"), V.WARN),
        ("held", P("name,size,mapped_by\nnccl-a,9637888,77"), V.OK),
        ("nothing", N, V.NA),
    ],
    "memory.hugepages-changed": [
        ("fewer", P(**{"hugepages-t0.txt": "nr_hugepages=512", "hugepages-t1.txt":
                       "nr_hugepages=8"}), V.FAIL),
        ("same", P(**{"hugepages.before": "nr_hugepages: 512", "hugepages.after":
                      "nr_hugepages: 512"}), V.OK),
        ("nothing", N, V.NA),
    ],
    "memory.dpdk": [
        ("other node", P(NODES, FREE, "dpdk-testpmd -l 1,5 -n 4 -- -i"), V.FAIL),
        ("too much", P(NODES, FREE, "./app -l 1-2 -n 4 --socket-mem 4096,0"), V.FAIL),
        ("fits", P(NODES, FREE, "./app -l 1-2 -n 4 --socket-mem 1024"), V.OK),
        ("nothing", N, V.NA),
    ],
    "memory.use": [
        ("low", P(FREE_M.format(available=3, swap=0)), V.WARN),
        ("none", P(FREE_M.format(available=0, swap=0)), V.FAIL),
        ("swapped", P(FREE_M.format(available=90, swap=4)), V.WARN),
        ("enough", P(FREE_M.format(available=90, swap=0)), V.OK),
        ("nothing", N, V.NA),
    ],
    "feed.dpdk-ports": [
        ("none", P("0000:3b:00.0 'Ethernet Controller E810-C' if=ens5f0 drv=ice unused=vfio-pci"),
         V.WARN),
        ("bound", P("0000:3b:00.0 'Ethernet Controller E810-C' drv=vfio-pci unused=ice"), V.OK),
        ("nothing", N, V.NA),
    ],
}  # fmt: skip
