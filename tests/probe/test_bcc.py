"""A person's own BCC script: missing, ending, failing, and not ending."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import pytest

from nodeagent.errors import UnavailableError
from nodeagent.probe import bcc

pytestmark = pytest.mark.root


@pytest.fixture
def packages(tmp_path: pathlib.Path, rights: None) -> pathlib.Path:
    """A folder with a bcc module, and one more that must not be seen."""
    for name in ("bcc", "other"):
        (tmp_path / "dist" / name).mkdir(parents=True)
        (tmp_path / "dist" / name / "__init__.py").write_text("where = __file__\n")
    return tmp_path / "dist"


def write(folder: pathlib.Path, code: str) -> pathlib.Path:
    """A script."""
    path = folder / "script.py"
    path.write_text(code)
    return path


def test_missing_bcc_is_a_sentence_with_the_package(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        bcc.run(write(tmp_path, ""), packages=tmp_path / "none")
    assert caught.value.remedy == "apt-get install python3-bpfcc"


def test_the_distributions_module_is_seen_and_nothing_else(
    tmp_path: pathlib.Path, packages: pathlib.Path
) -> None:
    script = write(
        tmp_path,
        "import sys, bcc\n"
        "assert sys.argv[1:] == ['a', 'b']\n"
        "try:\n    import other\nexcept ImportError:\n    sys.exit(7)\n",
    )
    assert bcc.run(script, ["a", "b"], packages=packages) == bcc.Done(code=7, stopped=False)


def test_one_that_ignores_every_signal_is_stopped(
    tmp_path: pathlib.Path, packages: pathlib.Path
) -> None:
    script = write(
        tmp_path,
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(tmp_path / 'deaf')!r}).touch()\n"
        "time.sleep(600)\n",
    )
    done = bcc.run(script, seconds=1, packages=packages)
    # On a slow machine it may not have come so far as to ignore anything.
    assert done.stopped and done.code == (-9 if (tmp_path / "deaf").exists() else -2)


def test_killed_ourselves_we_leave_no_child(tmp_path: pathlib.Path, packages: pathlib.Path) -> None:
    script = write(
        tmp_path,
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()) + chr(10))\n"
        "time.sleep(600)\n",
    )
    code = (
        "import pathlib\nfrom nodeagent.probe import bcc\n"
        f"bcc.run(pathlib.Path({str(script)!r}), packages=pathlib.Path({str(packages)!r}))"
    )
    runner = subprocess.Popen(
        [sys.executable, "-P", "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    told = tmp_path / "pid"
    while not (told.exists() and told.read_text().endswith("\n")):
        assert runner.poll() is None
        time.sleep(0.05)
    child = int(told.read_text())
    runner.kill()
    runner.wait()
    while pathlib.Path(f"/proc/{child}").exists():
        if "State:\tZ" in pathlib.Path(f"/proc/{child}/status").read_text():
            break
        time.sleep(0.05)


@pytest.mark.bpf
def test_the_real_one(tmp_path: pathlib.Path, rights: None) -> None:
    if not (bcc.PACKAGES / "bcc").is_dir():
        pytest.skip("python3-bpfcc is not installed")
    script = write(
        tmp_path,
        "from bcc import BPF\n"
        "import time\n"
        "b = BPF(text=r'''\n"
        "#include <linux/sched.h>\n"
        "BPF_HASH(seen, u32, u64);\n"
        "RAW_TRACEPOINT_PROBE(sched_switch) {\n"
        "    struct task_struct *next = (struct task_struct *)ctx->args[2];\n"
        "    u32 tid = next->pid; seen.increment(tid); return 0;\n"
        "}''')\n"
        "for _ in range(53): time.sleep(0.001)\n"
        "import os\n"
        "own = sum(v.value for k, v in b['seen'].items() if k.value == os.getpid())\n"
        "assert own >= 53 * 0.7, own\n",
    )
    assert bcc.run(script, seconds=60).code == 0
