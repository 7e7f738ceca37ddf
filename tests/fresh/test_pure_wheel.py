"""The wheel without native code: built without a compiler, run with click, msgspec and rich alone,
every module that is not portable blocked."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import venv

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCKED = ("fcntl", "resource", "grp", "pwd", "cffi", "numpy", "grpc", "psutil")
NEEDED = ("click", "msgspec", "rich", "markdown-it-py", "mdurl", "pygments")
"""What the three dependencies bring along."""
BLOCKER = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked by the test", name=name)
sys.meta_path.insert(0, Block())
"""
MACHINE = {
    "proc/cmdline": "isolcpus=2-3 irqaffinity=0-3",
    "proc/meminfo": "MemTotal: 1024 kB",
    "sys/devices/system/cpu/possible": "0-3",
    "sys/devices/system/cpu/present": "0-3",
    "sys/devices/system/cpu/online": "0-3",
    "sys/devices/system/cpu/isolated": "2-3",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Built by pip with nothing but the environment's own tools on PATH."""
    folder = tmp_path_factory.mktemp("pure")
    source = folder / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(
            ".git", ".venv", "build", "__pycache__", ".*_cache", ".hypothesis", ".setup.lock"
        ),
    )
    tools = folder / "tools"
    tools.mkdir()
    for tool in ("meson", "ninja", "python", "python3"):
        (tools / tool).symlink_to(pathlib.Path(sys.executable).parent / tool)
    for compiler in ("cc", "gcc", "clang", "c++"):
        assert shutil.which(compiler, path=str(tools)) is None
    settings = ("setup-args=-Dnative=disabled", "setup-args=-Dbpf=disabled")
    built = subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-build-isolation",
            "--no-deps", "-w", folder / "wheel",
            *(f"--config-settings={s}" for s in settings), source,
        ],
        capture_output=True,
        text=True,
        env={"PATH": str(tools), "HOME": str(folder), "CC": "/nonexistent/cc"},
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    (made,) = (folder / "wheel").iterdir()
    return made


@pytest.fixture(scope="module")
def python(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A bare environment with the wheel, its three dependencies and the blocker."""
    folder = tmp_path_factory.mktemp("laptop")
    venv.create(folder, with_pip=False, symlinks=True)
    made = folder / "bin" / "python"
    installed = subprocess.run(
        [
            sys.executable, "-m", "pip", f"--python={made}", "install", "-q", "--no-index",
            "--no-deps", wheel,
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in NEEDED:
        for file in importlib.metadata.files(name) or ():
            if ".." in file.parts or file.suffix == ".pyc":
                continue
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)
    # A .pth line, since distributions bring a sitecustomize of their own.
    (site / "blocker.py").write_text(BLOCKER)
    (site / "blocker.pth").write_text("import blocker\n")
    return made


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> pathlib.Path:
    for path, text in MACHINE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    return tmp_path


def run(python: pathlib.Path, *args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python.parent / "nodeagentctl", *map(str, args)],
        capture_output=True,
        text=True,
        input=stdin,
        env={"PATH": os.defpath},
    )


def test_the_wheel_is_for_any_machine(wheel: pathlib.Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def test_the_blocker_blocks(python: pathlib.Path) -> None:
    for module in BLOCKED:
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True)
        assert "blocked by the test" in done.stderr, module


def test_topology_check_of_a_recorded_machine(python: pathlib.Path, machine: pathlib.Path) -> None:
    done = run(python, "--host", machine, "-o", "json", "topology", "check")
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["verdict"] == "FAIL"
    assert run(python, "--host", machine, "topology", "check").stdout.startswith("FAIL - ")


def test_topology_show_of_a_recorded_machine(python: pathlib.Path, machine: pathlib.Path) -> None:
    done = run(python, "--host", machine, "-o", "json", "topology", "show")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["online_cpus"] == "0-3"


def test_explain(python: pathlib.Path) -> None:
    done = run(python, "explain", "isolation.irqaffinity-overlap")
    assert done.returncode == 0, done.stderr
    assert "What it means" in done.stdout


def test_diagnose(python: pathlib.Path) -> None:
    matrix = "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"
    done = run(python, "-o", "json", "diagnose", "-", stdin=matrix)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["facts"]["links"]["GPU0-GPU1"] == "PIX"
    assert run(python, "diagnose", "-", stdin=matrix).stdout.startswith("OK - ")


@pytest.mark.parametrize(
    "args", [("feed", "synth", "day.pcap"), ("ring", "tail", "itch"), ("status",)], ids=" ".join
)
def test_what_needs_a_node_says_so(
    python: pathlib.Path, tmp_path: pathlib.Path, args: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [python.parent / "nodeagentctl", *args], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "remedy: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_plan_for_a_recorded_machine(python: pathlib.Path, machine: pathlib.Path) -> None:
    workloads = machine / "w.toml"
    workloads.write_text('[[workload]]\nname = "w"\ncpus = 1\nmatch.comm = "w"\n')
    done = run(python, "--host", machine, "place", "plan", "--workloads", workloads)
    assert done.returncode == 0, done.stderr
    assert "1 without a recorded process" in done.stdout
