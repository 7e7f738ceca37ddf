"""Machines for tests: booted once a run, one at a time; skipped where there can be none.

NODEAGENT_VM says which tests of machines run: `all` (script/test --vm), `fit` (what fits in a run
of the whole suite; makes the image where it is missing), unset (as `fit`, with an image that is
there already: pytest by hand never waits minutes for one).
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Generator, Iterator

import pytest

from tests.vm import image, payload, qemu, report
from tests.vm.machine import machines

MODE = os.environ.get("NODEAGENT_VM", "")
_REPORT = pytest.StashKey[report.Report]()


class Machines:
    """The one that runs now; asking for another one ends it."""

    def __init__(self, kept: report.Report) -> None:
        self._running: qemu.Guest | None = None
        self._faulted: dict[str, qemu.EmulatorFaultError] = {}
        self._report = kept

    def get(self, name: str) -> qemu.Guest:
        """Running, with everything started. Raises NoImageError where none can run."""
        if name in self._faulted:
            # Every try of it took minutes: once a run is enough.
            raise self._faulted[name]
        if self._running is not None:
            if self._running.machine.name == name and self._running.alive:
                return self._running
            self.stop()
        qemu.available()
        where = image.make() if MODE else image.find()
        guest = qemu.Guest(machines()[name], where, payload.make())
        begun = time.monotonic()
        try:
            guest.__enter__()
        except qemu.EmulatorFaultError as error:
            self._faulted[name] = error
            raise
        self._running = guest
        state = guest.ready()
        self._report.booted(
            guest.machine,
            release=guest.check("uname -r").strip(),
            state=state,
            accelerator=qemu.accelerator(where),
            seconds=time.monotonic() - begun,
        )
        return guest

    def stop(self) -> None:
        """Ends what runs."""
        if self._running is not None:
            self._running.stop()
            self._running = None


@pytest.fixture(scope="session")
def _machines(request: pytest.FixtureRequest) -> Iterator[Machines]:
    kept = Machines(request.config.stash[_REPORT])
    yield kept
    kept.stop()


@pytest.fixture(scope="session")
def machine(_machines: Machines) -> Callable[[str], qemu.Guest]:
    """`machine("two-nodes")` is that machine of machines.toml, booted when first asked for."""

    def get(name: str) -> qemu.Guest:
        try:
            return _machines.get(name)
        except image.NoImageError as error:
            pytest.skip(str(error))

    return get


@pytest.fixture(scope="session")
def measured(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`measured(title, text)`: a figure or table that docs/vm.md keeps."""
    return request.config.stash[_REPORT].measured


# ---- the run -------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORT] = report.Report()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longer than a run of the suite has is left to script/test --vm."""
    for item in items:
        if item.get_closest_marker("vm_long") and MODE != "all":
            item.add_marker(pytest.mark.skip(reason="boots more machines: script/test --vm"))


_ended: list[report.Ended] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    told = yield
    if "machine" not in getattr(item, "fixturenames", ()):
        return told
    why = told.longrepr[2] if isinstance(told.longrepr, tuple) else ""
    _ended.append(
        report.Ended(
            nodeid=told.nodeid,
            when=told.when,
            outcome=told.outcome,
            why=why.removeprefix("Skipped: "),
        )
    )
    return told


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The last result of each stands in docs/vm.md."""
    if MODE == "all" and not session.config.option.collectonly:
        kept = session.config.stash[_REPORT]
        kept.ended(_ended, f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}")
        kept.write(fresh=session.config.args == ["tests/vm"])
