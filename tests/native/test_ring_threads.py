"""The ring's threads over one mapping, plain and sanitized; built from this checkout."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

CORE = pathlib.Path(__file__).resolve().parents[2] / "nodeagent" / "native" / "core"


@pytest.mark.parametrize("sanitizer", ["none", "thread", "address,undefined"])
def test_threads_over_one_mapping(tmp_path: pathlib.Path, sanitizer: str) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    program = tmp_path / "ring_threads"
    sources = [CORE / "tests" / "ring_threads.c", CORE / "ring.c", CORE / "numa.c"]
    flags = ["-std=gnu11", "-O1", "-g", "-fno-strict-aliasing", "-D_GNU_SOURCE", f"-I{CORE}"]
    if sanitizer != "none":
        # TSan models no fences and says so; ring.h gives it what it needs instead.
        flags += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-Wno-tsan"]
    subprocess.run(["gcc", *flags, *sources, "-o", program], check=True)
    count = "300000" if sanitizer == "thread" else "2000000"
    done = subprocess.run([program, count], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" read, ") == 3
    assert done.stderr == ""


def test_thread_sanitizer_would_complain_of_plain_payload(tmp_path: pathlib.Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    program = tmp_path / "ring_threads"
    sources = [CORE / "tests" / "ring_threads.c", CORE / "ring.c", CORE / "numa.c"]
    flags = ["-std=gnu11", "-O1", "-g", "-fno-strict-aliasing", "-D_GNU_SOURCE", f"-I{CORE}"]
    flags += ["-fsanitize=thread", "-Wno-tsan", "-DNA_PLAIN_PAYLOAD"]
    subprocess.run(["gcc", *flags, *sources, "-o", program], check=True)
    halt = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    # A reader that dawdles 200 ms in mid-batch is lapped, however well the threads are scheduled.
    done = subprocess.run(
        [program, "3000000", "200000"], capture_output=True, text=True, check=False, env=halt
    )
    assert done.returncode != 0
    assert "data race" in done.stderr
