"""Values of the host, each on the real thing: set, read back, put back to the byte."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.model.placement import CONSENT_OF_KNOB, Consent, Knob, Outcome, SetValue
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.knobs import doors
from nodeagent.pin.records import Header, line_of
from tests.pin import places
from tests.pin.places import FILES, PLACES, Place

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
ME = Asked(by="test", why="a test of values")
ALLOW = frozenset({Consent.IRQ})


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Every kind of value, for real."""
    with PLACES[request.param]() as found:
        yield found


@pytest.fixture(params=sorted(FILES))
def file(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Every kind of value that stands in a file."""
    with FILES[request.param]() as found:
        yield found


@pytest.fixture
def irq() -> Iterator[str]:
    """An interrupt that may be moved and is allowed on every CPU; as it was, afterwards."""
    with places.irq() as found:
        yield found.subject


def now(irq: str) -> str:
    return (Path("/proc/irq") / irq / "smp_affinity_list").read_text().strip()


def to(irq: str, value: str, before: str = "") -> SetValue:
    return SetValue(workload="w", knob=Knob.IRQ_AFFINITY, subject=irq, value=value, before=before)


def test_every_knob_has_a_door_and_a_consent() -> None:
    assert set(doors()) == set(Knob) == set(CONSENT_OF_KNOB)


def test_a_value_is_set_and_put_back(place: Place, tmp_path: Path, open_actor: Opener) -> None:
    bytes_before = place.raw() if place.file else b""
    door = doors()[place.knob]
    assert door.read(place.subject) == place.before
    with open_actor(tmp_path, allow=place.consent) as actor:
        done = actor.perform(place.action, ME)
        assert done.outcome is Outcome.DONE, done.message
        assert door.same(done.read_back or "", place.value)
        assert door.same(door.read(place.subject), place.value)
        (entry,) = actor.entries
        public = entry.public()
        assert (public.knob, public.subject, public.value, public.value_before) == (
            place.knob,
            place.subject,
            place.value,
            place.before,
        )
        again = actor.perform(place.action, ME)
        assert again.outcome is Outcome.DONE and again.journal_id is None
        (undone,) = actor.undo("w", ME)
        assert undone.result.outcome is Outcome.DONE
        assert door.read(place.subject) == place.before and actor.entries == ()
    assert (place.raw() if place.file else b"") == bytes_before, "to the very byte"


def test_a_later_change_is_respected(file: Place, tmp_path: Path, open_actor: Opener) -> None:
    assert file.file is not None
    with open_actor(tmp_path, allow=file.consent) as actor:
        assert actor.perform(file.action, ME).outcome is Outcome.DONE
        file.file.write_text(file.other)
        theirs = file.raw()
        (undone,) = actor.undo(None, ME)
        assert "by somebody later" in undone.result.message
        assert file.raw() == theirs and actor.entries == ()


def test_a_value_of_another_boot_is_closed_and_left(
    file: Place, tmp_path: Path, open_actor: Opener
) -> None:
    with open_actor(tmp_path, allow=file.consent) as actor:
        assert actor.perform(file.action, ME).outcome is Outcome.DONE
    log = tmp_path / "state/journal/undo.log"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    lines = []
    for line in log.read_bytes().rstrip(b"\0").splitlines():
        body = line[9:].replace(boot.encode(), b"00000000-0000-0000-0000-000000000000")
        lines.append(b"%08x %s\n" % (zlib.crc32(body), body))
    # Without the seal, which says that these lines are not those that were written.
    log.write_bytes(line_of(Header()) + b"".join(lines[1:]))
    planned = file.raw()
    with open_actor(tmp_path, allow=file.consent) as actor:
        (said,) = actor.recover()
        assert "before the machine was restarted" in said
        assert actor.entries == () and file.raw() == planned


NEVER = {
    Knob.IRQ_AFFINITY: [("../../etc/x", "0"), ("1/../2", "0"), ("", "0"), ("٣", "0"), ("1", "x"),
                        ("1", "")],
    Knob.IRQ_DEFAULT: [("", "0"), ("../x", "0"), ("new", ""), ("new", "f")],
    Knob.XPS: [("eth0/rx-0", "0"), ("eth0/tx-0/../../x", "0"), ("../x/tx-0", "0"), ("/tx-0", "0"),
               ("./tx-0", "0"), ("a b/tx-0", "0"), ("eth0/tx-", "0"), ("eth0/tx-0", "x")],
    Knob.RPS: [("eth0/tx-0", "0"), ("..//rx-0", "0"), ("eth0", "0"), ("eth0/rx-0\n", "0")],
    Knob.IRQBALANCE: [("0", "banned"), ("24 25", "banned"), ("24", "NONE"), ("-1", "banned")],
    Knob.WORKQUEUE: [("..", "0"), ("a/b", "0"), ("", "0"), ("*", ""), ("writeback", "f0")],
    Knob.WAKE_LATENCY: [("x", "0"), ("../cpu0", "0"), ("0", "-1"), ("0", "2147483647"), ("0", "")],
    Knob.NUMA_BALANCING: [("../shmmax", "0"), ("kernel", "4"), ("kernel", "on"), ("kernel", "")],
    Knob.UNIT_CPUS: [("../x.service", "0"), ("x", "0"), ("x.service", ""), ("x.service", "f"),
                     ("x.service", "none"), ("x.service", "0 by drop-in"), ("-.slice", "0"),
                     ("init.scope", "0"), ("system.slice", "0"), ("user-0.slice", "0"),
                     ("kubepods-podx.slice", "0"), ("libpod-x.scope", "0"), ("x.service", "9999"),
                     ("x.service\n", "0"), ("x/y.service", "0")],
    Knob.UNIT_MEMS: [("../x.service", "0"), ("-.slice", "0"), ("x.service", "")],
    Knob.CONTAINER_CPUS: [("podman:../x", "0"), ("podman:-v", "0"), ("sh:x", "0"), ("podman", "0"),
                          ("podman:x", "0"), ("podman:x", ""), ("podman:x y", "0"), ("lxc:x", "0")],
    Knob.PARTITION: [("../x", "0"), ("x/y", "0"), ("", "0"), ("x", ""), ("x", "isolated")],
}  # fmt: skip


def test_nothing_is_left_out_of_what_must_never_be_written() -> None:
    assert set(NEVER) == set(Knob)


@pytest.mark.parametrize(
    ("knob", "subject", "value"), [(knob, *pair) for knob, pairs in NEVER.items() for pair in pairs]
)
def test_what_must_never_be_written_is_refused(
    knob: Knob, subject: str, value: str, tmp_path: Path, open_actor: Opener
) -> None:
    with open_actor(tmp_path, allow=frozenset(Consent)) as actor:
        action = SetValue(workload="", knob=knob, subject=subject, value=value, before="")
        done = actor.perform(action, ME)
        assert done.outcome is Outcome.REFUSED and actor.entries == (), done.message


GONE = {
    Knob.IRQ_AFFINITY: ("999999999", "0"),
    Knob.XPS: ("nonesuch0/tx-0", "0"),
    Knob.RPS: ("lo/rx-99", "0"),
    Knob.WORKQUEUE: ("nonesuch", "0"),
    Knob.WAKE_LATENCY: ("65535", "0"),
}


@pytest.mark.parametrize("knob", list(GONE))
def test_what_is_not_there_is_gone(knob: Knob, tmp_path: Path, open_actor: Opener) -> None:
    subject, value = GONE[knob]
    with open_actor(tmp_path, allow=frozenset(Consent)) as actor:
        action = SetValue(workload="", knob=knob, subject=subject, value=value, before="")
        done = actor.perform(action, ME)
        assert done.outcome is Outcome.GONE and actor.entries == (), done.message


def test_without_consent_nothing_is_tried(irq: str, tmp_path: Path, open_actor: Opener) -> None:
    before = now(irq)
    with open_actor(tmp_path, allow=frozenset({Consent.THREADS})) as actor:
        done = actor.perform(to(irq, "0"), ME)
        assert done.outcome is Outcome.REFUSED and "irq" in done.message
    assert now(irq) == before
