"""nodeagentctl feed: status, synth; replay is tested in tests/feed/test_replay.py."""

from __future__ import annotations

import json
import pathlib
import subprocess

from tests.feed.processes import BIN, feeder, registry


def ctl(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "nodeagentctl", *map(str, words)], capture_output=True, text=True)


def test_status_of_a_feed(tmp_path: pathlib.Path) -> None:
    sock, day = tmp_path / "ring.sock", tmp_path / "day.pcap"
    assert ctl("feed", "synth", day, "--messages", 500, "--symbols", 5).returncode == 0
    with registry(sock):
        assert "no feed: start one" in ctl("feed", "status", "--ring-socket", sock).stdout
        with feeder("--file", str(day), "--socket", str(sock), "--linger", name="day") as fed:
            fed.next("offered")
            text = ctl("feed", "status", "--ring-socket", sock, "--interval", 0.1)
            # ring.sock is found beside api.sock.
            body = json.loads(
                ctl("-o", "json", "--socket", tmp_path / "api.sock", "feed", "status").stdout
            )
            fed.stop()
    assert text.returncode == 0
    assert text.stdout.startswith("feed day  capture, pid ")
    assert "received   500 messages" in text.stdout
    assert "lost       nic -, kernel 0, backend 0, decoder 0, wire gap 0" in text.stdout
    assert body["schema"] == "nodeagent.feed/v1"
    (row,) = body["feeds"]
    assert (row["feed"], row["messages"], row["loss"]["wire_gap"]) == ("day", 500, 0)
    assert {r["kind"] for r in body["rings"]} == {"ticks", "frames"}


def test_nobody_serves(tmp_path: pathlib.Path) -> None:
    done = ctl("feed", "status", "--ring-socket", tmp_path / "ring.sock")
    assert done.returncode == 3
    assert done.stderr.startswith("error: ") and "remedy:" in done.stderr
    assert done.stdout == ""


def test_synth_says_what_it_wrote(tmp_path: pathlib.Path) -> None:
    done = ctl("-o", "json", "feed", "synth", tmp_path / "x", "--format", "soupbintcp")
    body = json.loads(done.stdout)
    assert body["messages"] == 100_000 and body["format"] == "soupbintcp"
    assert body["bytes"] == (tmp_path / "x").stat().st_size
    assert ctl("feed", "synth", tmp_path / "y", "--messages", 5).returncode == 64
    missing = ctl("feed", "synth", tmp_path / "no" / "y")
    assert missing.returncode == 3 and "No such file" in missing.stderr


def test_usage(tmp_path: pathlib.Path) -> None:
    for words in (("replay",), ("replay", "x", "--group", "239.1.1.1"), ("nonsense",)):
        done = ctl("feed", *words)
        assert done.returncode == 64, words
        assert "error: " in done.stderr and "Traceback" not in done.stderr
    wrong = ctl("feed", "replay", tmp_path / "x", "--group", "239.1.1.1", "--port", 5)
    assert wrong.returncode == 3 and "No such file" in wrong.stderr
