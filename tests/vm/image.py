"""What every machine boots from: a Debian of this host's own release, and two kernels. Made once.

    python -m tests.vm.image            # makes it where it is missing; prints its folder

The release is the host's, so that what script/setup built here (Python and native modules) runs in
the guest. It holds no nodeagent: that comes on a drive of its own (payload.py), and editing the
project makes nothing here again. The folder is named by the content of this recipe.

    FOLDER/root.ext4           the system; machines write to a throw-away layer above it
    FOLDER/6.1, FOLDER/6.12    vmlinux (ELF: QEMU starts it without unpacking), initrd, release

Needs root, mmdebstrap, a static busybox, mke2fs, and the package mirror that apt here uses.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from tests.vm.cpio import archive, in_order

PROJECT = pathlib.Path(__file__).resolve().parents[2]
GUEST = pathlib.Path(__file__).resolve().parent / "guest"
KERNELS = {"6.1": "bookworm", "6.12": "trixie"}
"""Kernel series, and the Debian release whose linux-image-amd64 it is."""
PACKAGES = (
    *("systemd-sysv", "udev", "dbus", "libpam-systemd", "login", "kmod", "procps", "iproute2"),
    *("util-linux", "python3", "numactl", "pciutils", "ethtool", "irqbalance", "podman", "crun"),
    *("runc", "busybox-static", "libbpf1", "libnuma1", "gcc", "libc6-dev"),
    *("strace", "bpftool", "socat"),
)
BOOT_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "virtio_console")
NO_DRIVERS = (
    *("gpu", "media", "staging", "iio", "hid", "input", "usb", "infiniband", "isdn", "bluetooth"),
    *("scsi", "ata", "mtd", "video", "hwmon", "target", "md", "pinctrl", "regulator", "leds"),
    *("mmc", "rtc", "gpio", "i2c", "spi", "mfd", "power", "thermal", "firewire", "comedi"),
    *("net/wireless", "net/usb", "net/can", "net/wwan", "net/hamradio"),
)
"""Folders of drivers/ that no machine has use for: half of a kernel package."""
MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "systemd-timesyncd.service"),
    *("systemd-journal-flush.service", "systemd-journald-audit.socket", "systemd-pstore.service"),
    *("getty@tty1.service", "serial-getty@ttyS0.service", "console-getty.service"),
    *("systemd-networkd.service", "systemd-random-seed.service", "ldconfig.service"),
    *("systemd-hwdb-update.service", "systemd-journal-catalog-update.service"),
    *("systemd-update-utmp.service", "systemd-binfmt.service", "modprobe@drm.service"),
    *("modprobe@efi_pstore.service", "modprobe@dm_mod.service", "modprobe@loop.service"),
    *("podman.socket", "podman.service", "podman-auto-update.timer", "podman-auto-update.service"),
    "podman-restart.service",
    # Started by the test that wants it.
    "irqbalance.service",
)
"""What needs a network, a console or a disk to keep: seconds each in software emulation."""
_GZIP = 31


class NoImageError(Exception):
    """The sentence says what is missing, and how to get it."""


def cache() -> pathlib.Path:
    """Where images are kept: NODEAGENT_VM_CACHE, else build/vm of this checkout."""
    return pathlib.Path(os.environ.get("NODEAGENT_VM_CACHE") or PROJECT / "build" / "vm")


def release() -> str:
    """This host's Debian release, e.g. bookworm. Raises NoImageError on another system."""
    found = {}
    for line in pathlib.Path("/etc/os-release").read_text().splitlines():
        key, _, value = line.partition("=")
        found[key] = value.strip('"')
    if found.get("ID") != "debian" or not found.get("VERSION_CODENAME"):
        raise NoImageError(f"the machines are made of Debian, and this host is {found.get('ID')}")
    return found["VERSION_CODENAME"]


def folder() -> pathlib.Path:
    """Where the image of this recipe is, or would be."""
    recipe = hashlib.sha256(release().encode())
    for path in (pathlib.Path(__file__), GUEST / "init", GUEST / "vm-agent.service"):
        recipe.update(path.read_bytes())
    return cache() / f"{release()}-{recipe.hexdigest()[:12]}"


def find() -> pathlib.Path:
    """The image's folder. Raises NoImageError where it has not been made."""
    at = folder()
    if not (at / "root.ext4").exists():
        raise NoImageError(f"no image at {at}: script/test makes it, in about four minutes")
    return at


def make(*, patience_s: float | None = None) -> pathlib.Path:
    """The image's folder, made now where it is missing. Raises NoImageError with the reason.

    `patience_s`: how long to wait for another process that makes it, and what that one could not
    make is not tried again; None: for ever, and it is.
    """
    at, why_not = folder(), cache() / "not-made"
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / ".lock").open("w") as lock:
        # One at a time: the second finds what the first made.
        _locked(lock, patience_s)
        if (at / "root.ext4").exists():
            return at
        if patience_s is not None and why_not.exists():
            raise NoImageError(why_not.read_text().strip())
        try:
            _able()
            with tempfile.TemporaryDirectory(prefix="making-", dir=cache()) as name:
                work = pathlib.Path(name)
                _build(work)
                (work / "result").rename(at)
        except (NoImageError, OSError, subprocess.SubprocessError) as error:
            why_not.write_text(f"no image at {at}: {error}\n")
            raise NoImageError(why_not.read_text().strip()) from error
        why_not.unlink(missing_ok=True)
    return at


def _locked(lock: IO[str], patience_s: float | None) -> None:
    end = None if patience_s is None else time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if end is None else fcntl.LOCK_NB))
        except BlockingIOError:
            if end is not None and time.monotonic() > end:
                raise NoImageError(
                    f"the image is being made by another process, and was not there after "
                    f"{patience_s:.0f} s more"
                ) from None
            time.sleep(1.0)
        else:
            return


def _able() -> None:
    if os.geteuid() != 0:
        raise NoImageError("making an image needs root")
    for tool in ("mmdebstrap", "mke2fs", "apt-get", "dpkg-deb", "unshare"):
        if shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            raise NoImageError(f"{tool} is missing: apt-get install mmdebstrap e2fsprogs")


def _run(*command: str | pathlib.Path, cwd: pathlib.Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        told = (done.stderr or done.stdout)[-2000:].strip()
        raise NoImageError(f"{shlex.join(map(str, command))[:200]} ended {done.returncode}: {told}")
    return done.stdout


def _mirror() -> str:
    """The one that this host's apt takes its own release from."""
    listed = _run(
        *("apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)"),
        "Created-By: Packages",
    )
    for line in listed.splitlines():
        codename, component, uri = line.split(None, 2)
        if codename == release() and component == "main":
            return uri
    raise NoImageError(f"apt here has no source of {release()} main")


def _build(work: pathlib.Path) -> None:
    mirror, root, result = _mirror(), work / "root", work / "result"
    result.mkdir()
    with ThreadPoolExecutor() as pool:
        system = pool.submit(_system, mirror, root)
        kernels = {
            series: pool.submit(_kernel, mirror, suite, work / series)
            for series, suite in KERNELS.items()
        }
        system.result()
        for series, kernel in kernels.items():
            _install_kernel(kernel.result(), root, result / series)
    _configure(root)
    mebibytes = int(_run("du", "-sm", root).split()[0])
    image = work / "root.ext4"
    with image.open("wb") as file:
        # Room for journals, container layers and what tests write.
        file.truncate((mebibytes * 5 // 4 + 768) << 20)
    # No journal: what a machine writes is thrown away with it.
    _run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", root, image)
    image.rename(result / "root.ext4")


def _system(mirror: str, root: pathlib.Path) -> None:
    excluded = (f"--dpkgopt=path-exclude=/usr/share/{n}/*" for n in ("man", "doc", "locale"))
    # What it mounts below the new root is seen by it alone: nothing of it can be left there.
    _run(
        *("unshare", "--mount", "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase"),
        "--format=directory",
        *(f"--include={','.join(PACKAGES)}", *excluded, "--skip=cleanup/apt"),
        *(release(), root, f"deb {mirror} {release()} main"),
    )
    for name in ("var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(root / name, ignore_errors=True)


def _kernel(mirror: str, suite: str, work: pathlib.Path) -> pathlib.Path:
    """Downloads and unpacks the suite's kernel package; it is never installed. Gives the tree."""
    for name in ("lists/partial", "cache/archives/partial", "tree"):
        (work / name).mkdir(parents=True)
    (work / "sources.list").write_text(f"deb {mirror} {suite} main\n")
    options = [
        f"-oDir::Etc::sourcelist={work}/sources.list",
        "-oDir::Etc::sourceparts=/dev/null",
        f"-oDir::State::lists={work}/lists",
        f"-oDir::Cache={work}/cache",
        "-oAPT::Sandbox::User=root",
        "-oAcquire::Languages=none",
    ]
    _run("apt-get", "-q", *options, "update")
    depends = _run("apt-cache", *options, "depends", "--important", "linux-image-amd64")
    name = next(w for w in depends.split() if w.startswith("linux-image-") and w[12].isdigit())
    _run("apt-get", "-q", *options, "download", name, cwd=work)
    package = next(work.glob("*.deb"))
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE
    ) as unpacked:
        subprocess.run(
            ["tar", "-x", "-C", str(work / "tree"), "--exclude=*/kernel/sound"]
            + [f"--exclude=*/kernel/drivers/{name}" for name in NO_DRIVERS],
            stdin=unpacked.stdout,
            check=True,
        )
    return work / "tree"


def _install_kernel(tree: pathlib.Path, root: pathlib.Path, result: pathlib.Path) -> None:
    """Modules into the system, kernel and initrd beside it."""
    result.mkdir()
    kernel = next(tree.glob("boot/vmlinuz-*"))
    version = kernel.name.removeprefix("vmlinuz-")
    modules = next(p for p in (tree / "lib/modules", tree / "usr/lib/modules") if p.is_dir())
    shutil.copytree(modules / version, root / "usr/lib/modules" / version, symlinks=True)
    shutil.copy(tree / "boot" / f"config-{version}", root / "boot")
    _run("chroot", root, "depmod", version)
    (result / "release").write_text(version + "\n")
    (result / "vmlinux").write_bytes(unpacked_kernel(kernel.read_bytes()))
    files = {
        f.name.partition(".")[0].replace("-", "_"): f
        for f in (root / "usr/lib/modules" / version).rglob("*.ko*")
    }

    def body(name: str) -> bytes | None:
        if name not in files:
            return None
        raw = files[name].read_bytes()
        return lzma.decompress(raw) if files[name].suffix == ".xz" else raw

    with tempfile.TemporaryDirectory() as name:
        initrd = pathlib.Path(name)
        for part in ("bin", "dev", "proc", "root", "modules"):
            (initrd / part).mkdir()
        shutil.copy(root / "bin/busybox", initrd / "bin")
        for i, module in enumerate(in_order(BOOT_MODULES, body)):
            (initrd / "modules" / f"{i:02}-{module}.ko").write_bytes(body(module) or b"")
        shutil.copy(GUEST / "init", initrd / "init")
        (initrd / "init").chmod(0o755)
        # Not compressed: unpacking it in software emulation costs more than reading it.
        (result / "initrd").write_bytes(archive(initrd))


def unpacked_kernel(image: bytes) -> bytes:
    """The ELF file inside a bzImage: what QEMU can start by its PVH note.

    Source: Linux Documentation/arch/x86/boot.rst (setup_sects, payload_offset, payload_length).
    """
    sectors = image[0x1F1] or 4
    offset = int.from_bytes(image[0x248:0x24C], "little")
    length = int.from_bytes(image[0x24C:0x250], "little")
    begin = (sectors + 1) * 512 + offset
    payload = image[begin : begin + length]
    if payload.startswith(b"\xfd7zXZ"):
        # The size that follows the stream is not part of it.
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(_GZIP).decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(payload)
    raise NoImageError(f"kernel packed with an unknown method: starts {payload[:6].hex()}")


def _configure(root: pathlib.Path) -> None:
    """Name, users, units: a machine that starts to multi-user with the guest's agent in it."""
    (root / "etc/hostname").write_text("nodeagent-vm\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost nodeagent-vm\n")
    (root / "etc/fstab").write_text("")
    (root / "etc/machine-id").write_text("")
    for name in ("opt/nodeagent", "etc/systemd/journald.conf.d"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/systemd/journald.conf.d/vm.conf").write_text("[Journal]\nStorage=volatile\n")
    shutil.copy(GUEST / "vm-agent.service", root / "etc/systemd/system")
    _run("chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", "ada")
    _run("chroot", root, "systemctl", "-q", "enable", "vm-agent.service")
    _run("chroot", root, "systemctl", "-q", "set-default", "multi-user.target")
    for unit in MASKED:
        at = root / "etc/systemd/system" / unit
        at.unlink(missing_ok=True)
        at.symlink_to("/dev/null")
    for program in ("nodeagentctl", "nodeagentd", "nodeagent-actor", "nodeagent-feeder"):
        (root / "usr/bin" / program).symlink_to(f"/opt/nodeagent/bin/{program}")


if __name__ == "__main__":
    try:
        print(make())
    except NoImageError as error:
        sys.exit(f"error: {error}")
