"""Units, partitions and containers held on machines with a real systemd, cgroup v2 and podman."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.vm.machine import expand
from tests.vm.node import Node
from tests.vm.qemu import Guest

pytestmark = [pytest.mark.vm_long, pytest.mark.timeout(4500)]
SMALL = ["small", "small-6-1"]
PYTEST = "cd /opt/nodeagent/src && /opt/nodeagent/bin/python -m pytest -p no:cacheprovider -q "
PODMAN = r"""
set -e
cd /srv && mkdir -p box/bin box/proc box/sys box/dev && cp /bin/busybox box/bin/
ID=$(podman run -d --network=none --rootfs /srv/box /bin/busybox sleep 600)
cat > /srv/hold.py <<'P'
import sys
from pathlib import Path
from nodeagent.model.placement import Knob, SetValue
from nodeagent.pin.asked import Asked
from nodeagent.pin.bus import Bus
from nodeagent.pin.containers import ContainerCpus
from nodeagent.pin.proc import boot_id
from nodeagent.pin.undo import Journal
from nodeagent.pin.values import Values
# podman takes a minute in emulation; everything else is as in the actor.
door = ContainerCpus(frozenset({"podman"}), lambda: Bus(deadline_s=60), deadline_s=300)
journal = Journal(Path("/srv/state/journal"))
values = Values(journal, {Knob.CONTAINER_CPUS: door}, boot_id())
if sys.argv[1] == "undo":
    print(*(values.undo(e).message for e in journal.entries))
else:
    action = SetValue(workload="w", knob=Knob.CONTAINER_CPUS, subject=f"podman:{sys.argv[1]}",
                      value="2-3", before="")
    print(values.perform(action, Asked(by="test"), 0)[0].message)
P
G=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$(podman inspect -f '{{.State.Pid}}' $ID)/cgroup)
show() { echo "$1 $(cat $G/cpuset.cpus.effective)"; }
show before
/opt/nodeagent/bin/python /srv/hold.py $ID
show held
systemctl daemon-reload
show reloaded
/opt/nodeagent/bin/python /srv/hold.py undo
show undone
systemctl list-units --all --no-legend 'nodeagent-call-*'
podman rm -f -t 0 $ID >/dev/null
"""


def within(guest: Guest, what: str, limit_s: float, *, skips: bool = False) -> None:
    """Those tests passed in the machine, and none was skipped there, but where `skips` says so."""
    done = guest.run(PYTEST + what, limit_s)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-2000:]
    assert done.rc == 0 and re.search(r"\d+ passed", last), done.stdout[-4000:] + done.stderr
    assert skips or "skipped" not in last, done.stdout[-4000:]


@pytest.mark.parametrize("name", SMALL)
def test_partitions(name: str, machine: Callable[[str], Guest]) -> None:
    within(machine(name), "tests/pin/test_partition.py", 1800)


@pytest.mark.parametrize("name", SMALL)
def test_units(name: str, machine: Callable[[str], Guest]) -> None:
    within(machine(name), "tests/pin/test_units.py -k 'not killed'", 3600)


def test_containers_whose_runtime_systemd_starts(machine: Callable[[str], Guest]) -> None:
    """Slow and hanging runtimes too. What a failing one says is in systemd's journal there."""
    what = "tests/pin/test_containers.py tests/pin/test_deadlines.py tests/pin/test_managers.py"
    within(machine("small"), what, 3600, skips=True)


IN_A_SCOPE = """
[[workload]]
name = "rank0"
cpus = 1
match = { unit = "rank0.scope" }
"""


def test_a_program_in_a_scope_of_its_own_is_held_by_it(machine: Callable[[str], Guest]) -> None:
    """As docs/workloads.md says to start one; the scope's end is the act's."""
    node = Node(machine("small"))
    node.configure(allow='"threads", "cgroup", "host"', workloads=IN_A_SCOPE)
    start = "systemd-run --quiet --scope --unit=rank0 nodeagentctl exec --mems 0 -- sleep 4545"
    node.service("starter", start)
    node.until("it runs", lambda: bool(node.pids("^sleep 4545$")), 300)
    (pid,) = node.pids("^sleep 4545$")
    every = node.masks(pid)[pid]
    done = node.ctl("place apply --yes")
    assert done.rc == 0, done.stdout + done.stderr
    shown = "systemctl show -P AllowedCPUs rank0.scope"
    allowed = node.guest.check(shown).strip()
    assert expand(allowed) == node.masks(pid)[pid] < every, done.stdout
    node.guest.check("systemctl daemon-reload")
    assert node.guest.check(shown).strip() == allowed
    assert node.masks(pid)[pid] == expand(allowed)
    undone = node.ctl("undo")
    assert undone.rc == 0 and node.masks(pid)[pid] == every, undone.stdout
    again = node.ctl("place apply --yes")
    assert again.rc == 0 and node.masks(pid)[pid] == expand(allowed), again.stdout
    node.guest.check(f"kill {pid}")
    node.until("it is gone", lambda: node.guest.run("systemctl is-active rank0.scope").rc != 0)
    ended = node.ctl("-o json undo")
    assert [r["outcome"] for r in json.loads(ended.stdout)["results"]] == ["gone"], ended.stdout
    left = node.guest.run("find /run/systemd /etc/systemd -path '*rank0*'").stdout
    assert left == "", left


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", SMALL[:1])
def test_units_killed_at_every_step(name: str, machine: Callable[[str], Guest]) -> None:
    within(machine(name), "tests/pin/test_units.py -k 'killed and not limited'", 7000)


@pytest.mark.parametrize("name", SMALL)
def test_a_container_is_held_through_podman_over_a_reload(
    name: str, machine: Callable[[str], Guest]
) -> None:
    guest = machine(name)
    said = guest.check(PODMAN, 600)
    assert "is 2-3, was all" in said, said
    assert {"before 0-3", "held 2-3", "reloaded 2-3", "undone 0-3"} <= set(said.splitlines()), said
    assert "nodeagent-call" not in said, "the unit that called podman is gone"
