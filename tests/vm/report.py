"""docs/vm.md: what the last `script/test --vm` saw, between two marks of that page."""

from __future__ import annotations

import datetime
import pathlib
import platform
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.vm.image import PROJECT, release
from tests.vm.machine import Machine

PAGE = PROJECT / "docs" / "vm.md"
BEGIN, END = "<!-- written by script/test --vm -->", "<!-- end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One phase (setup, call, teardown) of one test; `why` it was skipped, else empty."""

    nodeid: str
    when: str
    outcome: str
    why: str = ""


class Report:
    """Machines that were booted, figures that tests measured."""

    def __init__(self) -> None:
        self._machines: dict[str, str] = {}
        self._measured: dict[str, str] = {}

    def booted(
        self, machine: Machine, *, release: str, state: str, accelerator: str, seconds: float
    ) -> None:
        """One machine, up."""
        nodes = machine.nodes + machine.memory_only
        self._machines[machine.name] = (
            f"| {machine.name} | {release} | {machine.cpus} | {nodes} "
            f"| {machine.total_mb} MiB | {state} after {seconds:.0f} s, {accelerator} |"
        )

    def measured(self, title: str, text: str) -> None:
        """A figure or a table, in Markdown."""
        self._measured[title] = text.strip()

    def write(self, outcomes: Iterable[Ended], page: pathlib.Path = PAGE) -> None:
        """Puts the result between the marks; what stands around them is people's."""
        text = page.read_text()
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        lines = "\n".join(self._lines(outcomes))
        page.write_text(f"{before}{BEGIN}\n{lines}\n{END}{after}")

    def _lines(self, outcomes: Iterable[Ended]) -> Iterator[str]:
        ended = {}
        for one in outcomes:
            # A test that failed in any phase failed; what passed its call stays passed.
            if "tests/vm/" in one.nodeid and (one.when == "call" or one.outcome != "passed"):
                ended[one.nodeid] = one
        counts = {
            kind: sum(o.outcome == kind for o in ended.values())
            for kind in ("passed", "failed", "skipped")
        }
        now = datetime.datetime.now(datetime.UTC)
        yield (
            f"\n{now:%Y-%m-%d %H:%M} UTC, on Debian {release()} with {_version()}, host kernel "
            f"{platform.release()}: {', '.join(f'{n} {kind}' for kind, n in counts.items())}.\n"
        )
        yield "| machine | kernel | CPUs | nodes | memory | systemd |\n|---|---|---|---|---|---|"
        yield from self._machines.values()
        for title, text in self._measured.items():
            yield f"\n### {title}\n\n{text}"
        yield "\n### Tests\n\n| test | result |\n|---|---|"
        for name, one in ended.items():
            why = f": {one.why}" if one.why else ""
            yield f"| `{name.removeprefix('tests/vm/')}` | {one.outcome}{why} |"


def _version() -> str:
    told = subprocess.run(
        ["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=False
    )
    return told.stdout.partition("\n")[0] or "no QEMU"
