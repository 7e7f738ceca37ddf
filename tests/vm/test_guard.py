"""Strangers move a pinned workload, on stock kernels with systemd: who is named, what is done.

One poll a minute: what is met here, the kernel's programs told.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.vm.qemu import Guest

pytestmark = [pytest.mark.vm_long, pytest.mark.timeout(3000)]
SCRIPT = pathlib.Path(__file__).parent / "guest" / "guarded.py"


def told_by(guest: Guest) -> dict[str, Any]:
    guest.put("/run/guarded.py", SCRIPT.read_bytes())
    found: dict[str, Any] = json.loads(guest.check("python3 /run/guarded.py", limit_s=2400))
    return found


def judged(told: dict[str, Any]) -> None:
    """What holds on every kernel on which the author is known."""
    (ready,) = told["guard"]
    assert "the author of a changed affinity is known by" in ready
    service = told["service"]
    assert "by taskset (pid " in service["first"] and ", noisy.service)" in service["first"]
    assert service["first"].endswith("it is put right once")
    assert "noisy.service); the second change by that author" in service["second"]
    assert service["masks"] == ["7"] != service["home"]
    person = told["person"]
    assert "login of root in session" in person["said"] and "a person's change" in person["said"]
    assert person["masks"] == ["6"] and person["drifts"] == []
    assert told["reload"]["masks"] == told["reload"]["home"]
    assert told["reload"]["drifts"] == [] and told["reload"]["irqbalance"] == "active"
    # 4-7 leave nothing of 1-2: what is done about it is refused by the kernel, and said.
    cpuset = told["cpuset"]
    assert "by sh (pid " in cpuset["drifts"][0]
    assert "enabler.service), by writing cpuset.cpus" in cpuset["drifts"][0]
    assert cpuset["failed"] and "outside its cpuset" in cpuset["failed"][0]


def test_strangers_on_6_12(
    machine: Callable[[str], Guest], measured: Callable[[str, str], None]
) -> None:
    told = told_by(machine("two-nodes"))
    measured("The guard and strangers, kernel 6.12", table(told))
    judged(told)


def test_strangers_on_6_1(
    machine: Callable[[str], Guest], measured: Callable[[str, str], None]
) -> None:
    told = told_by(machine("two-nodes-6-1"))
    measured("The guard and strangers, kernel 6.1", table(told))
    judged(told)


def table(told: dict[str, Any]) -> str:
    """What was said, for docs/vm.md."""
    said = [
        *told["guard"],
        told["service"]["first"],
        told["service"]["second"],
        told["person"]["said"],
        *told["cpuset"]["drifts"],
    ]
    return "\n".join(f"- {line}" for line in said)
