"""Files that a person names, and standard streams that were closed or are full."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent import given, served
from nodeagent.errors import MAX_SENTENCE, sentence, visible
from nodeagent.given import open_given, read_given
from nodeagent.served import behind
from tests.gate import FUSE, Gate
from tests.hosts.generate import MACHINES, write_tree


def test_reads_no_more_than_the_limit_and_one(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2 << 30)
    assert len(read_given(tmp_path / "large", 1000)) == 1001
    assert read_given("/dev/null", 1000) == b""


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_a_device_is_no_file(device: str) -> None:
    with pytest.raises(OSError, match="a device, expected a file"):
        read_given(device, 1000)
    with pytest.raises(OSError, match="a device, expected a file"):
        open_given(device)


def test_a_pipe_with_a_writer_is_read_to_its_end(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(b"x" * 300_000))
    writer.start()
    assert read_given(fifo, 1 << 20) == b"x" * 300_000
    writer.join()


def test_a_pipe_that_a_writer_opened_and_left_is_empty(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(b""))
    writer.start()
    assert read_given(fifo, 100) == b""
    writer.join()


def test_a_pipe_without_a_writer_ends_in_an_error(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(TimeoutError, match="nobody wrote"):
        read_given(fifo, 100)
    with pytest.raises(TimeoutError, match="gave nothing"):
        open_given(fifo)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A named file whose server is silent."""
    if os.geteuid() or not FUSE.exists():
        pytest.skip("mounting a FUSE file system needs root and /dev/fuse")
    place = tmp_path / "given.toml"
    place.touch()
    made = Gate(place, tmp_path / "gate")
    yield made
    made.close()


def test_a_file_whose_server_hangs_is_an_error_and_then_read(gate: Gate, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(gate.place)
    assert not behind(str(tmp_path / "gate")) and behind(str(link))
    with pytest.raises(TimeoutError, match="the server behind its file system hangs"):
        read_given(link, 100)
    with pytest.raises(TimeoutError, match="no answer in 5 s"):
        open_given(gate.place)
    gate.open()
    assert read_given(link, 100) == b"7\n"
    assert read_given(gate.place, served.MAX_WHOLE) == b"7\n"
    os.close(open_given(link))


@pytest.mark.parametrize(
    "command",
    [
        "--host TREE topology check --policy FILE",
        "--host TREE topology check --baseline FILE",
        "--host TREE place plan --workloads FILE",
        "config --file FILE",
    ],
)
def test_a_command_does_not_wait_for_ever(command: str, gate: Gate, tmp_path: Path) -> None:
    tree = write_tree(MACHINES["memory-only"](), tmp_path / "root")
    done = run(f"CTL {command}".replace("TREE", str(tree)).replace("FILE", str(gate.place)))
    assert "no answer in 5 s: the server behind its file system hangs" in done.stderr
    assert str(gate.place) in done.stderr and "remedy: " in done.stderr
    assert done.returncode not in (0, 1)


def test_links_are_followed_without_touching_the_mount(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b/../c")
    (tmp_path / "b").mkdir()
    (tmp_path / "c").symlink_to("/srv/far/x")
    (tmp_path / "loop").symlink_to("loop")
    known = {"/": False, "/srv/far": True, "/srv/far/near": False}
    follow = served._follow
    assert follow(f"{tmp_path}/a/y", known) == "/srv/far/x/y"
    assert follow("/srv/far/near/x", known) == "/srv/far/near/x"
    assert follow("/srv/./up/../far/x", known) == "/srv/far/x"
    assert follow("/srv/farther", known) is None
    assert follow(f"{tmp_path}/loop", known) is None
    assert follow("/proc/self/maps", {"/": True, "/proc": False}) is None


def test_a_directory_and_a_loop_of_links_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(IsADirectoryError):
        read_given(tmp_path, 100)
    with pytest.raises(OSError, match="symbolic links"):
        open_given(tmp_path / "a")
    assert given.WAIT_S < 10


def test_control_characters_are_shown_escaped() -> None:
    assert visible("vllm rank 0") == "vllm rank 0"
    assert visible("a\x1b[2J\nb\x9b\u202e") == r"a\x1b[2J\x0ab\x9b\u202e"
    assert visible(os.fsdecode(b"\xff\xfe")) == r"\xff\xfe"
    assert visible("Zürich ☃") == "Zürich ☃"
    assert len(sentence("x" * 10_000)) == MAX_SENTENCE


CTL = Path(sys.executable).parent / "nodeagentctl"


def run(line: str) -> subprocess.CompletedProcess[str]:
    """In a shell, for its redirections."""
    return subprocess.run(
        ["bash", "-c", line.replace("CTL", str(CTL))],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.mark.parametrize("command", ["config --show", "config --example", "--help", "explain"])
def test_a_full_disk_behind_stdout_is_a_sentence(command: str) -> None:
    done = run(f"CTL {command} > /dev/full")
    assert done.returncode == 3
    assert done.stderr.startswith("error: standard output: No space left on device")
    assert "remedy: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["config --show", "completion bash", "--help"])
def test_closed_streams_are_no_fault_of_ours(command: str) -> None:
    assert run(f"CTL {command} >&-").returncode == 0
    assert run(f"CTL {command} <&- >&- 2>&-").returncode == 0


def test_columns_that_are_no_number_change_nothing() -> None:
    usual = run("COLUMNS= CTL config --show")
    assert usual.returncode == 0
    for columns in ("abc", "-5", "0", "99999999999999999999"):
        assert run(f"COLUMNS={columns} CTL config --show").stdout == usual.stdout


def test_names_that_are_no_utf8_are_said_and_are_valid_json(tmp_path: Path) -> None:
    done = run("CTL --host $'/nope\\xff\\x1b[31m' topology show")
    assert done.returncode == 64
    assert r"/nope\xff\x1b[31m" in done.stderr
    paste = os.fsencode(tmp_path) + b"/\xff\n"
    with open(paste, "wb") as file:  # noqa: PTH123  # a name that is no text
        file.write(b"nothing\n")
    done = run(f"CTL -o json diagnose {tmp_path}/$'\\xff\\n'")
    assert done.returncode in (0, 1, 2, 3)
    assert done.stdout.startswith('{"schema":"nodeagent.findings/v1"')


def test_a_device_is_written_into_and_never_replaced(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to(target)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    reader.start()
    done = run(f"CTL topology show --svg {fifo}")
    assert done.returncode == 0, done.stderr
    reader.join()
    assert fifo.is_fifo()
    assert found[0].startswith(b"<svg")
    assert run(f"CTL topology show --svg {tmp_path}/link").returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert target.read_bytes().startswith(b"<svg")
