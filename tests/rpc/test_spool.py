"""The spool on a real disk: what append returned is there after kill -9; bounds; epochs."""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from nodeagent.model.event import Event, Severity
from nodeagent.model.finding import Evidence
from nodeagent.rpc.spool import Limits, Spool, SpoolError


def event(n: int, size: int = 0) -> Event:
    return Event(
        seq=0,
        kind="test.tick",
        subject=f"n {n}",
        severity=Severity.INFO,
        message="x" * size,
        at_ns=n,
    )


def append(spool: Spool, count: int, size: int = 0) -> None:
    for n in range(count):
        spool.append([event(n, size)])


def test_what_was_appended_is_read_in_order(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path)
    first = spool.append([event(1), event(2)])
    assert [e.seq for e in first] == [1, 2]
    spool.append([event(3)])
    assert [(e.seq, e.at_ns) for e in spool.read(0, 10)] == [(1, 1), (2, 2), (3, 3)]
    assert [e.seq for e in spool.read(1, 1)] == [2]
    assert spool.read(3, 10) == ()


def test_identity_and_seqs_go_on_after_a_restart(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path)
    who = spool.identity
    append(spool, 3)
    spool.acknowledge(2)
    spool.close()
    again = Spool.open(tmp_path)
    assert again.identity == who
    assert (again.last_seq, again.acknowledged, again.unacknowledged) == (3, 2, 1)
    assert again.append([event(9)])[0].seq == 4


def test_a_full_spool_drops_the_oldest_and_counts(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path, Limits(max_events=10, keep_acknowledged=3))
    append(spool, 25)
    assert [e.seq for e in spool.read(0, 100)] == list(range(16, 26))
    assert (spool.dropped, spool.unacknowledged) == (15, 10)
    (told,) = spool.report_drops(1)
    assert told.kind == "report.overflow"
    assert told.message.startswith("15 events were lost")
    spool.acknowledge(told.seq)
    spool.trim()
    spool.report_drops(1)
    spool.acknowledge(spool.last_seq)
    assert spool.report_drops(1) == ()
    spool.close()
    assert Spool.open(tmp_path).dropped == 16


def test_bytes_are_bounded_too(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path, Limits(max_bytes=20_000))
    append(spool, 100, size=1000)
    assert 15 <= len(spool.read(0, 1000)) <= 20
    assert spool.dropped + spool.unacknowledged == 100


def test_acknowledged_events_go_first_and_are_no_loss(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path, Limits(max_events=10, keep_acknowledged=4))
    for n in range(50):
        spool.acknowledge(spool.append([event(n)])[0].seq)
    spool.trim()
    assert spool.dropped == 0
    assert [e.seq for e in spool.read(0, 100)] == [47, 48, 49, 50]


def test_a_giant_event_is_cut_not_refused(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path)
    evidence = (Evidence(path="/proc/cmdline", text="y" * 300_000),)
    (numbered,) = spool.append(
        [
            Event(
                seq=0,
                kind="k",
                subject="s",
                severity=Severity.INFO,
                message="m",
                at_ns=1,
                evidence=evidence,
            )
        ]
    )
    (kept,) = spool.read(0, 1)
    assert (kept.seq, kept.message, kept.evidence) == (numbered.seq, "m", ())


def test_a_deleted_spool_raises_the_epoch_and_says_so(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path)
    append(spool, 3)
    spool.close()
    for path in tmp_path.glob("spool.db*"):
        path.unlink()
    again = Spool.open(tmp_path, now_ns=5)
    assert again.identity.epoch == spool.identity.epoch + 1
    assert again.identity.agent_uuid == spool.identity.agent_uuid
    (said,) = again.read(0, 10)
    assert (said.seq, said.kind, said.at_ns) == (1, "report.epoch", 5)
    assert "spool.db is missing" in said.message


@pytest.mark.parametrize("damage", ["text", "middle", "empty"])
def test_a_damaged_spool_is_set_aside(tmp_path: pathlib.Path, damage: str) -> None:
    spool = Spool.open(tmp_path)
    append(spool, 200, size=500)
    spool.close()
    path = tmp_path / "spool.db"
    raw = bytearray(path.read_bytes())
    if damage == "text":
        raw[:] = b"this is no database" * 100
    elif damage == "middle":
        raw[4096 : len(raw) // 2] = b"\xff" * (len(raw) // 2 - 4096)
    else:
        raw.clear()
    path.write_bytes(raw)
    again = Spool.open(tmp_path)
    assert again.identity.epoch == 2
    assert "damaged" in again.read(0, 1)[0].message
    assert (tmp_path / "spool.db.lost").exists()


def test_a_lost_identity_is_read_from_the_spool(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path)
    append(spool, 3)
    spool.close()
    (tmp_path / "agent.json").unlink()
    again = Spool.open(tmp_path)
    assert (again.identity, again.last_seq) == (spool.identity, 3)
    assert json.loads((tmp_path / "agent.json").read_text())["uuid"] == again.identity.agent_uuid


@pytest.mark.parametrize("text", ["", "{", '{"uuid": "x", "epoch": 1}', "[]", "\0" * 100])
def test_a_damaged_identity_is_made_anew_or_found_in_the_spool(
    tmp_path: pathlib.Path, text: str
) -> None:
    (tmp_path / "agent.json").write_text(text)
    spool = Spool.open(tmp_path)
    assert spool.identity.epoch == 1
    assert "agent.json was damaged" in spool.read(0, 1)[0].message
    spool.close()
    (tmp_path / "agent.json").write_text(text)
    assert Spool.open(tmp_path).identity == spool.identity


def test_an_older_copy_of_the_spool_never_gives_a_seq_twice(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path)
    append(spool, 3)
    spool.close()
    old = (tmp_path / "spool.db").read_bytes()
    (tmp_path / "spool.db").unlink()
    second = Spool.open(tmp_path)
    second.close()
    (tmp_path / "spool.db").write_bytes(old)
    third = Spool.open(tmp_path)
    assert third.identity.epoch == 3
    assert [e.subject for e in third.read(0, 9)][:3] == ["n 0", "n 1", "n 2"]


def test_a_second_process_is_told(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path)
    code = "import sys; from nodeagent.rpc.spool import Spool; Spool.open(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert "SpoolError" in done.stderr
    assert "locked" in done.stderr
    spool.append([event(1)])
    assert spool.identity.epoch == 1


def test_an_unwritable_folder_is_a_sentence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="cannot be used"):
        Spool.open(tmp_path / "file")


def test_renewed_epoch_keeps_what_nobody_has(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path)
    append(spool, 5)
    spool.acknowledge(2)
    spool.renew_epoch("the controller has more", 7)
    assert spool.identity.epoch == 2
    found = spool.read(0, 10)
    assert [(e.seq, e.subject) for e in found[:3]] == [(1, "n 2"), (2, "n 3"), (3, "n 4")]
    assert found[3].kind == "report.epoch"
    spool.close()
    assert Spool.open(tmp_path).identity.epoch == 2


STORM = """
import sys
import threading
from nodeagent.rpc.spool import Spool
from nodeagent.model.event import Event, Severity
spool = Spool.open(sys.argv[1])
n = 0
while True:
    batch = [Event(seq=0, kind="k", subject=str(n + i), severity=Severity.INFO, message="", at_ns=1)
             for i in range(3)]
    n += 3
    print(spool.append(batch)[-1].seq, flush=True)
"""


def test_killed_at_any_moment_nothing_returned_is_lost(tmp_path: pathlib.Path) -> None:
    moments = random.Random(7)
    last = 0
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", STORM, tmp_path], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(moments.random() * 0.1)
        child.send_signal(signal.SIGKILL)
        lines = child.stdout.read().split("\n")[:-1]
        child.wait()
        promised = int(lines[-1]) if lines else 0
        spool = Spool.open(tmp_path)
        assert spool.last_seq >= max(promised, last)
        seqs = [e.seq for e in spool.read(0, 1_000_000, 1 << 30)]
        assert seqs == list(range(1, spool.last_seq + 1))
        last = spool.last_seq
        spool.close()
    assert last > 24


@pytest.mark.root
def test_a_full_disk_refuses_and_goes_on_when_there_is_room(
    tmp_path: pathlib.Path, as_root: None
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "nodeagent-spool", disk], check=False
    )
    if mounted.returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        spool = Spool.open(disk)
        append(spool, 20, size=1000)
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as f:
            while True:
                f.write(b"z" * 4096)
        with pytest.raises(SpoolError) as caught:
            append(spool, 1000, size=1000)
        assert "full" in str(caught.value)
        assert "make room" in caught.value.remedy
        stood = spool.last_seq
        filler.unlink()
        assert spool.append([event(1)])[0].seq == stood + 1
        assert [e.seq for e in spool.read(0, 10_000, 1 << 30)] == list(range(1, stood + 2))
        spool.close()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_the_file_is_a_plain_database(tmp_path: pathlib.Path) -> None:
    spool = Spool.open(tmp_path)
    append(spool, 2)
    spool.close()
    with sqlite3.connect(tmp_path / "spool.db") as db:
        assert db.execute("SELECT max(seq) FROM event").fetchone() == (2,)


def test_a_disk_that_hangs_does_not_hold_the_loop_that_hears_of_commits(
    tmp_path: pathlib.Path,
) -> None:
    spool = Spool.open(tmp_path)
    spool.append([event(i) for i in range(3)])
    held, over = threading.Event(), threading.Event()

    def hang() -> None:
        # What `append` holds while the disk syncs.
        with spool._lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    held.wait()
    try:
        spool.acknowledge(2)
        assert (spool.acknowledged, spool.unacknowledged, spool.last_seq) == (2, 1, 3)
        spool.acknowledge(9)
        assert spool.acknowledged == 3
    finally:
        over.set()
        thread.join()
    spool.close()
