"""Machines for tests: booted once a run, one at a time; skipped where there can be none.

NODEAGENT_VM says which tests of machines run: `all` (script/test --vm), `fit` (script/test: what
fits in a run of the whole suite; the image is made where it is missing), `none`, unset (as `fit`,
with an image that is there already: pytest by hand never waits minutes for one).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import pytest

from tests.vm import image, payload, qemu, report
from tests.vm.machine import Machine, machines
from tests.vm.node import Node

MODE = os.environ.get("NODEAGENT_VM", "")
IMAGE_PATIENCE_S = 240.0
"""For script/test, which makes the image while the other tests run: when these are at an end."""
_NAMES = frozenset(machines())
_REPORT = pytest.StashKey[report.Report]()


def _image() -> pathlib.Path:
    """Raises NoImageError."""
    if MODE == "all":
        return image.make()
    return image.make(patience_s=IMAGE_PATIENCE_S) if MODE == "fit" else image.find()


def _up(machine: Machine, where: pathlib.Path) -> tuple[qemu.Guest, str, str]:
    """One that runs, its kernel's release and what systemd calls it. Raises NoImageError."""
    for left in reversed(range(qemu.BOOTS)):
        guest = qemu.Guest(machine, where, payload.make())
        guest.__enter__()
        try:
            return guest, guest.check("uname -r").strip(), guest.ready()
        except qemu.EmulatorFaultError:
            guest.stop()
            if not left:
                raise
        except BaseException:
            guest.stop()
            raise
    raise AssertionError("not reached")


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
        where = _image()
        begun = time.monotonic()
        try:
            self._running, release, state = _up(machines()[name], where)
        except qemu.EmulatorFaultError as error:
            self._faulted[name] = error
            raise
        self._report.booted(
            self._running.machine,
            release=release,
            state=state,
            accelerator=qemu.accelerator(where),
            seconds=time.monotonic() - begun,
        )
        return self._running

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


TRIES = 3


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    """What the emulator broke while fixtures were at work shows nothing: said, and skipped."""
    try:
        yield
    except qemu.EmulatorFaultError as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """There is nothing to put back in a machine that is gone; its test has said why."""
    with contextlib.suppress(qemu.EmulatorFaultError):
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test whose machine the emulator broke begins again on a new one; where its state is that of
    the tests before it, it is skipped with that sentence."""
    if "machine" not in pyfuncitem.fixturenames:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    again = not any(isinstance(pyfuncitem.funcargs[n], Node) for n in names)
    for left in reversed(range(TRIES if again else 1)):
        try:
            pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
            return True
        except qemu.EmulatorFaultError as error:
            if not left:
                pytest.skip(str(error))
    return True


# ---- the run -------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    if MODE not in ("", "fit", "all", "none"):
        raise pytest.UsageError(f"NODEAGENT_VM is {MODE!r}, expected all, fit, none or nothing")
    config.stash[_REPORT] = report.Report()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longer than a run of the suite has is left to script/test --vm; in each file the
    tests of one machine follow one another, so that it is booted once."""
    places, ours = [], []
    for place, item in enumerate(items):
        asks = "machine" in getattr(item, "fixturenames", ())
        if MODE == "none" and asks:
            item.add_marker(pytest.mark.skip(reason="NODEAGENT_VM=none: no machine is booted"))
        elif item.get_closest_marker("vm_long") and MODE != "all":
            item.add_marker(pytest.mark.skip(reason="boots more machines: script/test --vm"))
        if asks:
            places.append(place)
            ours.append((item, f"{item.path}", _named(item)))
    for place, item in zip(places, by_machine(ours), strict=True):
        items[place] = item


T = TypeVar("T")


def by_machine(tests: list[tuple[T, str, str]]) -> list[T]:
    """Of (test, file, machine): files as they come, in each one machine after another. Pure."""
    files: dict[str, dict[str, list[T]]] = {}
    for test, file, name in tests:
        files.setdefault(file, {}).setdefault(name, []).append(test)
    return [test for groups in files.values() for group in groups.values() for test in group]


def _named(item: pytest.Item) -> str:
    """The machine that its parameters name; empty where none does."""
    call = getattr(item, "callspec", None)
    values = call.params.values() if call is not None else ()
    return next((v for v in values if isinstance(v, str) and v in _NAMES), "")


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
