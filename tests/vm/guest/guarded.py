"""In a machine: a workload that is pinned and guarded, and strangers who move it; prints JSON.

usage: guarded.py [STEP...]; run as root. Leaves nothing running.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

WORK = pathlib.Path("/run/guarded")
SOCKET = WORK / "run" / "api.sock"
PATIENCE_S = 240.0
"""Machines are emulated, and share two CPUs with others of their kind."""
WORKER = """
import threading, time
def work():
    while True:
        time.sleep(0.005)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
work()
"""
CONFIG = f"""
daemon.run_dir = "{WORK}/run"
daemon.state_dir = "{WORK}/state"
daemon.interval_s = 30.0
place.workloads = "w.toml"
pin.allow = ["threads"]
pin.auto = ["threads"]
probe.enabled = true
"""
WORKLOADS = """
[[workload]]
name = "rank0"
cpus = 2
match = { unit = "worker-[0-9].service" }
"""


def sh(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        raise SystemExit(f"{words}: {done.stdout}{done.stderr}")
    return done.stdout


def unit(name: str, *words: str, wait: bool = False, **properties: str) -> None:
    how = ["--wait", "--collect"] if wait else []
    given = [f"--property={key}={value}" for key, value in properties.items()]
    sh("systemd-run", "-q", f"--unit={name}", *how, *given, *words)


def events() -> list[dict[str, str]]:
    said = sh(
        "nodeagentctl",
        "--socket",
        str(SOCKET),
        "-o",
        "json",
        "events",
        "--limit",
        "1000",
        check=False,
    )
    try:
        return list(json.loads(said)["events"])
    except (ValueError, KeyError):
        return []


def until(look: Callable[[], object]) -> object:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.2)
    raise SystemExit(f"nothing came; events: {json.dumps(events(), indent=1)}")


def main_pid(name: str) -> int:
    return int(sh("systemctl", "show", "-p", "MainPID", "--value", f"{name}.service"))


def masks(pid: int) -> list[str]:
    found = set()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        found.add(",".join(map(str, sorted(os.sched_getaffinity(int(task.name))))))
    return sorted(found)


class Case:
    """One worker, pinned; its moves are told by event."""

    def __init__(self, number: int) -> None:
        self.name = f"worker-{number}"
        unit(self.name, sys.executable, "-c", WORKER, "guarded-worker")
        self.pid = main_pid(self.name)
        until(lambda: masks(self.pid) == ["0,1,2,3,4,5,6,7"] or len(masks(self.pid)) == 1)
        until(lambda: [e for e in events() if e["kind"] == "pin.done" and self.mine(e)])
        time.sleep(1.0)
        self.home = masks(self.pid)

    def mine(self, event: dict[str, str]) -> bool:
        return f"(pid {self.pid})" in event["message"]

    def said(self, kind: str) -> list[str]:
        return [e["message"] for e in events() if e["kind"] == kind and self.mine(e)]

    def wait(self, kind: str, count: int = 1) -> str:
        return str(until(lambda: len(self.said(kind)) >= count and self.said(kind)[-1]))

    def end(self) -> None:
        sh("systemctl", "stop", f"{self.name}.service", check=False)


def service(case: Case) -> dict[str, object]:
    """A service moves it, is corrected and named; moves it again, and is left."""
    unit("noisy", "taskset", "-acp", "7", str(case.pid), wait=True)
    first = case.wait("pin.drift")
    until(lambda: masks(case.pid) == case.home)
    time.sleep(1.0)
    unit("noisy", "taskset", "-acp", "7", str(case.pid), wait=True)
    second = case.wait("pin.manual")
    time.sleep(2.0)
    return {"first": first, "second": second, "masks": masks(case.pid), "home": case.home}


def person(case: Case) -> dict[str, object]:
    """Somebody who logged in moves it, and it is left there."""
    # PAMName= counts with User= only.
    unit("login-of-root", "taskset", "-acp", "6", str(case.pid), wait=True,
         PAMName="login", User="root")  # fmt: skip
    said = case.wait("pin.manual")
    time.sleep(2.0)
    return {"said": said, "masks": masks(case.pid), "drifts": case.said("pin.drift")}


def reload(case: Case) -> dict[str, object]:
    """systemd's daemon-reload, and irqbalance at work, move nothing of ours."""
    sh("systemctl", "daemon-reload")
    unit("balancer", "irqbalance", "--foreground", "--interval=1", RuntimeDirectory="irqbalance")
    until(lambda: list(pathlib.Path("/run/irqbalance").glob("irqbalance*.sock")))
    # Three of its turns and more.
    time.sleep(4.0)
    balanced = sh("systemctl", "is-active", "balancer.service").strip()
    found = {"masks": masks(case.pid), "home": case.home, "drifts": case.said("pin.drift")}
    sh("systemctl", "stop", "balancer.service")
    return {**found, "irqbalance": balanced}


def failed() -> list[str]:
    """What is said of acts that were not done, in the order of time."""
    kinds = ("pin.failed", "pin.reverted", "pin.refused")
    return [e["message"] for e in events() if e["kind"] in kinds]


def cpuset(case: Case) -> dict[str, object]:
    """The cpuset controller comes on above it, with fewer CPUs for its slice."""
    root, own = pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/system.slice")
    had = (root / "cgroup.subtree_control").read_text()
    unit("enabler", "sh", "-c", f"echo +cpuset > {root}/cgroup.subtree_control; "
         f"echo 4-7 > {own}/cpuset.cpus", wait=True)  # fmt: skip
    case.wait("pin.drift")
    until(failed)
    found: dict[str, object] = {
        "had": had,
        "masks": masks(case.pid),
        "home": case.home,
        "drifts": case.said("pin.drift"),
        "failed": failed(),
    }
    # An empty list is refused (ENOSPC) while processes live below.
    (own / "cpuset.cpus").write_text("0-7")
    if "cpuset" not in had.split():
        (root / "cgroup.subtree_control").write_text("-cpuset")
    return found


STEPS = {"service": service, "person": person, "reload": reload, "cpuset": cpuset}


def main() -> None:
    for folder in ("run", "state"):
        (WORK / folder).mkdir(parents=True, exist_ok=True)
    (WORK / "n.toml").write_text(CONFIG)
    (WORK / "w.toml").write_text(WORKLOADS)
    told: dict[str, object] = {}
    unit("guarded-actor", "nodeagent-actor", "--run-dir", f"{WORK}/run", "--state-dir",
         f"{WORK}/actor", "--allow", "threads")  # fmt: skip
    until((WORK / "run" / "actor.sock").exists)
    unit("guarded-daemon", "nodeagentd", "--config", f"{WORK}/n.toml")
    try:
        until(lambda: [e for e in events() if e["kind"].startswith("guard.")])
        told["guard"] = [e["message"] for e in events() if e["kind"].startswith("guard.")]
        for number, name in enumerate(sys.argv[1:] or STEPS):
            case = Case(number)
            try:
                told[name] = STEPS[name](case)
            finally:
                case.end()
    finally:
        sh("systemctl", "stop", "guarded-daemon.service", "guarded-actor.service", check=False)
    print(json.dumps(told))


main()
