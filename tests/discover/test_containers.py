"""Containers by what their runtime's files say, and a real one of Podman's."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.discover.containers import (
    MAX_TRIES,
    Containers,
    bundle_facts,
    database_facts,
    docker_facts,
    inspect_facts,
    read_database,
    storage_facts,
)
from nodeagent.discover.procs import Processes
from nodeagent.discover.root import Root
from nodeagent.discover.store import Entry, TableStore
from nodeagent.model.cgroup import Container
from nodeagent.model.placement import Match
from nodeagent.place.match import image_names, matches

ID = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970"
DOCKER = f"/system.slice/docker-{ID}.scope"
PODMAN = f"/machine.slice/libpod-{ID}.scope/container"
CRIO = f"/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope"
KUBE = f"/kubepods/burstable/pod1af7cf9e-9e4c-4a9b-9f0f-3f1cb7a3e2d1/{ID}"

CONFIG_V2 = {
    "ID": ID,
    "Name": "/vllm-0",
    "Config": {"Image": "vllm/vllm-openai:v0.9.1", "Labels": {"tier": "gold"}, "Tty": False},
    "State": {"Pid": 7},
}
STORED = [
    {"id": "0" * 64, "names": ["other"], "metadata": "{}"},
    {
        "id": ID,
        "names": ["vllm-0"],
        "metadata": json.dumps({"image-name": "localhost/vllm:1", "name": "vllm-0"}),
    },
]
CRIO_BUNDLE = {
    "annotations": {
        "io.kubernetes.container.name": "server",
        "io.kubernetes.cri-o.ImageName": "quay.io/vllm:1",
        "io.kubernetes.cri-o.Labels": json.dumps({"io.kubernetes.pod.name": "vllm-0", "a": "b"}),
    }
}
CRI_BUNDLE = {
    "annotations": {
        "io.kubernetes.cri.container-name": "server",
        "io.kubernetes.cri.image-name": "docker.io/vllm/vllm-openai:v0.9.1",
        "io.kubernetes.cri.sandbox-name": "vllm-0",
        "io.kubernetes.cri.sandbox-namespace": "prod",
    }
}


def read(cgroup: str, files: dict[str, object]) -> tuple[Container | None, Containers]:
    table: dict[str, Entry] = {path: json.dumps(value).encode() for path, value in files.items()}
    containers = Containers(Root(TableStore(table), live=False, label="x"))
    return containers.of(cgroup), containers


def test_docker() -> None:
    found, containers = read(DOCKER, {f"var/lib/docker/containers/{ID}/config.v2.json": CONFIG_V2})
    assert found is not None and containers.reason == ""
    assert (found.runtime, found.name, found.image) == (
        "docker",
        "vllm-0",
        "vllm/vllm-openai:v0.9.1",
    )
    assert found.labels == (("tier", "gold"),)


def test_podman() -> None:
    store = "var/lib/containers/storage/overlay-containers"
    found, _ = read(PODMAN, {f"{store}/containers.json": STORED})
    assert found is not None
    assert (found.runtime, found.name, found.image) == ("podman", "vllm-0", "localhost/vllm:1")
    assert found.cgroup == f"/machine.slice/libpod-{ID}.scope"


def test_a_users_own_podman() -> None:
    store = "srv/ada/.local/share/containers/storage/overlay-containers"
    cgroup = f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"
    passwd = "root:x:0:0::/:/bin/sh\nbroken\nada:x:1000:1000::/srv/ada:/bin/sh\n"
    files: dict[str, Entry] = {
        "etc/passwd": passwd.encode(),
        f"{store}/containers.json": json.dumps(STORED).encode(),
    }
    containers = Containers(Root(TableStore(files), live=False, label="x"))
    found = containers.of(cgroup)
    assert found is not None and (found.runtime, found.name) == ("podman", "vllm-0")
    other = containers.of(cgroup.replace("1000", "1001").replace("4f", "5f"))
    assert other is not None and other.name is None


def test_crio() -> None:
    store = "var/lib/containers/storage/overlay-containers"
    found, _ = read(
        CRIO,
        {
            f"{store}/containers.json": STORED,
            f"{store}/{ID}/userdata/config.json": CRIO_BUNDLE,
        },
    )
    assert found is not None
    assert (found.runtime, found.name, found.image) == ("crio", "server", "quay.io/vllm:1")
    assert dict(found.labels)["io.kubernetes.pod.name"] == "vllm-0"


def test_containerd() -> None:
    top = f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}"
    found, _ = read(KUBE, {f"{top}/config.json": CRI_BUNDLE})
    assert found is not None
    assert (found.name, found.image) == ("server", "docker.io/vllm/vllm-openai:v0.9.1")
    assert dict(found.labels) == {
        "io.kubernetes.container.name": "server",
        "io.kubernetes.pod.name": "vllm-0",
        "io.kubernetes.pod.namespace": "prod",
    }


def test_without_the_right_the_id_is_known_and_the_reason_said() -> None:
    found, containers = read(DOCKER, {})
    assert found is not None and found.id == ID and found.name is None
    assert containers.reason == (
        "container 4f797c539e6c: its runtime's files were not found, or may not be read without "
        "root"
    )


def test_a_container_that_says_nothing_is_looked_at_a_few_times_only(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / f"var/lib/docker/containers/{ID}/config.v2.json"
    path.parent.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    with Root.open(str(tmp_path)) as root:
        containers = Containers(root)
        for _ in range(MAX_TRIES):
            told = containers.of(DOCKER)
            assert told is not None and told.name is None
        path.write_text(json.dumps(CONFIG_V2))
        told = containers.of(DOCKER)
        assert told is not None and told.name is None, "no more looks at this one"
        containers.forget(frozenset())
        told = containers.of(DOCKER)
        assert told is not None and told.name == "vllm-0", "until it was gone and is back"
        path.unlink()
        assert containers.of(DOCKER) == told, "and what is known stays known"


def test_podmans_database(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "odd name?.sql"
    assert read_database(str(path), ID) is None
    kept = {"id": ID, "name": "vllm-0", "rootfsImageName": "localhost/vllm:1", "labels": {"a": "b"}}
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("CREATE TABLE ContainerConfig(ID TEXT, Name TEXT, PodID TEXT, JSON TEXT)")
        base.execute(
            "INSERT INTO ContainerConfig VALUES (?, 'vllm-0', NULL, ?)", (ID, json.dumps(kept))
        )
        base.commit()
        row = read_database(str(path), ID)
        assert row is not None, "also while Podman has it open"
        found = database_facts(BARE, row)
        assert found is not None
        assert (found.name, found.image, found.labels) == (
            "vllm-0",
            "localhost/vllm:1",
            (("a", "b"),),
        )
        assert read_database(str(path), "0" * 64) is None
    path.write_bytes(b"no database at all")
    assert read_database(str(path), ID) is None


BARE = Container(runtime="podman", id=ID, cgroup="/x")


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["Name", "Config", "id", "metadata", "annotations", "Labels"]), inner
    ),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_files_of_any_content_are_no_failure(data: bytes) -> None:
    for facts in (docker_facts, storage_facts, bundle_facts, inspect_facts, database_facts):
        told = facts(BARE, data)
        assert told is None or told.id == ID


@pytest.mark.parametrize(
    ("image", "names"),
    [
        (
            "docker.io/library/redis:7",
            {"docker.io/library/redis:7", "docker.io/library/redis", "redis:7", "redis"},
        ),
        (
            "registry:5000/a/b@sha256:ff",
            {"registry:5000/a/b@sha256:ff", "registry:5000/a/b", "a/b@sha256:ff", "a/b"},
        ),
        ("vllm/vllm-openai:v1", {"vllm/vllm-openai:v1", "vllm/vllm-openai"}),
        ("localhost/vllm", {"localhost/vllm", "vllm"}),
        ("redis", {"redis"}),
    ],
)
def test_what_people_call_an_image(image: str, names: set[str]) -> None:
    assert set(image_names(image)) == names


# ---- a real one ----------------------------------------------------------------------------------


@pytest.mark.root
def test_a_process_in_a_container_is_known_by_name_image_and_label(
    podman_container: tuple[str, int],
) -> None:
    real, pid = podman_container
    with Root.live() as root:
        processes = Processes(root, labels=True)
        try:
            one = next(p for p in processes.scan() if p.pid == pid)
        finally:
            processes.close()
    assert one.container is not None
    assert (one.container.runtime, one.container.name) == ("podman", real)
    assert one.container.image == f"localhost/{real}/vllm-openai:v1"
    assert one.container.labels == (("tier", "gold"),)
    assert processes.container_reason == ""
    for match in (
        Match(container=real),
        Match(container=one.container.id[:12]),
        Match(image="*/vllm-openai"),
        Match(image=f"{real}/vllm-openai:v1"),
        Match(label="tier=g*"),
        Match(container="nodeagent-*", image="*vllm*", label="tier=gold", comm="busybox"),
    ):
        assert matches(match, one), match
    for match in (Match(container="other"), Match(image="vllm"), Match(label="tier=silver")):
        assert not matches(match, one), match


def _made(path: pathlib.Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as base:
        for statement in statements:
            base.execute(statement)
        base.commit()


@pytest.mark.parametrize(
    "view",
    [
        "with recursive c(ID, JSON) as (select '0', 'x' union all select ID || '1', JSON from c) "
        "select * from c",
        f"select '{ID}' as ID, hex(zeroblob(400000000)) as JSON",
    ],
    ids=["never ends", "takes all memory"],
)
def test_a_database_of_a_users_that_is_made_to_hang(view: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "db.sql"
    _made(path, f"create view ContainerConfig as {view}")
    for hostile in (True, False):
        assert read_database(str(path), ID, hostile=hostile) is None


def test_a_fifo_in_a_users_home_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "db.sql")
    assert read_database(str(tmp_path / "db.sql"), ID, hostile=True) is None
    assert read_database(str(tmp_path / "none"), ID, hostile=True) is None
    (tmp_path / "odd").write_bytes(b"x" * 4096)
    assert read_database(str(tmp_path / "odd"), ID, hostile=True) is None


def test_a_users_database_is_read_as_roots_is(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "db.sql"
    _made(
        path,
        "pragma journal_mode = wal",
        "create table ContainerConfig (ID text, JSON text)",
        f"insert into ContainerConfig values ('{ID}', '{{}}')",
    )
    assert path.read_bytes()[18:20] == b"\2\2"
    for hostile in (True, False):
        assert read_database(str(path), ID, hostile=hostile) == b"{}"
