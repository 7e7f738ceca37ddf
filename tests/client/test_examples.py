"""The example readers in C and C++: built from the installed headers, run against a producer."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest

from tests.feed.ring_producer import checkable
from tests.feed.ring_world import Daemon, feeder

READERS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "readers"
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2"]


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path / "ring.sock")
    yield made
    made.close()


def build(
    source: str, compilers: tuple[str, ...], standard: str, to: pathlib.Path, bin_dir: pathlib.Path
) -> pathlib.Path:
    compiler = next((c for c in compilers if shutil.which(c)), None)
    if compiler is None:
        pytest.skip(f"none of {', '.join(compilers)} is installed")
    shown = subprocess.run(
        [bin_dir / "nodeagentctl", "ring", "include"], capture_output=True, text=True, check=True
    )
    program = to / pathlib.Path(source).stem
    include = f"-I{shown.stdout.strip()}"
    subprocess.run(
        [compiler, f"-std={standard}", *STRICT, include, READERS / source, "-o", program],
        check=True,
    )
    return program


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_c_reader_computes_the_vwap(
    daemon: Daemon, tmp_path: pathlib.Path, bin_dir: pathlib.Path, compiler: str
) -> None:
    program = build("vwap.c", (compiler,), "c11", tmp_path, bin_dir)
    with feeder(daemon.path, "itch", "--rate", "200000") as producer:
        with subprocess.Popen(
            [program, daemon.path, "itch", "100000"], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            start = int(process.stdout.readline().split()[-1])
            lines = process.stdout.read().splitlines()
        assert process.returncode == 0
        records, _, lost, *_ = lines[-1].split()
        assert lines[-1].endswith("0 restarts")
        assert (int(records) >= 100000, lost) == (True, "0")
        # The same another way: exactly those records, summed by numpy.
        ticks = checkable(start, int(records))
        for number, name in ((1, "AAPL"), (2, "ZVZZT")):
            of = ticks[ticks["instrument"] == number]
            price, size = of["price"].astype(np.float64), of["size"].astype(np.float64)
            expected = float((price * size).sum() / size.sum()) / 1e4
            shown = next(line.split()[1] for line in lines if line.startswith(name))
            assert float(shown) == pytest.approx(expected, rel=1e-6, abs=1e-3)
        assert producer.process.poll() is None


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_the_cpp_reader_shows_whole_records(
    daemon: Daemon, tmp_path: pathlib.Path, bin_dir: pathlib.Path, compiler: str
) -> None:
    program = build("tail.cc", (compiler,), "c++17", tmp_path, bin_dir)
    with feeder(daemon.path, "itch"):
        done = subprocess.run(
            [program, daemon.path, "itch", "5000"], capture_output=True, text=True, check=True
        )
    lines = done.stdout.splitlines()
    assert lines[0] == "attached"
    rows = [line.split() for line in lines[1:-1]]
    assert len(rows) == 5000
    for seq, symbol, kind, price, size in rows:
        at = int(seq) - 1
        assert (int(price), int(size), kind) == (at, at ^ 0x5555555555555555, "1")
        assert symbol == {1: "AAPL", 2: "ZVZZT"}.get(at & 0xFFFF, str(at & 0xFFFF))
    lost = int(lines[-1].split()[0])
    assert int(rows[-1][0]) - int(rows[0][0]) + 1 == 5000 + lost


def test_an_error_of_the_c_reader_is_a_sentence(
    daemon: Daemon, tmp_path: pathlib.Path, bin_dir: pathlib.Path
) -> None:
    program = build("vwap.c", ("cc", "gcc", "clang"), "c11", tmp_path, bin_dir)
    gone = subprocess.run(
        [program, daemon.path, "nope", "1"], capture_output=True, text=True, check=False
    )
    assert gone.returncode == 3
    assert gone.stderr.startswith("error: no feed nope")
