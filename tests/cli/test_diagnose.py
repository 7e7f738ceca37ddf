"""diagnose as a process: files, directories, stdin, and input that is none."""

from __future__ import annotations

import json
import pathlib
import subprocess
import zipfile

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"


def run(
    bin_dir: pathlib.Path, *args: object, stdin: bytes = b""
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [bin_dir / "nodeagentctl", *map(str, args)], capture_output=True, input=stdin
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def test_stdin(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "-o", "json", "diagnose", "-", stdin=MATRIX.encode())
    out = json.loads(done.stdout)
    assert out["schema"] == "nodeagent.findings/v1"
    assert (out["verdict"], done.returncode) == ("OK", 0)
    assert out["facts"]["links"] == {"GPU0-GPU1": "PIX", "GPU1-GPU0": "PIX"}
    assert out["repairs"] == []


def test_utf16_as_powershell_writes_it(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "-o", "json", "diagnose", "-", stdin=MATRIX.encode("utf-16"))
    assert json.loads(done.stdout)["facts"]["gpus"] == ["GPU0", "GPU1"]


def test_a_directory_of_files(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "topo.txt").write_text(MATRIX)
    (tmp_path / "cmdline").write_text("isolcpus=2-3 irqaffinity=0-3\n")
    done = run(bin_dir, "diagnose", tmp_path)
    assert done.returncode == 2, done.stderr
    assert "worst isolation.irqaffinity-overlap" in done.stdout.splitlines()[0]


def test_a_directory_with_sys(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "properties").write_text("simd_count 8\nlocation_id 768\nvendor_id 4098\ndomain 0\n")
    done = run(bin_dir, "-o", "json", "diagnose", tmp_path)
    facts = json.loads(done.stdout)["facts"]
    assert facts["kfd_nodes"][0]["bdf"] == "0000:03:00.0"
    assert facts["kfd_nodes"][0]["vendor"] == "1002"


def test_a_matrix_that_cannot_be_read_is_refused(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "-o", "json", "diagnose", "-", stdin=MATRIX[11:].encode())
    out = json.loads(done.stdout)
    assert (out["verdict"], done.returncode) == ("REFUSE", 3)


def test_repairs_are_listed(bin_dir: pathlib.Path) -> None:
    done = run(
        bin_dir, "-o", "json", "diagnose", "-", stdin=MATRIX.replace("PIX\t X ", "PIXX").encode()
    )
    out = json.loads(done.stdout)
    assert out["repairs"] == ["stdin: line 3: cell 'PIXX' read as PIX X"]
    assert (out["verdict"], done.returncode) == ("WARN", 1)


def test_no_such_file_and_binary_input(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    missing = run(bin_dir, "diagnose", tmp_path / "none")
    assert missing.returncode == 64
    assert "remedy: " in missing.stderr
    noise = run(bin_dir, "diagnose", "-", stdin=bytes(range(256)) * 64)
    assert noise.returncode == 3
    assert "Traceback" not in noise.stderr
    assert run(bin_dir, "diagnose", "-", stdin=b"").returncode == 3


def test_what_was_not_pasted_is_not_claimed(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "diagnose", "-", stdin=b"vm.swappiness = 60\nvm.overcommit_memory = 0\n")
    assert "whether swap is on was not said" in done.stdout
    assert "swap is on and" not in done.stdout


def test_bounds_are_written_out(bin_dir: pathlib.Path) -> None:
    assert "bytes = 8388608" in run(bin_dir, "explain", "feed.socket-buffer").stdout


def test_each_bad_input_is_one_sentence_with_a_remedy(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2 << 30)
    inner, outer = tmp_path / "in.zip", tmp_path / "out.zip"
    for path, member in ((inner, __file__), (outer, inner)):
        with zipfile.ZipFile(path, "w") as made:
            made.write(member, "x")
    for words in (
        ("diagnose", tmp_path / "sparse"),
        ("diagnose", outer),
        ("diagnose", "/dev/zero"),
        ("diagnose", "/dev/full"),
        ("--host", "/dev/full", "topology", "check"),
        ("--host", outer, "topology", "check"),
        ("--host", tmp_path / "sparse", "topology", "check"),
    ):
        done = run(bin_dir, *words)
        error, remedy = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (3, ""), words
        assert error.startswith("error: ") and remedy.startswith("remedy: "), words
        assert "Errno" not in error


def test_a_log_without_an_end_is_refused_when_it_is_too_long(bin_dir: pathlib.Path) -> None:
    with subprocess.Popen(["yes", "kernel: all is well"], stdout=subprocess.PIPE) as endless:
        done = subprocess.run(
            [bin_dir / "nodeagentctl", "diagnose", "-"],
            stdin=endless.stdout,
            capture_output=True,
            text=True,
        )
        endless.kill()
    assert done.returncode == 3
    assert "stdin: larger than 64 MiB" in done.stderr
