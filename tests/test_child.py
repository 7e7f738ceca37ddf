"""A child that hangs is left alone, not doubled, and heard when it speaks again."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from nodeagent.child import Child

SCRIPT = """
import os, sys, time
parent = os.getppid()
for line in sys.stdin:
    n, word = line.split()
    if word == "die":
        os._exit(3)
    if word.startswith("/"):
        while not os.path.exists(word) and os.getppid() == parent:
            time.sleep(0.01)
    print(os.getpid()); print("said", word); print("=", n, flush=True)
"""


@pytest.fixture
def child(tmp_path: pathlib.Path) -> Child:
    script = tmp_path / "child.py"
    script.write_text(SCRIPT)
    return Child([sys.executable, str(script)])


def test_asks_and_answers(child: Child) -> None:
    first = child.ask("one", 30)
    second = child.ask("two", 30)
    assert first and second
    assert first[0] == second[0] == str(child.pid)
    assert second[1] == "said two"
    pid = child.pid
    assert pid is not None
    child.close()
    assert not pathlib.Path(f"/proc/{pid}").exists()


def test_hung_child_is_neither_killed_nor_doubled(child: Child, tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    pid = (child.ask("hello", 30) or [""])[0]
    assert child.ask(str(gate), 0.05) is None
    assert "no answer" in child.reason
    for _ in range(3):
        assert child.ask("again", 0.05) is None
        assert "not answered" in child.reason
        assert child.hung
        assert str(child.pid) == pid
    gate.touch()
    # Its late answer is taken for what it is; the next question gets its own.
    while child.hung:
        child.receive(1)
    assert child.ask("back", 30) == [pid, "said back"]
    child.close()


def test_hung_child_is_let_go_without_a_kill(child: Child, tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    assert child.ask(str(gate), 0.05) is None
    pid = child.pid
    assert pid is not None
    child.close()
    os.kill(pid, 0)
    gate.touch()
    os.waitpid(pid, 0)


def test_child_that_ends_is_started_again(child: Child) -> None:
    assert child.ask("die", 30) is None
    assert "ended" in child.reason
    assert (child.ask("again", 30) or [])[1:] == ["said again"]
    child.close()


def test_child_that_cannot_be_started_is_a_reason() -> None:
    child = Child(["/nowhere/python"])
    assert child.ask("x", 1) is None
    assert "could not be started" in child.reason
