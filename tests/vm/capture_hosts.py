"""Boots machines in QEMU and captures them: the `qemu-*.capture` files of tests/hosts.

    python -m tests.vm.capture_hosts FOLDER [NAME...]

FOLDER is an unpacked Debian kernel package: `apt-get download linux-image-6.1.0-N-amd64;
dpkg -x *.deb FOLDER`. Needs qemu-system-x86_64, a static busybox, and script/setup --test done.
No root, no network: everything is emulated, so a machine takes a minute or two. What the guest
shows is what QEMU's firmware tables say (SRAT, SLIT, HMAT, CPUID) as a real kernel read them.
"""

from __future__ import annotations

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass

from tests.vm.cpio import archive, in_order

PROJECT = pathlib.Path(__file__).resolve().parents[2]
HOSTS = PROJECT / "tests" / "hosts"
MODULES = ("nvme", "e1000e", "vmxnet3", "virtio_net", "virtio_pci")
PACKAGES = ("nodeagent", "click", "msgspec", "cffi")
LIMIT_S = 900
"""A machine that has not written its capture by then hangs."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """QEMU's arguments, the kernel's, and what the guest does before it captures itself."""

    arguments: str
    boot: str = ""
    before: str = ""


def nodes(*, sockets: int, cores: int, threads: int = 1, memory_mb: int = 512) -> str:
    """One NUMA node for each socket, with its own memory; neighbours are nearer."""
    each = cores * threads
    total = sockets * each
    parts = [
        f"-m {sockets * memory_mb}M",
        f"-smp {total},sockets={sockets},cores={cores},threads={threads}",
    ]
    for i in range(sockets):
        parts.append(f"-object memory-backend-ram,id=m{i},size={memory_mb}M")
        parts.append(f"-numa node,nodeid={i},cpus={i * each}-{(i + 1) * each - 1},memdev=m{i}")
    for i in range(sockets):
        for j in range(i + 1, sockets):
            parts.append(f"-numa dist,src={i},dst={j},val={21 if j == i ^ 1 else 31}")
    return " ".join(parts)


def switches(count: int) -> str:
    """A root complex on each node, a switch on it with two drives and a NIC, a NIC beside it."""
    parts = []
    for i in range(count):
        parts += [
            f"-device pxb-pcie,id=pxb{i},bus=pcie.0,bus_nr={0x20 + 0x40 * i},numa_node={i}",
            f"-device pcie-root-port,id=rp{i},bus=pxb{i},addr=0,chassis={10 * i + 1},slot=1",
            f"-device x3130-upstream,id=up{i},bus=rp{i}",
            f"-device pcie-root-port,id=rq{i},bus=pxb{i},addr=1,chassis={10 * i + 2},slot=2",
            f"-netdev hubport,id=a{i},hubid={10 + i} -device e1000e,netdev=a{i},bus=rq{i}",
        ]
        for k in range(3):
            parts.append(
                f"-device xio3130-downstream,id=dn{i}{k},bus=up{i},addr={k},"
                f"chassis={10 * i + 3 + k},slot={3 + k}"
            )
        for k in range(2):
            parts.append(f"-device nvme,id=nv{i}{k},serial=made-up-{i}{k},bus=dn{i}{k}")
        parts.append(
            f"-netdev hubport,id=b{i},hubid={20 + i} -device vmxnet3,netdev=b{i},bus=dn{i}2"
        )
    return " ".join(parts)


MACHINES = {
    "qemu-2node-switches": Machine(
        arguments=f"{nodes(sockets=2, cores=4, threads=2)} {switches(2)}",
        boot="isolcpus=managed_irq,domain,4-7,12-15 nohz_full=4-7,12-15 rcu_nocbs=4-7,12-15 "
        "irqaffinity=0-3,8-11 hugepagesz=2M hugepages=0:32,1:16",
        before="for n in /sys/class/net/e*; do ip link set ${n##*/} up; done",
    ),
    "qemu-8socket": Machine(arguments=nodes(sockets=8, cores=2, memory_mb=256)),
    "qemu-hmat-tiers": Machine(
        # Node 2 is memory without CPUs, node 3 CPUs without memory.
        arguments="-M hmat=on -m 1536M -smp 6,sockets=3,cores=2 "
        "-object memory-backend-ram,id=m0,size=512M -object memory-backend-ram,id=m1,size=512M "
        "-object memory-backend-ram,id=m2,size=512M "
        "-numa node,nodeid=0,cpus=0-1,memdev=m0,initiator=0 "
        "-numa node,nodeid=1,cpus=2-3,memdev=m1,initiator=1 "
        "-numa node,nodeid=2,memdev=m2,initiator=0 -numa node,nodeid=3,cpus=4-5,initiator=3 "
        "-numa dist,src=0,dst=1,val=21 -numa dist,src=0,dst=2,val=17 -numa dist,src=0,dst=3,val=21 "
        "-numa dist,src=1,dst=2,val=28 -numa dist,src=1,dst=3,val=21 -numa dist,src=2,dst=3,val=28 "
        + " ".join(
            f"-numa hmat-lb,initiator={i},target={t},hierarchy=memory,data-type=access-latency,"
            f"latency={100 + 60 * (i != t) + 80 * (t == 2)} "
            f"-numa hmat-lb,initiator={i},target={t},hierarchy=memory,data-type=access-bandwidth,"
            f"bandwidth={200 - 120 * (t == 2)}G"
            for i in (0, 1)
            for t in (0, 1, 2)
        ),
    ),
    "qemu-iommu-partition": Machine(
        # Virtual functions, DMA translation, an isolated cpuset partition beside one that fails.
        arguments=f"{nodes(sockets=2, cores=4)} -device intel-iommu "
        "-device pxb-pcie,id=pxb0,bus=pcie.0,bus_nr=0x40,numa_node=1 "
        "-device pcie-root-port,id=rp0,bus=pxb0,addr=0,chassis=1,slot=1,x-speed=16,x-width=16 "
        "-device nvme-subsys,id=subsys "
        "-device nvme,id=nv0,serial=made-up-0,bus=rp0,subsys=subsys,sriov_max_vfs=2,"
        "sriov_vq_flexible=4,sriov_vi_flexible=2,max_ioqpairs=6,msix_qsize=6 "
        "-device pcie-root-port,id=rp1,bus=pcie.0,addr=5,chassis=2,slot=2 "
        "-netdev hubport,id=n,hubid=1 -device e1000e,netdev=n,bus=rp1",
        boot="intel_iommu=on",
        before="echo 2 > /sys/class/nvme/nvme0/device/sriov_numvfs; cd /sys/fs/cgroup; "
        "echo +cpuset > cgroup.subtree_control; mkdir quiet broken; "
        "echo 6-7 > quiet/cpuset.cpus; echo isolated > quiet/cpuset.cpus.partition; "
        "echo 6-7 > broken/cpuset.cpus; echo root > broken/cpuset.cpus.partition; cd /",
    ),
    "qemu-offline": Machine(
        arguments="-m 1024M -smp 8,sockets=1,cores=4,threads=2 "
        "-netdev hubport,id=n,hubid=1 -device virtio-net-pci,netdev=n",
        before="echo 0 > /sys/devices/system/cpu/cpu3/online; "
        "echo 0 > /sys/devices/system/cpu/cpu6/online",
    ),
}


def main(folder: pathlib.Path, names: list[str]) -> None:
    """Captures the named machines, or all."""
    kernel = next(folder.glob("boot/vmlinuz-*"), None)
    if kernel is None or shutil.which("qemu-system-x86_64") is None:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="nodeagent-hosts-") as work:
        tree = pathlib.Path(work) / "tree"
        modules = userland(tree, folder)
        for name in names or list(MACHINES):
            capture = boot(MACHINES[name], kernel, tree, modules, pathlib.Path(work))
            (HOSTS / f"{name}.capture").write_bytes(capture)
            print(f"{name}.capture: {len(capture)} bytes", flush=True)


# ---- the guest -----------------------------------------------------------------------------------


def userland(tree: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """busybox, Python with the packages that a capture needs, kernel modules in load order."""
    for name in ("bin", "proc", "sys", "dev", "tmp", "run", "modules"):
        (tree / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "busybox", tree / "bin/busybox")
    python = pathlib.Path(os.path.realpath(sys.executable))
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    skip = shutil.ignore_patterns("__pycache__", "test", "idlelib", "config-*", "*-packages")
    shutil.copytree(library, tree / str(library).lstrip("/"), ignore=skip, symlinks=False)
    packages = pathlib.Path(sysconfig.get_path("purelib"))
    for name in PACKAGES:
        shutil.copytree(packages / name, tree / "lib/site" / name, ignore=skip)
    for file in packages.glob("_cffi_backend*.so"):
        shutil.copy(file, tree / "lib/site")
    at = tree / str(python).lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(python, at)
    programs = [p for p in tree.rglob("*") if p.is_file() and (".so" in p.name or p == at)]
    for program in programs:
        for line in subprocess.run(["ldd", program], capture_output=True, text=True).stdout.split():
            if line.startswith("/") and not (tree / line[1:]).exists():
                (tree / line[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(line, tree / line[1:])
    files = {f.stem.replace("-", "_"): f for f in folder.rglob("*.ko")}
    ordered = in_order(MODULES, lambda name: files[name].read_bytes() if name in files else None)
    for name in ordered:
        shutil.copy(files[name], tree / "modules" / f"{name}.ko")
    return ordered


def init(machine: Machine, modules: list[str]) -> str:
    """The guest's first program."""
    python = os.path.realpath(sys.executable)
    loads = "\n".join(f"insmod /modules/{m}.ko" for m in modules)
    return f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp PYTHONPATH=/lib/site PYTHONDONTWRITEBYTECODE=1
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
mount -t tmpfs none /tmp; mkdir -p /dev/shm; mount -t tmpfs none /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
ip link set lo up
{loads}
{machine.before}
sleep 2
{python} -P -c 'from nodeagent.cli.main import main; main()' capture /tmp/capture
cat /tmp/capture > /dev/ttyS1
sync
poweroff -f
"""


def boot(
    machine: Machine,
    kernel: pathlib.Path,
    tree: pathlib.Path,
    modules: list[str],
    work: pathlib.Path,
) -> bytes:
    """Runs the machine until it powers off; gives what it wrote to its second serial port."""
    (tree / "init").write_text(init(machine, modules))
    (tree / "init").chmod(0o755)
    image, result = work / "initramfs", work / "result"
    image.write_bytes(gzip.compress(archive(tree), 1))
    result.unlink(missing_ok=True)
    done = subprocess.run(
        [
            *("qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-nodefaults"),
            *("-cpu", "max,vendor=GenuineIntel,model-id=Made-up CPU", "-display", "none"),
            *("-no-reboot", "-serial", "stdio", "-serial", f"file:{result}"),
            *("-kernel", kernel, "-initrd", image),
            *("-append", f"console=ttyS0 quiet panic=-1 tsc=reliable {machine.boot}".strip()),
            *machine.arguments.split(),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )
    text = result.read_bytes().replace(b"\r\n", b"\n") if result.exists() else b""
    if not re.search(rb"^# end, \d+ entries(?:, \d+ lines)?\n\Z", text, re.MULTILINE):
        sys.exit(done.stdout.decode("utf-8", "replace")[-4000:])
    return text


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
