"""Builds and runs the fuzzers: .venv/bin/python -P tests/feed/fuzz.py [--runs N] [TARGET...]

Needs clang with its runtime (Debian: clang, libclang-rt-NN-dev). Crashing inputs stay in the folder
that is printed, named crash-*; each becomes a test before it is mended.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    # Behind the installed package, which the folder of the same name here would hide.
    sys.path.append(str(ROOT))

from nodeagent.feed import synth  # noqa: E402
from tests.feed.mold import end, heartbeat, numbered  # noqa: E402

CORE = ROOT / "nodeagent" / "native" / "core"
SOURCES = ("sink.c", "itch50.c", "messages.c", "moldudp64.c", "source_capture.c", "replay.c",
           "ring.c", "numa.c")  # fmt: skip
TARGETS = ("mold", "capture")
MAX_LENGTH = 4096


class NoClangError(Exception):
    """clang, or its runtime for libFuzzer and ASan, is not here."""


def build(target: str, folder: pathlib.Path) -> pathlib.Path:
    """The fuzzer as a program. Raises NoClangError."""
    clang = shutil.which("clang")
    if clang is None:
        raise NoClangError("clang is not installed")
    out = folder / f"fuzz_{target}"
    words = [clang, "-g", "-O1", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror",
             "-DNA_CAPTURE_BUFFER=68000u", "-DNA_CAPTURE_SNAP=8192u",
        "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined",
             "-o", str(out), str(CORE / "tests" / f"fuzz_{target}.c"),
             *(str(CORE / s) for s in SOURCES)]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        if "cannot find" in done.stderr and "clang_rt" in done.stderr:
            raise NoClangError("clang has no runtime for libFuzzer and ASan (libclang-rt-NN-dev)")
        raise RuntimeError(done.stderr)
    return out


def seeds(target: str, folder: pathlib.Path) -> None:
    """Inputs to begin with: every message type, lines, gaps, every format."""
    folder.mkdir(parents=True, exist_ok=True)
    day = list(synth.Day(200, 12).messages())
    packets = list(synth.packets(day, most=6))
    if target == "mold":

        def stream(parts: list[tuple[int, bytes]]) -> bytes:
            return b"".join(struct.pack(">BH", c, len(p)) + p for c, p in parts)

        (folder / "day").write_bytes(b"\0" + stream([(0, p) for p in packets]))
        both = [(0, numbered(1, 2)), (1, numbered(1, 2)), (2, numbered(5)), (1, numbered(3, 2)),
                (24, heartbeat(9)), (0, end(9)), (1, end(9))]  # fmt: skip
        (folder / "lines").write_bytes(b"\3" + stream(both))
        for i, p in enumerate(packets[:12]):
            (folder / f"packet{i}").write_bytes(b"\1" + stream([(0, p)]))
        return
    frames = [synth.frame(p) for p in packets[:12]]
    two = [synth.frame(p, group=g) for p in packets[:6] for g in synth.GROUPS]
    for mode, parts in (
        (2, synth.pcap(frames)), (2, synth.pcap(two)), (3, synth.pcapng(frames)),
        (4, synth.binaryfile(day[:60])), (5, synth.soupbintcp(day[:60])),
        (7, synth.pcap(frames)), (7, synth.binaryfile(day[:60])),
    ):  # fmt: skip
        data = b"".join(parts)[: MAX_LENGTH - 1]
        (folder / f"file{mode}-{len(data)}").write_bytes(bytes([mode]) + data)
    for i, f in enumerate(frames[:6]):
        (folder / f"ether{i}").write_bytes(b"\0\0" + f)
        (folder / f"raw{i}").write_bytes(b"\0\1" + f[14:])
        (folder / f"sum{i}").write_bytes(b"\0\x08" + f)


def run(program: pathlib.Path, corpus: pathlib.Path, runs: int, seed: int = 1) -> tuple[int, str]:
    """Runs that many inputs; (inputs that were run, what it said). Raises AssertionError on a
    finding, with the sanitizer's report."""
    done = subprocess.run(
        ["nice", "-n", "19", str(program), str(corpus), f"-runs={runs}", f"-seed={seed}",
         f"-max_len={MAX_LENGTH}", "-print_final_stats=1", "-timeout=20",
         f"-artifact_prefix={corpus.parent}/"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    found = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert found is not None, done.stderr[-2000:]
    coverage = re.findall(r"cov: (\d+)", done.stderr)
    return int(found[1]), f"coverage {coverage[-1] if coverage else '?'}"


def main() -> int:
    """Builds and runs; prints one line a target."""
    parser = argparse.ArgumentParser(prog="tests/feed/fuzz.py", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=" ".join(TARGETS))
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path)
    args = parser.parse_args()
    folder = args.folder or pathlib.Path(tempfile.mkdtemp(prefix="nodeagent-fuzz-"))
    for target in args.targets or TARGETS:
        corpus = folder / f"corpus_{target}"
        seeds(target, corpus)
        ran, said = run(build(target, folder), corpus, args.runs, args.seed)
        print(f"{target}: {ran:,} inputs, nothing found, {said} ({folder})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
