"""Each file of a kept machine spoiled in turn: what could not be seen is UNKNOWN, never healthy,
and no check that can do without the file changes its mind."""

from __future__ import annotations

import os
import pathlib
import random
import re
from collections.abc import Callable, Iterator

import pytest

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.capture import parse
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import Entry, Failed, TableStore
from nodeagent.model.finding import Finding, Verdict, worst

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
CAPTURES = sorted(HOSTS.glob("*.capture"))
EVERY = bool(os.environ.get("NODEAGENT_EVERY_FAULT"))
"""Every file and every way to spoil it (minutes); otherwise a sample that is always the same."""
SAMPLE = 48
SPOILS: dict[str, Callable[[], Entry]] = {
    "unreadable": lambda: Failed("Permission denied"),
    "empty": lambda: b"",
    "binary": lambda: b"\x7fELF\x00\xff\xfe",
}
MAY_BE_EMPTY = re.compile(
    r"proc/cmdline|sys/devices/system/cpu/(isolated|nohz_full|offline)|.*/cpulist|"
    r".*/local_cpulist|sys/fs/cgroup/.*|etc/.*|.*cpumask.*|derived/.*"
)
"""Files in which the kernel, or a person, says "none" by writing nothing."""
LOUD = (Verdict.NA, Verdict.INFO, Verdict.OK, Verdict.UNKNOWN, Verdict.WARN, Verdict.FAIL)

Table = dict[str, Entry]
Answers = dict[str, list[Finding]]


def root(table: Table, keep: bool = False) -> Root:
    return Root(TableStore(table, complete=True), live=False, label="test", keep=keep)


def answers(table: Table) -> Answers:
    found: Answers = {}
    for f in judge(read_snapshot(root(table)), Policy(), 0):
        found.setdefault(f.id, []).append(f)
    return found


def loudest(found: list[Finding]) -> Verdict:
    return max((f.verdict for f in found), key=LOUD.index)


def overall(found: Answers) -> Verdict:
    return worst(f for group in found.values() for f in group)


def kind_of(path: str) -> str:
    """Paths that differ in numbers only hold the same kind of file."""
    return re.sub(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\d+", "#", path)


def faults(capture: pathlib.Path, table: Table) -> Iterator[tuple[str, str]]:
    """(path, spoil) pairs: all, or of the kinds of files a sample, each spoiled in one way."""
    kept = root(table, keep=True)
    read_snapshot(kept)
    assert kept.kept is not None
    paths = [p for p, e in kept.kept.items() if isinstance(e, bytes) and p in table]
    assert len(paths) > 20, capture
    if EVERY:
        yield from ((p, s) for p in paths for s in SPOILS)
        return
    chance = random.Random(capture.stem)
    kinds: dict[str, list[str]] = {}
    for path in paths:
        kinds.setdefault(kind_of(path), []).append(path)
    some = chance.sample(sorted(kinds), min(SAMPLE, len(kinds)))
    yield from ((chance.choice(kinds[k]), chance.choice(sorted(SPOILS))) for k in some)


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda p: p.stem)
def test_each_file_spoiled(capture: pathlib.Path) -> None:
    table = parse(capture.name, capture.read_bytes())
    whole = answers(table)
    for path, spoil in faults(capture, table):
        where = f"{capture.stem}: {path} {spoil}"
        hurt = answers({**table, path: SPOILS[spoil]()})
        legal = spoil == "empty" and MAY_BE_EMPTY.fullmatch(path) is not None
        if overall(whole) is not Verdict.OK:
            assert overall(hurt) is not Verdict.OK, where
        if legal:
            # It says "none" now: another machine, judged as such.
            continue
        if spoil != "empty":
            assert overall(hurt) is not Verdict.OK, where
        for check_id, before in whole.items():
            after = hurt[check_id]
            kept = loudest(before) is loudest(after)
            unknown = any(f.verdict is Verdict.UNKNOWN for f in after)
            assert kept or unknown or check_id == "reading.complete", (where, before, after)
            if unknown and not kept and check_id != "reading.complete":
                # It names the file that it lacks, or one beside it.
                said = " ".join(f.message + " ".join(map(str, f.evidence)) for f in after)
                assert path.rpartition("/")[2] in said or path.rpartition("/")[0] in said, (
                    where,
                    said,
                )


def test_the_rule_can_fail() -> None:
    """A file that some check needs: spoiled it is UNKNOWN, and another text is another answer."""
    table = parse("x", (HOSTS / "small-vm.capture").read_bytes())
    clock = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    assert loudest(answers(table)["cpu.clocksource"]) is Verdict.OK
    assert loudest(answers({**table, clock: b""})["cpu.clocksource"]) is Verdict.UNKNOWN
    assert loudest(answers({**table, clock: b"hpet"})["cpu.clocksource"]) is Verdict.WARN
