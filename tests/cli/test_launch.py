"""Launch snippets, read by what will read them: the shell, YAML, systemd, Podman itself."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli.launch import runtime_of
from nodeagent.cli.render.launch import Launch, snippet
from nodeagent.model.cgroup import container_of
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Match, Placed, ProcessState, Sharing
from tests.cli.conftest import Site

PLACED = Placed(
    workload="rank0",
    unit="u",
    sharing=Sharing.EXCLUSIVE,
    cpus=CpuSet.parse("1-4,65-68"),
    mems=CpuSet.parse("0"),
    node=0,
    gpu="0000:3b:00.0",
    reasons=(),
    kind="vllm",
    match=Match(unit="vllm@0.service"),
    memory_bytes=64 << 30,
)
SOCKET = "/run/nodeagent/ring.sock"


def launch(**more: object) -> Launch:
    made = Launch(placed=PLACED, ring_socket=SOCKET, gid=998, groups=("nodeagent",))
    return replace(made, **more)  # type: ignore[arg-type]  # fields of Launch, by name


def words(text: str) -> list[str]:
    """The command that a shell makes of it."""
    tell = (
        "docker() { printf '%s\\0' docker \"$@\"; }; podman() { printf '%s\\0' podman \"$@\"; }\n"
    )
    done = subprocess.run(["bash", "-euc", tell + text], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split("\0")[:-1]


def of_yaml(text: str) -> Any:
    """Read by another program's parser; skips with a sentence where there is none."""
    read = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))"
    done = subprocess.run(
        ["/usr/bin/python3", "-c", read], input=text, capture_output=True, text=True
    )
    if done.returncode and "No module named 'yaml'" in done.stderr:
        pytest.skip("no YAML parser on this machine (python3-yaml)")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("tool", ["docker", "podman"])
def test_a_shell_reads_the_command(tool: str) -> None:
    found = words(snippet(launch(), tool))
    assert found[:4] == [tool, "run", "--name", "rank0"] and found[-1] == "IMAGE"
    assert "--cpuset-cpus=1-4,65-68" in found and "--cpuset-mems=0" in found
    assert "--cap-add=SYS_NICE" in found and "--shm-size=16g" in found
    assert "--ipc=private" in found and "--group-add=998" in found
    assert f"type=bind,source={SOCKET},target={SOCKET}" in found
    no_node = launch(placed=replace(PLACED, mems=CpuSet(), node=None), gid=None)
    found = words(snippet(no_node, tool))
    assert not any(w.startswith(("--cpuset-mems", "--group-add")) for w in found)
    assert "getent group nodeagent" in snippet(no_node, tool)


def test_it_gets_the_name_and_label_by_which_it_is_known() -> None:
    known = replace(
        PLACED, match=Match(container="prod-7", label="app=it's", user="vllm\ntouch /tmp/x")
    )
    text = snippet(launch(placed=known), "podman")
    assert words(text)[2:6] == ["--name", "prod-7", "--label", "app=it's"]
    assert "\ntouch" not in text
    service = of_yaml(snippet(launch(placed=known), "compose"))["services"]["rank0"]
    assert service["container_name"] == "prod-7" and service["labels"] == ["app=it's"]
    for match in (Match(container="prod-*", label="app=*"), Match(container="0123456789ab"), None):
        text = snippet(launch(placed=replace(PLACED, match=match)), "podman")
        assert words(text)[2:5] == ["--name", "rank0", "--cpuset-cpus=1-4,65-68"], match
        assert "container_name" not in snippet(
            launch(placed=replace(PLACED, match=match)), "compose"
        )


@pytest.mark.parametrize("folder", ["/run/a b", "/run/it's", '/run/"q"', "/run/$(id)", "/run/a,b"])
def test_odd_paths_are_quoted(folder: str) -> None:
    path = f"{folder}/ring.sock"
    found = words(snippet(launch(ring_socket=path), "docker"))
    (mount,) = [found[i + 1] for i, w in enumerate(found) if w == "--mount"]
    import csv

    (row,) = csv.reader([mount])
    assert row == ["type=bind", f"source={path}", f"target={path}"]
    service = of_yaml(snippet(launch(ring_socket=path), "compose"))["services"]["rank0"]
    assert service["volumes"][0]["source"] == path


def test_compose() -> None:
    text = snippet(launch(), "compose")
    assert of_yaml(text) == {
        "services": {
            "rank0": {
                "image": "IMAGE",
                "cpuset": "1-4,65-68",
                "cap_add": ["SYS_NICE"],
                "ipc": "private",
                "shm_size": "16gb",
                "group_add": ["998"],
                "volumes": [{"type": "bind", "source": SOCKET, "target": SOCKET}],
            }
        }
    }
    assert "numactl --membind=0" in text
    # A lone CPU stays text: as a number, compose would refuse it.
    one = replace(PLACED, cpus=CpuSet.parse("7"), workload="1e3")
    services = of_yaml(snippet(launch(placed=one), "compose"))["services"]
    assert services["1e3"]["cpuset"] == "7"


def test_kubernetes() -> None:
    text = snippet(launch(), "kubernetes")
    pod = of_yaml(text)
    (container,) = pod["spec"]["containers"]
    resources = container["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "8", "memory": "65536Mi"}
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_NICE"]
    assert pod["spec"]["securityContext"] == {"supplementalGroups": [998]}
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts == {"shm": "/dev/shm", "ring": SOCKET}
    assert {v["name"] for v in pod["spec"]["volumes"]} == set(mounts)
    assert "cpuManagerPolicy: static" in text and "full-pcpus-only" in text
    named = replace(PLACED, workload="Rank_0.a", cpus=CpuSet.parse("1-3"), memory_bytes=0)
    text = snippet(launch(placed=named), "kubernetes")
    assert of_yaml(text)["metadata"]["name"] == "rank-0-a"
    assert "full-pcpus-only" not in text and "a guess" in text


def test_systemd_reads_the_drop_in(tmp_path: Path) -> None:
    text = snippet(launch(), "systemd")
    assert "systemctl edit vllm@0.service" in text
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines == [
        "[Service]",
        "AllowedCPUs=1-4,65-68",
        "AllowedMemoryNodes=0",
        "NUMAPolicy=bind",
        "NUMAMask=0",
        "SupplementaryGroups=nodeagent",
    ]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    unit = tmp_path / "rank0.service"
    unit.write_text(text.replace("[Service]", "[Service]\nExecStart=/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "rank0.service" in line]
    assert not ours, done.stderr
    # A pattern is no unit's name.
    pattern = replace(PLACED, match=Match(unit="vllm@*.service"))
    assert "systemctl edit rank0.service" in snippet(launch(placed=pattern), "systemd")


def test_the_command_prints_what_is_asked_for(site: Site) -> None:
    site.workloads("one", "two")
    done = site.ctl("place", "plan", "--container", "one", "--runtime", "podman")
    assert done.returncode == 0, done.stderr
    found = words(done.stdout)
    assert found[:4] == ["podman", "run", "--name", "one"]
    mount = f"type=bind,source={site.folder}/run/ring.sock"
    assert any(w.startswith(mount) for w in found)
    every = site.ctl("place", "plan", "--container")
    here = "podman" if shutil.which("podman") or not shutil.which("docker") else "docker"
    heads = [line for line in every.stdout.splitlines() if re.match(r"# (one|two) ", line)]
    assert len(heads) == 2 and all(f"with {here}:" in head for head in heads), heads
    assert f"one: {here}, " in every.stderr and "--runtime chooses another" in every.stderr
    both = site.ctl("place", "plan", "--container", "two,one", "--runtime", "compose")
    assert both.stdout.count("with compose") == 2 and not both.stderr
    body = json.loads(
        site.ctl("-o", "json", "place", "plan", "--container", "two", "--runtime", "systemd",
                 "--runtime", "docker").stdout
    )  # fmt: skip
    assert body["schema"] == "nodeagent.placement/v1"
    assert [(s["workload"], s["runtime"]) for s in body["launch"]] == [
        ("two", "systemd"), ("two", "docker")
    ]  # fmt: skip
    strange = site.ctl("place", "plan", "--container", "three")
    assert strange.returncode == 64 and "it has: one, two" in strange.stderr
    lost = site.ctl("place", "plan", "--runtime", "podman")
    assert lost.returncode == 64 and "--container" in lost.stderr
    site.file.write_text('[[workload]]\nname = "huge"\ncpus = 8000\nmatch = { pid = 1 }\n')
    refused = site.ctl("place", "plan", "--container", "huge")
    assert refused.returncode == 3 and "is refused" in refused.stderr
    assert "it would fit if" in refused.stderr


ID = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970"
PODMAN = f"/machine.slice/libpod-{ID}.scope"
POD = (
    "/kubepods.slice/kubepods-pod0b4d5c8a_1111_2222_3333_444455556666.slice/"
    f"cri-containerd-{ID}.scope"
)


@pytest.mark.parametrize(
    ("match", "cgroup", "tools", "expected"),
    [
        (Match(title="x"), PODMAN, ("docker",), ("podman", "which runs it (4f797c539e6c)")),
        (Match(title="x"), f"/docker/{ID}", ("podman",), ("docker", "which runs it")),
        (
            Match(title="x"),
            f"/machine.slice/libpod_pod_{ID}.slice/libpod-{ID}.scope",
            (),
            ("podman", "which runs it"),
        ),
        (
            Match(title="x"),
            "/user.slice/user-1000.slice/user@1000.service",
            ("docker",),
            ("docker", "installed"),
        ),
        (Match(title="x"), POD, ("podman",), ("kubernetes", "it runs in a pod")),
        (Match(label="io.kubernetes.pod.name=x"), None, ("podman",), ("kubernetes", "label")),
        (Match(title="x"), "/system.slice/x.service", ("podman",), ("systemd", "(x.service)")),
        (Match(unit="x.service"), None, ("podman",), ("systemd", "its match names a unit")),
        (Match(container="x"), None, ("docker",), ("docker", "which is installed here")),
        (Match(title="x"), "/user.slice", ("podman", "docker"), ("podman", "installed")),
        (Match(title="x"), None, (), ("podman", "none was found here")),
    ],
)
def test_the_runtime_is_that_which_runs_it(
    match: Match, cgroup: str | None, tools: tuple[str, ...], expected: tuple[str, str]
) -> None:
    processes = () if cgroup is None else (in_cgroup(cgroup),)
    runtime, why = runtime_of(replace(PLACED, match=match), processes, tools)
    assert runtime == expected[0] and expected[1] in why


def in_cgroup(cgroup: str) -> ProcessState:
    return ProcessState(
        pid=7,
        start_time=1,
        comm="x",
        title="x",
        cgroup=cgroup,
        threads=(),
        container=container_of(cgroup),
    )


def test_podman_runs_it_as_printed(site: Site, podman_image: str) -> None:
    site.workloads("one")
    (site.folder / "run").mkdir()
    ring = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ring.bind(str(site.folder / "run/ring.sock"))
    plan = json.loads(site.ctl("-o", "json", "place", "plan").stdout)
    (row,) = plan["placements"]
    text = site.ctl("place", "plan", "--container", "one", "--runtime", "podman").stdout
    found = words(text)
    assert found[:2] == ["podman", "run"] and found[-1] == "IMAGE"
    script = (
        "busybox grep -E '^(Cpus|Mems)_allowed_list' /proc/self/status; busybox df -k /dev/shm; "
        f"test -S {shlex.quote(str(site.folder / 'run/ring.sock'))} && echo socket; "
        "busybox grep CapEff /proc/self/status"
    )
    # What this machine needs besides: no network, and cgroups without systemd.
    here = "--runtime runc --cgroup-manager cgroupfs run --rm --network none"
    inside = ["/bin/busybox", "sh", "-c", script]
    limits = "--ulimit nofile=100:100 --ulimit nproc=100:100"
    done = subprocess.run(
        ["podman", *here.split(), *limits.split(), *found[2:-1], podman_image, *inside],
        capture_output=True,
        text=True,
    )
    ring.close()
    assert done.returncode == 0, done.stderr
    said = dict(line.split(":\t") for line in done.stdout.splitlines() if ":\t" in line)
    assert said["Cpus_allowed_list"] == row["cpus"]
    assert said["Mems_allowed_list"] == row["mems"]
    assert int(said["CapEff"], 16) >> 23 & 1, "CAP_SYS_NICE"
    assert "socket" in done.stdout and "1048576" in done.stdout
