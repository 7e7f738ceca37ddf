"""docs/vm.md: what the last `script/test --vm` saw, between two marks of that page."""

from __future__ import annotations

import pathlib
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.vm.image import PROJECT, release
from tests.vm.machine import Machine

PAGE = PROJECT / "docs" / "vm.md"
BEGIN, END = "<!-- written by script/test --vm -->", "<!-- end -->"
_MACHINES = "| machine | kernel | CPUs | nodes | memory | systemd |\n|---|---|---|---|---|---|"
_TESTS = "| test | when (UTC) | result |\n|---|---|---|"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One phase (setup, call, teardown) of one test; `why` it was skipped, else empty."""

    nodeid: str
    when: str
    outcome: str
    why: str = ""


@dataclass(slots=True)
class Report:
    """Machines that were booted, figures that were measured, tests that ended: row by its name."""

    machines: dict[str, str] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)
    tests: dict[str, str] = field(default_factory=dict)

    def booted(
        self, machine: Machine, *, release: str, state: str, accelerator: str, seconds: float
    ) -> None:
        """One machine, up."""
        nodes = machine.nodes + machine.memory_only
        self.machines[machine.name] = (
            f"| {machine.name} | {release} | {machine.cpus} | {nodes} | {machine.total_mb} MiB "
            f"| {state} after {seconds:.0f} s, {accelerator} |"
        )

    def measured(self, title: str, text: str) -> None:
        """A figure or a table, in Markdown."""
        self.sections[title] = text.strip()

    def ended(self, outcomes: Iterable[Ended], when: str) -> None:
        """The last word on each test: what failed in any phase failed."""
        last: dict[str, Ended] = {}
        for one in outcomes:
            if "tests/vm/" in one.nodeid and (one.when == "call" or one.outcome != "passed"):
                last[one.nodeid] = one
        for nodeid, one in last.items():
            name = nodeid.partition("tests/vm/")[2]
            # Paths of the machine that ran it are nobody else's.
            why = one.why.replace(f"{PROJECT}/", "")
            result = f"{one.outcome}: {why}" if why else one.outcome
            self.tests[name] = f"| {name} | {when} | {result} |"

    def write(self, page: pathlib.Path = PAGE, *, fresh: bool) -> None:
        """Puts it between the marks; what stands around them is people's.

        `fresh`: everything was run, and older rows go; else they stay where none is newer.
        """
        text = page.read_text()
        before, _, rest = text.partition(BEGIN)
        block, _, after = rest.partition(END)
        kept = Report() if fresh else parse(block)
        kept.machines |= self.machines
        kept.sections |= self.sections
        kept.tests |= self.tests
        page.write_text(f"{before}{BEGIN}\n{kept.render()}\n{END}{after}")

    def render(self) -> str:
        """The block between the marks."""
        counts = ", ".join(
            f"{sum(f'| {kind}' in row for row in self.tests.values())} {kind}"
            for kind in ("passed", "failed", "skipped")
        )
        lines = [
            f"\nDebian {release()}, {_version()}, host kernel {platform.release()}: {counts}.\n",
            _MACHINES,
            *self.machines.values(),
        ]
        for title, text in self.sections.items():
            lines.append(f"\n### {title}\n\n{text}")
        return "\n".join([*lines, f"\n### Tests\n\n{_TESTS}", *self.tests.values()])


def parse(block: str) -> Report:
    """A block that `render` wrote; an empty one gives an empty report."""
    kept = Report()
    head, *parts = block.split("\n### ")
    for row in head.splitlines():
        if row.startswith("| ") and row not in _MACHINES:
            kept.machines[_first_cell(row)] = row
    for part in parts:
        title, _, text = part.partition("\n")
        if title != "Tests":
            kept.sections[title] = text.strip()
            continue
        for row in text.splitlines():
            if row.startswith("| ") and row not in _TESTS:
                kept.tests[_first_cell(row)] = row
    return kept


def _first_cell(row: str) -> str:
    return row.split("|")[1].strip()


def _version() -> str:
    told = subprocess.run(
        ["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=False
    )
    return told.stdout.partition("\n")[0] or "no QEMU"
