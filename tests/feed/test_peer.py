"""Who is at the other end of a socket."""

from __future__ import annotations

import subprocess
import sys

GROUPS = """
import os, socket, sys
os.setgroups(range(70000, 70000 + int(sys.argv[1])))
from nodeagent.feed.peer import peer_of
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer = peer_of(one)
print(peer.pid == os.getpid(), peer.alive, len(peer.gids - {os.getgid()}))
peer.close()
"""


def seen(groups: int) -> str:
    return subprocess.run(
        [sys.executable, "-c", GROUPS, str(groups)], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_all_of_many_groups_are_seen(as_root: None) -> None:
    assert seen(1) == "True True 1"
    assert seen(65) == "True True 65"
    assert seen(256) == "True True 256"


def test_more_groups_than_can_be_asked_for_count_as_none(as_root: None) -> None:
    assert seen(257) == "True True 0"
