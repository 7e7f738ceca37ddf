"""Memory on machines with two nodes: bound at launch, moved while its process works on it.

Every page is asked where it is by the test's own system call (guest/memory_moves.py).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nodeagent.model.memory import MAX_STEP_BYTES
from tests.vm.qemu import Guest

GUEST = pathlib.Path(__file__).parent / "guest"
PAGES = 256  # of 4 KiB in a MiB
pytestmark = [pytest.mark.vm_long, pytest.mark.timeout(1800)]
Get = Callable[[str], Guest]


BALANCING = "/proc/sys/kernel/numa_balancing"


@pytest.fixture
def moves(machine: Get) -> Iterator[Callable[[str], Any]]:
    """Runs one scenario of guest/memory_moves.py in the machine of two nodes.

    The victim's threads stay on node 0, and the kernel would take its pages back there."""
    guest = machine("two-nodes")
    before = guest.check(f"cat {BALANCING}; echo 0 > {BALANCING}").strip()
    for name in ("memory_victim.py", "memory_moves.py"):
        guest.put(f"/srv/{name}", (GUEST / name).read_bytes())

    def run(scenario: str) -> Any:
        python = "/opt/nodeagent/bin/python"
        return json.loads(guest.check(f"{python} /srv/memory_moves.py {scenario}", limit_s=600))

    yield run
    guest.check(f"echo {before} > {BALANCING}")


def test_memory_moves_page_by_page_while_threads_write_to_it(
    moves: Callable[[str], Any], measured: Callable[[str, str], None]
) -> None:
    found = moves("everything")
    before, after, result = found["before"], found["after"], found["result"]
    assert before["anon"] == {"0": 256 * PAGES}
    # Every page of it, with not one lost or changed, although two threads wrote to all of them.
    assert after["anon"] == {"1": 256 * PAGES}
    assert all(found["check"]["whole"].values()) and found["check"]["turns"] > 0
    assert result["outcome"] == "done", result
    assert found["largest_step"] <= MAX_STEP_BYTES and found["steps"] > 4
    # Locked pages move: mlock keeps them in memory, not in place.
    assert after["locked"] == {"1": 8 * PAGES}
    # Huge pages move where the target's pool has free ones; transparent ones always.
    assert "huge" not in found["missing"] and after["huge"] == {"1": 8 * PAGES}
    assert after["thp"] == {"1": 16 * PAGES}
    # What others map too stays, and is told.
    assert before["shared"] == after["shared"] == {"0": 8 * PAGES}
    assert "shared with other processes" in result["message"]
    if "pinned" not in found["missing"]:
        assert after["pinned"] == {"0": 4 * PAGES}
        assert "pinned (DMA) or busy" in result["message"]
    # A second time only what the process took anew since can be moved: what stays is told again.
    assert "stay where they are" in found["again"]["message"]
    # Undo says that it stays, and how it could go back; the pages are where they were moved to.
    assert len(found["undone"]) == 1 and found["entries"] == 0
    assert "stays there (before: node 0:" in found["undone"][0]["message"]
    assert "migratepages" in found["undone"][0]["message"]
    assert found["after_undo"] == after
    measured(
        "Moving 256 MiB and more between two nodes, its threads writing",
        f"{result['message']}; {found['steps']} steps in {found['seconds']:.0f} s, software "
        f"emulation; not to be had: {found['missing'] or 'nothing'}",
    )


def test_a_target_too_small_is_refused_with_figures(moves: Callable[[str], Any]) -> None:
    found = moves("small")
    assert found["result"]["outcome"] == "refused"
    message = found["result"]["message"]
    assert "node 1 has" in message and "free or reclaimable" in message
    assert "with 10 % to spare" in message and "MiB" in message
    assert found["entries"] == 0 and found["before"] == found["after"]


def test_it_stops_at_the_stall_bound_and_goes_on_later(moves: Callable[[str], Any]) -> None:
    found = moves("stall")
    assert found["first"]["outcome"] == "failed"
    assert "over the stall bound of 1 ms" in found["first"]["message"]
    assert found["states"] == ["done"]
    moved = found["half"]["anon"].get("1", 0)
    assert 0 < moved < 64 * PAGES
    assert found["second"]["outcome"] == "done"
    # One record for both: what was before the first is what was before.
    ((number, state, before),) = found["entries"]
    assert (number, state) == (found["first"]["journal_id"], "done")
    assert int(before.split()[0].removeprefix("0:")) >= 64 << 20
    assert found["after"]["anon"] == {"1": 64 * PAGES} and all(found["check"]["whole"].values())


def test_killed_at_every_step_the_next_start_says_how_far_it_came(
    moves: Callable[[str], Any],
) -> None:
    found = moves("kills")
    rows = found["rows"]
    assert not found["killed"] and len(rows) > 8
    there = 0
    told = 0
    for row in rows:
        # Never half described: open is read off the pages and closed, and a second look is silent.
        assert row["again"] == [] and set(row["states"]) <= {"done"}, row
        moved = row["pages"].get("1", 0)
        assert moved >= there, row
        there = moved
        for said in row["said"]:
            assert "was interrupted: before, node 0:" in said and "is left" in said
            told += 1
    assert told >= 3
    assert found["after"]["anon"] == {"1": 24 * PAGES} and all(found["check"]["whole"].values())


def test_the_freeze_file_stops_it_within_a_step(moves: Callable[[str], Any]) -> None:
    found = moves("freeze")
    assert found["frozen"]["outcome"] == "failed"
    assert (
        "stopped with" in found["frozen"]["message"] and "frozen by" in found["frozen"]["message"]
    )
    assert 0 < found["half"]["anon"].get("1", 0) < 64 * PAGES
    assert found["late"]["outcome"] == "refused"
    assert [u["outcome"] for u in found["undone"]] == ["done"]
    assert "was ended meanwhile" in found["after_undo"]["message"]
    assert found["pages"] == found["half"] and all(found["check"]["whole"].values())


def test_one_that_was_left_says_how_far_it_came_and_goes_on_later(
    moves: Callable[[str], Any],
) -> None:
    found = moves("left")
    assert found["state"] == "done" and 0 < found["half"]["anon"].get("1", 0) < 64 * PAGES
    assert found["audit"]["outcome"] == "failed" and found["audit"]["what"] == "migrate_memory"
    assert "root (pid 3) is connected no more" in found["audit"]["message"]
    assert found["again"]["outcome"] == "done" and found["entries"][1] == [found["entries"][0]]
    assert found["pages"]["anon"] == {"1": 64 * PAGES} and all(found["check"]["whole"].values())


def test_a_process_that_ends_between_two_steps_is_gone(moves: Callable[[str], Any]) -> None:
    found = moves("ended")
    assert found["result"]["outcome"] == "gone" and found["entries"] == 0
    assert "moved to node 1" in found["result"]["message"]


def test_a_node_that_the_cpuset_hides_is_refused(moves: Callable[[str], Any]) -> None:
    found = moves("hidden")
    assert found["result"]["outcome"] == "refused" and found["entries"] == 0
    assert "may have memory of node 0 only" in found["result"]["message"]


def test_huge_pages_stay_where_the_pool_is_empty(moves: Callable[[str], Any]) -> None:
    found = moves("pool")
    assert "huge" not in found["missing"]
    assert found["pages"]["huge"] == {"0": 8 * PAGES}
    assert "in huge pages that the target has no free page for" in found["result"]["message"]
    assert found["pages"]["anon"] == {"1": 4 * PAGES}


def test_it_says_that_the_kernel_may_move_it_away_again(moves: Callable[[str], Any]) -> None:
    message = moves("balanced")["result"]["message"]
    assert "kernel.numa_balancing is on and its threads may run on CPU 0-3" in message


def test_speed_is_measured_with_memory_of_our_own(moves: Callable[[str], Any]) -> None:
    assert moves("speed")["rate"] > 0


HOLDER = (
    "import mmap,time\n"
    "m=mmap.mmap(-1,96<<20,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)\n"
    "for i in range(0,96<<20,4096): m[i]=1\n"
    "open('/run/holder','w').close()\n"
    "time.sleep(3600)\n"
)
MOVED = b"""[[workload]]
name = "holder"
cpus = 1
sharing = "shared"
near = "node:1"
memory = { size = "100MiB", move = "migrate" }
match = { cmdline = '/srv/holder\\.py' }
"""


def _pages_of_holder(guest: Guest) -> dict[str, int]:
    """Pages by node of its one large mapping."""
    pid = "$(systemctl show -p MainPID --value holder)"
    found = json.loads(guest.check(f"python3 /srv/pages.py {pid} 65536"))
    assert not found["errors"], found
    nodes: dict[str, int] = found["nodes"]
    return nodes


def test_place_moves_the_memory_of_a_workload_that_says_so(
    machine: Get, measured: Callable[[str, str], None]
) -> None:
    """By the commands alone: planned with bytes and seconds, applied, shown, undone."""
    guest = machine("two-nodes")
    guest.put("/srv/holder.py", HOLDER.encode())
    guest.put("/srv/holder.toml", MOVED)
    guest.put("/srv/pages.py", (GUEST / "pages.py").read_bytes())
    affinity: list[str | None] = []
    ctl = "/opt/nodeagent/bin/nodeagentctl --socket /run/na-memory/api.sock"
    file = "--workloads /srv/holder.toml"
    guest.check(
        "systemd-run --quiet --unit=holder -p CPUAffinity=0-3 python3 /srv/holder.py;"
        "systemd-run --quiet --unit=mover /opt/nodeagent/bin/nodeagent-actor "
        "--allow threads,memory --run-dir /run/na-memory --state-dir /var/lib/na-memory;"
        "until [ -e /run/holder ] && [ -S /run/na-memory/actor.sock ]; do sleep 0.5; done",
        limit_s=300,
    )
    try:
        before = json.loads(guest.check(f"{ctl} -o json place status {file} --memory"))
        (row,) = before["held"]
        assert row["memory_local"] < 0.2 and not row["held"]
        plan = " ".join(guest.check(f"{ctl} place plan {file}", limit_s=300).split())
        assert "of memory on other nodes" in plan and "-> node 1" in plan, plan
        assert "measured now: 16 MiB of our own from node 0 to node 1" in plan
        # Without --yes nothing is done, and memory is not even among what would be.
        done = guest.run(f"{ctl} place apply {file} </dev/null", limit_s=300)
        assert done.rc == 64 and "--yes was not given" in done.stderr
        # Software emulation on a busy host is over the stall bound now and then: it stops, and the
        # next one goes on. However many that takes, each has moved some of it.
        there = _pages_of_holder(guest).get("1", 0)
        assert there < 2 * PAGES
        while True:
            applied = guest.run(f"{ctl} -o json place apply --yes {file}", limit_s=600)
            results = {r["do"]: r for r in json.loads(applied.stdout)["results"]}
            affinity.append(results.get("set_affinity", {}).get("outcome"))
            if results["migrate_memory"]["outcome"] == "done":
                break
            assert "over the stall bound of 100 ms" in results["migrate_memory"]["message"]
            before_it, there = there, _pages_of_holder(guest).get("1", 0)
            assert there > before_it, results["migrate_memory"]
        assert affinity == ["done", *[None] * (len(affinity) - 1)]
        # Page by page, by the test's own question.
        found = _pages_of_holder(guest)
        assert set(found) == {"1"} and found["1"] >= 96 * PAGES, found
        assert results["migrate_memory"]["outcome"] == "done", results
        after = json.loads(guest.check(f"{ctl} -o json place status {file} --memory"))
        (row,) = after["held"]
        assert row["memory_local"] > 0.9 and row["held"]
        sampled = json.loads(guest.check(f"{ctl} -o json place status {file}"))["held"][0]
        assert abs(sampled["memory_local"] - row["memory_local"]) < 0.1
        undone = json.loads(guest.check(f"{ctl} -o json undo"))
        said = " ".join(r["message"] for r in undone["results"])
        assert "stays there (before: node 0:" in said and "migratepages" in said
        measured("place apply, memory of 96 MiB", results["migrate_memory"]["message"])
    finally:
        guest.run("systemctl stop mover holder; rm -rf /run/holder /run/na-memory")


# ---- at launch -----------------------------------------------------------------------------------

LAUNCHED = (
    "import json,mmap\n"
    "m=mmap.mmap(-1,32<<20,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)\n"
    "for i in range(0,32<<20,4096): m[i]=1\n"
    "n={}\np=set()\n"
    "for l in open('/proc/self/numa_maps'):\n"
    "    w=l.split()\n"
    "    p.add(w[1])\n"
    "    for x in w:\n"
    "        if x[0]=='N' and '=' in x and 'anon' in l:\n"
    "            k,v=x[1:].split('='); n[k]=n.get(k,0)+int(v)\n"
    "s={l.split(':')[0]:l.split(':')[1].strip() for l in open('/proc/self/status')}\n"
    "print(json.dumps([n,sorted(p),s['Cpus_allowed_list']]))\n"
)


@pytest.mark.parametrize(
    ("options", "policy", "share"),
    [
        ("--mems 1 --cpus 0", "bind:1", {"1": 1.0}),
        ("--mems 1 --policy preferred --cpus 0", "prefer:1", {"1": 1.0}),
        ("--mems 0-1 --policy interleave --cpus 0", "interleave:0-1", {"0": 0.5, "1": 0.5}),
    ],
)
def test_a_program_started_by_exec_has_its_memory_there(
    machine: Get, options: str, policy: str, share: dict[str, float]
) -> None:
    """On a CPU of node 0: without the policy all of it would be there."""
    guest = machine("two-nodes")
    guest.put("/srv/launched.py", LAUNCHED.encode())
    out = guest.check(f"/opt/nodeagent/bin/nodeagentctl exec {options} -- python3 /srv/launched.py")
    nodes, policies, cpus = json.loads(out)
    total = sum(nodes.values())
    assert total >= 32 * PAGES and policy in policies and cpus == "0"
    for node, wanted in share.items():
        # The pages that the C library had touched by the policy's time are the program's own too.
        assert nodes[node] / total == pytest.approx(wanted, abs=0.02)


def test_exec_refuses_nodes_that_are_hidden_or_absent(machine: Get) -> None:
    guest = machine("two-nodes")
    ctl = "/opt/nodeagent/bin/nodeagentctl exec"
    absent = guest.run(f"{ctl} --mems 1,2 -- touch /srv/started")
    assert absent.rc == 3 and "NUMA node 2 is not there" in absent.stderr
    hiding = "systemd-run --scope --quiet -p AllowedMemoryNodes=0"
    hidden = guest.run(f"{hiding} {ctl} --mems 1 -- touch /srv/started")
    assert hidden.rc == 3 and "NUMA node 1 is hidden by the cpuset" in hidden.stderr
    assert guest.run("test -e /srv/started").rc == 1


def test_exec_refuses_a_workload_that_its_node_has_no_room_for(machine: Get) -> None:
    guest = machine("two-nodes")
    guest.put(
        "/srv/w.toml",
        b'[[workload]]\nname = "big"\ncpus = 2\nnear = "node:1"\nmemory = "700MiB"\n'
        b'match = { comm = "big" }\n',
    )
    # Without anything else on the node there is room.
    ctl = "/opt/nodeagent/bin/nodeagentctl exec --workload big --workloads /srv/w.toml"
    fill = (
        'numactl --membind=1 python3 -c "b=bytearray(300<<20)\n'
        "for i in range(0,len(b),4096): b[i]=1\n"
        'print(1,flush=True); import time; time.sleep(120)"'
    )
    script = f"{fill} >/srv/full & until [ -s /srv/full ]; do sleep 0.2; done; {ctl} -- true"
    guest.put("/srv/room.sh", f"{script}\nrc=$?\nkill %1\nexit $rc\n".encode())
    done = guest.run("bash /srv/room.sh")
    assert done.rc == 3, done.stderr
    assert "700" in done.stderr and "node 1" in done.stderr


def test_a_node_of_memory_only_takes_a_program(machine: Get) -> None:
    guest = machine("memory-only")
    guest.put("/srv/launched.py", LAUNCHED.encode())
    ctl = "/opt/nodeagent/bin/nodeagentctl exec"
    nodes, policies, _ = json.loads(guest.check(f"{ctl} --mems 2 -- python3 /srv/launched.py"))
    assert "bind:2" in policies and nodes["2"] >= 32 * PAGES
    # Pages of its program's file, which others had read before, are where they are.
    assert nodes["2"] / sum(nodes.values()) >= 0.98, nodes
