"""NVML through the real binding and a small library of our own."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from nodeagent.discover.gpu import GpuReading, Gpus, decode
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.topology import PeerLink

SOURCE = pathlib.Path(__file__).parent.parent / "fake_nvml" / "nvml.c"
FIRST, SECOND = "0000:3b:00.0", "0000:af:00.0"
Ask = Callable[..., Gpus]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for the test's own libnvidia-ml.so.1")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"),
            *("-o", folder / "libnvidia-ml.so.1", SOURCE),
        ],
        check=True,
    )
    return folder


@pytest.fixture
def ask(library: pathlib.Path) -> Iterator[Ask]:
    made: list[Gpus] = []

    def start(mode: str, *, deadline_s: float = 30.0, **more: str) -> Gpus:
        env = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": mode, **more}
        made.append(Gpus(deadline_s=deadline_s, env=env))
        return made[-1]

    yield start
    for gpus in made:
        gpus.close()


def test_two_gpus_with_their_links(ask: Ask) -> None:
    reading = ask("ok").read()
    assert reading.nvml.available and reading.nvml.driver == "570.00.01"
    first, second = reading.gpus
    assert (first.bdf, second.bdf) == (FIRST, SECOND)
    assert first.name == "Test GPU 80GB" and first.memory_total_bytes == 80 << 30
    assert (first.numa_node, second.numa_node) == (0, 1)
    assert second.cpu_affinity == CpuSet.parse("64-71")
    assert (first.mig, second.mig) == (False, True)
    (part,) = second.mig_instances
    assert first.mig_instances == ()
    assert part.uuid is not None and part.uuid.startswith("MIG-")
    assert (part.index, part.gpu_instance, part.compute_instance) == (2, 9, 0)
    assert (part.memory_bytes, part.slices) == (9856 << 20, 1)
    assert reading.links == {frozenset((FIRST, SECOND)): (PeerLink(type="nvlink", count=12),)}


def test_what_is_not_supported_is_none(ask: Ask) -> None:
    reading = ask("bare").read()
    for gpu in reading.gpus:
        assert (gpu.numa_node, gpu.cpu_affinity, gpu.mig) == (None, None, None)
        assert gpu.name and gpu.error is None
    assert reading.links == {}


def test_a_lost_gpu_is_named_and_the_other_one_read(ask: Ask) -> None:
    reading = ask("lost").read()
    first, second = reading.gpus
    assert first.error is None and first.memory_total_bytes
    assert second.bdf == SECOND and second.error == "GPU is lost (NVML error 15)"
    (unread,) = reading.unread
    assert unread.path == "nvml/gpu/1"


def test_no_driver_is_a_reason_and_no_child_stays(ask: Ask) -> None:
    gpus = ask("noinit")
    reading = gpus.read()
    assert not reading.nvml.available
    assert "Driver Not Loaded" in (reading.nvml.reason or "")
    assert gpus.pid is None
    # Asked again at once: the answer is known, no child is started for it.
    gpus.start()
    assert gpus.pid is None
    assert gpus.read().nvml == reading.nvml


def test_no_library_is_a_reason_and_no_child_stays(tmp_path: pathlib.Path) -> None:
    gpus = Gpus(deadline_s=30, env={"LD_LIBRARY_PATH": str(tmp_path)})
    reading = gpus.read()
    if reading.nvml.available:
        gpus.close()
        pytest.skip("this machine has an NVIDIA driver")
    assert reading.nvml.reason
    assert gpus.pid is None


def test_a_hang_is_a_reason_and_the_snapshot_goes_on(ask: Ask, tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    gpus = ask("hang", deadline_s=0.3, FAKE_NVML_GATE=str(gate))
    with Root.live() as root:
        snapshot = read_snapshot(root, gpus)
    assert snapshot.topology.online
    assert not snapshot.nvml.available
    assert "no answer" in (snapshot.nvml.reason or "")
    pid = gpus.pid
    assert pid is not None
    assert "not answered" in (gpus.read().nvml.reason or "")
    assert gpus.pid == pid
    gate.touch()
    reading = gpus.read()
    while not reading.nvml.available:
        reading = gpus.read()
    assert gpus.pid == pid and len(reading.gpus) == 2


def test_links_through_a_switch_count_for_every_pair() -> None:
    gpu = '{{"index":{0},"bdf":"00000000:0{0}:00.0","links":[{1}]}}'
    link = ",".join(['{"bdf":"00000000:C1:00.0","switch":true}'] * 18)
    gpus = ",".join(gpu.format(i, link) for i in range(3))
    reading = decode(f'{{"available":true,"gpus":[{gpus}]}}')
    assert len(reading.links) == 3
    assert set(reading.links.values()) == {(PeerLink(type="nvlink", count=18),)}


@pytest.mark.parametrize("raw", ["", "{", "[]", '{"available":1}', '{"available":true,"gpus":3}'])
def test_a_damaged_answer_is_a_reason(raw: str) -> None:
    reading: GpuReading = decode(raw)
    assert not reading.nvml.available
    assert "cannot be read" in (reading.nvml.reason or "")
