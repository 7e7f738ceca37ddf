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
CHANNELS = """\
Channel parameters for ens1:
Pre-set maximums:
RX:             n/a
Combined:       64
Current hardware settings:
RX:             n/a
Combined:       {now}
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
        ("a key of no concern",
         P("x.service:7: Unknown key name 'RestartSteps' in section 'Service', ignoring."), V.NA),
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
        ("ran on one", P("PID TID PSR COMMAND\n9 9 3 a\n9 10 3 a\n9 11 3 a"), V.WARN),
        ("ran on several", P("PID TID PSR COMMAND\n9 9 3 a\n9 10 4 a\n9 11 5 a"), V.OK),
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
    "feed.loss": [
        ("missed", P("NIC statistics:\n     rx_packets: 900\n     rx_missed_errors: 100"), V.FAIL),
        ("a few", P("NIC statistics:\n     rx_packets: 9000000\n     rx_out_of_buffer: 3"), V.WARN),
        ("none since", P(**{"ethtool-S-t0.txt": "rx_packets: 900\nrx_missed_errors: 100",
                            "ethtool-S-t1.txt": "rx_packets: 990\nrx_missed_errors: 100"}), V.OK),
        ("udp", P("Udp:\n    1000 packets received\n    50 packet receive errors\n"
                  "    RcvbufErrors: 50"), V.FAIL),
        ("snmp", P("Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\n"
                   "Udp: 1000 0 50 5 50 0"), V.FAIL),
        ("nstat", P("UdpInDatagrams  1000000  0.0\nUdpRcvbufErrors  5  0.0"), V.WARN),
        ("softnet", P("0000ffff 00000400 00000002 00000000 00000000 00000000 00000000 00000000 "
                      "00000000 00000000 00000000 00000000 00000000"), V.FAIL),
        ("socket", P("UNCONN 0 0 0.0.0.0:5000 0.0.0.0:* users:((\"f\",pid=1,fd=3))\n"
                     "\t skmem:(r0,rb212992,t0,tb212992,f0,w0,o0,bl0,d7771)"), V.FAIL),
        ("link", P("2: ens1: <UP> mtu 1500 qdisc mq state UP\n    link/ether aa:bb\n"
                   "    RX:  bytes packets errors dropped  missed   mcast\n"
                   "    90000 1000 0 0 200 0"), V.FAIL),
        ("capture", P("10 packets captured\n2000 packets received by filter\n"
                      "1500 packets dropped by kernel"), V.FAIL),
        ("ring", P('{"published": 1000, "read": 900, "lost": 100}'), V.FAIL),
        ("clean", P("NIC statistics:\n     rx_packets: 900\n     rx_missed_errors: 0"), V.OK),
        ("nothing", N, V.NA),
    ],
    "feed.nic-driver": [
        ("out of tree", P("driver: ice\nversion: 1.12.6\nbus-info: 0000:3b:00.0"), V.WARN),
        ("no zero-copy", P("driver: tg3\nversion: 6.8.0\nbus-info: 0000:3b:00.0"), V.WARN),
        ("kernel's", P("driver: ice\nversion: 6.8.0-45-generic\nbus-info: 0000:3b:00.0"), V.OK),
        ("nothing", N, V.NA),
    ],
    "feed.queues": [
        ("one", P(CHANNELS.format(now=1)), V.WARN),
        ("short ring", P("Ring parameters for ens1:\nPre-set maximums:\nRX:\t\t8160\n"
                         "Current hardware settings:\nRX:\t\t512"), V.WARN),
        ("several", P(CHANNELS.format(now=16)), V.OK),
        ("nothing", N, V.NA),
    ],
    "feed.nic-settings": [
        ("no link", P("Settings for ens1:\n\tSpeed: Unknown!\n\tLink detected: no"), V.FAIL),
        ("lro", P("Features for ens1:\nlarge-receive-offload: on"), V.WARN),
        ("held", P("Coalesce parameters for ens1:\nAdaptive RX: off  TX: off\nrx-usecs: 50"),
         V.WARN),
        ("adaptive", P("Coalesce parameters for ens1:\nAdaptive RX: on  TX: on\nrx-usecs: 8"),
         V.INFO),
        ("fine", P("Features for ens1:\nlarge-receive-offload: off [fixed]"), V.OK),
        ("nothing", N, V.NA),
    ],
    "feed.timestamps": [
        ("none", P("Time stamping parameters for ens1:\nCapabilities:\n\tsoftware-receive\n"
                   "PTP Hardware Clock: none"), V.WARN),
        ("all", P("Time stamping parameters for ens1:\nCapabilities:\n\thardware-receive\n"
                  "PTP Hardware Clock: 0\nHardware Receive Filter Modes:\n\tnone\n\tall"), V.OK),
        ("nothing", N, V.NA),
    ],
    "feed.xdp-mode": [
        ("generic", P("4: ens1: <UP> mtu 1500 xdpgeneric/id:12 qdisc mq"), V.WARN),
        ("json", P('[{"xdp":[{"devname":"ens1","ifindex":4,"mode":"generic","id":12}],"tc":[]}]'),
         V.WARN),
        ("native", P("xdp:\nens1(4) driver id 12\n\ntc:\n"), V.OK),
        ("nothing", N, V.NA),
    ],
    "feed.clock": [
        ("unsynchronised", P("Stratum         : 0\nLeap status     : Not synchronised"), V.FAIL),
        ("ptp off", P("ptp4l[1.2]: master offset     -48213 s2 freq   +100 path delay "
                      "900"), V.WARN),
        ("ptp good", P("ptp4l[1.2]: rms   12 max   34 freq  +100 +/-  9 delay  900 +/-  1"), V.OK),
        ("ntp good", P("Stratum : 3\nSystem time : 0.000012 seconds slow of NTP time\n"
                       "Leap status : Normal"), V.OK),
        ("nothing", N, V.NA),
    ],
    "feed.groups": [
        ("none", P("2:\tens1\n\tlink  01:00:5e:00:00:01\n\tinet  224.0.0.1\n"), V.WARN),
        ("joined", P("2:\tens1\n\tinet  233.54.12.111\n\tinet  224.0.0.1\n"), V.OK),
        ("nothing", N, V.NA),
    ],
}  # fmt: skip
