"""The daemon as a real process: starts, reads, judges, serves, reloads, refuses, stops."""

from __future__ import annotations

import pathlib
import signal
import subprocess
from typing import TYPE_CHECKING

from nodeagent.model.finding import Verdict

if TYPE_CHECKING:
    from tests.daemon.conftest import Node


def test_an_empty_configuration_observes(node: Node) -> None:
    node.configure("")
    node.start()
    status = node.status_when(lambda s: "verdict" in s.sentence)
    assert status.verdict in list(Verdict) and status.findings
    assert "no workloads are configured" in status.sentence
    assert status.placement.placed == () and status.held == ()
    assert not status.controller.configured
    assert not status.probe.available and "not enabled" in str(status.probe.reason)
    assert node.topology() is not None
    assert node.stop() == 0


def test_started_twice_is_refused_and_names_the_pid(node: Node) -> None:
    node.configure("")
    node.start()
    second = subprocess.run(node.command, capture_output=True, text=True)
    assert second.returncode == 3
    assert f"nodeagentd runs already in {node.run_dir} (pid {node.pid})" in second.stderr
    assert "remedy: stop it first" in second.stderr
    assert node.status().turns > 0


def test_a_bad_configuration_is_refused_at_start_with_file_and_line(node: Node) -> None:
    node.configure("[pin]\nalow = []\n")
    done = subprocess.run(node.command, capture_output=True, text=True)
    assert done.returncode == 64
    assert f"error: {node.config}:" in done.stderr and "unknown setting alow" in done.stderr
    assert "remedy: did you mean allow?" in done.stderr
    assert "Traceback" not in done.stderr
    missing = subprocess.run([*node.command[:-1], "/no/such.toml"], capture_output=True, text=True)
    assert missing.returncode == 64 and "/no/such.toml: No such file" in missing.stderr


def test_a_bad_reload_keeps_the_settings_and_says_so(node: Node) -> None:
    node.configure("")
    node.start()
    node.status_when(lambda s: s.turns > 1)
    node.configure("[pin]\nallow = 'threads'\n")
    node.process.send_signal(signal.SIGHUP)
    refused = node.event("config.refused")
    assert "expected a list of threads" in refused.message
    assert "the settings before stay in force" in refused.message
    node.configure("[pin]\nallow = ['threads']\n")
    node.process.send_signal(signal.SIGHUP)
    node.event("config.reloaded")
    turns = node.status().turns
    node.status_when(lambda s: s.turns > turns)
    assert node.stop() == 0


def test_events_and_numbers_go_on_after_kill_9(node: Node) -> None:
    node.configure("")
    node.start()
    node.event("daemon.started")
    before = node.status()
    last = node.events()[-1].seq
    node.kill()
    node.start()
    node.status_when(lambda s: any(e.kind == "daemon.started" for e in node.events(last)))
    after = node.status()
    assert (after.agent_uuid, after.epoch) == (before.agent_uuid, before.epoch)
    seqs = [e.seq for e in node.events()]
    assert seqs == list(range(1, len(seqs) + 1))


def test_without_root_it_observes(node: Node, as_root: None) -> None:
    node.configure("")
    node.give_to_nobody()
    node.start(as_nobody=True)
    status = node.status_when(lambda s: "verdict" in s.sentence)
    assert status.findings
    assert node.stop() == 0


def test_without_an_actor_it_observes_and_says_so(node: Node) -> None:
    node.configure("[pin]\nallow=['threads']\nauto=['threads']\n")
    node.start()
    down = node.event("actor.down")
    assert str(node.run_dir / "actor.sock") in down.message
    assert "no actor" in node.status_when(lambda s: "no actor" in s.sentence).sentence


def test_an_unwritable_state_folder_costs_the_history_and_not_the_watch(
    node: Node, tmp_path: pathlib.Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    node.configure("", state_dir=blocked / "state")
    node.start()
    assert "spool" in node.event("spool.down").message
    assert node.status_when(lambda s: "verdict" in s.sentence).agent_uuid == ""


def test_nothing_is_left_in_the_run_folder_but_the_lock(node: Node) -> None:
    node.configure("")
    node.start()
    node.status_when(lambda s: s.turns > 1)
    assert node.stop() == 0
    assert {p.name for p in node.run_dir.iterdir()} == {"daemon.lock"}


def test_the_actor_takes_its_consents_from_the_daemons_file(node: Node) -> None:
    node.configure("[pin]\nallow = ['threads', 'irq']\n")
    actor = subprocess.Popen(
        [node.bin_dir / "nodeagent-actor", "--config", node.config],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert actor.stderr is not None
    try:
        assert f"configured by {node.config}" in actor.stderr.readline()
        said = actor.stderr.readline()
        assert f"ready on {node.run_dir}/actor.sock; allowed: irq, threads" in said
        assert (node.folder / "state" / "journal").is_dir()
    finally:
        actor.terminate()
        actor.wait()
        actor.stderr.close()
    node.configure("[pin]\nallow = ['everything']\n")
    done = subprocess.run(
        [node.bin_dir / "nodeagent-actor", "--config", node.config], capture_output=True, text=True
    )
    assert done.returncode == 64 and f"{node.config}:" in done.stderr
