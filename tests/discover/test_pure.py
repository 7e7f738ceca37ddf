"""The pure part: a recorded machine on a laptop with click, msgspec and rich, and no Linux."""

from __future__ import annotations

import pathlib
import subprocess
import sys

CAPTURE = pathlib.Path(__file__).parent.parent / "hosts" / "nps4-4gpu.capture"
BLOCKED = """
import sys
ALLOWED = {"nodeagent", "click", "msgspec", "rich", "pygments", "markdown_it", "mdurl"}
LINUX = {"fcntl", "resource", "termios", "pwd", "grp", "_posixsubprocess", "select", "pty"}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in LINUX or name.startswith(("nodeagent.native", "nodeagent.api")):
            raise ImportError(f"{name} is blocked")
        # zoneinfo asks sysconfig, whose table of this build is called after the platform.
        own = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        if top not in ALLOWED and not own:
            raise ImportError(f"{name} is blocked")
for name in LINUX:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocker())
from nodeagent.cli.main import main
main(sys.argv[1:])
"""


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", BLOCKED, *args], capture_output=True, text=True
    )


def test_topology_of_a_recorded_machine() -> None:
    for output in ("table", "json"):
        done = run("--host", str(CAPTURE), "-o", output, "topology", "show")
        assert done.returncode == 0, done.stderr
        assert "0000:c1:00.0" in done.stdout
        assert "blocked" not in done.stderr


def test_diff_of_two_recorded_machines() -> None:
    other = CAPTURE.with_name("two-socket-8gpu.capture")
    done = run("diff", str(CAPTURE), str(other))
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("gpu") and ("missing" in first or "added" in first)
