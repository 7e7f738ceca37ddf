"""A person's own BCC script, run beside us: a child, a time limit, and the distribution's bcc.

The PyPI package of the name `bcc` is something else; ours to use is the distribution's
python3-bpfcc, whatever Python runs the script.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.errors import UnavailableError
from nodeagent.probe.loader import missing_rights
from nodeagent.probe.sentence import no_rights

DEFAULT_SECONDS = 60.0
MAX_SECONDS = 3600.0
GRACE_S = 2.0
"""After SIGINT, and again after SIGTERM: BCC was seen to ignore the first."""

PACKAGES = pathlib.Path("/usr/lib/python3/dist-packages")
"""Where Debian puts modules for its own Python."""


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

    Raises UnavailableError where python3-bpfcc is not installed, RightsError without the rights.
    """
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
        # In a session of its own: Ctrl-C reaches it through us, once, and its children end with it.
        child = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={**os.environ, "PYTHONPATH": folder, "PYTHONUNBUFFERED": "1"},
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
