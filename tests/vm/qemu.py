"""A machine that runs: QEMU under us, and a channel to the agent in it.

    with Guest(machine, image, payload) as guest:
        guest.check("nodeagentctl topology show")

Nothing is written to the image; a machine's changes are gone with it. It ends with the process that
started it. Every wait has a limit, and what is raised then carries the end of its console.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from tests.vm.image import NoImageError
from tests.vm.machine import Machine

QEMU = "qemu-system-x86_64"
BOOT_LIMIT_S = 400.0
"""From start to the agent's first word; 40 s is usual in software emulation."""
BOOTS = 4
EMULATOR_FAULT = "Oops: int3"
"""QEMU's emulation may run an instruction that another CPU is patching (seen with 7.2 on a busy
host, at boot and when programs are attached): the kernel meets its own breakpoint, which no
processor shows it. Only then is a machine booted again; what else it meets is a failure."""
PROBE_LIMIT_S = 20.0
GRACE_S = 30.0
"""What the channel gets beyond a command's own limit."""
PUT_CHUNK = 1 << 16
CONSOLE_TAIL = 4000
BOOT = (
    "console=ttyS0 panic=-1 quiet nokaslr mitigations=off tsc=reliable no_timer_check "
    "cryptomgr.notests random.trust_cpu=on systemd.show_status=0 systemd.unified_cgroup_hierarchy=1"
)
UNWANTED = (
    "aesni_intel,ghash_clmulni_intel,sha512_ssse3,sha256_ssse3,sha1_ssse3,crct10dif_pclmul,"
    "crc32_pclmul,pcspkr,psmouse,button,iTCO_wdt,lpc_ich,i2c_i801,kvm,kvm_intel,kvm_amd,bochs"
)
"""Modules that udev would load and nothing here needs."""
CPU = {
    "kvm": "host",
    # The vendor decides which leaves the kernel reads dies and threads from.
    "tcg": "max,vendor=GenuineIntel,family=6,model=143,stepping=8,model-id=Emulated CPU",
}


class GuestError(AssertionError):
    """A machine that did not do what it was asked; with its last words."""


class EmulatorFaultError(NoImageError):
    """A machine that never came up, in every try, or that ended, for the emulator's fault alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A command that ended. `rc` 124: killed for its limit."""

    rc: int
    stdout: str
    stderr: str


class Guest:
    """One machine from start to power-off."""

    def __init__(self, machine: Machine, image: pathlib.Path, payload: pathlib.Path | None) -> None:
        self.machine, self._image, self._payload = machine, image, payload
        self._number, self._held = 0, b""
        self._work: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._accelerator = ""
        self._channel: socket.socket | None = None

    # ---- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Guest:
        for left in reversed(range(BOOTS)):
            self._work = tempfile.TemporaryDirectory(prefix="nodeagent-vm-")
            self._held = b""
            try:
                self._start(pathlib.Path(self._work.name))
                break
            except GuestError:
                self.stop()
                raise
            except EmulatorFaultError as error:
                self.stop()
                if not left:
                    raise EmulatorFaultError(
                        f"{self.machine.name}: its kernel met {EMULATOR_FAULT!r}, a fault of "
                        f"QEMU's emulation, in each of {BOOTS} boots, and it never came up"
                    ) from error
            except BaseException:
                self.stop()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self, work: pathlib.Path) -> None:
        accel = self._accelerator = accelerator(self._image)
        (work / "nvme").write_bytes(b"")
        os.truncate(work / "nvme", 64 << 20)
        channel = work / "agent"
        drives = [(self._image / "root.ext4", "snapshot=on,cache=unsafe")]
        if self._payload is not None:
            drives.append((self._payload, "readonly=on"))
        self._process = qemu(
            self._image,
            self.machine.kernel,
            accel,
            [
                *self.machine.arguments(str(work / "nvme")),
                *(
                    "-serial",
                    f"file:{work}/console",
                    "-device",
                    "virtio-rng-pci,bus=pcie.0,addr=1c",
                ),
                *("-device", "virtio-serial-pci,bus=pcie.0,addr=1d"),
                *("-chardev", f"socket,id=agent,path={channel},server=on,wait=off"),
                *("-device", "virtserialport,chardev=agent,name=vm-agent"),
            ]
            + [
                word
                for i, (file, how) in enumerate(drives)
                for word in (
                    *("-drive", f"file={file},format=raw,if=none,id=drive{i},{how}"),
                    *("-device", f"virtio-blk-pci,drive=drive{i},bus=pcie.0,addr={0x10 + i:x}"),
                )
            ],
            boot=f"{BOOT} modprobe.blacklist={UNWANTED} {self.machine.boot()}",
            errors=work / "errors",
            scratch=work,
        )
        end = time.monotonic() + GRACE_S
        self._channel = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._channel.connect(str(channel))
                break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise self._gone("QEMU did not start") from None
                time.sleep(0.05)
        self._next(BOOT_LIMIT_S)

    def stop(self) -> None:
        """At once: there is nothing to save."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._work is not None:
            self._work.cleanup()
            self._work = None

    @property
    def alive(self) -> bool:
        """Whether QEMU runs still."""
        return self._process is not None and self._process.poll() is None

    def power_off(self, limit_s: float = 120.0) -> None:
        """As an operator does. Raises GuestError where it has not ended by then."""
        assert self._process is not None
        self.run("systemctl poweroff --no-block")
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise self._gone(f"no power-off within {limit_s:.0f} s") from None

    def ready(self, limit_s: float = BOOT_LIMIT_S) -> str:
        """What systemd calls the machine once all has started: running or degraded."""
        return self.run(
            "udevadm settle; systemctl is-system-running --wait", limit_s
        ).stdout.strip()

    def console(self) -> str:
        """Everything the machine's kernel has printed so far."""
        assert self._work is not None
        file = pathlib.Path(self._work.name) / "console"
        return file.read_text(errors="replace") if file.exists() else ""

    # ---- commands --------------------------------------------------------------------------------

    def run(
        self,
        command: str | Sequence[str],
        limit_s: float = 120.0,
        echo: Callable[[str, bytes], None] | None = None,
    ) -> Result:
        """A shell's text or a program with its arguments, as root, to its end.

        `echo` gets ("stdout" or "stderr", bytes) as they come.
        """
        words = ["bash", "-c", command] if isinstance(command, str) else list(command)
        return self._ask({"run": words, "limit_s": limit_s}, limit_s + GRACE_S, echo)

    def check(self, command: str | Sequence[str], limit_s: float = 120.0) -> str:
        """Its standard output. Raises GuestError when it did not end with 0."""
        done = self.run(command, limit_s)
        if done.rc:
            raise GuestError(f"{command!r} ended {done.rc}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def put(self, path: str, body: str | bytes, mode: int = 0o644) -> None:
        """Writes a file in the guest, with its folders."""
        data = body.encode() if isinstance(body, str) else body
        for at in range(0, max(len(data), 1), PUT_CHUNK):
            piece = base64.b64encode(data[at : at + PUT_CHUNK]).decode()
            done = self._ask({"put": path, "mode": mode, "more": at > 0, "body": piece}, GRACE_S)
            if done.rc:
                raise GuestError(f"{path}: {done.stderr}")

    def get(self, path: str) -> bytes:
        """A file of the guest."""
        body = bytearray()
        done = self._ask({"get": path}, GRACE_S, lambda _, data: body.extend(data))
        if done.rc:
            raise GuestError(f"{path}: {done.stderr}")
        return bytes(body)

    def _ask(
        self,
        what: dict[str, object],
        limit_s: float,
        echo: Callable[[str, bytes], None] | None = None,
    ) -> Result:
        assert self._channel is not None
        if not self.alive:
            raise self._gone("the machine is gone")
        self._number += 1
        self._channel.settimeout(limit_s)
        self._channel.sendall((json.dumps({"id": self._number, **what}) + "\n").encode())
        said: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        end = time.monotonic() + limit_s
        while True:
            told = self._next(end - time.monotonic())
            if told.get("id") != self._number:
                continue
            if "rc" in told:
                return Result(
                    rc=int(str(told["rc"])),
                    stdout=said["stdout"].decode("utf-8", "replace"),
                    stderr=said["stderr"].decode("utf-8", "replace"),
                )
            for stream, kept in said.items():
                if stream in told:
                    data = base64.b64decode(str(told[stream]))
                    kept.extend(data)
                    if echo is not None:
                        echo(stream, data)

    def _next(self, limit_s: float) -> dict[str, object]:
        assert self._channel is not None and self._process is not None
        end = time.monotonic() + limit_s
        while b"\n" not in self._held:
            left = end - time.monotonic()
            if left <= 0:
                raise self._gone(f"the machine said nothing for {limit_s:.0f} s")
            self._channel.settimeout(min(left, 1.0))
            try:
                data = self._channel.recv(1 << 16)
            except TimeoutError:
                data = None
            except ConnectionError:
                data = b""
            if data == b"" or self._process.poll() is not None:
                self._process.wait(GRACE_S)
                raise self._gone("the machine is gone")
            self._held += data or b""
        line, self._held = self._held.split(b"\n", 1)
        told: dict[str, object] = json.loads(line)
        return told

    def _gone(self, why: str) -> GuestError | EmulatorFaultError:
        assert self._work is not None
        # The whole console: an error carries its end only.
        if self._accelerator == "tcg" and EMULATOR_FAULT in self.console():
            return EmulatorFaultError(
                f"{self.machine.name}: its kernel met {EMULATOR_FAULT!r}, a fault of QEMU's "
                "emulation, and is gone"
            )
        errors = pathlib.Path(self._work.name) / "errors"
        told = errors.read_text(errors="replace") if errors.exists() else ""
        return GuestError(
            f"{self.machine.name}: {why}\n{self.console()[-CONSOLE_TAIL:]}\n{told[-CONSOLE_TAIL:]}"
        )


# ---- QEMU ----------------------------------------------------------------------------------------


def qemu(
    image: pathlib.Path,
    kernel: str,
    accel: str,
    arguments: Sequence[str],
    *,
    boot: str,
    errors: pathlib.Path,
    scratch: pathlib.Path,
) -> subprocess.Popen[bytes]:
    """Starts it; it is killed with the thread that called."""
    with errors.open("wb") as stderr:
        return subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", QEMU, "-nodefaults", "-no-user-config"),
                *("-display", "none", "-no-reboot", "-machine", "q35,hpet=off,smbus=off"),
                *("-accel", "tcg,thread=multi,tb-size=512" if accel == "tcg" else accel),
                *("-cpu", CPU[accel], "-kernel", str(image / kernel / "vmlinux")),
                *("-initrd", str(image / kernel / "initrd"), "-append", boot),
                *arguments,
            ],
            # Its throw-away layers go to a file without a name in TMPDIR.
            env={**os.environ, "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
        )


def available() -> None:
    """Raises NoImageError with a sentence where no machine can run."""
    for tool, package in ((QEMU, "qemu-system-x86"), ("setpriv", "util-linux")):
        if shutil.which(tool) is None:
            raise NoImageError(f"{tool} is missing: apt-get install {package}")


def accelerator(image: pathlib.Path) -> str:
    """`kvm` where a kernel comes up under it, else `tcg` (software emulation).

    /dev/kvm alone says little: nested in another hypervisor it may open and then not run a kernel.
    So one is started once a boot of this host, and the answer kept beside the image.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    kept = image / f"accelerator-{boot_id}"
    if kept.exists():
        return kept.read_text().strip()
    with tempfile.TemporaryDirectory(prefix="nodeagent-kvm-") as name:
        work = pathlib.Path(name)
        process = qemu(
            image,
            max(p.parent.name for p in image.glob("*/vmlinux")),
            "kvm",
            ["-m", "512M", "-smp", "2", "-serial", f"file:{work}/console"],
            boot="console=ttyS0 panic=-1 vm.probe",
            errors=work / "errors",
            scratch=work,
        )
        end, alive = time.monotonic() + PROBE_LIMIT_S, False
        while not alive and time.monotonic() < end and process.poll() is None:
            time.sleep(0.2)
            console = work / "console"
            alive = console.exists() and b"vm-probe alive" in console.read_bytes()
        process.kill()
        process.wait()
    answer = "kvm" if alive else "tcg"
    kept.write_text(answer + "\n")
    return answer
