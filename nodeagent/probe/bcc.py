"""A person's own BCC script, run beside us: a child, a time limit, and the distribution's bcc.

The PyPI package of the name `bcc` is something else; ours to use is the distribution's
python3-bpfcc, whatever Python runs the script.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.errors import UnavailableError, UsageError
from nodeagent.given import read_given
from nodeagent.probe.loader import missing_rights, native
from nodeagent.probe.sentence import no_btf, no_rights

DEFAULT_SECONDS = 60.0
MAX_SECONDS = 3600.0
GRACE_S = 2.0
"""After SIGINT, and again after SIGTERM: BCC was seen to ignore the first."""

MAX_SCRIPT = 4 << 20
"""Bytes of a script."""
PACKAGES = pathlib.Path("/usr/lib/python3/dist-packages")
"""Where Debian puts modules for its own Python."""


KHEADERS = pathlib.Path("/sys/kernel/kheaders.tar.xz")
"""Headers inside the kernel; BCC unpacks them itself."""

STUBS = (
    "linux/bpf_common.h",
    "linux/log2.h",
    "uapi/linux/bpf.h",
    "uapi/linux/bpf_common.h",
    "uapi/linux/if_packet.h",
    "uapi/linux/ptrace.h",
    "asm/page.h",
)
"""What BCC's own headers include; all their types stand in the one header made from BTF."""

KCONFIG = """#define __LINUX_BPF_H__
#define _UAPI__LINUX_BPF_H__
#define CONFIG_BPF_SYSCALL 1
#define PAGE_SIZE {page}
#include "../vmlinux.h"
"""
"""BCC includes linux/kconfig.h before all else. Its own copy of bpf.h, which would define the types
a second time, is kept out by its guards."""


START = """
import ctypes, runpy, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""PR_SET_PDEATHSIG first: killed ourselves, we leave no child without a limit. prctl(2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How the child ended. `stopped`: by us, at the time limit."""

    code: int
    stopped: bool


def run(
    script: pathlib.Path,
    arguments: Sequence[str] = (),
    seconds: float = DEFAULT_SECONDS,
    *,
    packages: pathlib.Path = PACKAGES,
) -> Done:
    """Runs the script with our Python, its standard streams ours.

    Raises UsageError for what is no script, UnavailableError where python3-bpfcc is not installed,
    RightsError without the rights.
    """
    text = _text_of(script)
    if not (packages / "bcc" / "__init__.py").is_file():
        raise UnavailableError(
            f"BCC's Python module is not installed: {packages}/bcc is missing",
            "apt-get install python3-bpfcc",
        )
    if missing := missing_rights():
        raise no_rights(missing)
    with tempfile.TemporaryDirectory(prefix="nodeagent-bcc-") as folder:
        # One link in a folder of its own: nothing else of the distribution's packages comes along.
        (pathlib.Path(folder) / "bcc").symlink_to(packages / "bcc")
        headers = _headers(pathlib.Path(folder) / "kernel", text)
        # In a session of its own: Ctrl-C reaches it through us, once, and its children end with it.
        child = subprocess.Popen(
            [sys.executable, "-c", START, str(script), *arguments],
            env={**os.environ, "PYTHONPATH": folder, "PYTHONUNBUFFERED": "1", **headers},
            start_new_session=True,
        )
        try:
            return Done(code=child.wait(timeout=seconds), stopped=False)
        except subprocess.TimeoutExpired:
            _stop(child)
            return Done(code=child.returncode, stopped=True)
        except BaseException:
            _stop(child)
            raise


def _text_of(script: pathlib.Path) -> str:
    """What Python will run; read before, for its headers. Raises UsageError."""
    remedy = "name a Python script that uses bcc, such as runqlat.py"
    # A pipe could be read once only, and Python reads it, too.
    if script.exists() and not script.is_file():
        raise UsageError(f"{script}: no regular file, expected a Python script", remedy)
    try:
        data = read_given(script, MAX_SCRIPT)
        text = data.decode()
    except OSError as error:
        raise UsageError(f"{script}: {error.strerror}", remedy) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{script}:{line}: not UTF-8 text", remedy) from error
    if len(data) > MAX_SCRIPT:
        raise UsageError(f"{script}: over {MAX_SCRIPT >> 20} MiB, expected a script", remedy)
    return text


def _headers(folder: pathlib.Path, text: str) -> dict[str, str]:
    """Which headers BCC compiles against: the running kernel's, or its types from BTF; never
    another kernel's, which compile and read the wrong fields."""
    release = os.uname().release
    if (
        "BCC_KERNEL_SOURCE" in os.environ
        or (pathlib.Path("/lib/modules") / release / "build").is_dir()
        or KHEADERS.exists()
    ):
        return {}
    include = folder / "include"
    (include / "linux").mkdir(parents=True)
    if native().lib.na_bpf_write_types(os.fsencode(include / "vmlinux.h")) < 0:
        raise no_btf()
    (include / "linux" / "kconfig.h").write_text(KCONFIG.format(page=os.sysconf("SC_PAGESIZE")))
    major, minor, *_ = (int(n) for n in re.findall(r"\d+", release))
    (include / "linux" / "version.h").write_text(
        f"#define LINUX_VERSION_CODE {(major << 16) + (minor << 8)}\n"
        "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n"
    )
    # Kernel headers the script names are empty too: what they would define is there already.
    named = re.findall(r"#\s*include\s*<((?:\w[\w.-]*/)+\w[\w.-]*)>", text)
    for name in {*STUBS, *(n for n in named if not n.startswith("bcc/"))}:
        path = include / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch()
    return {"BCC_KERNEL_SOURCE": str(folder)}


def _stop(child: subprocess.Popen[bytes]) -> None:
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=GRACE_S)
            # What it started goes too, even if it ended in time itself.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            return
    child.wait()
