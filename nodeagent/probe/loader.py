"""The door to the kernel's eBPF: one object file, opened, sized, loaded, attached.

Source: libbpf API documentation, "libbpf Overview"; Documentation/bpf/libbpf.
"""

from __future__ import annotations

import errno
import importlib
import os
import pathlib
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from nodeagent.errors import NodeagentError
from nodeagent.probe import sentence

OBJECTS = pathlib.Path(__file__).parent / "objects"
"""Where the build put the programs; empty in a build without clang."""

CAPABILITIES = {"CAP_BPF": 39, "CAP_PERFMON": 38}
CAP_SYS_ADMIN = 21
"""Stands for both. Source: include/uapi/linux/capability.h."""

LOG_BYTES = 1 << 16


def native() -> Any:  # cffi's generated module has no types
    """The cffi module. Raises UnavailableError where the build has none."""
    try:
        return importlib.import_module("nodeagent.native._bpf")
    except ImportError as error:
        raise sentence.no_library() from error


def missing_rights() -> tuple[str, ...]:
    """Which capabilities this process lacks to load programs of our kinds."""
    for line in pathlib.Path("/proc/self/status").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            held = int(value, 16)
            if held >> CAP_SYS_ADMIN & 1:
                return ()
            return tuple(name for name, bit in CAPABILITIES.items() if not held >> bit & 1)
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes that bpf/runq_abi.h fixes."""

    slots: int
    """Processes watched at once."""
    max_shards: int
    """Histograms of one process; more CPUs share them."""


class BpfObject:
    """One eBPF object. Links and maps live as long as it, and die with the process.

    image: the object's bytes, where it is none of ours. Every method raises UnavailableError or
    RightsError with a sentence.
    """

    def __init__(self, name: str, image: bytes | None = None) -> None:
        self.name = name
        self._bpf = native()
        self._ffi, self._lib = self._bpf.ffi, self._bpf.lib
        self._handle: Any = None  # cffi pointer
        try:
            image = image or (OBJECTS / f"{name}.bpf.o").read_bytes()
        except OSError as error:
            raise sentence.no_object(name) from error
        out = self._ffi.new("struct na_bpf **")
        self._check(self._lib.na_bpf_open(image, len(image), name.encode(), out))
        self._handle = out[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def limits(self) -> Limits:
        """What the layout allows."""
        return Limits(slots=self._lib.NA_SLOTS, max_shards=self._lib.NA_MAX_SHARDS)

    def set_entries(self, map_name: str, entries: int) -> None:
        """Entries of a map; before load."""
        self._check(self._lib.na_bpf_set_entries(self._handle, map_name.encode(), entries))

    def set_constant(self, variable: str, value: int | bool) -> None:
        """A `const volatile` __u32 (int) or bool; before load: the verifier drops dead branches."""
        image = bytes([value]) if isinstance(value, bool) else value.to_bytes(4, "little")
        rc = self._lib.na_bpf_set_rodata(self._handle, variable.encode(), image, len(image))
        assert rc == 0, f"{self.name}: no constant {variable} of {len(image)} bytes ({rc})"

    def choose(self, program: str, wanted: bool = True) -> None:
        """Loads a program of a section `?...`, or leaves it out again; before load."""
        rc = self._lib.na_bpf_set_autoload(self._handle, program.encode(), wanted)
        assert rc == 0, f"{self.name}: no program {program} ({rc})"

    def load(self) -> None:
        """Gives maps and programs to the kernel."""
        self._check(self._lib.na_bpf_load(self._handle))

    def attach(self, program: str) -> None:
        """Attaches one program where its section says."""
        rc = self._lib.na_bpf_attach(self._handle, program.encode())
        if rc < 0:
            raise sentence.not_attached(self.name, program, -rc)

    def detach(self) -> None:
        """Removes every link."""
        self._lib.na_bpf_detach(self._handle)

    def map_fd(self, map_name: str) -> int:
        """Descriptor of a map; it stays the object's."""
        fd: int = self._lib.na_bpf_map_fd(self._handle, map_name.encode())
        assert fd >= 0, f"{self.name}: no map {map_name}"
        return fd

    def program_fd(self, program: str) -> int:
        """Descriptor of a program; it stays the object's."""
        fd: int = self._lib.na_bpf_program_fd(self._handle, program.encode())
        assert fd >= 0, f"{self.name}: no program {program}"
        return fd

    def test_run(self, program: str, context: bytes = b"", cpu: int | None = None) -> bytes:
        """Runs a program once (BPF_PROG_TEST_RUN); the context as the program left it."""
        held = self._ffi.new("char[]", context) if context else self._ffi.NULL
        self._check(
            self._lib.na_bpf_test_run(
                self.program_fd(program),
                held,
                len(context),
                -1 if cpu is None else cpu,
                self._ffi.NULL,
            )
        )
        return bytes(self._ffi.buffer(held, len(context))) if context else b""

    def stats(self, program: str) -> tuple[int, int]:
        """(nanoseconds run, times run), counted while somebody holds BPF_ENABLE_STATS."""
        run_ns, count = self._ffi.new("uint64_t *"), self._ffi.new("uint64_t *")
        self._check(self._lib.na_bpf_program_stats(self.program_fd(program), run_ns, count))
        return run_ns[0], count[0]

    def close(self) -> None:
        """Detaches and frees; maps live on where somebody else holds them."""
        if self._handle is not None:
            self._lib.na_bpf_close(self._handle)
            self._handle = None

    def _check(self, rc: int) -> None:
        if rc < 0:
            raise self._why(-rc)

    def _why(self, error: int) -> NodeagentError:
        held = self._ffi.new("char[]", LOG_BYTES)
        self._lib.na_bpf_log(held, LOG_BYTES)
        log = self._ffi.string(held).decode(errors="replace")
        if error in (errno.EPERM, errno.EACCES):
            missing = missing_rights()
            if missing:
                return sentence.no_rights(missing)
            if error == errno.EPERM:
                return sentence.withheld()
        if "BTF is missing" in log or "valid kernel BTF" in log or "vmlinux BTF" in log:
            return sentence.no_btf()
        return sentence.refused(self.name, error, log)


class Records:
    """A ring buffer's records, taken without waiting. Nothing is dropped silently."""

    def __init__(self, map_fd: int, size_bytes: int) -> None:
        self._bpf = native()
        out = self._bpf.ffi.new("struct na_records **")
        rc = self._bpf.lib.na_records_open(map_fd, out)
        if rc < 0:
            raise sentence.refused("records", -rc, "")
        self._handle = out[0]
        self._buffer = bytearray(size_bytes)

    def take(self) -> tuple[list[bytes], int]:
        """What came since the last call, oldest first; and how many did not fit."""
        ffi = self._bpf.ffi
        used, lost = ffi.new("size_t *"), ffi.new("size_t *")
        view = ffi.from_buffer(self._buffer, require_writable=True)
        rc = self._bpf.lib.na_records_take(self._handle, view, len(self._buffer), used, lost)
        if rc < 0:
            raise sentence.refused("records", -rc, "")
        records, at = [], 0
        while at < used[0]:
            size = int.from_bytes(self._buffer[at : at + 8], "little")
            records.append(bytes(self._buffer[at + 8 : at + 8 + size]))
            at += 8 + (size + 7 & ~7)
        return records, lost[0]

    def close(self) -> None:
        """Unmaps the ring."""
        if self._handle is not None:
            self._bpf.lib.na_records_close(self._handle)
            self._handle = None


class Ring:
    """A ring buffer's records, taken from its mapped pages: no bpf(2), no right. What the buffer
    has no room for stays for the next call. `fileno` is readable when something came."""

    def __init__(self, map_fd: int, ring_bytes: int, buffer_bytes: int = 1 << 16) -> None:
        self._bpf = native()
        out = self._bpf.ffi.new("struct na_ring **")
        rc = self._bpf.lib.na_ring_open(map_fd, ring_bytes, out)
        if rc < 0:
            raise sentence.refused("ring buffer", -rc, "")
        self._handle = out[0]
        self._buffer = self._bpf.ffi.new("char[]", buffer_bytes)
        self._fd = os.dup(map_fd)

    def fileno(self) -> int:
        """To be waited for; open until `close`."""
        return self._fd

    def take(self) -> list[bytes]:
        """What came since the last call, oldest first; at most what the buffer holds."""
        used = self._bpf.lib.na_ring_take(self._handle, self._buffer, len(self._buffer))
        data = bytes(self._bpf.ffi.buffer(self._buffer, used))
        records, at = [], 0
        while at < used:
            size = int.from_bytes(data[at : at + 8], "little")
            records.append(data[at + 8 : at + 8 + size])
            at += 8 + (size + 7 & ~7)
        return records

    def close(self) -> None:
        """Unmaps."""
        if self._handle is not None:
            self._bpf.lib.na_ring_close(self._handle)
            self._handle = None
            os.close(self._fd)
