"""A stand-in vLLM and a real FAISS process, planned and pinned on two nodes, and put back.

One machine of 8 PUs, 2 nodes, a GPU behind a switch on each. The tests stand in the order of an
operator's day and build on one another: the machine as it was, plan, pin, read back, undo, and the
machine compared with its capture from before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.vm.node import Node
from tests.vm.qemu import Guest

pytestmark = pytest.mark.timeout(3000)
NODES = {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}
MIB = 24
PAGES = MIB * 256
WORKLOADS = """
[[workload]]
name = "rank0"
engine = "vllm"
cpus = 2
near = "gpu:1"
memory = "64MiB"

[[workload]]
name = "index0"
engine = "faiss"
cpus = 1
near = "gpu:0"
match = { cmdline = "vector_index.py" }
"""
INDEX = (
    "/opt/nodeagent/bin/python /opt/nodeagent/src/examples/vector_index.py "
    "--socket /run/index.sock --vectors 2000"
)


@pytest.fixture(scope="module")
def node(machine: Callable[[str], Guest]) -> Iterator[Node]:
    """The machine with the actor running, and a capture of it before anything ran there."""
    made = Node(machine("two-nodes"))
    made.configure(allow='"threads"', workloads=WORKLOADS)
    made.guest.check("nodeagentctl capture /srv/before.capture", 400)
    yield made
    made.guest.run("systemctl stop rank0 index0 bound nodeagent-actor")


@pytest.fixture(scope="module")
def running(node: Node) -> dict[str, int]:
    """Both workloads, started by services of their own: pid of each one's main process."""
    node.service("rank0", f"standin_vllm 1 {MIB} 2")
    node.service("index0", INDEX)
    node.until(
        "the index answers",
        lambda: '"ready": true' in node.guest.run("journalctl -o cat -u index0").stdout,
    )
    (engine,) = node.pids("^VLLM::EngineCore")
    node.until("the engine has its memory", partial(_has_memory, node, engine))
    (index,) = node.pids("^/opt/nodeagent/bin/python .*vector_index")
    return {"rank0": engine, "index0": index}


def _has_memory(node: Node, pid: int) -> bool:
    return bool(sum(node.pages(pid)["nodes"].values()) > PAGES)


def test_the_plan_is_near_the_gpus_and_changes_nothing(node: Node, running: dict[str, int]) -> None:
    plan = node.json("place plan --detailed-exitcode", rc=1)
    placed = {p["workload"]: p for p in plan["placements"]}
    assert set(placed) == {"rank0", "index0"} and not plan["refused"]
    assert placed["rank0"]["node"] == 1 and placed["index0"]["node"] == 0
    assert {p["sharing"] for p in placed.values()} == {"exclusive"}
    for name, pid in running.items():
        assert all(mask == set(range(8)) for mask in node.masks(pid).values()), name


def test_every_thread_is_pinned_and_ran_there(node: Node, running: dict[str, int]) -> None:
    done = node.ctl("place apply --yes")
    assert done.rc == 0, done.stdout + done.stderr
    rank, index = node.masks(running["rank0"]), node.masks(running["index0"])
    assert len(rank) == 5 and len(index) >= 1
    cpus = {cpu for mask in rank.values() for cpu in mask}
    other = {cpu for mask in index.values() for cpu in mask}
    assert len(cpus) == 2 and cpus < NODES[1]
    assert len(other) == 1 and other < NODES[0]
    # 0 and 4, the lowest core of each package, are kept for the system.
    assert not (cpus | other) & {0, 4}
    for pid, allowed in ((running["rank0"], cpus), (running["index0"], other)):
        ran = node.ran(pid)
        assert all(cpu in allowed for cpu in ran.values()), ran
    # The engine's main thread and its pool run all the time.
    assert len(node.ran(running["rank0"])) >= 3


def test_status_says_held(node: Node, running: dict[str, int]) -> None:
    told = node.json("place status")
    assert {p["workload"] for p in told["placements"]} == {"rank0", "index0"}
    assert "held" in node.ctl("place status").stdout


def test_undo_restores_every_mask(node: Node, running: dict[str, int]) -> None:
    done = node.ctl("undo")
    assert done.rc == 0, done.stdout + done.stderr
    for pid in running.values():
        assert all(mask == set(range(8)) for mask in node.masks(pid).values())


def test_memory_is_bound_at_launch(node: Node) -> None:
    """`exec` binds: every page of it is on the node that was asked for, and the policy says so."""
    node.service("bound", f"nodeagentctl exec --mems 1 --cpus 5-6 -- standin_vllm 2 {MIB} 2")
    node.until("two workers", lambda: len(node.pids("^VLLM::Worker_TP")) == 2)
    for pid in [*node.pids("^VLLM::Worker_TP"), *node.pids("^VLLM::EngineCore")]:
        if node.guest.run(f"systemctl status {pid} | grep -q bound.service").rc:
            continue
        node.until("its memory", partial(_has_memory, node, pid))
        found = node.pages(pid)
        assert set(found["nodes"]) == {"1"} and not found["errors"], found
        assert found["policy"] == ["bind:1"]
        assert all(mask == {5, 6} for mask in node.masks(pid).values())
    node.guest.check("systemctl stop bound")


def test_exec_on_a_node_that_is_not_there_starts_nothing(node: Node) -> None:
    done = node.ctl("exec --mems 7 -- touch /srv/started")
    assert done.rc == 3 and "7" in done.stderr and "Traceback" not in done.stderr
    assert node.guest.run("test -e /srv/started").rc == 1


def test_the_machine_is_as_its_capture_from_before(node: Node, running: dict[str, int]) -> None:
    node.guest.check("systemctl stop rank0 index0; systemctl reset-failed")
    node.guest.check("nodeagentctl capture /srv/after.capture", 400)
    done = node.ctl("diff /srv/before.capture /srv/after.capture")
    # Only what time changes: the CPU seconds of the actor itself, and the cgroups of services of
    # the system's that began or ended meanwhile (what a capture calls them counts those there are).
    left = [
        line
        for line in done.stdout.splitlines()
        if line.strip()
        and not line.startswith(("run/self/", "age_s="))
        and not (line.startswith("sys/fs/cgroup/system.slice/") and "(not there)" in line)
    ]
    assert not left, done.stdout
