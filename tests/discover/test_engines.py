"""Processes that are ours to place, the kernel log, and both again out of a capture."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from nodeagent.discover import engines, kmsg
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import Entry, TableStore

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("comm", "title", "role"),
    [
        ("python3", "/venv/bin/python3 /venv/bin/vllm serve x", "vllm"),
        ("python3", "python3 -m vllm.entrypoints.openai.api_server", "vllm"),
        ("VLLM::EngineCor", "VLLM::EngineCore_DP0", "vllm"),
        ("python3", "python3 -m sglang.launch_server", "sglang"),
        ("ray::RayWorkerW", "ray::RayWorkerWrapper.execute", "ray"),
        ("irqbalance", "/usr/sbin/irqbalance --foreground", "irqbalance"),
        ("tuned", "/usr/bin/python3 -Es /usr/sbin/tuned -l -P", "tuned"),
        ("all_reduce_perf", "./all_reduce_perf -b 8", "nccl-tests"),
        ("bash", "bash -c 'echo vllmx'", None),
        ("vim", "vim irqbalance.c", None),
    ],
)
def test_roles(comm: str, title: str, role: str | None) -> None:
    assert engines.role_of(comm, title) == role


def test_a_process_of_ours_with_threads_limits_and_memory(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "vllm"
    script.write_text(
        "import os, threading, time\n"
        "b = bytearray(64 << 20)\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('up', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script), "serve", "--tensor-parallel-size", "2", "--api-key", SECRET],
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
            with Root.live(keep=True) as root:
                found = engines.read_engines(root)
                assert root.kept is not None
                table = dict(root.kept)
        finally:
            process.kill()
    assert found is not None
    mine = next(p for p in found if p.pid == process.pid)
    assert mine.role == "vllm" and mine.thread_count == len(mine.threads) == 2
    main = next(t for t in mine.threads if t.tid == process.pid)
    assert main.cpus.ids == {min(os.sched_getaffinity(0))}
    assert mine.mems_allowed and 0 in mine.mems_allowed
    assert mine.memlock_bytes is not None
    if pathlib.Path("/proc/self/numa_maps").exists():
        assert mine.memory_by_node is not None
        assert sum(size for _, size in mine.memory_by_node) > 60 << 20
    # The same out of a capture, word for word.
    again = engines.read_engines(Root(TableStore(table), live=False, label="x"))
    assert again == found
    text = table[engines.KEY]
    assert isinstance(text, bytes) and SECRET.encode() in text
    from nodeagent.discover.masks import Masks
    from nodeagent.discover.redact import redact

    masked = redact(table, Masks())[engines.KEY]
    assert isinstance(masked, bytes)
    assert SECRET.encode() not in masked and b"--tensor-parallel-size 2" in masked


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"pid": 1}', b"\xff", b"{}" * 9])
def test_damaged_processes_in_a_capture_are_recorded(line: bytes) -> None:
    table: dict[str, Entry] = {engines.KEY: line}
    root = Root(TableStore(table), live=False, label="x")
    assert engines.read_engines(root) in ((), None)
    assert [u.path for u in root.unread] == [f"/{engines.KEY}"]


def test_a_record_of_the_log_is_shown_as_dmesg_does() -> None:
    line = kmsg.line_of(b"6,339,5140900,-;NET: Registered PF_INET6\n SUBSYSTEM=x\n")
    assert line == "[    5.140900] NET: Registered PF_INET6"
    # 30 is facility 3: a daemon's, not the kernel's.
    assert kmsg.line_of(b"30,339,5140900,-;systemd[1]: x\n") is None
    assert kmsg.line_of(b"damaged") is None


def test_the_log_of_this_machine_agrees_with_dmesg() -> None:
    done = subprocess.run(["dmesg", "--kernel"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"dmesg: {done.stderr.strip()}")
    with Root.live(keep=True) as root:
        part = kmsg.read_kernel_log(root)
        assert part is not None and root.kept is not None
        text = root.kept[kmsg.KEY]
    assert isinstance(text, bytes)
    ours = set(text.decode().splitlines())
    theirs = {x for x in done.stdout.splitlines() if x.isprintable() and "\\x" not in x}
    # Lines may come and, when the buffer is full, go between the two.
    assert len(theirs - ours) <= len(theirs) // 10


def test_events_of_a_captured_log_keep_their_lines() -> None:
    log = "a\n\n[    9.0] NVRM: Xid (PCI:0000:38:00): 79, pid=1, name=x, GPU has fallen off\n"
    log += "[   10.0] tsc: Marking TSC unstable due to check_tsc_sync_source failed\n"
    log += "[   11.0] irq 16: nobody cared (try booting with the irqpoll option)\n"
    log += "[   11.1] Disabling IRQ #16\n"
    root = Root(TableStore({kmsg.KEY: log.encode()}), live=False, label="x")
    snapshot = read_snapshot(root)
    assert snapshot.events is not None
    assert ("xid", 3) in {(e.kind, e.line) for e in snapshot.events}
    assert "check_tsc_sync_source" in snapshot.texts["log/tsc-unstable"]
    assert snapshot.texts["log/irq-nobody-cared"].count("\n") == 1


def test_the_daemons_own_reading_asks_neither() -> None:
    with Root.live() as root:
        snapshot = read_snapshot(root)
    assert (snapshot.events, snapshot.processes) == (None, None)
