"""`nodeagentctl status` and `events` against a served api.sock."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import subprocess

from nodeagent.rpc.local import serve_local
from tests.rpc.world import Source, event


def ask(
    bin_dir: pathlib.Path, path: pathlib.Path, source: Source, *args: str
) -> subprocess.CompletedProcess[str]:
    def inner() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [bin_dir / "nodeagentctl", "--socket", path, *args],
            capture_output=True,
            text=True,
            env=os.environ | {"NO_COLOR": "1"},
        )

    async def served() -> subprocess.CompletedProcess[str]:
        server = await serve_local(path, source)
        try:
            return await asyncio.to_thread(inner)
        finally:
            await server.stop()

    return asyncio.run(served())


def test_status_is_one_screen(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = ask(bin_dir, tmp_path / "api.sock", Source(), "status")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("WARN - 1 finding, worst isolation.irqaffinity-overlap | findings=1")
    assert len(lines) < 40
    for word in ("gpu-1", "vwap", "held", "boot with irqaffinity=0-1", "no BTF", "30 MiB PSS"):
        assert word in done.stdout
    assert "\x1b" not in done.stdout


def test_status_as_json(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = ask(bin_dir, tmp_path / "api.sock", Source(), "-o", "json", "status")
    found = json.loads(done.stdout)
    assert found["schema"] == "nodeagent.status/v1"
    assert found["held"][0]["cpus_before"] == "0-3"
    assert found["findings"][0]["doc"].startswith("docs/checks.md#")
    assert found["verdict"] == "WARN"


def test_events_newest_last(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source = Source()
    for n in range(60):
        source.happen(event(n))
    path = tmp_path / "api.sock"
    table = ask(bin_dir, path, source, "events", "--limit", "3")
    assert [line.rpartition(" ")[2] for line in table.stdout.splitlines()] == ["57", "58", "59"]
    found = json.loads(ask(bin_dir, path, source, "-o", "json", "events", "--since", "58").stdout)
    assert found["schema"] == "nodeagent.event/v1"
    assert [e["seq"] for e in found["events"]] == [59, 60]


def test_what_streams_is_not_one_object(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for args in (["status", "--watch"], ["events", "--follow"]):
        done = ask(bin_dir, tmp_path / "api.sock", Source(), "-o", "json", *args)
        assert done.returncode == 64
        assert "jsonl" in done.stderr


def test_another_machines_text_moves_no_cursor(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = Source()
    source.move(hostname="gpu\x1b[2J-1", sentence="all\x07 well")
    done = ask(bin_dir, tmp_path / "api.sock", source, "status")
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


def test_without_a_daemon_there_is_a_remedy(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for command in ("status", "events"):
        done = subprocess.run(
            [bin_dir / "nodeagentctl", "--socket", tmp_path / "api.sock", command],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 3
        assert "no daemon serves here" in done.stderr
        assert "remedy: systemctl start nodeagentd" in done.stderr
