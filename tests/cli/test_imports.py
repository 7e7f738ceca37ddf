"""What a command imports before it answers: most of its time is that, and it grows unseen."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
SERVER = ("--host", str(HOSTS / "two-socket-8gpu.capture"))
LOGGED = ("--host", str(HOSTS / "qemu-2node-switches.capture"))
CODE = """
import contextlib, io, json, sys
from nodeagent.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    try:
        main(sys.argv[1:])
    except SystemExit as end:
        code = end.code
print(json.dumps([code, sorted(sys.modules)]))
"""
# Each of these costs about as much as to judge a machine, and a recorded machine needs none.
HEAVY = (
    r"(asyncio|cffi|dbus_fast|google|grpc|numpy|psutil|sqlite3|ssl|subprocess|tomllib)(\..*)?|"
    r"nodeagent\.(api|client|controller|daemon|feed|native|pin|place|probe|rpc)(\..*)?|"
    r"nodeagent\.check\.policyfile|nodeagent\.discover\.(containers|procs|memory_child)|"
    r"nodeagent\.model\.(actions|configfile|placement|settings|status)"
)
PASTE = r"nodeagent\.discover\.paste(\..*)?"


def imported(*args: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *args], capture_output=True, text=True, check=True
    )
    code, modules = json.loads(done.stdout)
    assert isinstance(code, int) and code <= 3, (code, done.stderr)
    return list(modules)


@pytest.mark.parametrize(
    ("args", "never"),
    [
        ((*SERVER, "topology", "check"), f"{HEAVY}|{PASTE}"),
        ((*SERVER, "-o", "json", "topology", "show"), f"{HEAVY}|{PASTE}"),
        # Its kernel log is read by the rules for logs, and by no other reader of pasted text; its
        # processes' threads are a placement's.
        (
            (*LOGGED, "topology", "check"),
            rf"(?!nodeagent\.model\.placement)({HEAVY}|"
            r"nodeagent\.discover\.paste\.(?!klog|part$).*)",
        ),
        (("explain", "pcie.speed"), f"{HEAVY}|{PASTE}|nodeagent\\.discover.*"),
    ],
    ids=["check", "show", "check a log", "explain"],
)
def test_a_recorded_machine_needs_none_of_it(args: tuple[str, ...], never: str) -> None:
    modules = imported(*args)
    assert "nodeagent.model.snapshot" in modules
    assert [m for m in modules if re.fullmatch(never, m)] == []


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("topology", "--help")])
def test_help_reads_nothing(args: tuple[str, ...]) -> None:
    modules = imported(*args)
    assert "nodeagent.cli.main" in modules
    heavy = r"(rich|msgspec)(\..*)?|nodeagent\.(check|discover|model|place|pin)\..*"
    assert [m for m in modules if re.fullmatch(f"{heavy}|{HEAVY}", m)] == []


def test_the_list_can_fail() -> None:
    """What plans placement does import what is listed above."""
    modules = imported("--host", SERVER[1], "place", "plan", "--help")
    assert [m for m in modules if re.fullmatch(HEAVY, m)] == []
    code = "import sys, json, nodeagent.place.planner; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [m for m in json.loads(done.stdout) if re.fullmatch(HEAVY, m)]
