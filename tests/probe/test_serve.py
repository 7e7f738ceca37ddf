"""The loader's process and the reader's: descriptors travel, rights do not, links end."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from nodeagent.errors import UsageError
from nodeagent.model.cpuset import CpuSet
from nodeagent.probe import serve
from nodeagent.probe.runq import ProbeReader

from .conftest import CPU, Sleeper

pytestmark = [pytest.mark.bpf, pytest.mark.root]

LOADER = """
import sys
from nodeagent.probe import serve
description, fds = serve.load({"isolated": "full"})
print(description["available"], flush=True)
sys.stdin.read()
"""

UNPRIVILEGED = """
import json, os, sys
from nodeagent.probe.runq import ProbeReader
assert os.geteuid() != 0
for line in open("/proc/self/status"):
    assert not line.startswith("CapEff") or int(line.split()[1], 16) == 0
reader = ProbeReader.from_fds(json.loads(sys.argv[1]), [int(fd) for fd in sys.argv[2:]])
reader.watch([int(sys.stdin.readline())])
print("watching", flush=True)
sys.stdin.readline()
status = reader.read()
seen = status.samples + status.dropped
print(status.available, seen, len(status.delays[0].run_ns_by_cpu), flush=True)
"""

BPF_LINK_GET_FD_BY_ID = 30
BPF_CALL = {"x86_64": 321, "aarch64": 280}


def start(code: str, *arguments: str, before: tuple[str, ...] = (), fds: tuple[int, ...] = ()):  # type: ignore[no-untyped-def]
    """A child with our Python and pipes."""
    return subprocess.Popen(
        [*before, sys.executable, "-P", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=fds,
    )


def link_ids(pid: int) -> list[int]:
    """eBPF links a process holds."""
    found = []
    for info in pathlib.Path(f"/proc/{pid}/fdinfo").iterdir():
        # The descriptor that lists the folder is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found += re.findall(r"^link_id:\s*(\d+)", info.read_text(), re.M)
    return [int(link) for link in found]


def link_exists(link: int) -> bool:
    """Whether the kernel still has a link, whoever holds it."""
    attributes = ctypes.create_string_buffer(link.to_bytes(4, "little"), 16)
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.syscall(BPF_CALL[os.uname().machine], BPF_LINK_GET_FD_BY_ID, attributes, 16)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def test_a_killed_loader_leaves_nothing_attached(rights: None) -> None:
    loader = start(LOADER)
    assert loader.stdout.readline() == "True\n"
    links = link_ids(loader.pid)
    assert len(links) == len(serve.PROGRAMS)
    assert all(link_exists(link) for link in links)
    loader.send_signal(signal.SIGKILL)
    loader.communicate()
    # The kernel frees a link after a grace period.
    for _ in range(100):
        if not any(link_exists(link) for link in links):
            break
        time.sleep(0.05)
    assert not any(link_exists(link) for link in links)


def test_two_loaders_at_once_count_the_same(
    reader: ProbeReader, sleeper: Callable[..., Sleeper]
) -> None:
    # The other one is another process; here it only has to be there.
    other = start(LOADER)
    assert other.stdout.readline() == "True\n"
    victim = sleeper(211)
    reader.watch([victim.pid])
    victim.go()
    status = reader.read()
    assert status.samples + status.dropped >= 211 * 0.95
    other.communicate()
    before = reader.read().samples
    assert before <= reader.read().samples


def test_a_reader_without_any_right_reads_and_steers(
    rights: None, sleeper: Callable[..., Sleeper]
) -> None:
    description, fds = serve.load({"isolated": "full"})
    assert description["available"]
    try:
        victim = sleeper(101)
        child = start(
            UNPRIVILEGED,
            json.dumps(description),
            *(str(fd) for fd in fds),
            before=(
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "--bounding-set=-all",
                "--inh-caps=-all",
                "--no-new-privs",
            ),
            fds=tuple(fds),
        )
        child.stdin.write(f"{victim.pid}\n")
        child.stdin.flush()
        assert child.stdout.readline() == "watching\n"
        victim.go()
        out, _ = child.communicate("\n")
        available, samples, cpus = out.split()
        assert available == "True" and int(samples) >= 101 * 0.9 and int(cpus) >= 1
    finally:
        serve.unload()


def test_loading_again_finds_what_is_loaded_and_another_mode_loads_anew(rights: None) -> None:
    try:
        first, fds = serve.load({"isolated": "full"})
        again, same = serve.load({"isolated": "full"})
        assert first == again and fds == same
        gated, _ = serve.load({"isolated": "gate", "isolated_cpus": str(CPU)})
        assert gated["available"] and gated["gated"] == str(CPU)
    finally:
        serve.unload()


def test_off_attaches_nothing_while_a_cpu_is_isolated(rights: None) -> None:
    description, fds = serve.load({"isolated": "off", "isolated_cpus": str(CPU)})
    assert not description["available"] and fds == []
    assert f"CPU {CPU} is isolated" in description["reason"]
    assert link_ids(os.getpid()) == []
    reader = ProbeReader.from_fds(description, fds)
    status = reader.read()
    assert not status.available and status.reason == description["reason"]
    assert status.capabilities and status.delays == ()


def test_gate_counts_nothing_on_an_isolated_cpu(
    rights: None, sleeper: Callable[..., Sleeper]
) -> None:
    description, fds = serve.load({"isolated": "gate", "isolated_cpus": str(CPU)})
    reader = ProbeReader.from_fds(description, [os.dup(fd) for fd in fds])
    try:
        victim = sleeper(101)
        reader.watch([victim.pid])
        reader.watch_cpus(CpuSet.of([CPU]))
        victim.go()
        status = reader.read()
        assert status.available and status.samples == 0
        assert status.delays[0].run_ns_by_cpu == ()
        assert reader.read_cpus()[0].runq.samples == 0
    finally:
        reader.close()
        serve.unload()


def test_a_reader_that_comes_after_another_starts_from_zero(
    rights: None, sleeper: Callable[..., Sleeper]
) -> None:
    description, fds = serve.load({"isolated": "full"})
    try:
        victim = sleeper(101)
        first = ProbeReader.from_fds(description, [os.dup(fd) for fd in fds])
        first.watch([victim.pid])
        victim.go()
        assert first.read().samples > 0
        # As after a daemon that was killed: nobody closed the first.
        second = ProbeReader.from_fds(description, [os.dup(fd) for fd in fds])
        assert second.read().samples == 0
        second.watch([victim.pid])
        assert second.read().samples == 0
        second.close()
        assert not second.read().available
    finally:
        serve.unload()


def test_a_mode_that_does_not_exist_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="'on', expected one of off, gate, full"):
        serve.load({"isolated": "on"})


def test_in_a_pid_namespace_there_is_a_sentence_not_silence(rights: None) -> None:
    code = 'from nodeagent.probe import serve; print(serve.load({"isolated": "full"})[0]["reason"])'
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PID namespace" in done.stdout
    assert "--pid=host" in done.stdout
