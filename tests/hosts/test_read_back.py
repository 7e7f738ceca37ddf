"""Any tree that the builder writes is read back as what was meant, and all who use it cope."""

from __future__ import annotations

import json

import msgspec
from hypothesis import HealthCheck, given, settings

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.cli.render.topology_json import topology_json
from nodeagent.cli.render.topology_svg import topology_svg
from nodeagent.discover import capture
from nodeagent.discover.snapshot import read_snapshot
from tests.cli.render.test_pictures import check_picture
from tests.hosts.generate import made
from tests.hosts.strategy import Drawn, machines

FEW = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(machines())
def test_any_tree_is_read_back(drawn: Drawn) -> None:
    with made(drawn.table, "drawn") as root:
        topology = read_snapshot(root).topology
    for name in (
        *("online", "possible", "present", "smt_siblings", "packages", "nodes", "caches", "pci"),
        *("relations", "isolation"),
    ):
        assert getattr(topology, name) == getattr(drawn.topology, name), name
    assert topology == drawn.topology


@FEW
@given(machines())
def test_a_capture_of_any_tree_says_the_same(drawn: Drawn) -> None:
    table = capture.parse("drawn", capture.render(drawn.table).encode())
    with made(table, "drawn") as root:
        assert read_snapshot(root).topology == drawn.topology


@FEW
@given(machines())
def test_any_machine_is_judged_told_and_drawn(drawn: Drawn) -> None:
    with made(drawn.table, "drawn") as root:
        snapshot = read_snapshot(root)
    findings = judge(snapshot, Policy(), 0)
    assert {f.id for f in findings}
    json.loads(msgspec.json.encode(topology_json(snapshot)))
    check_picture(topology_svg(snapshot, findings))
