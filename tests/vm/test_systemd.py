"""The units of the repository under a real systemd, installed as docs/operations.md says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.vm.node import Node
from tests.vm.qemu import Guest

pytestmark = [pytest.mark.vm_long, pytest.mark.timeout(3000)]
WORKLOADS = """
[[workload]]
name = "sleeper"
cpus = 1
match = { cmdline = "sleep 4343$" }
"""


@pytest.fixture(scope="module")
def node(machine: Callable[[str], Guest]) -> Iterator[Node]:
    made = Node(machine("two-nodes"))
    made.configure(allow='"threads"', workloads=WORKLOADS)
    yield made
    made.guest.run("nodeagentctl undo; systemctl stop sleeper nodeagentd nodeagent-actor", 400)


def _shown(node: Node, unit: str, *names: str) -> dict[str, str]:
    told = node.guest.check(f"systemctl show {unit} {' '.join(f'-p {n}' for n in names)}")
    return dict(line.split("=", 1) for line in told.splitlines() if "=" in line)


def test_systemd_finds_nothing_wrong_with_the_units(node: Node) -> None:
    done = node.guest.run("systemd-analyze verify /etc/systemd/system/nodeagent*.service")
    assert done.rc == 0 and not done.stderr.strip(), done.stderr


def test_daemon_and_actor_start_and_say_that_they_are_ready(node: Node) -> None:
    node.guest.check("systemctl start nodeagentd", 700)
    for unit in ("nodeagentd", "nodeagent-actor"):
        shown = _shown(node, unit, "ActiveState", "Result", "NRestarts")
        assert shown == {"ActiveState": "active", "Result": "success", "NRestarts": "0"}
    assert node.ctl("status").rc in (0, 1)
    sockets = node.guest.check("stat -c '%n %U %G %a' /run/nodeagent/*.sock").splitlines()
    assert "/run/nodeagent/actor.sock nodeagent nodeagent-admin 660" in sockets
    assert any(line.startswith("/run/nodeagent/api.sock ") for line in sockets)


def test_the_daemon_has_no_capability_and_the_actor_no_way_out(node: Node) -> None:
    pid = _shown(node, "nodeagentd", "MainPID")["MainPID"]
    held = node.guest.check(f"grep -E 'Cap(Prm|Eff|Bnd)|Uid' /proc/{pid}/status")
    assert held.count("0000000000000000") == 3, held
    assert "Uid:\t0" not in held
    shown = _shown(node, "nodeagent-actor", "RestrictAddressFamilies", "IPAddressDeny")
    assert "AF_INET" not in shown["RestrictAddressFamilies"] and shown["IPAddressDeny"]


def test_a_pin_outlives_kill_restart_and_daemon_reload(node: Node) -> None:
    node.service("sleeper", "sleep 4343")
    done = node.ctl("place apply --yes")
    assert done.rc == 0, done.stdout + done.stderr
    (pid,) = node.pids("sleep 4343$")
    (mask,) = node.masks(pid).values()
    assert len(mask) == 1
    for what in (
        "systemctl daemon-reload",
        "systemctl kill -s KILL nodeagent-actor",
        "systemctl restart nodeagent-actor",
    ):
        node.guest.check(what, 700)
        assert list(node.masks(pid).values()) == [mask], what
    node.until(
        "the actor is back",
        lambda: _shown(node, "nodeagent-actor", "ActiveState")["ActiveState"] == "active",
    )
    assert list(node.masks(pid).values()) == [mask]
    undone = node.ctl("-o json undo")
    assert undone.rc == 0, undone.stdout + undone.stderr
    assert [r["outcome"] for r in json.loads(undone.stdout)["results"]] == ["done"]
    assert list(node.masks(pid).values()) == [set(range(8))]


def test_a_wrong_configuration_is_not_tried_again(node: Node) -> None:
    node.guest.check("cp /etc/nodeagent/nodeagent.toml /srv/kept.toml")
    node.guest.put("/etc/nodeagent/nodeagent.toml", "[pin]\nallow = 7\n")
    node.guest.run("systemctl restart nodeagentd", 700)
    shown = _shown(node, "nodeagentd", "ActiveState", "ExecMainStatus", "NRestarts")
    node.guest.check("cp /srv/kept.toml /etc/nodeagent/nodeagent.toml")
    assert shown == {"ActiveState": "failed", "ExecMainStatus": "64", "NRestarts": "0"}
    assert "nodeagent.toml:2" in node.audit()
