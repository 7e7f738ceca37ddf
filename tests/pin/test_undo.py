"""The journal: every cut and every damage of its file."""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.errors import ActError
from nodeagent.pin import undo
from nodeagent.pin.load import load
from nodeagent.pin.records import Closed, Done, Former, Open, line_of
from nodeagent.pin.undo import MAX_FILE_BYTES, Journal


def record(number: int) -> Open:
    return Open(
        id=number,
        act="set_affinity",
        boot="b",
        at_ns=1,
        ticks=2,
        by="root (pid 1)",
        why="test",
        workload=f"w{number}",
        pid=100 + number,
        start_time=7,
        comm="x",
        cpus="1",
    )


def former(number: int) -> Former:
    return Former(id=number, threads=[(100 + number, 7, "0-3")])


def begin(journal: Journal) -> int:
    number = journal.next_id
    journal.begin(record(number), former(number))
    return number


def test_entries_come_back_and_ids_go_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert [begin(journal) for _ in range(3)] == [1, 2, 3]
    journal.done(1, "1")
    journal.closed(3, "undone")
    journal.close()
    again = Journal(tmp_path)
    assert [(e.id, e.state, e.open.workload) for e in again.entries] == [
        (1, "done", "w1"),
        (2, "open", "w2"),
    ]
    assert again.next_id == 4 and again.notes == ()
    assert str(again.entries[0].public().before) == "0-3"


def good_file(folder: Path) -> bytes:
    journal = Journal(folder)
    for _ in range(4):
        begin(journal)
    for number in (1, 2, 3):
        journal.done(number, "1")
    journal.closed(2, "undone")
    journal.close()
    return (folder / undo.FILE).read_bytes().rstrip(b"\0")


def test_cut_anywhere_is_told_and_loses_nothing_before_the_cut(tmp_path: Path) -> None:
    data = good_file(tmp_path)
    lines = data.splitlines(keepends=True)
    assert len(lines) == 1 + 4 * 2 + 3 + 1 and load(data, "j").notes == []
    for cut in range(len(data)):
        whole = data[: data.rfind(b"\n", 0, cut) + 1]
        found, expected = load(data[:cut], "j"), load(whole, "j")
        assert found.entries.keys() == expected.entries.keys()
        assert found.end == len(whole)
        # Also where it is between two lines.
        assert bool(found.notes) == (cut > 0)
        if cut >= len(lines[0]):
            assert f"end at byte {len(whole)}, and were written up to byte {len(data)}" in str(
                found.notes
            )
            assert "cannot be undone from here" in found.notes[-1]


def test_a_journal_that_is_cut_is_opened_and_told_once(tmp_path: Path) -> None:
    data = good_file(tmp_path)
    path = tmp_path / undo.FILE
    ends = [at + 1 for at in range(len(data) - 1) if data[at : at + 1] == b"\n"]
    for cut in [0, *ends, *range(5, len(data), 41)]:
        path.write_bytes(data[:cut])
        journal = Journal(tmp_path)
        assert journal.notes, cut
        journal.close()
        again = Journal(tmp_path)
        assert again.notes == () and again.entries == journal.entries
        assert again.next_id == journal.next_id
        again.close()


def test_what_was_lost_before_the_machine_was_restarted_is_nobody_s_worry(tmp_path: Path) -> None:
    data = good_file(tmp_path)
    lines = data.splitlines(keepends=True)
    other = load(b"".join(lines[:-1]), "j", "another boot")
    assert "before the machine was restarted, and nothing of it is in force" in other.notes[-1]


@pytest.mark.parametrize("missing", [1, 5, 11])
def test_a_line_that_was_taken_out_is_told(missing: int, tmp_path: Path) -> None:
    lines = good_file(tmp_path).splitlines(keepends=True)
    with_more = b"".join(lines[:missing] + lines[missing + 1 :]) + line_of(record(9)) * 2
    (note,) = load(with_more, "j").notes
    assert "are not those that were written" in note
    assert load(b"".join(lines[1:]), "j").notes == [
        "j:1: the first line is none of an undo journal; lines may be missing"
    ]


def test_a_write_that_was_killed_half_way_had_changed_nothing(tmp_path: Path) -> None:
    data = good_file(tmp_path)
    path = tmp_path / undo.FILE
    opened = msgspec.structs.replace(record(5), masks=1)
    tail = line_of(opened) + line_of(former(5))
    for cut in range(1, len(tail)):
        path.write_bytes(data + tail[:cut])
        journal = Journal(tmp_path)
        assert [e.id for e in journal.entries] == [1, 3, 4] and journal.next_id == 5
        assert all("what stands before it is whole" in note for note in journal.notes)
        assert (tmp_path / "undo.log.damaged").read_bytes() == tail[:cut]
        journal.close()
    path.write_bytes(data + tail)
    journal = Journal(tmp_path)
    assert [e.id for e in journal.entries] == [1, 3, 4, 5] and journal.notes == ()
    assert journal.entry(5).lost == 0
    journal.close()


def test_lost_masks_are_known_to_be_lost(tmp_path: Path) -> None:
    lines = good_file(tmp_path).splitlines(keepends=True)
    # The last act's masks, and all that came after them.
    found = load(b"".join(lines[:8]), "j")
    assert found.entries[4].lost == 1 and found.entries[3].lost == 0


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return good_file(tmp_path_factory.mktemp("journal"))


@settings(max_examples=200)
@given(where=st.integers(0, 1 << 20), value=st.integers(0, 255))
def test_damage_anywhere_is_told_and_the_rest_stands(good: bytes, where: int, value: int) -> None:
    at = where % len(good)
    if good[at] == value:
        return
    bad = good[:at] + bytes([value]) + good[at + 1 :]
    found = load(bad, "j")
    assert found.notes
    first_bad = good[:at].count(b"\n")
    kept = b"".join(good.splitlines(keepends=True)[:first_bad])
    before = load(kept, "j").entries
    after = {i for i, e in found.entries.items()}
    # What was open before the damage is open, done or (by a later good line) closed.
    assert before.keys() - after <= {2}


@given(st.binary(max_size=400))
def test_any_bytes_are_read(data: bytes) -> None:
    load(data, "j")


def test_cut_tail_is_kept_aside_and_written_over(tmp_path: Path) -> None:
    data = good_file(tmp_path)
    path = tmp_path / undo.FILE
    last = line_of(Done(id=4, read_back="1"))
    path.write_bytes(data + last[:-10])
    journal = Journal(tmp_path)
    assert "the last write was cut" in journal.notes[0]
    assert (tmp_path / "undo.log.damaged").read_bytes() == last[:-10]
    assert begin(journal) == 5
    journal.close()
    again = Journal(tmp_path)
    assert again.notes == () and [e.id for e in again.entries] == [1, 3, 4, 5]


def test_a_newer_version_s_records_are_kept(tmp_path: Path) -> None:
    good_file(tmp_path)
    path = tmp_path / undo.FILE
    body = b'{"t":"from-the-future","id":9}'
    line = b"%08x %s\n" % (zlib.crc32(body), body)
    path.write_bytes(path.read_bytes().rstrip(b"\0") + line)
    journal = Journal(tmp_path)
    assert "another version" in journal.notes[0]
    assert {e.id for e in journal.entries} == {1, 3, 4}
    assert line in path.read_bytes()


@pytest.mark.parametrize(("act", "knob"), [("set_value", "l3-share"), ("freeze_clocks", "")])
def test_what_a_newer_version_did_is_left_as_it_is(act: str, knob: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    begin(journal)
    newer = msgspec.structs.replace(
        record(2), act=act, knob=knob, pid=0, start_time=0, cpus="", subject="x", value="1"
    )
    journal.close()
    path = tmp_path / undo.FILE
    lines = line_of(newer)
    path.write_bytes(path.read_bytes().rstrip(b"\0") + lines)
    journal = Journal(tmp_path, compact_bytes=1)
    assert [e.id for e in journal.entries] == [1], "what is not known here is not undone here"
    assert "another version" in journal.notes[0]
    # Its number is not given again, and its line outlives what is closed around it.
    assert begin(journal) == 3
    journal.closed(3, "undone")
    journal.close()
    assert lines in path.read_bytes()


def test_a_newer_version_s_records_stay_in_order_and_the_file_is_bounded(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert begin(journal) == 1
    journal.close()
    path = tmp_path / undo.FILE
    newer = [
        line_of(msgspec.structs.replace(record(2), act="freeze_clocks")),
        line_of(former(2)),
        _line(b'{"t":"from-the-future","id":1,"x":1}'),
        line_of(msgspec.structs.replace(record(3), act="freeze_clocks")),
        _line(b'{"t":"note","text":"of no entry"}'),
        line_of(Done(id=2, read_back="1")),
        line_of(Done(id=3, read_back="1")),
    ]
    path.write_bytes(path.read_bytes().rstrip(b"\0") + b"".join(newer))
    journal = Journal(tmp_path, compact_bytes=8192)
    (note,) = journal.notes
    assert "4 records of another version are left as they are" in note
    for _ in range(300):
        journal.closed(begin(journal), "undone")
    journal.close()
    data = path.read_bytes().rstrip(b"\0")
    assert path.stat().st_size < 8192 + 2 * undo.RESERVE_BYTES
    places = [data.index(line) for line in newer]
    assert places == sorted(places) and [e.id for e in Journal(tmp_path).entries] == [1]


def test_what_its_own_version_closed_is_dropped(tmp_path: Path) -> None:
    good_file(tmp_path)
    path = tmp_path / undo.FILE
    newer = [
        line_of(msgspec.structs.replace(record(5), act="freeze_clocks")),
        _line(b'{"t":"from-the-future","id":5}'),
    ]
    path.write_bytes(
        path.read_bytes().rstrip(b"\0") + b"".join(newer) + line_of(Closed(id=5, how="undone"))
    )
    journal = Journal(tmp_path, compact_bytes=1)
    journal.closed(begin(journal), "undone")
    journal.close()
    assert b"freeze_clocks" not in path.read_bytes() and b"future" not in path.read_bytes()


def test_records_of_a_newer_version_that_leave_no_room_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo, "FULL_BYTES", 40_000)
    good_file(tmp_path)
    path = tmp_path / undo.FILE
    newer = b"".join(_line(b'{"t":"future","id":9,"x":"%0900d"}' % i) for i in range(40))
    path.write_bytes(path.read_bytes().rstrip(b"\0") + newer)
    journal = Journal(tmp_path, compact_bytes=1)
    words = rf"{len(newer)} of them are of another version of nodeagent.*neither undoes nor drops"
    with pytest.raises(ActError, match=words) as caught:
        for _ in range(100):
            begin(journal)
    assert "with the version that wrote it" in caught.value.remedy
    for entry in journal.entries:
        journal.closed(entry.id, "undone")
    journal.close()
    assert newer in path.read_bytes()


def _line(body: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(body), body)


def test_the_number_of_a_record_that_cannot_be_read_is_not_given_again(tmp_path: Path) -> None:
    good_file(tmp_path)
    path = tmp_path / undo.FILE
    body = b'{"t":"from-the-future","id":41}'
    line = b"%08x %s\n" % (zlib.crc32(body), body)
    path.write_bytes(path.read_bytes().rstrip(b"\0") + line)
    assert Journal(tmp_path).next_id == 42


OLDER = (
    rb'{"t":"journal"}',
    rb'{"t":"open","id":1,"act":"set_affinity","boot":"b","at_ns":1,"ticks":2,"by":"root (pid 1)",'
    rb'"why":"","workload":"w","pid":101,"start_time":7,"comm":"x","cpus":"1"}',
    rb'{"t":"former","id":1,"threads":[[101,7,"0-3"]]}',
    rb'{"t":"done","id":1,"read_back":"1"}',
    rb'{"t":"open","id":2,"act":"move_to_cpuset","boot":"b","at_ns":1,"ticks":2,"by":"root",'
    rb'"why":"","workload":"w","pid":102,"start_time":7,"comm":"x","cpus":"1","mems":"0",'
    rb'"cpuset":"/nodeagent/w","cgroup_before":"/a","cpuset_before":["0-1","0"]}',
)
"""As the first release that kept a journal wrote it."""


def test_an_older_version_s_journal_is_read(tmp_path: Path) -> None:
    lines = [b"%08x %s\n" % (zlib.crc32(body), body) for body in OLDER]
    path = tmp_path / undo.FILE
    path.touch(mode=0o600)
    path.write_bytes(b"".join(lines))
    assert load(path.read_bytes(), "j").notes == []
    journal = Journal(tmp_path)
    assert journal.notes == () and journal.next_id == 3
    first, second = journal.entries
    assert (first.state, str(first.public().before), first.open.tids) == ("done", "0-3", [])
    assert (second.state, second.open.cpuset_before) == ("open", ("0-1", "0"))
    assert first.lost == second.lost == 0
    # It has the seal from now on: a tail that is lost is noticed.
    journal.close()
    data = path.read_bytes().rstrip(b"\0")
    assert b'"seal":"' in data.splitlines()[0] and lines[-1] in data
    assert "written up to byte" in load(data[: -len(lines[-1])], "j").notes[0]


def test_an_older_version_may_go_on_with_the_file(tmp_path: Path) -> None:
    """It appends behind the seal, and does not know of it."""
    data = good_file(tmp_path)
    appended = data + line_of(record(5)) + line_of(former(5)) + line_of(Done(id=5, read_back="1"))
    (tmp_path / undo.FILE).write_bytes(appended)
    journal = Journal(tmp_path)
    assert journal.notes == () and [e.id for e in journal.entries] == [1, 3, 4, 5]
    assert journal.entry(5).state == "done"
    journal.close()


def test_compaction_is_bounded_and_keeps_what_is_open(tmp_path: Path) -> None:
    journal = Journal(tmp_path, compact_bytes=8192)
    kept = begin(journal)
    journal.done(kept, "1")
    for _ in range(120):
        number = begin(journal)
        journal.closed(number, "undone")
    size = (tmp_path / undo.FILE).stat().st_size
    assert size < 8192 + 2 * undo.RESERVE_BYTES
    expected = journal.next_id
    journal.close()
    again = Journal(tmp_path)
    assert [e.id for e in again.entries] == [kept] and again.next_id == expected
    assert again.entries[0].state == "done" and again.notes == ()


@pytest.mark.parametrize("step", ["journal.compact.written", "journal.compact.renamed"])
def test_killed_while_it_compacts(tmp_path: Path, step: str) -> None:
    child = os.fork()
    if child == 0:
        try:
            journal = Journal(tmp_path, compact_bytes=4096)
            os.environ["NODEAGENT_KILL_AT"] = step
            kept = begin(journal)
            journal.done(kept, "1")
            for _ in range(200):
                journal.closed(begin(journal), "undone")
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    journal = Journal(tmp_path)
    assert [(e.id, e.state) for e in journal.entries] == [(1, "done")]
    assert journal.notes == () and journal.next_id > 5
    assert not (tmp_path / "undo.log.new").exists()
    journal.close()


@pytest.mark.parametrize("step", ["journal.compact.written", "journal.compact.renamed"])
def test_killed_while_it_is_made(tmp_path: Path, step: str) -> None:
    child = os.fork()
    if child == 0:
        try:
            os.environ["NODEAGENT_KILL_AT"] = step
            Journal(tmp_path)
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    journal = Journal(tmp_path)
    assert journal.notes == () and journal.entries == () and begin(journal) == 1
    journal.close()


def test_two_refuse(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(ActError, match="another actor holds this journal"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


@pytest.fixture
def small_disk(tmp_path: Path, as_root: None) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "nodeagent-test", place])
    if done.returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(folder: Path) -> None:
    fd = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (4096, 1):
        try:
            while True:
                os.write(fd, b"x" * size)
        except OSError:
            continue
    os.close(fd)


def test_full_disk_refuses_before_and_can_still_finish(small_disk: Path) -> None:
    journal = Journal(small_disk / "journal")
    number = begin(journal)
    fill(small_disk)
    journal.done(number, "1")
    journal.undoing(number)
    refused = 0
    for _ in range(1000):
        try:
            later = begin(journal)
        except ActError as error:
            refused += 1
            assert "No space left" in str(error) and error.remedy
            break
        journal.closed(later, "undone")
    assert refused == 1
    journal.closed(number, "undone")
    assert journal.entries == ()
    journal.close()
    (small_disk / "filler").unlink()
    again = Journal(small_disk / "journal")
    assert again.entries == () and again.notes == ()
    again.close()


def test_a_disk_that_was_full_from_the_start(small_disk: Path) -> None:
    (small_disk / "journal").mkdir()
    fill(small_disk)
    with pytest.raises(ActError, match="cannot be opened"):
        Journal(small_disk / "journal")


@pytest.mark.parametrize("what", ["journal", "journal/undo.log"])
def test_what_another_user_made_is_not_read(tmp_path: Path, what: str, as_root: None) -> None:
    folder = tmp_path / "journal"
    journal = Journal(folder)
    begin(journal)
    journal.close()
    os.chown(tmp_path / what, 65534, 65534)
    with pytest.raises(ActError, match="user 65534 owns it"):
        Journal(folder)
    os.chown(tmp_path / what, 0, 0)
    journal = Journal(folder)
    assert len(journal.entries) == 1
    journal.close()


def test_more_than_it_keeps_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    threads = [(tid, 7, "0-3") for tid in range(400_000)]
    with pytest.raises(ActError, match="no more are kept"):
        for _ in range(8):
            number = journal.next_id
            journal.begin(record(number), Former(id=number, threads=threads))
    kept = len(journal.entries)
    assert 2 <= kept < 8
    journal.closed(1, "undone", "x" * 100_000)
    assert (tmp_path / "undo.log").stat().st_size < MAX_FILE_BYTES
    begin(journal)
    journal.close()
    again = Journal(tmp_path)
    assert len(again.entries) == kept
    again.close()


def test_a_record_whose_list_is_none_is_left_as_it_is(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    begin(journal)
    begin(journal)
    journal.close()
    path = tmp_path / "undo.log"
    good = path.read_bytes().rstrip(b"\0")
    odd = line_of(Done(id=1, read_back="3-1"))
    path.write_bytes(good + odd)
    journal = Journal(tmp_path)
    assert [e.state for e in journal.entries] == ["open", "open"]
    assert "a record of another version" in journal.notes[0]
    journal.close()


def test_what_was_inside_is_remembered_and_the_first_mask_stands(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    number = journal.next_id
    journal.begin(record(number), Former(id=number, threads=[(7, 1, "0-3")], kept=[(8, 2, "1")]))
    journal.more(Former(id=number, threads=[(7, 1, "1"), (9, 3, "0")]))
    journal.close()
    (entry,) = Journal(tmp_path).entries
    assert {k: str(v) for k, v in entry.former.items()} == {(7, 1): "0-3", (9, 3): "0"}
    assert {k: str(v) for k, v in entry.kept.items()} == {(8, 2): "1"}


def test_an_empty_file_is_begun_like_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "undo.log").touch(mode=0o600)
    journal = Journal(tmp_path)
    assert b'"t":"journal"' in (tmp_path / "undo.log").read_bytes().splitlines()[0]
    assert "empty, expected a first line" in journal.notes[0]
    journal.close()
    size = (tmp_path / "undo.log").stat().st_size
    Journal(tmp_path).close()
    assert (tmp_path / "undo.log").stat().st_size == size
