"""A podman container: pinned by podman's update call, it reads a ring by the socket alone.

Nothing of the host is in the container but /usr and the build, read-only, and one socket,
bind-mounted: no /dev/shm, no network, no shared namespace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.vm.machine import expand
from tests.vm.node import Node
from tests.vm.qemu import Guest

pytestmark = [pytest.mark.vm_long, pytest.mark.timeout(3000)]
RING = "/run/nodeagent/ring.sock"
WORKLOADS = """
[[workload]]
name = "reader"
kind = "agent"
cpus = 2
near = "node:1"
match = { container = "reader" }
"""
FEED = """
[[feed]]
name = "itch"
group = "239.192.0.1"
port = 26400
interface = "lo"
ring_capacity = 32768
frames_bytes = 0
receive_bytes = 1048576
"""
MESSAGES = 3000
ROOT = """
set -e
mkdir -p /var/tmp/root; cd /var/tmp/root
mkdir -p usr proc sys dev tmp run opt/nodeagent run/nodeagent
for name in bin lib lib64 sbin; do ln -sfn usr/$name $name; done
tar -c . | podman import - standin:1
"""


@pytest.fixture(scope="module")
def node(machine: Callable[[str], Guest]) -> Iterator[Node]:
    """Daemon, feeder and a container that reads its ring."""
    made = Node(machine("two-nodes"))
    made.configure(
        allow='"threads", "cgroup"', workloads=WORKLOADS, more='runtimes = ["podman"]\n' + FEED
    )
    made.guest.check("ip link set lo multicast on; ip route add 239.0.0.0/8 dev lo")
    made.guest.check("systemctl start nodeagentd", 900)
    made.guest.check("systemctl start nodeagent-feeder@itch", 900)
    made.guest.check(ROOT, 300)
    made.guest.check(
        f"podman run -d --name reader --network=none -v /usr:/usr:ro "
        f"-v /opt/nodeagent:/opt/nodeagent:ro -v {RING}:{RING} standin:1 "
        "/opt/nodeagent/bin/python /opt/nodeagent/src/examples/vwap_agent.py --feed itch",
        300,
    )
    made.until(
        "it is attached",
        lambda: '"attached": true' in made.guest.run("podman logs reader").stdout,
        400,
    )
    yield made
    made.guest.run("nodeagentctl undo; podman rm -f -t 0 reader", 400)
    made.guest.run("systemctl stop nodeagent-feeder@itch nodeagentd nodeagent-actor", 300)


def _pid(node: Node) -> int:
    return int(node.guest.check("podman inspect reader --format '{{.State.Pid}}'"))


def test_its_process_is_pinned_by_the_runtimes_own_call(node: Node) -> None:
    pid = _pid(node)
    group = node.guest.check(f"cut -d: -f3 /proc/{pid}/cgroup").strip()
    done = node.ctl("place apply --yes")
    assert done.rc == 0, done.stdout[-500:] + done.stderr + node.audit()[-5000:]
    masks = node.masks(pid)
    assert len(masks) >= 1
    (mask,) = {frozenset(m) for m in masks.values()}
    assert len(mask) == 2 and mask <= {4, 5, 6, 7}
    # The container's own cpuset has it: children and docker-exec'd programs are held too.
    assert node.guest.check(f"cut -d: -f3 /proc/{pid}/cgroup").strip() == group
    born = node.guest.check("podman exec reader grep Cpus_allowed_list /proc/self/status")
    assert expand(born.split()[1]) == mask
    # daemon-reload makes systemd write its cgroups again.
    node.guest.check("systemctl daemon-reload; sleep 3")
    assert {frozenset(m) for m in node.masks(pid).values()} == {mask}


def test_it_reads_the_ring_through_the_socket_alone(node: Node) -> None:
    pid = _pid(node)
    for kind in ("net", "ipc", "mnt", "pid"):
        same = node.guest.run(
            f"[ $(readlink /proc/{pid}/ns/{kind}) = $(readlink /proc/1/ns/{kind}) ]"
        )
        assert same.rc == 1, kind
    node.guest.check(f"nodeagentctl feed synth /srv/day.pcap --messages {MESSAGES}", 300)
    node.guest.check(
        "nodeagentctl feed replay /srv/day.pcap --group 239.192.0.1 --port 26400 "
        "--interface lo --rate 500",
        600,
    )
    node.guest.check("sleep 3; podman stop -t 60 reader", 300)
    lines = node.guest.check("podman logs reader").splitlines()
    final = next(told for told in map(json.loads, lines) if told.get("final"))
    assert final["messages"] + final["lost"] >= MESSAGES, final
    assert final["messages"] > 0 and final["sums"]


def test_undo_leaves_a_container_that_ended(node: Node) -> None:
    done = node.ctl("undo")
    assert done.rc == 0, done.stdout + done.stderr
