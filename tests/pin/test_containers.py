"""A container's name reaches a daemon without rights: the actor reads the runtime's files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.daemon.watching import ASKS, Watching
from nodeagent.discover.locality import Locality
from nodeagent.discover.procs import Processes
from nodeagent.discover.root import Root
from nodeagent.model.cgroup import Container
from nodeagent.model.placement import Match
from nodeagent.pin.client import ActorClient
from nodeagent.place.match import matches

Start = Callable[..., object]
NOBODY = 65534


def ask(folder: Path, cgroups: tuple[str, ...]) -> tuple[tuple[Container, ...], str]:
    async def once() -> tuple[tuple[Container, ...], str]:
        client = ActorClient(folder / "run/actor.sock")
        try:
            return await client.containers(cgroups)
        finally:
            await client.close()

    return asyncio.run(once())


@pytest.mark.root
def test_the_daemon_learns_names_from_the_actor(
    tmp_path: Path, start_actor: Start, podman_container: tuple[str, int]
) -> None:
    name, pid = podman_container
    start_actor()
    match = Match(container=name, image="*/vllm-openai")
    with Root.live() as root:
        watching = Watching(Processes(root), Locality(root))
        os.seteuid(NOBODY)
        try:
            one = next(p for p in watching.scan(frozenset({pid}), 0.0) if p.pid == pid)
            assert one.container is not None and one.container.name is None
            assert not matches(match, one)
            trouble = watching.container_trouble
            assert trouble is not None and "may not be read without root" in trouble
            cgroups = watching.unnamed()
            assert one.container.cgroup in cgroups
        finally:
            os.seteuid(0)
        watching.tell(*ask(tmp_path, cgroups))
        os.seteuid(NOBODY)
        try:
            one = next(p for p in watching.scan(frozenset({pid}), 1.0) if p.pid == pid)
        finally:
            os.seteuid(0)
            watching.close()
        assert matches(match, one), one.container
        assert watching.container_trouble is None
        assert one.container is not None and one.container.cgroup not in watching.unnamed()


@pytest.mark.root
def test_what_nobody_knows_is_asked_a_few_times_only(
    podman_container: tuple[str, int],
) -> None:
    with Root.live() as root:
        watching = Watching(Processes(root), Locality(root))
        os.seteuid(NOBODY)
        try:
            watching.scan(frozenset(), 0.0)
            asked = 0
            for _ in range(ASKS + 2):
                asked += bool(watching.unnamed())
                watching.tell((), "no such file")
            trouble = watching.container_trouble
        finally:
            os.seteuid(0)
            watching.close()
    assert asked == ASKS
    assert trouble is not None and trouble.endswith(": no such file")


def test_paths_that_are_no_containers_have_no_answer(tmp_path: Path, start_actor: Start) -> None:
    start_actor()
    unknown = "/docker/" + "0" * 64
    found, reason = ask(tmp_path, ("/", "/system.slice/x.service", "/../../etc", unknown))
    assert found == ()
    assert reason.startswith("container 000000000000: its runtime's files were not found")
