"""Configuration space, made by hand from the specification's layout, and lspci's opinion of it."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.capture import parse, render
from nodeagent.discover.lspci_text import Details, read_details
from nodeagent.discover.paste.lspci import read_lspci
from nodeagent.discover.pci_config import DENIED, describe
from nodeagent.discover.redact import Masks, redact
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import TableStore
from nodeagent.model.finding import Verdict
from nodeagent.model.pci import Acs, DeviceControl, ErrorBits, Link, ResizableBar
from tests.hosts.generate import MACHINES, write_tree

SERIAL = bytes.fromhex("de01ad02be03ef04")


def word(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


class Config:
    """Configuration space under construction. Source: PCI Express Base Specification, chapter 7."""

    def __init__(self, *, bridge: bool = False, size: int = 4096) -> None:
        self.bytes = bytearray(size)
        self.put(0, word(0x1234_8086, 4))
        self.put(6, word(0x10, 2))
        self.put(8, word(0x060400_01 if bridge else 0x030200_A1, 4))
        self.put(0xE, word(1 if bridge else 0, 1))
        self.put(0x34, b"\x40")
        if bridge:
            self.put(0x18, bytes((0, 1, 5, 0)))
        self._last, self._end = 0, 0x100

    def put(self, at: int, data: bytes) -> None:
        self.bytes[at : at + len(data)] = data

    def express(
        self,
        port: int,
        *,
        payload: int,
        able: int,
        request: int,
        relaxed: bool,
        link: tuple[int, int],
        top: tuple[int, int],
        status: int = 0,
    ) -> Config:
        """Sizes by their code (0 = 128 bytes), speeds by generation."""
        self.put(0x40, bytes((0x10, 0)) + word(2 | port << 4, 2))
        self.put(0x44, word(able | 1 << 15, 4))
        self.put(0x48, word(relaxed << 4 | payload << 5 | 1 << 8 | request << 12, 2))
        self.put(0x4A, word(status, 2))
        self.put(0x4C, word(top[0] | top[1] << 4, 4))
        self.put(0x52, word(link[0] | link[1] << 4, 2))
        self.put(0x68, word(2, 2))
        return self

    def extended(self, kind: int, body: bytes) -> Config:
        at = self._end
        if at > 0x100:
            before = int.from_bytes(self.bytes[self._last : self._last + 4], "little")
            self.put(self._last, word(before & 0xFFFFF | at << 20, 4))
        self.put(at, word(kind | 1 << 16, 4) + body)
        self._last, self._end = at, at + 0x40
        return self


def port(control: int, *, able: int = 0x5F) -> bytes:
    """A switch's downstream port with ACS."""
    config = Config(bridge=True)
    config.express(6, payload=1, able=2, request=2, relaxed=True, link=(4, 16), top=(4, 16))
    config.extended(0x3, SERIAL)
    config.extended(0xD, word(able, 2) + word(control, 2))
    return bytes(config.bytes)


def gpu(*, now: int = 8) -> bytes:
    """A GPU with errors and a BAR 1 that goes to 32 GB; `now`: log2 of its size in MB."""
    config = Config()
    config.express(
        0, payload=1, able=1, request=2, relaxed=False, link=(1, 8), top=(5, 16), status=0xD
    )
    config.extended(0x1, word(1 << 5 | 1 << 14, 4) + bytes(8) + word(1 << 12, 4) + bytes(40))
    config.extended(0x15, word(((1 << 16) - (1 << 6)) << 4, 4) + word(1 | 1 << 5 | now << 8, 4))
    return bytes(config.bytes)


def details(config: bytes) -> Details:
    text = describe(config)
    assert text is not None
    return read_details(text.splitlines())


def test_a_ports_controls_are_read_bit_by_bit() -> None:
    told = details(port(0x1D))
    assert told.acs == Acs(
        present=True,
        able=("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "DirectTrans"),
        on=("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"),
    )
    assert told.acs.redirects and told.port == "Downstream Port"
    only = details(port(1)).acs
    assert only is not None and only.on == ("SrcValid",) and not only.redirects
    assert told.link == Link(speed_gts=16.0, width=16, max_speed_gts=16.0, max_width=16)
    assert told.device_control == DeviceControl(
        max_payload_bytes=256,
        max_payload_able_bytes=512,
        max_read_request_bytes=512,
        relaxed_ordering=True,
        extended_tag=True,
        completion_timeout="1ms to 10ms",
    )


def test_a_gpus_link_errors_and_bars() -> None:
    told = details(gpu())
    assert told.link == Link(speed_gts=2.5, width=8, max_speed_gts=32.0, max_width=16)
    assert told.errors == ErrorBits(
        uncorrectable=("SDES", "CmpltTO"),
        correctable=("Timeout",),
        device=("CorrErr", "FatalErr", "UnsupReq"),
    )
    (bar,) = told.bars
    assert (bar.index, bar.size_bytes, bar.able_bytes[-1]) == (1, 256 << 20, 32 << 30)
    assert told.acs == Acs(present=False)


def test_what_cannot_be_seen_is_not_taken_for_off() -> None:
    denied = describe(port(0)[:64])
    assert denied == DENIED
    told = read_details([denied])
    assert told.acs is None and told.unseen == "access denied"
    short = details(port(0)[:256])
    assert short.acs is None and "not reachable" in (short.unseen or "")
    assert describe(b"\xff" * 4096) is None and describe(b"") is None


def test_registers_that_a_tool_left_out_are_no_settings() -> None:
    config = Config()
    config.put(0x40, word(0x10, 2) + word(2, 2))
    config.put(0x4C, word(16 << 4 | 4, 4))
    config.put(0x52, word(16 << 4 | 4, 2))
    found = details(bytes(config.bytes))
    assert found.link == Link(speed_gts=16.0, width=16, max_speed_gts=16.0, max_width=16)
    assert found.control == {}
    config.put(0x44, word(1 << 15, 4))
    assert details(bytes(config.bytes)).control["relaxed_ordering"] is False


def test_lists_that_loop_or_leave_end() -> None:
    config = bytearray(port(0x1D))
    config[0x41] = 0x40
    assert describe(bytes(config))
    config = bytearray(port(0x1D))
    config[0x140:0x144] = word(0xD | 1 << 16 | 0x100 << 20, 4)
    assert details(bytes(config)).acs is not None


@given(st.binary(max_size=4200), st.binary(max_size=64))
def test_no_bytes_break_it(data: bytes, head: bytes) -> None:
    for config in (data, head + port(3)[len(head) :], data + bytes(4096)):
        text = describe(config)
        if text is not None:
            read_details(text.splitlines())


def dump(bdf: str, config: bytes) -> str:
    """As `lspci -xxxx` prints it."""
    rows = (f"{at:02x}: {config[at : at + 16].hex(' ')}" for at in range(0, len(config), 16))
    return f"{bdf} Unknown\n" + "\n".join(rows) + "\n\n"


@pytest.mark.parametrize("config", [port(0x1D), port(1), port(0), gpu(), gpu(now=15)])
def test_lspci_says_the_same(config: bytes, tmp_path: pathlib.Path) -> None:
    lspci = shutil.which("lspci")
    if lspci is None:
        pytest.skip("pciutils is not installed")
    (tmp_path / "dump").write_text(dump("0000:01:00.0", config))
    asked = subprocess.run(
        [lspci, "-F", tmp_path / "dump", "-vvv", "-nn", "-D"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    part = read_lspci(asked.stdout)
    assert part is not None
    (theirs,) = part.functions
    ours = details(config)
    assert (theirs.acs, theirs.link, theirs.bars) == (ours.acs, ours.link, tuple(ours.bars))
    assert (theirs.control, theirs.errors) == (ours.device_control, ours.errors)
    assert theirs.port == ours.port


def test_a_capture_holds_the_words_and_no_bytes(tmp_path: pathlib.Path) -> None:
    """Live, then its capture: the same functions; the serial number is in neither."""
    tree = write_tree(MACHINES["two-socket-8gpu"](), tmp_path / "root")
    for folder in tree.glob("sys/devices/pci*/**/class"):
        kind = folder.read_text().strip()
        config = port(1) if kind == "0x060400" else gpu() if kind == "0x030200" else None
        if config is not None:
            (folder.parent / "config").write_bytes(config)
    with Root.guarded(path=str(tree), keep=True) as root:
        live = read_snapshot(root)
        assert root.kept is not None
        text = render(redact(root.kept, Masks()))
    assert sum(p.acs is not None for p in live.topology.pci) > 10
    assert "ACSCtl: SrcValid+" in text
    for form in (SERIAL.hex(), SERIAL[::-1].hex(), "de-01-ad-02"):
        assert form not in text
    again = read_snapshot(
        Root(TableStore(parse("x", text.encode()), complete=True), live=False, label="x")
    )
    assert again.topology.pci == live.topology.pci
    for snapshot in (live, again):
        (found,) = (f for f in judge(snapshot, Policy(), 0) if f.id == "pcie.acs-redirect")
        assert found.verdict is Verdict.WARN and "stays in the switch" in found.message


def test_a_device_that_does_not_answer_is_recorded(tmp_path: pathlib.Path) -> None:
    tree = write_tree(MACHINES["two-socket-8gpu"](), tmp_path / "root")
    # A tree that holds the bytes.
    shutil.rmtree(tree / "derived")
    gone = next(p for p in tree.glob("sys/devices/pci*/**/class") if "0302" in p.read_text())
    (gone.parent / "config").write_bytes(b"\xff" * 4096)
    with Root.open(str(tree)) as root:
        snapshot = read_snapshot(root)
    name = (gone.parent / "config").relative_to(tree).as_posix()
    assert "does not answer" in (snapshot.why_unread(name) or "")


def test_a_bar_of_every_size() -> None:
    for now in range(6, 16):
        (bar,) = details(gpu(now=now)).bars
        assert bar == ResizableBar(index=1, size_bytes=1 << (20 + now), able_bytes=bar.able_bytes)
