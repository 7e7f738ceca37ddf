"""The loader: our arithmetic as the kernel runs it, and every reason why not as a sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nodeagent.errors import UnavailableError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.histogram import bucket_of
from nodeagent.probe import sentence
from nodeagent.probe.capability import KINDS, matrix
from nodeagent.probe.loader import BpfObject, Records

EDGES = sorted(
    {0, 2**64 - 1}
    | {
        min(2**64 - 1, max(0, (1 << bit) + off))
        for bit in range(65)
        for off in (-1, 0, 1, (1 << bit) >> 2, ((1 << bit) >> 1) - 1, (3 << bit) >> 2)
    }
)
"""Around every power of two and its quarters."""

WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--clear-groups"]
"""Still root's files to read, but not one capability: root's come from the bounding set."""


def child(code: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Runs code with our Python, behind a command."""
    return subprocess.run(
        [*before, sys.executable, "-P", "-c", code], capture_output=True, text=True
    )


@pytest.mark.bpf
@pytest.mark.root
def test_buckets_in_the_kernel_are_those_of_the_model(rights: None) -> None:
    with BpfObject("selftest") as programs:
        programs.load()
        for value in EDGES:
            answer = programs.test_run("bucket", value.to_bytes(8, "little") + bytes(8))
            assert int.from_bytes(answer[8:], "little") == bucket_of(value), value


@pytest.mark.bpf
@pytest.mark.root
def test_records_come_in_order_and_what_does_not_fit_is_told(rights: None) -> None:
    with BpfObject("selftest") as programs:
        programs.load()
        records = Records(programs.map_fd("records"), 24 * 100)
        for value in range(101):
            programs.test_run("record", value.to_bytes(8, "little") + bytes(8))
        taken, lost = records.take()
        assert [int.from_bytes(r[:8], "little") for r in taken] == list(range(100))
        assert lost == 1
        assert records.take() == ([], 0)
        records.close()


@pytest.mark.bpf
@pytest.mark.root
def test_matrix_finds_what_this_probe_needs(rights: None) -> None:
    found = {kind.kind: kind for kind in matrix()}
    assert tuple(found) == KINDS
    assert found["tp_btf"].works and found["mmap_array"].works
    assert all(kind.reason for kind in found.values())
    quiet = {kind.kind: kind for kind in matrix(attach=False)}
    assert quiet["tp_btf"].works and "not tried" in quiet["tp_btf"].reason


@pytest.mark.root
def test_without_capabilities_there_is_a_sentence(as_root: None) -> None:
    done = child(
        "from nodeagent.probe import serve\n"
        "d, fds = serve.load({})\n"
        "assert not d['available'] and not fds\n"
        "print(d['reason']); print(sum(c['works'] for c in d['capabilities']))",
        *WITHOUT_RIGHTS,
    )
    assert done.returncode == 0, done.stderr
    reason, works = done.stdout.splitlines()
    assert reason.startswith(
        "nodeagent may not load eBPF programs: CAP_BPF and CAP_PERFMON are missing; remedy: "
    )
    assert works == "0"


@pytest.mark.root
def test_without_btf_there_is_a_sentence(rights: None) -> None:
    done = child(
        "from nodeagent.probe import serve\nprint(serve.load({})[0]['reason'])",
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs none /sys/kernel/btf && mount -t tmpfs none /boot && exec "$@"',
        "sh",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("this kernel has no BTF (/sys/kernel/btf/vmlinux is missing)")
    assert "remedy" in done.stdout


def test_without_libbpf_there_is_a_sentence() -> None:
    done = child(
        "import sys; sys.modules['nodeagent.native._bpf'] = None\n"
        "from nodeagent.probe import serve\nprint(serve.load({})[0]['reason'])"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("this build has no eBPF loader: libbpf was not found")


def test_without_clang_there_is_a_sentence() -> None:
    pytest.importorskip("nodeagent.native._bpf", reason="this build has no libbpf")
    with pytest.raises(UnavailableError, match=r"no eBPF object absent\.bpf\.o"):
        BpfObject("absent")


@pytest.mark.bpf
@pytest.mark.root
def test_what_the_kernel_refuses_is_said(rights: None) -> None:
    with BpfObject("sched") as programs:
        programs.set_entries("cpus", 2**31)
        with pytest.raises(UnavailableError, match=r"refused the eBPF object sched: .*cpus"):
            programs.load()


def test_the_end_of_the_verifiers_log_stands_in_the_sentence() -> None:
    log = (
        "libbpf: prog 'sched_switch': BPF program load failed: Permission denied\n"
        "libbpf: prog 'sched_switch': -- BEGIN PROG LOAD LOG --\n"
        "R2 unbounded memory access\n"
        "processed 12 insns (limit 1000000) max_states_per_insn 0\n"
        "-- END PROG LOAD LOG --\n"
    )
    error = sentence.refused("sched", 13, log)
    assert "R2 unbounded memory access" in str(error)
    assert "processed" not in str(error) and error.remedy


def test_isolation_names_the_cpus() -> None:
    error = sentence.isolated(CpuSet.of([4, 5, 6]))
    assert "CPU 4-6 is isolated" in str(error) and "gate" in error.remedy
    assert os.linesep not in sentence.text(error)
