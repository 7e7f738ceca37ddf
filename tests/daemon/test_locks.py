"""What stands where a lock or a file of the daemon's state should, and is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.daemon.main import take_lock
from nodeagent.errors import NodeagentError, UnavailableError
from nodeagent.rpc.spool import Spool


def test_a_lock_that_is_a_pipe_is_a_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "daemon.lock")
    with pytest.raises(UnavailableError, match="no regular file") as caught:
        take_lock(tmp_path / "daemon.lock", "nodeagentd")
    assert caught.value.remedy.startswith("rm ")


def test_an_identity_that_is_a_pipe_hangs_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "agent.json")
    with pytest.raises(NodeagentError, match="cannot be used: a pipe that nobody wrote"):
        Spool.open(tmp_path)


def test_an_identity_nested_too_deep_is_damage(tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text("[" * 4096)
    spool = Spool.open(tmp_path)
    assert spool.identity.agent_uuid
    spool.close()
