"""The controller as a process: its port, its identity rules, hostile peers."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from nodeagent.api.v1 import controller_pb2, controller_pb2_grpc, types_pb2
from nodeagent.errors import NodeagentError, UnavailableError
from nodeagent.model.finding import Verdict
from nodeagent.rpc.client import FleetClient
from nodeagent.rpc.wire import Message
from tests.controller.fleet import AGENT, Controller, agent, controller, until

ReportRequest = controller_pb2.ReportRequest


@pytest.fixture
def fleet(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Controller]:
    with controller(bin_dir, tmp_path) as made:
        yield made


def hello(**fields: object) -> Message:
    values = {
        "agent_uuid": str(uuid.uuid4()), "epoch": 1, "next_seq": 1, "hostname": "gpu-1",
        "version": "0.1.0", "instance": str(uuid.uuid4()), "protocol": 1, **fields,
    }  # fmt: skip
    return controller_pb2.Hello(**values)


def report(address: str, *messages: Message) -> list[Message]:
    """One stream of these messages to its end."""
    with grpc.insecure_channel(address) as channel:
        stub = controller_pb2_grpc.ControllerServiceStub(channel)
        return list(stub.Report(iter(messages), timeout=30))


def refused(address: str, *messages: Message) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        report(address, *messages)
    error: Message = caught.value
    return error.code(), error.details()


def batch(number: int, *seqs: int, gaps: tuple[tuple[int, int], ...] = ()) -> Message:
    return ReportRequest(
        number=number,
        events=controller_pb2.EventBatch(
            events=[types_pb2.Event(seq=s, kind="test.tick", subject=f"n {s}") for s in seqs],
            gaps=[controller_pb2.Gap(first_seq=a, last_seq=b, reason=1) for a, b in gaps],
        ),
    )


def finish(child: subprocess.Popen[str]) -> None:
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err + out[-200:]


def start(bin_dir: pathlib.Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([bin_dir / "nodeagent-controller", *args], capture_output=True, text=True)


def test_a_port_in_use_is_a_sentence(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, fleet: Controller
) -> None:
    done = start(bin_dir, "--listen", fleet.address, "--state-dir", str(tmp_path / "other"))
    assert done.returncode == 3
    assert "in use" in done.stderr
    assert "remedy: ss -ltnp" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_one_on_the_same_folder_is_a_sentence(
    bin_dir: pathlib.Path, fleet: Controller
) -> None:
    done = start(bin_dir, "--listen", "127.0.0.1:0", "--state-dir", str(fleet.state_dir))
    assert done.returncode == 3
    assert "another nodeagent-controller" in done.stderr


@pytest.mark.parametrize("listen", ["7440", "127.0.0.1", "127.0.0.1:x", ":7440", "h:99999"])
def test_a_wrong_address_is_wrong_usage(bin_dir: pathlib.Path, listen: str) -> None:
    done = start(bin_dir, "--listen", listen)
    assert done.returncode == 64
    assert "HOST:PORT" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nlisten = 5", "controller.toml:2: expected `str`, got `int`"),
        ("# a\n\nlisen = 'x:1'", "controller.toml:3: object contains unknown field `lisen`"),
        ("\xe9".encode("latin-1").decode("utf-8", "surrogateescape"), "at byte 0"),
        ("max_events = 3", "at least 1000"),
        ("listen = [", "controller.toml:1: "),
        (None, "No such file"),
    ],
)
def test_a_wrong_configuration_is_a_sentence(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, text: str | None, said: str
) -> None:
    path = tmp_path / "controller.toml"
    if text is not None:
        path.write_text(text, errors="surrogateescape")
    done = start(bin_dir, "--config", str(path))
    assert done.returncode == 64
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_or_newer_store_is_a_sentence(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for name, body in (("damaged", b"no database" * 1000), ("newer", b"")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "fleet.db").write_bytes(body)
        if not body:
            with sqlite3.connect(folder / "fleet.db") as db:
                db.execute("PRAGMA user_version = 99")
        done = start(bin_dir, "--listen", "127.0.0.1:0", "--state-dir", str(folder))
        assert done.returncode == 3
        assert ("not a database" if body else "schema version 99") in done.stderr
        assert "remedy:" in done.stderr


def test_sigterm_ends_it_in_order_and_systemd_is_told(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        child = subprocess.Popen(
            [
                bin_dir / "nodeagent-controller", "--listen", "127.0.0.1:0", "--state-dir",
                tmp_path / "fleet",
            ],
            env=os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")},
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert b"READY=1" in manager.recv(4096)
        child.send_signal(signal.SIGTERM)
        assert b"STOPPING=1" in manager.recv(4096)
        assert child.wait() == 0
        assert child.stdout is not None
        assert child.stdout.read().startswith("nodeagent-controller listens on 127.0.0.1:")
        child.stdout.close()
    with sqlite3.connect(tmp_path / "fleet/fleet.db") as db:
        assert db.execute("PRAGMA quick_check").fetchone() == ("ok",)


def test_health_and_reflection(fleet: Controller) -> None:
    with grpc.insecure_channel(fleet.address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        for name in ("", "nodeagent.api.v1.ControllerService", "nodeagent.api.v1.FleetService"):
            answer = check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert "nodeagent.api.v1.FleetService" in services


def test_acknowledged_means_committed(fleet: Controller) -> None:
    who = hello()
    answers = report(fleet.address, ReportRequest(number=1, hello=who), batch(2, 1, 2, 3))
    assert answers[0].hello.committed_seq == 0
    assert answers[0].hello.want_full_state
    assert (answers[-1].ack.committed_seq, answers[-1].ack.committed_number) == (3, 2)
    fleet.kill()
    assert [row[2] for row in fleet.stored()] == [1, 2, 3]
    fleet.start()
    (again,) = report(fleet.address, ReportRequest(number=1, hello=who))
    assert again.hello.committed_seq == 3


def test_events_sent_again_are_stored_once_and_holes_are_refused(fleet: Controller) -> None:
    who = ReportRequest(number=1, hello=hello())
    report(fleet.address, who, batch(2, 1, 2, 3))
    assert report(fleet.address, who, batch(2, 2, 3, 4))[-1].ack.committed_seq == 4
    code, said = refused(fleet.address, who, batch(2, 7))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "saw event seq 7 after 4" in said
    report(fleet.address, who, batch(2, 7, gaps=((5, 6),)))
    assert [row[2] for row in fleet.stored()] == [1, 2, 3, 4, 7]
    assert fleet.gaps() == [(5, 6, 1)]
    with FleetClient(fleet.address) as client:
        assert client.nodes()[0][0].lost_events == 2


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (batch(1, 1),),
        (ReportRequest(number=2, hello=hello()),),
        (ReportRequest(number=1, hello=hello(agent_uuid="me")),),
        (ReportRequest(number=1, hello=hello(epoch=0)),),
        (ReportRequest(number=1, hello=hello(hostname="h" * 1000)),),
        (ReportRequest(number=1, hello=hello()), batch(9, 1)),
        (ReportRequest(number=1, hello=hello()), ReportRequest(number=2, hello=hello())),
        (ReportRequest(number=1, hello=hello()), batch(2, 9, gaps=((8, 1),))),
        (
            ReportRequest(number=1, hello=hello()),
            ReportRequest(
                number=2,
                state=controller_pb2.State(sections=[controller_pb2.SectionState(section=500)]),
            ),
        ),
    ],
)
def test_a_stream_that_breaks_the_rules_ends_with_a_sentence(
    fleet: Controller, messages: tuple[Message, ...]
) -> None:
    code, said = refused(fleet.address, *messages)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert said


def test_what_a_newer_agent_says_is_passed_over(fleet: Controller) -> None:
    unknown = ReportRequest.FromString(b"\x08\x02\xd2\x06\x03new")
    assert unknown.number == 2
    newer = controller_pb2.State(
        sections=[controller_pb2.SectionState(section=42, part=types_pb2.NodeStatus())]
    )
    answers = report(
        fleet.address,
        ReportRequest(number=1, hello=hello(protocol=9)),
        unknown,
        ReportRequest(number=3, state=newer),
        batch(4, 1),
    )
    assert answers[-1].ack.committed_number == 4


def test_garbage_and_giants_leave_it_standing(fleet: Controller, tmp_path: pathlib.Path) -> None:
    host, _, port = fleet.address.rpartition(":")
    for garbage in (b"", b"\0" * 4096, os.urandom(100_000), b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=30) as s:
            try:
                s.sendall(garbage)
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
            except OSError:
                pass
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(5000)
    with socket.create_connection((host, int(port)), timeout=30) as s:
        s.sendall(preface)
    giant = types_pb2.Event(seq=1, message="x" * (5 << 20))
    code, _ = refused(
        fleet.address,
        ReportRequest(number=1, hello=hello()),
        ReportRequest(number=2, events=controller_pb2.EventBatch(events=[giant])),
    )
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    finish(agent(fleet.address, tmp_path / "a", ticks=5))
    assert [s for _, _, s, _ in fleet.stored()] == [1, 2, 3, 4, 5]


def test_two_nodes_of_one_name_are_kept_apart_and_said(
    fleet: Controller, tmp_path: pathlib.Path, bin_dir: pathlib.Path
) -> None:
    for folder in ("a", "b"):
        finish(agent(fleet.address, tmp_path / folder, ticks=5, name="twin"))
    with FleetClient(fleet.address) as client:
        rows, _ = client.nodes()
        assert [r.hostname for r in rows] == ["twin", "twin"]
        assert all("2 nodes are called twin" in r.conflict for r in rows)
        assert [r.committed_seq for r in rows] == [5, 5]
        with pytest.raises(NodeagentError, match="by its UUID"):
            client.node("twin")
        row, status, _ = client.node(rows[1].agent_uuid)
        assert row.agent_uuid == rows[1].agent_uuid
        assert status is not None
        assert status.agent_uuid == row.agent_uuid
        assert client.node(rows[0].agent_uuid[:8])[0].agent_uuid == rows[0].agent_uuid


def test_one_uuid_twice_is_refused_and_said_on_both_sides(
    fleet: Controller, tmp_path: pathlib.Path
) -> None:
    first = agent(fleet.address, tmp_path / "a", ticks=1_000_000, name="first")
    try:
        assert first.stdout is not None
        first.stdout.readline()
        with FleetClient(fleet.address) as client:
            until(lambda: len(client.nodes()[0]) == 1, lambda: fleet.log)
            row = client.nodes()[0][0]
            code, said = refused(
                fleet.address,
                ReportRequest(number=1, hello=hello(agent_uuid=row.agent_uuid, hostname="clone")),
            )
            assert code is grpc.StatusCode.ALREADY_EXISTS
            assert "in use by first" in said
            assert "remove agent.json" in said
            row = client.nodes()[0][0]
            assert (row.hostname, row.connected) == ("first", True)
            assert "also claimed by clone" in row.conflict
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()
    seqs = [s for _, _, s, _ in fleet.stored()]
    assert seqs == list(range(1, len(seqs) + 1))


def test_a_stopped_agent_does_not_keep_its_restarted_self_out(
    fleet: Controller, tmp_path: pathlib.Path
) -> None:
    """A stream that hangs half open is not alive: here its process is stopped, not dead."""
    first = agent(fleet.address, tmp_path / "a", ticks=1_000_000)
    try:
        assert first.stdout is not None
        first.stdout.readline()
        with FleetClient(fleet.address) as client:
            until(lambda: any(r.committed_seq for r in client.nodes()[0]), lambda: fleet.log)
            row = client.nodes()[0][0]
        first.send_signal(signal.SIGSTOP)
        who = hello(agent_uuid=row.agent_uuid)
        answers = report(fleet.address, ReportRequest(number=1, hello=who))
        assert answers[0].hello.committed_seq > 0
    finally:
        first.kill()
        first.communicate()


def test_state_comes_in_full_once_and_then_what_changed(
    fleet: Controller, tmp_path: pathlib.Path
) -> None:
    finish(agent(fleet.address, tmp_path / "a", ticks=50))
    with FleetClient(fleet.address) as client:
        row, status, topology = client.node("gpu-1")
    assert status is not None
    assert topology is not None
    assert (status.verdict, row.fail, row.warn, row.held, row.placed) == (Verdict.WARN, 0, 1, 1, 1)
    assert status.turns > 1
    assert status.held[0].workload == "vwap"
    assert len(topology.online) == 4


def test_watch_tells_what_is_committed(fleet: Controller, tmp_path: pathlib.Path) -> None:
    finish(agent(fleet.address, tmp_path / "a", ticks=3))
    with FleetClient(fleet.address) as client:
        stream = client.watch(after_id=0)
        assert [next(stream).event.seq for _ in range(3)] == [1, 2, 3]
        finish(agent(fleet.address, tmp_path / "b", ticks=2, name="gpu-2"))
        more = [next(stream) for _ in range(2)]
        assert [(e.hostname, e.event.seq) for e in more] == [("gpu-2", 1), ("gpu-2", 2)]
        fleet.kill()
        with pytest.raises(UnavailableError):
            next(stream)


def test_only_so_many_events_are_kept_and_order_survives(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = tmp_path / "controller.toml"
    config.write_text(f'listen = "127.0.0.1:0"\nstate_dir = "{tmp_path}/fleet"\nmax_events = 1000')
    port_file = tmp_path / "port"
    child = subprocess.Popen(
        [bin_dir / "nodeagent-controller", "--config", config, "--port-file", port_file],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(port_file.exists, lambda: "no port")
        address = port_file.read_text().strip()
        finish(agent(address, tmp_path / "a", ticks=2500))
        with FleetClient(address) as client:
            found = client.events(limit=1000)
            assert [e.event.seq for e in found] == list(range(1501, 2501))
            assert client.nodes()[0][0].committed_seq == 2500
    finally:
        child.terminate()
        assert child.wait() == 0


# What a person types.


def ctl(bin_dir: pathlib.Path, fleet: Controller, *args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"NODEAGENT_CONTROLLER": fleet.address, "NO_COLOR": "1"}
    return subprocess.run(
        [bin_dir / "nodeagentctl", *args], capture_output=True, text=True, env=env
    )


def test_fleet_commands(bin_dir: pathlib.Path, fleet: Controller, tmp_path: pathlib.Path) -> None:
    assert "no node has reported" in ctl(bin_dir, fleet, "fleet", "nodes").stdout
    assert "no events" in ctl(bin_dir, fleet, "fleet", "events").stdout
    finish(agent(fleet.address, tmp_path / "a", ticks=5))
    table = ctl(bin_dir, fleet, "fleet", "nodes")
    assert table.returncode == 0
    assert "gpu-1" in table.stdout
    assert "WARN" in table.stdout
    found = json.loads(ctl(bin_dir, fleet, "-o", "json", "fleet", "nodes").stdout)
    assert found["schema"] == "nodeagent.fleet/v1"
    assert found["nodes"][0]["committed_seq"] == 5
    assert found["nodes"][0]["connected"] is False
    one = json.loads(ctl(bin_dir, fleet, "-o", "json", "fleet", "node", "gpu-1").stdout)
    assert one["status"]["verdict"] == "WARN"
    assert one["status"]["held"][0]["cpus_planned"] == "1"
    assert one["topology"]["online_cpus"] == "0-3"
    screen = ctl(bin_dir, fleet, "fleet", "node", "gpu-1").stdout
    assert "irqaffinity" in screen
    assert "vwap" in screen
    events = ctl(bin_dir, fleet, "-o", "jsonl", "fleet", "events", "--limit", "2").stdout
    lines = [json.loads(line) for line in events.splitlines()]
    assert [e["seq"] for e in lines] == [4, 5]
    assert lines[0]["schema"] == "nodeagent.event/v1"
    assert "tick 4" in ctl(bin_dir, fleet, "fleet", "events").stdout


def test_fleet_errors_are_sentences(bin_dir: pathlib.Path, fleet: Controller) -> None:
    missing = ctl(bin_dir, fleet, "fleet", "node", "nobody")
    assert missing.returncode == 3
    assert "no node 'nobody'" in missing.stderr
    streams = ctl(bin_dir, fleet, "-o", "json", "fleet", "watch")
    assert streams.returncode == 64
    fleet.kill()
    away = ctl(bin_dir, fleet, "fleet", "nodes")
    assert away.returncode == 3
    assert "cannot be reached" in away.stderr
    assert "NODEAGENT_CONTROLLER" in away.stderr
    assert "Traceback" not in away.stderr


def test_fleet_watch_streams_lines(
    bin_dir: pathlib.Path, fleet: Controller, tmp_path: pathlib.Path
) -> None:
    child = subprocess.Popen(
        [
            bin_dir / "nodeagentctl", "-o", "jsonl", "fleet", "--controller", fleet.address,
            "watch", "--after", "0",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        finish(agent(fleet.address, tmp_path / "a", ticks=3))
        assert child.stdout is not None
        seqs = [json.loads(child.stdout.readline())["seq"] for _ in range(3)]
        assert seqs == [1, 2, 3]
    finally:
        child.kill()
        child.communicate()


def test_the_agent_says_why_it_is_not_connected(tmp_path: pathlib.Path) -> None:
    """Nobody listens at the address: the link's sentence names it."""
    code = (
        "import asyncio, sys\n"
        f"sys.path.insert(0, {str(AGENT.parents[2])!r})\n"
        "from nodeagent.rpc.session import Session\n"
        "from nodeagent.rpc.spool import Spool\n"
        "from tests.rpc.world import Source, event\n"
        "async def main():\n"
        "    s = Session(Spool.open(sys.argv[1]), Source(), address='127.0.0.1:1',\n"
        "                hostname='h', version='0')\n"
        "    await s.record([event(1)])\n"
        "    t = asyncio.create_task(s.run())\n"
        "    while not s.link().reason: await asyncio.sleep(0.02)\n"
        "    print(s.link())\n"
        "    t.cancel()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert "127.0.0.1:1: cannot be reached" in done.stdout, done.stderr
    assert "connected=False" in done.stdout
    assert "unacknowledged=1" in done.stdout
