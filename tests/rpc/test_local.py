"""api.sock, served and asked for real."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from nodeagent.errors import NodeagentError, RightsError, UnavailableError
from nodeagent.model.finding import Verdict
from nodeagent.rpc import local, options
from nodeagent.rpc.client import NodeClient
from nodeagent.rpc.local import serve_local
from tests.rpc.world import Source, event, topology

T = TypeVar("T")


@contextlib.asynccontextmanager
async def served(path: pathlib.Path, source: Source) -> AsyncIterator[None]:
    server = await serve_local(path, source)
    try:
        yield
    finally:
        await server.stop()


def ask(path: pathlib.Path, source: Source, question: Callable[[NodeClient], T]) -> T:
    """One question from a thread of its own, as a command would ask it."""

    def inner() -> T:
        with NodeClient(str(path)) as client:
            return question(client)

    async def both() -> T:
        async with served(path, source):
            return await asyncio.to_thread(inner)

    return asyncio.run(both())


def test_every_question_is_answered(tmp_path: pathlib.Path) -> None:
    source = Source(shape=topology())
    for n in range(5):
        source.happen(event(n))

    def questions(client: NodeClient) -> None:
        assert client.status() == source.now
        assert client.topology() == source.shape
        assert client.findings() == source.now.findings
        assert client.placements() == (source.now.placement, source.now.held)
        assert client.events() == tuple(source.kept)
        assert client.events(since=3) == tuple(source.kept[3:])
        assert client.events(limit=2, newest=True) == tuple(source.kept[3:])

    ask(tmp_path / "api.sock", source, questions)


def test_no_topology_yet_is_said(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UnavailableError, match="not done yet"):
        ask(tmp_path / "api.sock", Source(), lambda c: c.topology())


def test_watch_gives_every_event_and_the_newest_status(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "api.sock"

    def watch(count: int) -> tuple[list[int], Verdict]:
        seqs: list[int] = []
        with NodeClient(str(path)) as client:
            for status, events in client.watch(since=0, interval_s=0.1):
                seqs += [e.seq for e in events]
                if len(seqs) >= count:
                    return seqs, status.verdict
        raise AssertionError("the stream ended")

    async def both() -> tuple[list[int], Verdict]:
        source = Source()
        async with served(path, source):
            seen = asyncio.create_task(asyncio.to_thread(watch, 3000))
            for n in range(3000):
                source.happen(event(n))
                if n % 500 == 0:
                    await asyncio.sleep(0.05)
            source.move(verdict=Verdict.FAIL)
            return await seen

    seqs, verdict = asyncio.run(both())
    assert seqs == list(range(1, 3001))
    assert verdict in (Verdict.WARN, Verdict.FAIL)


def test_mode_health_and_reflection(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "api.sock"

    async def look() -> None:
        async with served(path, Source()):
            mode = path.stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o660
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                for name in ("", local.SERVICE):
                    answer = await check(health_pb2.HealthCheckRequest(service=name))
                    assert answer.status == health_pb2.HealthCheckResponse.SERVING

            def reflect() -> list[str]:
                with grpc.insecure_channel(f"unix:{path}") as channel:
                    return list(ProtoReflectionDescriptorDatabase(channel).get_services())

            assert local.SERVICE in await asyncio.to_thread(reflect)

    asyncio.run(look())
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_stale_socket_is_replaced_and_a_living_one_is_not(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
    assert ask(path, Source(), lambda c: c.status()).hostname == "gpu-1"

    async def twice() -> None:
        async with served(path, Source()):
            with pytest.raises(UnavailableError, match="another daemon listens"):
                await serve_local(path, Source())
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                await asyncio.wait_for(channel.channel_ready(), 10)

    asyncio.run(twice())


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text("mine")
    with pytest.raises(NodeagentError, match="no socket"):
        asyncio.run(serve_local(path, Source()))
    assert path.read_text() == "mine"


def test_paths_that_cannot_be(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UnavailableError, match="expected at most"):
        asyncio.run(serve_local(tmp_path / ("x" * 100), Source()))
    with pytest.raises(UnavailableError, match="could not be made"):
        asyncio.run(serve_local(tmp_path / "no/api.sock", Source()))


def test_a_question_that_is_too_large_and_garbage_leave_the_server_standing(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "api.sock"

    async def attack() -> None:
        async with served(path, Source()):
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                raw = channel.unary_unary(f"/{local.SERVICE}/GetStatus")
                for body, code in (
                    (b"\0" * (options.MAX_REQUEST_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
                    (b"\xff" * 20, grpc.StatusCode.INTERNAL),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await raw(body)
                    assert caught.value.code() in (code, grpc.StatusCode.UNKNOWN)
            for garbage in (b"\0" * 4096, os.urandom(65536), b"GET / HTTP/1.1\r\n\r\n"):
                _, writer = await asyncio.open_unix_connection(str(path))
                writer.write(garbage)
                with contextlib.suppress(OSError):
                    await writer.drain()
                writer.close()
            with NodeClient(str(path)) as client:
                assert (await asyncio.to_thread(client.status)).hostname == "gpu-1"

    asyncio.run(attack())


def test_the_seventeenth_watcher_is_told(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "api.sock"

    async def crowd() -> None:
        async with served(path, Source()):
            streams: list[Iterator[object]] = []
            with contextlib.ExitStack() as stack:

                def start() -> None:
                    client = stack.enter_context(NodeClient(str(path)))
                    stream = client.watch()
                    streams.append(stream)
                    next(stream)

                for _ in range(local.MAX_WATCHERS):
                    await asyncio.to_thread(start)
                with pytest.raises(UnavailableError, match="no more are served"):
                    await asyncio.to_thread(start)

    asyncio.run(crowd())


def test_what_a_person_reads_when_there_is_no_daemon(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "api.sock"
    with pytest.raises(UnavailableError, match="no daemon serves here") as caught:
        NodeClient(str(path))
    assert "systemctl start" in caught.value.remedy
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
    with pytest.raises(UnavailableError, match="nobody listens"):
        NodeClient(str(path)).status()


def test_no_right_is_said(tmp_path: pathlib.Path, as_root: None) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
        path.chmod(0o600)
        tmp_path.chmod(0o755)
        code = (
            "import os, sys; from nodeagent.rpc.client import NodeClient\n"
            "os.setuid(65534)\n"
            "try: NodeClient(sys.argv[1])\n"
            "except Exception as e: print(type(e).__name__, e, e.remedy)"
        )
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.stdout.startswith(RightsError.__name__), done.stderr
    assert "usermod -aG nodeagent" in done.stdout
