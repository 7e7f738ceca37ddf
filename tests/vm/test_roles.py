"""A unit of a stand-in vLLM and an index on a machine of 8 PUs and 2 nodes: from the workload file
to the masks of each thread, and back."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.vm.qemu import Guest

pytestmark = [pytest.mark.vm_long, pytest.mark.timeout(1800)]
HERE = pathlib.Path(__file__).parent
HELPERS = {"cuda-EvtHandlr", "pt_nccl_watchdg", "pt_tcpstore_uv"}


def test_a_unit_is_pinned_by_role_and_put_back(
    machine: Callable[[str], Guest], measured: Callable[[str, str], None]
) -> None:
    guest = machine("two-nodes")
    guest.check("mkdir -p /run/in")
    guest.put("/run/in/roles.py", (HERE / "guest/roles.py").read_bytes())
    guest.put("/run/in/stand_in.py", (HERE.parent / "pin/stand_in.py").read_bytes())
    told: dict[str, Any] = json.loads(guest.check("python3 /run/in/roles.py", limit_s=600))
    placed = {p["workload"]: p for p in told["applied"]["placements"]}
    rank, index = placed["rank0"], placed["index0"]
    assert rank["sharing"] == index["sharing"] == "exclusive"
    assert rank["node"] == index["node"] is not None, "one node, their GPU's"
    assert rank["unit"] == index["unit"] == "reasoning-0"
    roles = {t["comm"]: t["role"] for t in rank["threads"]}
    assert roles["cuda-EvtHandlr"] == "helpers"
    first = dict(told["after"]["roles-rank"])
    helper, rest = first["cuda-EvtHandlr"], first["VLLM::EngineCor"]
    assert helper.isdecimal() and rest.isdecimal() and helper != rest
    for comm, cpus in told["after"]["roles-rank"]:
        assert cpus == (helper if comm in HELPERS else rest), comm
    ((_, own),) = {tuple(t) for t in told["after"]["roles-index"]}
    assert own.isdecimal() and own not in (helper, rest), "nobody else's"
    assert told["again"] == []
    # What was born has its creator's mask; only the helper is moved, by one action.
    assert sorted(c for comm, c in told["born"] if comm not in HELPERS) == [rest] * 4
    (act,) = told["next"]
    assert act["cpus"] == helper
    assert dict(told["seated"])["pt_tcpstore_uv"] == helper
    assert all(row["held"] for row in told["status"])
    before, undone = told["before"], told["undone"]
    (everywhere,) = {cpus for _, cpus in before["roles-rank"]}
    assert {cpus for name in undone for _, cpus in undone[name]} == {everywhere}
    measured(
        "A unit pinned by role",
        f"rank0 on node {rank['node']}: helpers on CPU {helper}, the rest on {rest}; index0 on "
        f"{own}; a helper born later moved by one action; after undo every thread on {everywhere}.",
    )
