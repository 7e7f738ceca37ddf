"""Fixtures for all tests: where the shared corpus is, and what this machine allows."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is no failure: tests have no upper time bounds.
settings.register_profile("nodeagent", deadline=None)
settings.load_profile("nodeagent")

# A suite started in the background inherits an ignored SIGINT, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The shared material beside the project; skips with a sentence where it is missing."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared corpus is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def bin_dir() -> pathlib.Path:
    """Where the installed commands are (the virtual environment that runs the tests)."""
    return pathlib.Path(sys.executable).parent


@pytest.fixture
def as_root() -> None:
    """Skips with a sentence when not root."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def rights() -> None:
    """Skips with a sentence where eBPF programs may not be loaded."""
    from nodeagent.errors import NodeagentError
    from nodeagent.probe.loader import BpfObject

    try:
        with BpfObject("selftest") as programs:
            programs.load()
    except NodeagentError as error:
        pytest.skip(str(error))


def _podman(*words: str) -> str:
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
def podman_image(tmp_path: pathlib.Path) -> Iterator[str]:
    """An image localhost/NAME/vllm-openai:v1 that holds one static program (/bin/busybox) and
    needs no network; skips with a sentence where Podman does not work."""
    tools = {name: shutil.which(name) for name in ("podman", "runc", "busybox")}
    missing = [name for name, path in tools.items() if path is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'its rights'}")
    folder = tmp_path / "image"
    (folder / "bin").mkdir(parents=True)
    shutil.copy(tools["busybox"] or "", folder / "bin/busybox")
    subprocess.run(["tar", "-C", str(folder), "-cf", f"{folder}.tar", "bin"], check=True)
    image = f"localhost/nodeagent-test-{os.getpid()}/vllm-openai:v1"
    _podman("import", f"{folder}.tar", image)
    try:
        yield image
    finally:
        words = ["podman", "rmi", "-f", image]
        subprocess.run(words, capture_output=True, timeout=60, check=False)


@pytest.fixture
def podman_container(podman_image: str) -> Iterator[tuple[str, int]]:
    """Name and process of a running container of that image, labelled tier=gold."""
    name = f"nodeagent-test-{os.getpid()}"
    try:
        _podman(
            *("run", "-d", "--name", name, "--network", "none", "--label", "tier=gold"),
            *("--ulimit", "nofile=100:100", "--ulimit", "nproc=100:100"),
            *(podman_image, "/bin/busybox", "sleep", "600"),
        )
        yield name, int(_podman("inspect", "--format", "{{.State.Pid}}", name))
    finally:
        words = ["podman", "rm", "-f", "-t", "0", name]
        subprocess.run(words, capture_output=True, timeout=60, check=False)
