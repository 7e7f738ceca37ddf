"""In a machine of 8 PUs: a unit of a stand-in vLLM and an index near the GPU, planned, pinned by
role and put back; prints JSON.

usage: roles.py; run as root, with stand_in.py beside it. Leaves nothing running.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
WORK = pathlib.Path("/run/roles")
FILE = WORK / "w.toml"
PATIENCE_S = 240.0
"""Machines are emulated, and share two CPUs with others of their kind."""
UNITS = {
    "roles-rank": ("VLLM::EngineCore", "", "", "cuda-EvtHandlr", "pt_nccl_watchdg"),
    "roles-index": ("index-server", "", ""),
}
WORKLOADS = """
[[unit]]
name = "reasoning-0"
kind = "reasoning"
near = "gpu:0"
ring = "itch"

[[workload]]
name = "rank0"
engine = "vllm"
cpus = 2
unit = "reasoning-0"
match.unit = "roles-rank"
[[workload.role]]
name = "helpers"
cpus = 1

[[workload]]
name = "index0"
kind = "vector-index"
cpus = 1
unit = "reasoning-0"
match.unit = "roles-index"
"""


def sh(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        raise SystemExit(f"{words}: {done.returncode} {done.stdout}{done.stderr}")
    return done.stdout


def ctl(*words: str) -> dict[str, object]:
    said = sh("nodeagentctl", "--socket", f"{WORK}/run/api.sock", "-o", "json", *words)
    return dict(json.loads(said))


def until(look: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not look():
        if time.monotonic() > end:
            raise SystemExit(f"nothing came; {sh('systemctl', '--failed', check=False)}")
        time.sleep(0.2)


def main_pid(name: str) -> int:
    return int(sh("systemctl", "show", "-p", "MainPID", "--value", f"{name}.service"))


def threads(name: str) -> list[list[str]]:
    """[name, cpulist as the kernel has it] of each thread, by number."""
    found = []
    for task in sorted(pathlib.Path(f"/proc/{main_pid(name)}/task").iterdir()):
        status = (task / "status").read_text()
        cpus = status.partition("Cpus_allowed_list:")[2].split()[0]
        found.append([(task / "comm").read_text().strip(), cpus])
    return found


def start(name: str, words: tuple[str, ...]) -> None:
    pipe = WORK / f"{name}.in"
    os.mkfifo(pipe)
    # Open for reading and writing: it never ends, and no command of ours waits for it.
    quoted = " ".join(f"'{w}'" for w in words)
    line = f"exec {sys.executable} {HERE}/stand_in.py {quoted} <> {pipe}"
    sh("systemd-run", "-q", f"--unit={name}", "sh", "-c", line)
    until(lambda: len(threads(name)) == len(words) and threads(name)[0][0] == words[0][:15])


def command(name: str, text: str) -> None:
    with (WORK / f"{name}.in").open("w") as pipe:
        pipe.write(text + "\n")


def main() -> None:
    (WORK / "run").mkdir(parents=True)
    FILE.write_text(WORKLOADS)
    told: dict[str, object] = {}
    sh("systemd-run", "-q", "--unit=roles-actor", "nodeagent-actor", "--run-dir", f"{WORK}/run",
       "--state-dir", f"{WORK}/actor", "--allow", "threads")  # fmt: skip
    try:
        for name, words in UNITS.items():
            start(name, words)
        until((WORK / "run" / "actor.sock").exists)
        told["before"] = {name: threads(name) for name in UNITS}
        told["applied"] = ctl("place", "apply", "--yes", "--workloads", str(FILE))
        told["after"] = {name: threads(name) for name in UNITS}
        told["again"] = ctl("place", "plan", "--workloads", str(FILE))["actions"]
        # A thread of the pool is born where the main thread is; a helper has to be moved.
        command("roles-rank", "thread ")
        command("roles-rank", "thread pt_tcpstore_uv")
        until(lambda: [c for c, _ in threads("roles-rank")].count("pt_tcpstore_uv") == 1)
        told["born"] = threads("roles-rank")
        told["next"] = ctl("place", "apply", "--yes", "--workloads", str(FILE))["actions"]
        told["seated"] = threads("roles-rank")
        told["status"] = ctl("place", "status", "--workloads", str(FILE))["held"]
        ctl("undo")
        told["undone"] = {name: threads(name) for name in UNITS}
    finally:
        for name in (*UNITS, "roles-actor"):
            sh("systemctl", "stop", f"{name}.service", check=False)
    print(json.dumps(told))


main()
