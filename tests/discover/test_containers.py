"""Containers by what their runtime's files say, and a real one of Podman's."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.discover.containers import (
    MAX_TRIES,
    Containers,
    bundle_facts,
    docker_facts,
    inspect_facts,
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


BARE = Container(runtime="podman", id=ID, cgroup="/x")


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["Name", "Config", "id", "metadata", "annotations", "Labels"]), inner
    ),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_files_of_any_content_are_no_failure(data: bytes) -> None:
    for facts in (docker_facts, storage_facts, bundle_facts, inspect_facts):
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


def podman(*words: str) -> str:
    done = subprocess.run(
        ["podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"podman {words[0]} does not work here: {done.stderr.strip()[-200:]}")
    return done.stdout.strip()


@pytest.fixture
def real(tmp_path: pathlib.Path) -> Iterator[str]:
    """Name of a running container of Podman's, made from an image of one static program."""
    tools = {name: shutil.which(name) for name in ("podman", "runc", "busybox")}
    missing = [name for name, path in tools.items() if path is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'its rights'}")
    (tmp_path / "bin").mkdir()
    shutil.copy(tools["busybox"] or "", tmp_path / "bin/busybox")
    subprocess.run(["tar", "-C", str(tmp_path), "-cf", f"{tmp_path}.tar", "bin"], check=True)
    name = f"nodeagent-test-{os.getpid()}"
    image = f"localhost/{name}/vllm-openai:v1"
    podman("import", f"{tmp_path}.tar", image)
    try:
        podman(
            *("run", "-d", "--name", name, "--network", "none", "--label", "tier=gold"),
            *("--ulimit", "nofile=100:100", "--ulimit", "nproc=100:100"),
            *(image, "/bin/busybox", "sleep", "600"),
        )
        yield name
    finally:
        for words in (("rm", "-f", "-t", "0", name), ("rmi", "-f", image)):
            subprocess.run(["podman", *words], capture_output=True, timeout=60, check=False)


@pytest.mark.root
def test_a_process_in_a_container_is_known_by_name_image_and_label(real: str) -> None:
    pid = int(podman("inspect", "--format", "{{.State.Pid}}", real))
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
