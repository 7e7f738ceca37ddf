"""Paths of control groups as the runtimes write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.cgroup import container_of, unit_of

ID = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970"
POD = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d"
UID = "1af7cf9e-9e4c-4a9b-9f0f-3f1cb7a3e2d1"
HASH = "d4cbb203573835ff10231ac1d7ddc6fb"
UNDER = UID.replace("-", "_")
BURST = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice"

CONTAINERS = {
    # path: (runtime, pod, what is below the container's own cgroup)
    f"/docker/{ID}": ("docker", None, ""),
    f"/system.slice/docker-{ID}.scope": ("docker", None, ""),
    f"/system.slice/docker-{ID}.scope/init.scope": ("docker", None, "/init.scope"),
    f"/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope": (
        "docker",
        None,
        "",
    ),
    f"/training.slice/{ID}": ("", None, ""),
    f"/machine.slice/libpod-{ID}.scope": ("podman", None, ""),
    f"/machine.slice/libpod-{ID}.scope/container": ("podman", None, "/container"),
    f"/libpod_parent/libpod-{ID}": ("podman", None, ""),
    f"/libpod_parent/{POD}/libpod-{ID}": ("podman", POD, ""),
    f"/machine.slice/machine-libpod_pod_{POD}.slice/libpod-{ID}.scope/container": (
        "podman",
        POD,
        "/container",
    ),
    f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container": (
        "podman",
        None,
        "/container",
    ),
    f"/user.slice/user-1000.slice/user@1000.service/user.slice/user-libpod_pod_{POD}.slice"
    f"/libpod-{ID}.scope": ("podman", POD, ""),
    f"/system.slice/index.service/libpod-payload-{ID}": ("podman", None, ""),
    f"/kubepods/pod{UID}/{ID}": ("", UID, ""),
    f"/kubepods/burstable/pod{UID}/{ID}": ("", UID, ""),
    f"/kubepods/besteffort/pod{HASH}/{ID}": ("", HASH, ""),
    f"/kubepods/burstable/pod{UID}/crio-{ID}": ("crio", UID, ""),
    f"{BURST}/cri-containerd-{ID}.scope": ("containerd", UID, ""),
    f"{BURST}/crio-{ID}.scope": ("crio", UID, ""),
    f"{BURST}/crio-{ID}.scope/container": ("crio", UID, "/container"),
    f"{BURST}/docker-{ID}.scope": ("docker", UID, ""),
    f"/kubepods.slice/kubepods-pod{UNDER}.slice/cri-containerd-{ID}.scope": (
        "containerd",
        UID,
        "",
    ),
    f"/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{ID}": (
        "containerd",
        UID,
        "",
    ),
    f"/docker/{POD}/kubelet/kubepods/burstable/pod{UID}/{ID}": ("", UID, ""),
    f"/system.slice/docker-{POD}.scope/kubelet.slice/kubelet-kubepods.slice"
    f"/kubelet-kubepods-pod{UNDER}.slice/cri-containerd-{ID}.scope": ("containerd", UID, ""),
    f"/docker/{POD}/docker/{ID}": ("docker", None, ""),
    f"/default/{ID}": ("", None, ""),
    f"/system.slice/nerdctl-{ID}.scope": ("containerd", None, ""),
    f"/ecs/{HASH}/{ID}": ("", None, ""),
    f"/../../machine.slice/libpod-{ID}.scope": ("podman", None, ""),
}


@pytest.mark.parametrize("path", CONTAINERS)
def test_every_runtime_writes_the_id_into_the_path(path: str) -> None:
    runtime, pod, below = CONTAINERS[path]
    found = container_of(path)
    assert found is not None
    assert (found.runtime, found.id, found.pod) == (runtime, ID, pod)
    assert found.cgroup + below == path
    assert found.kubernetes is ("kubepods" in path)


@pytest.mark.parametrize(
    ("path", "runtime", "name"),
    [
        ("/lxc.payload.web1/init.scope", "lxc", "web1"),
        ("/lxc.payload/web1", "lxc", "web1"),
        ("/lxc/web1/system.slice/nginx.service", "lxc", "web1"),
        ("/machine.slice/systemd-nspawn@web1.service/payload", "nspawn", "web1"),
        (f"/ecs/{HASH}/{HASH}-2531612879", "", f"{HASH}-2531612879"),
    ],
)
def test_runtimes_whose_containers_have_names(path: str, runtime: str, name: str) -> None:
    found = container_of(path)
    assert found is not None and (found.runtime, found.id) == (runtime, name)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/system.slice/nginx.service",
        "/user.slice/user-1000.slice/session-3.scope",
        f"/machine.slice/libpod-conmon-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{UNDER}.slice/crio-conmon-{ID}.scope",
        f"/kubepods/burstable/pod{UID}",
        f"/system.slice/docker-{ID[:12]}.scope",
        "/lxc.monitor.web1",
        "/machine.slice/machine-qemu\\x2d1\\x2dweb.scope",
        "/slurm/uid_1000/job_7/step_0",
        f"/data/{ID.upper()}",
    ],
)
def test_no_container(path: str) -> None:
    assert container_of(path) is None


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/index@0.service", "index@0.service"),
        ("/system.slice/index@0.service/payload", "index@0.service"),
        ("/user.slice/user-0.slice/session-3.scope", "session-3.scope"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service",
            "vllm.service",
        ),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", "init.scope"),
        ("/user.slice/user-1000.slice/user@1000.service", "user@1000.service"),
        (f"/system.slice/docker-{ID}.scope/system.slice/nginx.service", f"docker-{ID}.scope"),
        ("/kubepods/pod1", None),
        ("", None),
    ],
)
def test_the_unit_of_a_path(path: str, unit: str | None) -> None:
    assert unit_of(path) == unit


@given(st.lists(st.sampled_from([*CONTAINERS, "/a.service", "/x", "//", ":"]), max_size=3))
def test_what_is_found_is_a_part_of_the_path(parts: list[str]) -> None:
    path = "".join(parts)
    found = container_of(path)
    if found is not None:
        assert path.startswith(found.cgroup) and found.id in found.cgroup
