"""kill -9 of `place apply` and `undo` themselves, at any moment: what they asked for is done whole
or not at all, and the next undo puts back every mask."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.daemon.conftest import Node, Workers

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("as_root", "two_cpus")]

KILLS = int(os.environ.get("NODEAGENT_KILLS", "8"))
APPLY = ("place", "apply", "--yes")


def command(node: Node, *args: str) -> list[str]:
    return [str(node.bin_dir / "nodeagentctl"), "--config", str(node.config), *args]


def run(node: Node, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(node, *args), capture_output=True, text=True)


def differing(workers: Workers) -> dict[int, frozenset[int]]:
    """The masks, after one thread was bound otherwise than the rest, as a program may do."""
    masks = workers.masks()
    lone = max(masks)
    os.sched_setaffinity(lone, {min(masks[lone])})
    return workers.masks()


def seen(workers: Workers) -> tuple[dict[int, frozenset[int]], str, list[str]]:
    """Masks, cgroups, and the workload's cpuset: all that these acts change. Other tests may make
    cpusets of their own meanwhile."""
    groups = pathlib.Path(f"/proc/{workers.pid}/cgroup").read_text()
    ours = sorted(map(str, pathlib.Path("/sys/fs/cgroup").glob(f"**/nodeagent/{workers.name}")))
    return workers.masks(), groups, ours


@pytest.mark.parametrize("consent", ["threads", "cgroup"])
def test_killed_commands_leave_nothing_half(node: Node, workers: Workers, consent: str) -> None:
    seed = int(time.time())
    chance = random.Random(seed)
    node.place(workers, f"pin.allow = ['{consent}']\n")
    file = node.folder / "w.toml"
    file.write_text(file.read_text().replace('"w"', f'"{workers.name}"'))
    differing(workers)
    before = seen(workers)
    node.start_actor(consent)
    start = time.monotonic()
    done = run(node, *APPLY)
    usual_s = time.monotonic() - start
    if consent == "cgroup" and done.returncode != 0:
        pytest.skip(f"no cpuset to be had here: {done.stdout[-200:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    pinned = seen(workers)
    assert pinned != before
    for i in range(KILLS):
        args = chance.choice([APPLY, ("undo",)])
        child = subprocess.Popen(
            command(node, *args), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(0, usual_s * 1.1))
        child.kill()
        child.wait()
        if chance.random() < 0.3:
            node.kill_actor()
            node.start_actor(consent)
        # The next call waits for the one that was left; then nothing is under way.
        plan = run(node, "-o", "json", "undo", "--plan")
        assert plan.returncode == 0, (seed, i, plan.stderr)
        waiting = json.loads(plan.stdout)["would_undo"]
        masks = seen(workers)
        assert masks in (before, pinned), (seed, i, args, masks)
        assert bool(waiting) == (masks == pinned), (seed, i, args, waiting, masks)
    done = run(node, "undo")
    assert done.returncode == 0, (seed, done.stdout, done.stderr)
    assert seen(workers) == before, seed
    assert json.loads(run(node, "-o", "json", "undo", "--plan").stdout)["would_undo"] == [], seed
