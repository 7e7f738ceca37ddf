"""Real values of a real kernel to set: of this host where it has them, restored after; a NIC's
queues and irqbalance in namespaces of the test's own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import CONSENT_OF_KNOB, Consent, Knob, SetValue

NEWNS, NEWNET = 0x00020000, 0x40000000
READ_ONLY, REMOUNT, BIND, REC, PRIVATE = 1, 32, 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *args: int | bytes | None) -> None:
    """A system call by its C function."""
    if getattr(_libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int = 0) -> None:
    call("mount", source.encode(), target.encode(), kind.encode() if kind else None, flags, None)


@contextlib.contextmanager
def own_namespaces() -> Iterator[None]:
    """This thread in a network and a mount namespace of its own, and back again."""
    before = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("net", "mnt")]
    folder = Path.cwd()
    call("unshare", NEWNS | NEWNET)
    try:
        mount("none", "/", None, REC | PRIVATE)
        yield
    finally:
        for fd, flag in zip(before, (NEWNET, NEWNS), strict=True):
            call("setns", fd, flag)
            os.close(fd)
        os.chdir(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A value that can be set, its former text, and one that differs from it."""

    knob: Knob
    subject: str
    before: str
    value: str
    file: Path | None
    """Where the kernel has it; None: it is no file."""
    other: str = ""
    """What somebody else may write: neither; as the file wants it."""

    @property
    def consent(self) -> frozenset[Consent]:
        return frozenset({CONSENT_OF_KNOB[self.knob]})

    @property
    def action(self) -> SetValue:
        return SetValue(
            workload="w",
            knob=self.knob,
            subject=self.subject,
            value=self.value,
            before=self.before,
        )

    def raw(self) -> bytes:
        """The very bytes."""
        assert self.file is not None
        return self.file.read_bytes()


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("setting values of the host needs root")


def two_cpus() -> list[int]:
    needs_root()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs, to tell one set from another")
    return cpus


@contextlib.contextmanager
def _restored(file: Path, read: Callable[[str], str], value: str, other: str, knob: Knob,
              subject: str) -> Iterator[Place]:  # fmt: skip
    """A file of this host; skipped where it is not there or may not be written."""
    try:
        text = file.read_text()
        file.write_text(text)
    except OSError as error:
        pytest.skip(f"{file} cannot be set here: {error.strerror}")
    try:
        yield Place(
            knob=knob,
            subject=subject,
            before=read(text.strip()),
            value=value,
            file=file,
            other=other,
        )
    finally:
        file.write_text(text)


def _list_of_mask(text: str) -> str:
    return str(CpuSet.parse_mask(text))


@contextlib.contextmanager
def irq() -> Iterator[Place]:
    """An interrupt that may be moved and is allowed on every CPU."""
    cpus = two_cpus()
    for folder in sorted(Path("/proc/irq").iterdir()):
        path = folder / "smp_affinity_list"
        if not path.exists():
            continue
        before = path.read_text()
        if len(CpuSet.parse(before.strip())) < 2:
            continue
        try:
            path.write_text(before)
        except OSError:
            continue
        try:
            yield Place(
                knob=Knob.IRQ_AFFINITY,
                subject=folder.name,
                before=before.strip(),
                value=str(cpus[-1]),
                file=path,
                other=str(cpus[0]),
            )
        finally:
            path.write_text(before)
        return
    pytest.skip("no interrupt of this machine may be moved")


@contextlib.contextmanager
def irq_default() -> Iterator[Place]:
    cpus = two_cpus()
    file, value = Path("/proc/irq/default_smp_affinity"), str(cpus[-1])
    other = CpuSet.of(cpus[:1]).mask()
    with _restored(file, _list_of_mask, value, other, Knob.IRQ_DEFAULT, "new") as place:
        yield place


@contextlib.contextmanager
def workqueue() -> Iterator[Place]:
    cpus = two_cpus()
    file, value = Path("/sys/devices/virtual/workqueue/cpumask"), str(cpus[-1])
    other = CpuSet.of(cpus[:1]).mask()
    with _restored(file, _list_of_mask, value, other, Knob.WORKQUEUE, "*") as place:
        yield place


@contextlib.contextmanager
def one_workqueue() -> Iterator[Place]:
    cpus = two_cpus()
    found = sorted(Path("/sys/devices/virtual/workqueue").glob("*/cpumask"))
    if not found:
        pytest.skip("no workqueue of this kernel has a mask of its own")
    value, other = str(cpus[-1]), CpuSet.of(cpus[:1]).mask()
    name = found[0].parent.name
    with _restored(found[0], _list_of_mask, value, other, Knob.WORKQUEUE, name) as place:
        yield place


@contextlib.contextmanager
def wake_latency() -> Iterator[Place]:
    cpu = two_cpus()[-1]
    file = Path(f"/sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us")
    with _restored(file, str, "n/a", "3", Knob.WAKE_LATENCY, str(cpu)) as place:
        yield place


@contextlib.contextmanager
def numa_balancing() -> Iterator[Place]:
    needs_root()
    file = Path("/proc/sys/kernel/numa_balancing")
    value, other = ("1", "2") if file.exists() and file.read_text() == "0\n" else ("0", "2")
    with _restored(file, str, value, other, Knob.NUMA_BALANCING, "kernel") as place:
        yield place


@contextlib.contextmanager
def _queue(knob: Knob, queue: str) -> Iterator[Place]:
    cpus = two_cpus()
    with own_namespaces():
        mount("sysfs", "/sys", "sysfs")
        done = subprocess.run(
            ["ip", "link", "add", "queues0", "numtxqueues", "2", "numrxqueues", "2", "type",
             "veth", "peer", "name", "queues1"], capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"no veth device can be made here: {done.stderr.strip()}")
        file = Path(f"/sys/class/net/queues0/queues/{queue}/{knob}_cpus")
        # A former value that is not the empty one.
        file.write_text(CpuSet.of(cpus[:2]).mask())
        yield Place(
            knob=knob,
            subject=f"queues0/{queue}",
            before=str(CpuSet.of(cpus[:2])),
            value=str(cpus[1]),
            file=file,
            other=CpuSet.of(cpus[:1]).mask(),
        )


@contextlib.contextmanager
def xps() -> Iterator[Place]:
    with _queue(Knob.XPS, "tx-1") as place:
        yield place


@contextlib.contextmanager
def rps() -> Iterator[Place]:
    with _queue(Knob.RPS, "rx-0") as place:
        yield place


def irqbalance_program() -> str:
    needs_root()
    program = shutil.which("irqbalance", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        pytest.skip("irqbalance is not installed here: apt-get install irqbalance")
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "comm").read_text() == "irqbalance\n":
                pytest.skip("irqbalance runs on this host already, and is left alone")
    return program


@contextlib.contextmanager
def irqbalance(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The real one, with its own /run, and without any way to write to /proc/irq."""
    program = irqbalance_program()
    with own_namespaces():
        mount("run", "/run", "tmpfs")
        Path("/run/irqbalance").mkdir()
        mount("/proc/irq", "/proc/irq", None, BIND)
        mount("none", "/proc/irq", None, BIND | REMOUNT | READ_ONLY)
        process = subprocess.Popen(
            [program, "--foreground", "--interval=3600", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            socket = Path(f"/run/irqbalance/irqbalance{process.pid}.sock")
            while not socket.exists():
                if process.poll() is not None:
                    pytest.skip("irqbalance ends at once: it finds nothing to balance here")
                time.sleep(0.01)
            yield process
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def irqbalance_ban() -> Iterator[Place]:
    with irqbalance("--banirq=7"):
        yield Place(
            knob=Knob.IRQBALANCE, subject="24", before="balanced", value="banned", file=None
        )


FILES: dict[str, Callable[[], contextlib.AbstractContextManager[Place]]] = {
    "irq": irq,
    "irq-default": irq_default,
    "xps": xps,
    "rps": rps,
    "workqueue": workqueue,
    "one-workqueue": one_workqueue,
    "wake-latency": wake_latency,
    "numa-balancing": numa_balancing,
}
"""Values that stand in a file."""
PLACES = {**FILES, "irqbalance": irqbalance_ban}
