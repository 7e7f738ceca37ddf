"""The kernel's rule for cpuset partitions on CPUs that isolcpus= has already: measured on each.

The machine has 8 CPUs, isolcpus=2-3,6-7. The whole set, a part, a set that mixes isolated and
housekeeping CPUs, and one without an isolated CPU are made an `isolated` and a `root` partition;
what the files say before and after is docs/vm.md's table.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest

from tests.vm.machine import expand
from tests.vm.qemu import Guest

SCRIPT = pathlib.Path(__file__).parent / "guest" / "partitions.py"
ISOLATED = "2-3,6-7"
SETS = {"whole": ISOLATED, "part": "2-3", "mixed": "1-3", "disjoint": "1,5"}
CONFLICT = "partition config conflicts with housekeeping setup"
COLUMNS = (
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.cpus.partition",
    "root cpuset.cpus.effective",
    "unbalanced",
)

Told = dict[str, dict[str, str | None]]


def _measure(guest: Guest, measured: Callable[[str, str], None]) -> dict[tuple[str, str], Told]:
    guest.put("/srv/partitions.py", SCRIPT.read_bytes())
    found: dict[tuple[str, str], Told] = {}
    rows = ["| written | set | when | " + " | ".join(COLUMNS) + " |", "|---" * 8 + "|"]
    for kind in ("isolated", "root"):
        for name, cpus in SETS.items():
            told = json.loads(guest.check(f"python3 /srv/partitions.py {kind} {cpus}"))
            found[kind, name] = told
            for when in ("before", "after"):
                cells = " | ".join(str(told[when][c]) for c in COLUMNS)
                rows.append(f"| `{kind}` | {name} | {when} | {cells} |")
    release = guest.check("uname -r").strip()
    measured(f"Partitions over isolcpus={ISOLATED}, kernel {release}", "\n".join(rows))
    return found


def _common(found: dict[tuple[str, str], Told]) -> None:
    """What holds on every kernel."""
    for (kind, name), told in found.items():
        where = (kind, name)
        # No write is refused: whether it holds is only to be read afterwards.
        assert not told["cpus_error"] and not told["attach_error"], where
        assert not told["partition_error"], where
        # The set itself never changes, and neither do the CPUs of the process in it.
        assert told["after"]["cpuset.cpus"] == told["before"]["cpuset.cpus"], where
        assert told["after"]["affinity"] == told["before"]["affinity"], where
        # Made a member again, all is as it was.
        assert told["member"] == told["before"], where
    for kind in ("isolated", "root"):
        told = found[kind, "disjoint"]
        assert told["after"]["cpuset.cpus.partition"] == kind
        assert told["after"]["root cpuset.cpus.effective"] == "0,2-4,6-7"
    balanced = expand(str(found["isolated", "disjoint"]["before"]["unbalanced"]))
    assert balanced == expand(ISOLATED)
    assert expand(str(found["isolated", "disjoint"]["after"]["unbalanced"])) == balanced | {1, 5}


@pytest.mark.vm_long
@pytest.mark.timeout(900)
def test_linux_6_12_makes_a_partition_with_an_isolcpus_cpu_invalid(
    machine: Callable[[str], Guest], measured: Callable[[str, str], None]
) -> None:
    """One CPU of isolcpus= is enough, for `isolated` as for `root`; it stays a plain cpuset."""
    found = _measure(machine("isolcpus"), measured)
    _common(found)
    for kind in ("isolated", "root"):
        for name in ("whole", "part", "mixed"):
            after = found[kind, name]["after"]
            assert after["cpuset.cpus.partition"] == f"{kind} invalid ({CONFLICT})"
            assert after["root cpuset.cpus.effective"] == "0-7"
            assert after["unbalanced"] == found[kind, name]["before"]["unbalanced"]


@pytest.mark.vm_long
@pytest.mark.timeout(900)
def test_linux_6_1_takes_a_partition_with_isolcpus_cpus(
    machine: Callable[[str], Guest], measured: Callable[[str, str], None]
) -> None:
    """Whole, part or mixed: valid, and the CPUs leave the root's set."""
    found = _measure(machine("isolcpus-6-1"), measured)
    _common(found)
    for kind in ("isolated", "root"):
        for name in ("whole", "part", "mixed"):
            after = found[kind, name]["after"]
            assert after["cpuset.cpus.partition"] == kind
            left = expand(str(after["root cpuset.cpus.effective"]))
            assert left == set(range(8)) - expand(SETS[name])
