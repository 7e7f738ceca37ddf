"""Captures: formats agree, cut and damaged files say where, frames are told apart."""

from __future__ import annotations

import os
import pathlib
import struct
import threading

import numpy as np
import pytest

from nodeagent.errors import UsageError
from nodeagent.feed import synth
from nodeagent.native.feed import (
    CaptureError,
    Feed,
    Format,
    Line,
    Memory,
    Options,
    decode_capture,
)
from tests.feed.mold import decode_file, numbered

DAY = list(synth.Day(3000, 12, seed=2).messages())
FRAMES = [synth.frame(p) for p in synth.packets(DAY)]


def content(memory: Memory) -> bytes:
    """Ticks of the exchange, but for what differs by framing: stamps, positions, packet ends."""
    ticks = memory.ticks[memory.ticks["kind"] < 240].copy()
    for field in ("seq", "ts_rx_ns"):
        ticks[field] = 0
    ticks["aux"][ticks["flags"] & 1 == 1] = 0
    ticks["flags"] &= ~4 & 0xFFFF
    return bytes(ticks.tobytes())


def test_every_format_gives_the_same(tmp_path: pathlib.Path) -> None:
    made = {}
    for format in (Format.PCAP, Format.PCAPNG, Format.BINARYFILE, Format.SOUPBINTCP):
        path = tmp_path / format.name
        assert synth.write(path, messages=3000, symbols=12, seed=2, format=format).messages == 3000
        memory, counts, error = decode_capture(path)
        assert error is None
        assert (counts.published, counts.span, counts.rejected) == (3000, 3000, 0)
        made[format] = content(memory)
    assert len(set(made.values())) == 1


def test_the_same_arguments_give_the_same_bytes(tmp_path: pathlib.Path) -> None:
    for name in ("a", "b"):
        synth.write(tmp_path / name, messages=500, symbols=5, seed=9)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    synth.write(tmp_path / "c", messages=500, symbols=5, seed=10)
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_impossible_days_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="expected at least"):
        synth.write(tmp_path / "x", messages=10)
    with pytest.raises(UsageError, match="symbols"):
        synth.write(tmp_path / "x", symbols=0)


def test_a_pcap_cut_anywhere_delivers_what_is_whole(tmp_path: pathlib.Path) -> None:
    whole = b"".join(synth.pcap(FRAMES[:4]))
    sizes = [24]
    for data in FRAMES[:4]:
        sizes.append(sizes[-1] + 16 + len(data))
    path = tmp_path / "cut.pcap"
    for cut in range(24, len(whole), 3):
        _memory, counts, error = decode_file(path, whole[:cut], Format.PCAP)
        records = sum(1 for s in sizes[1:] if s <= cut)
        assert counts.packets == records
        if cut in sizes:
            assert error is None
        else:
            assert error is not None
            assert f"record {records + 1} at byte {sizes[records]} is cut" in str(error)
            assert "delivered" in error.remedy
    with pytest.raises(CaptureError, match="is cut"):
        decode_file(path, whole[:23], Format.PCAP)


@pytest.mark.parametrize("format", [Format.PCAPNG, Format.BINARYFILE, Format.SOUPBINTCP])
def test_other_formats_cut(tmp_path: pathlib.Path, format: Format) -> None:
    parts = {
        Format.PCAPNG: list(synth.pcapng(FRAMES[:3])),
        Format.BINARYFILE: list(synth.binaryfile(DAY[:10])),
        Format.SOUPBINTCP: list(synth.soupbintcp(DAY[:10])),
    }[format]
    whole = b"".join(parts)
    ends = {sum(map(len, parts[:i])) for i in range(len(parts) + 1)}
    _, all_counts, _ = decode_file(tmp_path / "x", whole, format)
    for cut in range(40, len(whole)):
        _, counts, error = decode_file(tmp_path / "x", whole[:cut], format)
        assert (error is None) == (cut in ends), cut
        assert counts.published <= all_counts.published


def test_damaged_lengths(tmp_path: pathlib.Path) -> None:
    whole = bytearray(b"".join(synth.pcap(FRAMES[:3])))
    second = 24 + 16 + len(FRAMES[0])
    whole[second + 8 : second + 12] = struct.pack("<I", 0xFFFFFFF0)
    _, counts, error = decode_file(tmp_path / "x", bytes(whole))
    assert counts.packets == 1
    assert error is not None and "record 2" in str(error) and "4294967280" in str(error)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "begins with nothing"),
        (b"\x1f\x8b\x08\0" + bytes(30), "compressed with gzip"),
        (b"hello world, this is no capture at all", "expected pcap"),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 147), "link type 147"),
    ],
)
def test_what_is_no_capture(tmp_path: pathlib.Path, data: bytes, sentence: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(CaptureError, match=sentence) as caught:
        decode_capture(path)
    assert caught.value.remedy


def test_a_file_that_is_not_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CaptureError, match="No such file"):
        decode_capture(tmp_path / "none")


def big_endian(frames: list[bytes], magic: int) -> bytes:
    out = struct.pack(">IHHiIII", magic, 2, 4, 0, 0, 65535, 1)
    for data in frames:
        out += struct.pack(">IIII", 1, 2, len(data), len(data)) + data
    return out


@pytest.mark.parametrize("magic", [0xA1B2C3D4, 0xA1B23C4D])
def test_big_endian_pcap(tmp_path: pathlib.Path, magic: int) -> None:
    _, counts, error = decode_file(tmp_path / "x", big_endian(FRAMES, magic))
    assert error is None and counts.published == 3000


def test_big_endian_pcapng_with_simple_packets(tmp_path: pathlib.Path) -> None:
    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack(">II", kind, 12 + len(body)) + body + struct.pack(">I", 12 + len(body))

    data = block(0x0A0D0D0A, struct.pack(">IHHq", 0x1A2B3C4D, 1, 0, -1))
    data += block(1, struct.pack(">HHI", 1, 0, 0)) + block(4, bytes(16))
    for f in FRAMES:
        data += block(3, struct.pack(">I", len(f)) + f)
    _, counts, error = decode_file(tmp_path / "x", data)
    assert error is None and counts.published == 3000


def vlan(frame: bytes, *tags: int) -> bytes:
    return frame[:12] + b"".join(struct.pack(">HH", 0x8100, t) for t in tags) + frame[12:]


def with_link(link: int, frames: list[bytes]) -> bytes:
    out = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link)
    for data in frames:
        out += struct.pack("<IIII", 1, 2, len(data), len(data)) + data
    return out


@pytest.mark.parametrize(
    ("link", "change", "tag"),
    [
        (1, lambda f: vlan(f, 0x6005), 5),
        (1, lambda f: vlan(f, 100, 7), 7),
        (101, lambda f: f[14:], None),
        (113, lambda f: bytes(14) + b"\x08\0" + f[14:], None),
        (276, lambda f: b"\x08\0" + bytes(18) + f[14:], None),
        (0, lambda f: struct.pack("<I", 2) + f[14:], None),
    ],
)
def test_link_types(tmp_path: pathlib.Path, link: int, change: object, tag: int | None) -> None:
    assert callable(change)
    memory, counts, error = decode_file(
        tmp_path / "x", with_link(link, [change(f) for f in FRAMES])
    )
    assert error is None and counts.published == 3000
    first = memory.frames()[0]
    assert (first.vlan, first.family, first.dst_port) == (tag, 4, synth.PORT)
    assert first.dst == bytes((239, 192, 0, 1)) and first.src == bytes((192, 0, 2, 1))


def ipv6(payload: bytes, extension: bytes = b"") -> bytes:
    group = bytes.fromhex("ff15" + "00" * 13 + "01")
    udp = struct.pack(">HHHH", 30000, 26400, 8 + len(payload), 0) + payload
    following = 0 if extension else 17
    head = struct.pack(">IHBB", 0x60000000, len(udp) + len(extension), following, 1)
    return bytes(12) + b"\x86\xdd" + head + bytes(15) + b"\x01" + group + extension + udp


def test_ipv6_with_and_without_options(tmp_path: pathlib.Path) -> None:
    payloads = list(synth.packets(DAY))
    hop = bytes((17, 0)) + bytes(6)
    frames = [ipv6(p, hop if i % 2 else b"") for i, p in enumerate(payloads)]
    memory, counts, error = decode_file(tmp_path / "x", with_link(1, frames))
    assert error is None and counts.published == 3000
    assert memory.frames()[0].family == 6


def changed(frame: bytes, at: int, value: int) -> bytes:
    return frame[:at] + bytes((value,)) + frame[at + 1 :]


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (FRAMES[5][:12] + b"\x08\x06" + FRAMES[5][14:], "not-ip"),
        (FRAMES[5][:13], "not-ip"),
        (FRAMES[5][:30], "ip-header"),
        (changed(FRAMES[5], 14, 0x44), "ip-header"),
        (changed(FRAMES[5], 14, 0x4F), "ip-header"),
        (changed(FRAMES[5], 38, 0xFF), "ip-header"),
        (changed(FRAMES[5], 20, 0x20), "fragment"),
        (changed(FRAMES[5], 21, 0x10), "fragment"),
        (changed(FRAMES[5], 60, FRAMES[5][60] ^ 1), "checksum"),
        (changed(FRAMES[5], 26, FRAMES[5][26] ^ 1), "checksum"),
    ],
)
def test_bad_frames_by_kind(tmp_path: pathlib.Path, frame: bytes, kind: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(with_link(1, [*FRAMES[:5], frame, *FRAMES[6:]]))
    _, counts, error = decode_capture(path, options=Options(verify_checksums=kind == "checksum"))
    assert error is None
    assert dict(counts.bad) == {kind: 1}
    assert counts.gaps == 1 and counts.adds_up
    assert counts.published + counts.gap_wire == 3000


def test_frames_cut_by_the_snap_length(tmp_path: pathlib.Path) -> None:
    data = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 60, 1)
    for f in FRAMES[:10]:
        data += struct.pack("<IIII", 1, 2, min(60, len(f)), len(f)) + f[:60]
    _, counts, error = decode_file(tmp_path / "x", data)
    assert error is None
    assert dict(counts.bad)["snapped"] == sum(len(f) > 60 for f in FRAMES[:10])


def test_other_traffic_is_filtered(tmp_path: pathlib.Path) -> None:
    tcp = changed(FRAMES[0], 23, 6)
    dns = synth.frame(b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\7example\3com\0\0\1\0\1", port=53)
    mixed = [f for pair in zip(FRAMES, [tcp, dns] * len(FRAMES), strict=False) for f in pair]
    _, counts, error = decode_file(tmp_path / "x", with_link(1, mixed))
    assert error is None
    assert counts.published == 3000
    assert counts.filtered == len(FRAMES)
    assert counts.bad == ()


def test_lines_given_by_name_filter(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x"
    other = [synth.frame(numbered(1, 2), group="239.192.0.9", port=1)]
    path.write_bytes(with_link(1, other + FRAMES))
    _, counts, _ = decode_capture(path, lines=[Line(group=synth.GROUPS[0], port=synth.PORT)])
    assert (counts.published, counts.filtered) == (3000, 1)


def test_two_lines_of_one_capture(tmp_path: pathlib.Path) -> None:
    synth.write(tmp_path / "x", messages=3000, symbols=12, seed=2, lines=2)
    _memory, counts, error = decode_capture(tmp_path / "x")
    assert error is None
    assert (counts.published, counts.duplicates, counts.gaps) == (3000, 3000, 0)


def test_a_pipe_that_trickles(tmp_path: pathlib.Path) -> None:
    data = b"".join(synth.pcap(FRAMES))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def write() -> None:
        with fifo.open("wb", buffering=0) as out:
            for at in range(0, len(data), 997):
                out.write(data[at : at + 997])

    writer = threading.Thread(target=write)
    writer.start()
    _memory, counts, error = decode_capture(fifo)
    writer.join()
    assert error is None and counts.published == 3000


def test_soup_session_starts_where_the_login_says(tmp_path: pathlib.Path) -> None:
    data = bytearray(b"".join(synth.soupbintcp(DAY)))
    data += struct.pack(">H", 1) + b"?"
    _, counts, error = decode_file(tmp_path / "x", bytes(data), Format.SOUPBINTCP)
    assert error is None
    assert dict(counts.bad) == {"soup-type": 1}
    assert counts.published == 3000


def test_rate_and_stop(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"".join(synth.pcap(FRAMES)))
    memory = Memory()
    with Feed(file=str(path), options=Options(rate=2000), memory=memory) as feed:
        ended: list[bool] = []
        thread = threading.Thread(target=lambda: ended.append(feed.run()))
        thread.start()
        while feed.counts().published < 50:
            pass
        feed.stop()
        thread.join()
        assert ended == [False]
        assert 50 <= feed.counts().published < 3000
    assert np.all(memory.ticks["seq"] == np.arange(1, len(memory.ticks) + 1))
