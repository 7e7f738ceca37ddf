"""Units, partitions and containers held on machines with a real systemd, cgroup v2 and podman."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.vm.qemu import Guest

SMALL = ["small", "small-6-1"]
PYTEST = "cd /opt/nodeagent/src && /opt/nodeagent/bin/python -m pytest -p no:cacheprovider -q "
PODMAN = r"""
set -e
cd /root && mkdir -p box/bin box/proc box/sys box/dev && cp /bin/busybox box/bin/
ID=$(podman run -d --network=none --rootfs /root/box /bin/busybox sleep 600)
cat > /root/hold.py <<'P'
import sys
from pathlib import Path
from nodeagent.model.placement import Consent, Knob, SetValue
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.audit import Audit
from nodeagent.pin.undo import Journal
home = Path("/root/state")
home.mkdir(exist_ok=True)
journal = Journal(home / "journal")
actor = Actor(journal, Audit(home), allow=frozenset({Consent.CGROUP}), run_dir=home,
              runtimes=frozenset({"podman"}))
me = Asked(by="test")
if sys.argv[1] == "undo":
    print(*(u.result.message for u in actor.undo(None, me)))
else:
    action = SetValue(workload="w", knob=Knob.CONTAINER_CPUS, subject=f"podman:{sys.argv[1]}",
                      value="2-3", before="")
    print(actor.perform(action, me).message)
P
G=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$(podman inspect -f '{{.State.Pid}}' $ID)/cgroup)
S=${G%%.scope*}.scope
show() { echo "$1 $(cat $S/cpuset.cpus.effective)"; }
show before
/opt/nodeagent/bin/python /root/hold.py $ID
show held
systemctl daemon-reload
show reloaded
/opt/nodeagent/bin/python /root/hold.py undo
show undone
systemctl list-units --all --no-legend 'nodeagent-call-*'
podman rm -f -t 0 $ID >/dev/null
"""


def within(guest: Guest, what: str, limit_s: float) -> None:
    """Those tests passed in the machine, and none was skipped there."""
    done = guest.run(PYTEST + what, limit_s)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-2000:]
    assert done.rc == 0 and re.search(r"\d+ passed", last), done.stdout[-4000:] + done.stderr
    assert "skipped" not in last, done.stdout[-4000:]


@pytest.mark.vm_long
@pytest.mark.parametrize("name", SMALL)
def test_partitions(name: str, machine: Callable[[str], Guest]) -> None:
    within(machine(name), "tests/pin/test_partition.py", 1800)


@pytest.mark.vm_long
@pytest.mark.parametrize("name", SMALL)
def test_units(name: str, machine: Callable[[str], Guest]) -> None:
    within(machine(name), "tests/pin/test_units.py -k 'not killed'", 3600)


@pytest.mark.vm_long
@pytest.mark.timeout(7200)
def test_units_killed_at_every_step(machine: Callable[[str], Guest]) -> None:
    within(machine("small"), "tests/pin/test_units.py -k 'killed and not limited'", 7000)


@pytest.mark.vm_long
@pytest.mark.parametrize("name", SMALL)
def test_a_container_is_held_through_podman_over_a_reload(
    name: str, machine: Callable[[str], Guest]
) -> None:
    guest = machine(name)
    said = guest.check(PODMAN, 600)
    assert "is 2-3, was all" in said, said
    assert {"before 0-3", "held 2-3", "reloaded 2-3", "undone 0-3"} <= set(said.splitlines()), said
    assert "nodeagent-call" not in said, "the unit that called podman is gone"
