"""place apply with a real actor: whole units, stops, a lost actor, others at work, exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.model.cpuset import CpuSet
from nodeagent.pin import cpuset
from tests.cli.conftest import Site, masks


@pytest.fixture
def shut_in(as_root: None) -> Iterator[str]:
    """A cpuset that holds the lowest CPU alone: whoever is in it cannot be pinned elsewhere."""
    try:
        tree = cpuset.find()
    except NodeagentError as error:
        pytest.skip(f"no cpuset here: {error}")
    if not os.access(tree.mount, os.W_OK):
        pytest.skip("the cpuset hierarchy is read-only here")
    path = f"/nodeagent/test-cli-{os.getpid()}"
    lowest = str(min(os.sched_getaffinity(0)))
    cpuset.make(tree, path)
    cpuset.fill(tree, path, lowest, "0")
    yield path
    for pid in cpuset.members(tree, path):
        cpuset.move(tree, "/", pid)
    cpuset.remove(tree, path)


def test_a_unit_is_placed_whole_or_put_back_whole(site: Site, two: CpuSet, shut_in: str) -> None:
    site.workloads("alone", more="\n")
    text = site.file.read_text()
    site.workloads("first", "second", "third", unit="u")
    site.file.write_text(site.file.read_text() + text)
    pids = {n: site.sleeper(n) for n in ("first", "second", "third", "alone")}
    cpuset.move(cpuset.find(), shut_in, pids["second"])
    before = {n: masks(p) for n, p in pids.items()}
    site.actor()
    done = site.ctl("-o", "json", "place", "apply", "--yes")
    assert done.returncode == 1, done.stderr
    body = json.loads(done.stdout)
    came = {r["workload"]: r for r in body["results"]}
    # What does not depend on the unit goes on.
    assert masks(pids["alone"]) != before["alone"] and came["alone"]["outcome"] == "done"
    for name in ("first", "second", "third"):
        assert masks(pids[name]) == before[name], name
    assert came["first"]["outcome"] == "reverted"
    assert "unit u is placed whole or not at all" in came["first"]["message"]
    assert came["second"]["outcome"] in ("refused", "reverted")
    assert [a["workload"] for a in body["not_tried"]] == ["third"]
    left = json.loads(site.ctl("-o", "json", "place", "status").stdout)["journal"]
    assert [e["workload"] for e in left] == ["alone"]
    # The same for people: what came of each act, and what is to be done.
    again = site.ctl("place", "apply", "--yes")
    assert again.returncode == 1
    assert "reverted  first  " in again.stdout and "1 not tried" in again.stdout


def test_only_takes_the_unit_along_and_leaves_the_rest(site: Site, two: CpuSet) -> None:
    site.workloads("first", "second", unit="u")
    unit = site.file.read_text()
    site.workloads("alone")
    site.file.write_text(unit + site.file.read_text())
    pids = {n: site.sleeper(n) for n in ("first", "second", "alone")}
    before = masks(pids["alone"])
    site.actor()
    done = site.ctl("-o", "json", "place", "apply", "--yes", "--only", "second")
    assert done.returncode == 0, done.stderr
    assert {r["workload"] for r in json.loads(done.stdout)["results"]} == {"first", "second"}
    assert masks(pids["alone"]) == before
    strange = site.ctl("place", "apply", "--yes", "--only", "secnd")
    assert strange.returncode == 64 and "has no such workload" in strange.stderr
    assert "it has: first, second, alone" in strange.stderr


def test_exit_codes(site: Site, two: CpuSet) -> None:
    site.workloads("one")
    pid = site.sleeper("one")
    before = masks(pid)
    nobody = site.ctl("place", "apply", "--yes")
    assert nobody.returncode == 3 and "no actor answers there" in nobody.stderr
    actor = site.actor("--allow", "cgroup", "--state-dir", str(site.folder / "other"))
    # By force of --by: a class that the actor does not have.
    refused = site.ctl("place", "apply", "--yes", "--by", "threads")
    assert refused.returncode == 3 and "no consent for acts of class threads" in refused.stdout
    # The file gives it: the actor was started with another say.
    assert "gives it, and the actor has not read" in " ".join(refused.stdout.split())
    assert masks(pid) == before
    actor.terminate()
    actor.communicate()
    site.actor()
    assert site.ctl("place", "plan", "--detailed-exitcode").returncode == 1
    assert site.ctl("place", "apply", "--yes").returncode == 0
    assert masks(pid) != before
    again = site.ctl("place", "apply", "--yes")
    assert again.returncode == 0 and "Nothing to do" in again.stdout
    assert site.ctl("place", "plan", "--detailed-exitcode").returncode == 0
    # A workload that no machine of this size can hold: the rest is in place, so in part.
    site.file.write_text(
        site.file.read_text() + '[[workload]]\nname = "huge"\ncpus = 8000\nmatch = { pid = 1 }\n'
    )
    assert site.ctl("place", "apply", "--yes").returncode == 1
    alone = site.ctl("place", "apply", "--yes", "--only", "huge")
    assert alone.returncode == 3 and "every workload is refused" in alone.stdout
    assert site.ctl("undo").returncode == 0
    assert masks(pid) == before


def test_frozen_stops_the_rest(site: Site, two: CpuSet) -> None:
    site.workloads("one", "two", "three")
    pids = [site.sleeper(n) for n in ("one", "two", "three")]
    before = [masks(p) for p in pids]
    site.actor()
    (site.folder / "run/freeze").touch()
    done = site.ctl("-o", "json", "place", "apply", "--yes")
    assert done.returncode == 3
    body = json.loads(done.stdout)
    assert "frozen by" in body["frozen"]
    # One is refused and recorded; the others are not even asked for.
    assert [r["outcome"] for r in body["results"]] == ["refused"]
    assert len(body["not_tried"]) == 2
    said = site.ctl("place", "apply", "--yes").stdout
    assert "Frozen: frozen by" in said and "not tried: two, three" in said
    assert [masks(p) for p in pids] == before
    plan = site.ctl("place", "plan")
    assert plan.returncode == 0 and "Frozen: frozen by" in plan.stdout


def test_an_actor_that_dies_in_the_middle_and_comes_back(site: Site, two: CpuSet) -> None:
    """systemd restarts it; its next start completes or reverts the act, and apply says which."""
    site.workloads("one", "two")
    pids = [site.sleeper(n) for n in ("one", "two")]
    for step, outcome in (("act.read-back", "done"), ("affinity.before", "reverted")):
        actor = site.actor(NODEAGENT_KILL_AT=step)
        running = subprocess.Popen(
            site.command("-o", "json", "place", "apply", "--yes"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert actor.wait() == -signal.SIGKILL
        actor.communicate()
        back = site.actor()
        text, errors = running.communicate()
        body = json.loads(text)
        first, second = body["results"]
        assert first["outcome"] == outcome, (first, errors)
        assert "went away in the middle" in first["message"]
        assert second["outcome"] == "done"
        assert running.returncode == (0 if outcome == "done" else 1)
        assert site.ctl("undo").returncode == 0
        back.terminate()
        back.communicate()
        assert all(masks(p) == {str(two)} for p in pids)


def test_an_actor_that_does_not_come_back_is_neither(site: Site, two: CpuSet) -> None:
    site.workloads("one", "two")
    for name in ("one", "two"):
        site.sleeper(name)
    site.actor(NODEAGENT_KILL_AT="act.read-back")
    done = site.ctl("place", "apply", "--yes")
    assert done.returncode == 2
    assert "no actor answers any more" in done.stdout and "not tried: two" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_signal_ends_it_after_the_act_in_hand(site: Site, two: CpuSet) -> None:
    """Many acts; told to stop after the first lines, it stops between two and says what stands."""
    names = [f"w{i:02}" for i in range(40)]
    site.workloads(*names)
    pids = [site.sleeper(n) for n in names]
    site.actor()
    for number, word in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
        running = subprocess.Popen(
            site.command("place", "apply", "--yes", "--all"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("  done "):
                break
        running.send_signal(number)
        rest, errors = running.stdout.read(), running.communicate()[1]
        done = rest.count("  done ") + 1
        if done == len(names):
            pytest.skip("this machine was quicker than the signal")
        assert running.returncode == 1, errors
        assert f"Stopped: stopped by {word}" in rest and "not tried" in rest
        pinned = sum(masks(p) != {str(two)} for p in pids)
        assert pinned == done
        assert site.ctl("undo").returncode == 0
    assert all(masks(p) == {str(two)} for p in pids)


def test_a_reader_that_leaves_stops_nothing(site: Site, two: CpuSet) -> None:
    names = [f"w{i:02}" for i in range(12)]
    site.workloads(*names)
    pids = [site.sleeper(n) for n in names]
    site.actor()
    command = " ".join(site.command("place", "apply", "--yes", "--all"))
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert all(masks(p) != {str(two)} for p in pids)


def test_two_at_once_agree(site: Site, two: CpuSet) -> None:
    names = [f"w{i:02}" for i in range(10)]
    site.workloads(*names)
    pids = [site.sleeper(n, 2) for n in names]
    site.actor()
    found: list[subprocess.CompletedProcess[str]] = []
    both = [
        threading.Thread(target=lambda: found.append(site.ctl("place", "apply", "--yes")))
        for _ in range(2)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert [f.returncode for f in found] == [0, 0], [f.stdout for f in found]
    assert all(len(masks(p)) == 1 and masks(p) != {str(two)} for p in pids)
    # Each process was pinned once: the second found it inside already.
    journal = json.loads(site.ctl("-o", "json", "place", "status").stdout)["journal"]
    assert sorted(e["pid"] for e in journal) == sorted(pids)
    assert site.ctl("undo").returncode == 0
    assert all(masks(p) == {str(two)} for p in pids)


def ask(site: Site, *args: str, width: int = 100) -> tuple[subprocess.Popen[bytes], int]:
    """A command on a terminal of its own; (process, the terminal's other end)."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    made = subprocess.Popen(
        site.command(*args), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    return made, ours


def read_until(end: int, words: str, seen: str = "") -> str:
    while words not in seen:
        try:
            data = os.read(end, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data.decode(errors="replace")
    return seen


def test_a_terminal_is_asked_and_the_machine_looked_at_again(site: Site, two: CpuSet) -> None:
    site.workloads("one", "two")
    one, other = site.sleeper("one"), site.sleeper("two")
    site.actor()
    asked, end = ask(site, "place", "apply")
    assert "Make 2 changes?" in read_until(end, "Make 2 changes?")
    os.write(end, b"n\n")
    assert "Nothing was changed." in read_until(end, "Nothing was changed.")
    assert asked.wait() == 0 and masks(one) == {str(two)}
    os.close(end)

    asked, end = ask(site, "place", "apply")
    read_until(end, "Make 2 changes?")
    # While the plan is read one of the two ends: what was shown is not what would be done.
    site.end(other)
    os.write(end, b"y\n")
    said = read_until(end, "Make 1 change?")
    assert "The machine changed while you were reading" in said
    os.write(end, b"y\n")
    read_until(end, "Applied: 1 done and read back.")
    assert asked.wait() == 0 and masks(one) != {str(two)}
    os.close(end)


def test_the_workload_file_vanishes_while_the_plan_is_read(site: Site, two: CpuSet) -> None:
    site.workloads("one")
    pid = site.sleeper("one")
    site.actor()
    asked, end = ask(site, "place", "apply")
    read_until(end, "Make 1 change?")
    site.file.unlink()
    os.write(end, b"y\n")
    said = read_until(end, "remedy:")
    assert asked.wait() == 64 and "workloads.toml" in said and "Traceback" not in said
    assert masks(pid) == {str(two)}
    os.close(end)


def test_names_that_are_no_text_and_narrow_screens(site: Site, two: CpuSet) -> None:
    """A process may call itself anything, and a terminal may be 20 columns wide."""
    site.workloads("one", "two")
    site.sleeper("one", 1, comm=b"\xff\xfe\x1b[2Jevil")
    site.sleeper("two", 1)
    site.actor()
    for args in (("place", "plan"), ("place", "status"), ("place", "apply", "--yes"), ("undo",)):
        for width in ("20", "40", "100"):
            done = site.ctl(*args, COLUMNS=width)
            assert done.returncode in (0, 1), (args, done.stderr)
            assert "\x1b" not in done.stdout and "Traceback" not in done.stderr
            # A command to paste stays on one line, however long.
            lines = [x for x in done.stdout.splitlines() if "nodeagentctl --config" not in x]
            long = [line for line in lines if len(line) > max(20, int(width))]
            assert not long, (args, width, long)
        body = site.ctl("-o", "json", *args)
        assert json.loads(body.stdout)["schema"] == "nodeagent.placement/v1"


def test_nothing_is_changed_before_its_file_is_right(site: Site, tmp_path: Path) -> None:
    site.file.write_text("[[workload]]\nname = 1\n")
    site.actor()
    done = site.ctl("place", "apply", "--yes")
    assert done.returncode == 64 and f"{site.file.name}:2" in done.stderr
    site.file.write_bytes(b'[[workload]]\nname = "\xff"\n')
    done = site.ctl("place", "plan")
    assert done.returncode == 64 and "not UTF-8" in done.stderr
