"""What somebody gives to diagnose: folders without an end, pipes, noise, archives, encodings."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess

import pytest

from nodeagent.discover.paste import files
from nodeagent.discover.paste.files import decode, read_file, read_folder
from nodeagent.errors import ReadError, UsageError

LINE = "vm.swappiness = 60\n"


def test_a_folder_is_read_by_name_and_links_are_not_followed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/x").write_text(LINE)
    (tmp_path / "a.txt").write_text(LINE)
    (tmp_path / "sys/devices").mkdir(parents=True)
    (tmp_path / "sys/devices/not-read-here").write_text(LINE)
    (tmp_path / "b/up").symlink_to("..")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "outside").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")
    assert [t.name for t in read_folder(str(tmp_path))] == ["a.txt", "b/x"]
    assert {t.text for t in read_folder(str(tmp_path))} == {LINE}


def test_an_unreadable_file_is_named_and_the_others_are_read(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(2 << 30)
    (tmp_path / "x").write_text(LINE)
    big, x = read_folder(str(tmp_path))
    assert big.name.startswith("big (larger than ") and big.text == ""
    assert x.text == LINE


def test_a_folder_deeper_than_python_calls(tmp_path: pathlib.Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (tmp_path / "x").write_text(LINE)
    try:
        assert [t.name for t in read_folder(str(tmp_path))] == ["x"]
    finally:
        # shutil.rmtree calls itself for each folder: pytest could not clear this away.
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_too_many_files_and_too_much_in_all_are_refused(tmp_path: pathlib.Path) -> None:
    for i in range(files.MAX_FILES + 1):
        (tmp_path / str(i)).touch()
    with pytest.raises(UsageError, match=f"{files.MAX_FILES + 1} files, expected at most"):
        read_folder(str(tmp_path))
    large = tmp_path / "large"
    large.mkdir()
    for i in range(3):
        with (large / str(i)).open("wb") as file:
            file.truncate(files.MAX_BYTES // 2)
    with pytest.raises(ReadError, match="holds more than"):
        read_folder(str(large))


@pytest.mark.parametrize("magic", [b"PK\x03\x04", b"\x1f\x8b", b"\xfd7zXZ", b"BZh9"])
def test_an_archive_is_named_and_the_remedy_unpacks_it(
    tmp_path: pathlib.Path, magic: bytes
) -> None:
    path = tmp_path / "it's"
    path.write_bytes(magic + bytes(100))
    with pytest.raises(ReadError, match=r"expected text") as caught:
        read_file(str(path))
    assert """it'"'"'s'""" in caught.value.remedy


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_with_and_without_their_mark(encoding: str) -> None:
    assert decode("x", LINE.encode(encoding)).lstrip("\ufeff") == LINE


def test_noise_is_nothing_and_holes_are_ends_of_lines() -> None:
    noise = random.Random(1).randbytes(100_000)
    assert decode("x", noise) == ""
    assert decode("x", b"\x7fELF\x02\x01\x01" + bytes(57)) == ""
    # A crash leaves blocks of zeros in a log, a terminal leaves colours, Latin-1 lies about.
    assert decode("x", b"a\n" + bytes(4096) + b"b\n") == "a\n\nb\n"
    assert decode("x", b"\x1b[1mGPU0\x1b[0m\tX\n") == "\x1b[1mGPU0\x1b[0m\tX\n"
    assert decode("x", "Gerät\n".encode("latin-1")) == "Ger\ufffdt\n"
    assert decode("x", b"") == ""
