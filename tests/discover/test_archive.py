"""Archives: what is refused, in a sentence; nothing is unpacked beyond the bounds."""

from __future__ import annotations

import gzip
import io
import lzma
import pathlib
import tarfile

import pytest

from nodeagent.discover import archive
from nodeagent.discover.root import Root
from nodeagent.errors import NodeagentError, ReadError, UnavailableError


def tar_of(*members: tuple[str, bytes | str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, body in members:
            info = tarfile.TarInfo(name)
            if isinstance(body, str):
                info.type, info.linkname = tarfile.SYMTYPE, body
                tar.addfile(info)
            else:
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
    return out.getvalue()


def opened(tmp_path: pathlib.Path, data: bytes) -> Root:
    file = tmp_path / "machine"
    file.write_bytes(data)
    return Root.open(str(file))


def test_members_and_links_are_read_below_the_root(tmp_path: pathlib.Path) -> None:
    data = tar_of(
        ("./proc/cmdline", b"ro quiet\n"),
        ("./sys/a", "/proc/cmdline"),
        ("./sys/b", "../../../../proc/cmdline"),
        ("./sys/c", "/etc/hostname"),
    )
    with opened(tmp_path, lzma.compress(data)) as root:
        assert root.text("sys/a") == root.text("sys/b") == "ro quiet"
        assert root.text("sys/c") is None
        assert not root.is_live


@pytest.mark.parametrize(
    ("name", "why"), [("../proc/x", "outside"), ("/proc/x", "outside"), ("etc/x", "neither sys/")]
)
def test_members_outside_are_refused(tmp_path: pathlib.Path, name: str, why: str) -> None:
    with pytest.raises(ReadError) as caught:
        opened(tmp_path, gzip.compress(tar_of((name, b"1"))))
    assert why in str(caught.value)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc/passwd", "proc/../../x"])
def test_a_hard_link_outside_is_refused(tmp_path: pathlib.Path, target: str) -> None:
    info = tarfile.TarInfo("proc/cmdline")
    info.type, info.linkname = tarfile.LNKTYPE, target
    with pytest.raises(ReadError, match="hard link 'proc/cmdline' leads outside"):
        opened(tmp_path, gzip.compress(info.tobuf() + bytes(1024)))


def test_a_member_that_promises_more_than_there_is_ends(tmp_path: pathlib.Path) -> None:
    """tarfile skips the promised bytes block by block, and does not mind the end."""
    head = bytearray(tarfile.TarInfo("proc/device").tobuf())
    head[156:157] = b"Z"
    head[124:136] = b"\x80" + b"\xff" * 11
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    body = bytes(head) + tar_of(("proc/cmdline", b"ro"))
    with pytest.raises(ReadError, match=r"within a member|unexpected end of data"):
        opened(tmp_path, gzip.compress(body))


def test_headers_of_headers_are_refused(tmp_path: pathlib.Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 5
    chain = (info.tobuf(format=tarfile.GNU_FORMAT) + b"name".ljust(512, b"\0")) * 5000
    with pytest.raises(ReadError, match="nested too deep"):
        opened(tmp_path, gzip.compress(chain + tar_of(("proc/cmdline", b"ro"))))


def test_devices_and_pipes_are_left_out(tmp_path: pathlib.Path) -> None:
    out = b""
    for name, kind in (("proc/null", tarfile.CHRTYPE), ("sys/pipe", tarfile.FIFOTYPE)):
        info = tarfile.TarInfo(name)
        info.type = kind
        out += info.tobuf()
    with opened(tmp_path, gzip.compress(out + tar_of(("proc/cmdline", b"ro")))) as root:
        assert root.text("proc/cmdline") == "ro"
        assert root.names("proc") == ("cmdline",) and not root.exists("sys/pipe")


def test_cut_and_damaged_archives_are_a_sentence(tmp_path: pathlib.Path) -> None:
    whole = lzma.compress(tar_of(("proc/cmdline", b"x" * 100_000)))
    zipped = gzip.compress(tar_of(("proc/cmdline", bytes(range(256)) * 400)))
    damaged = bytearray(zipped)
    damaged[len(damaged) // 2] ^= 0xFF
    for data in (whole[:-20], whole[:50], zipped[: len(zipped) // 2], bytes(damaged), b"\xfd7zXZ"):
        with pytest.raises(ReadError) as caught:
            opened(tmp_path, data)
        assert "cannot be read as a recorded machine" in str(caught.value)


def test_a_bomb_is_refused_before_it_unpacks(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "bomb"
    with gzip.open(file, "wb", compresslevel=1) as out:
        info = tarfile.TarInfo("proc/cmdline")
        info.size = archive.MAX_BYTES + (1 << 20)
        out.write(info.tobuf())
        for _ in range(info.size >> 20):
            out.write(bytes(1 << 20))
    assert file.stat().st_size < 4 << 20
    with pytest.raises(ReadError) as caught:
        Root.open(str(file))
    assert "MiB" in str(caught.value)


def test_zstd_is_read_or_named_as_missing(tmp_path: pathlib.Path) -> None:
    zstd = pytest.importorskip("zstandard", reason="needs the optional package zstandard")
    data = zstd.ZstdCompressor().compress(tar_of(("proc/cmdline", b"ro")))
    with opened(tmp_path, data) as root:
        assert root.text("proc/cmdline") == "ro"
    with pytest.raises(ReadError):
        opened(tmp_path, data[: len(data) // 2])


def test_zstd_without_the_package_says_so(tmp_path: pathlib.Path) -> None:
    try:
        opened(tmp_path, b"\x28\xb5\x2f\xfd" + bytes(20))
    except UnavailableError as error:
        assert "zstandard" in error.remedy
    except NodeagentError as error:
        assert "cannot be read" in str(error)
