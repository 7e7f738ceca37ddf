"""Each finding that asks somebody to act says how: a command or a setting that can be pasted."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator

import click
import pytest

from nodeagent.check.judge import CHECKS, judge
from nodeagent.check.policy import Policy, Rule
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import TableStore
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.snapshot import Snapshot
from tests.check.machines import GIB, bare, cpus, healthy, topo, with_node
from tests.check.test_checks import CASES
from tests.hosts.generate import MACHINES

PROGRAMS = (
    r"amd-smi|apt-get|chcpu|gdscheck|slurmd|bpftool|chronyc|command|dpdk-devbind.py|for|ip|ipcrm|nvidia-ctk|ptp4l|tcpdump|"
    r"nvidia-bug-report.sh|less|awk|cat|chrt|cpupower|curl|dmesg|dmidecode|docker|df|du|echo|edac-util|end|"
    r"ethtool|export|find|free|fuser|grep|ibstat|ibv_devinfo|ipmitool|irqbalance|jq|"
    r"journalctl|kill|kubectl|lscpu|lsof|lspci|lstopo|ls|mdadm|migratepages|mlc|"
    r"rtla|cyclictest|hwlatdetect|turbostat|mpstat|pidstat|vmstat|runqslower|funclatency|bpftrace|"
    r"trace-cmd|strace|dcgmi|nvme|systemd-cgtop|mlxfwmanager|fsck|sensors|compute-sanitizer|"
    r"modinfo|modprobe|mount|nodeagentctl|numactl|numastat|nvbandwidth|nvidia-smi|"
    r"opensm|perf|pgrep|podman|ps|ras-mc-ctl|reboot|rm|rmmod|rocm-smi|rocminfo|"
    r"scontrol|setpci|sminfo|smartctl|srun|swapoff|sysctl|systemctl|taskset|tuned-"
    r"adm|ulimit|umount|uname|unset|update-grub|virsh"
)
_COMMAND = re.compile(
    r"(?:^|[;:,|(&] *|\b(?:or|and|then|run|with|sudo|again|try) +)"
    rf"(?:{PROGRAMS})(?![\w=-])"
)
_SETTING = re.compile(r"(?:^|[\s(])-{0,2}[A-Za-z_][\w.-]*= ?\S|^--[a-z-]+|\bpaste\b|\w+ = \w+")
"""`isolcpus=2-3`, `--shm-size=16g`; what was pasted is mended by pasting again."""


def pasteable(remedy: str) -> bool:
    return bool(_COMMAND.search(remedy) or _SETTING.search(remedy))


def generated() -> Iterator[Snapshot]:
    for make in MACHINES.values():
        yield read_snapshot(Root(TableStore(make()), live=False, label="test"))
    for _, _, snapshot, _ in CASES:
        yield snapshot


@functools.cache
def asking() -> tuple[Finding, ...]:
    """Every finding of every machine made for a test that asks somebody to act, once."""
    found: dict[tuple[str, Verdict, str], Finding] = {}
    for snapshot in generated():
        for f in judge(snapshot, Policy(), 0):
            if f.verdict in (Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN, Verdict.REFUSE):
                found.setdefault((f.id, f.verdict, f.remedy), f)
    return tuple(found.values())


def test_each_remedy_can_be_pasted() -> None:
    assert len({f.id for f in asking()}) > 80
    vague = sorted(
        {f"{f.id} {f.verdict}: {f.remedy!r}" for f in asking() if not pasteable(f.remedy)}
    )
    assert vague == []


_BEGINS = re.compile(rf"(?:sudo )?(?:{PROGRAMS})(?![\w=-])|\w+=\S")


def read_by_bash(text: str) -> str:
    """What bash says against the text as it stands; "" when it takes it."""
    shell = shutil.which("bash")
    assert shell is not None
    return subprocess.run([shell, "-n", "-c", text], capture_output=True, text=True).stderr


def test_a_remedy_that_begins_as_a_command_is_one() -> None:
    """Pasted whole it runs: what is said about it stands behind a #."""
    begun = {f.remedy: f.id for f in asking() if _BEGINS.match(f.remedy)}
    assert len(begun) > 60
    wrong = {f"{i}: {text}": said for text, i in begun.items() if (said := read_by_bash(text))}
    assert wrong == {}
    assert read_by_bash("ls  (all of them)") and read_by_bash("ls; then look")


def test_no_remedy_names_a_command_of_ours_that_is_not_there() -> None:
    from nodeagent.cli.main import cli

    named = {
        (c.id, word)
        for c in CHECKS
        for text in (c.mend, c.prove)
        for word in re.findall(r"nodeagentctl ([a-z]+)", text)
    } | {(f.id, w) for f in asking() for w in re.findall(r"nodeagentctl ([a-z]+)", f.remedy)}
    assert len(named) > 5
    with click.Context(cli) as context:
        assert {n for n in named if n[1] not in cli.list_commands(context)} == set()


def test_the_rule_itself_can_fail() -> None:
    for words in ("", "look at it", "reseat the card", "read the manual of echo"):
        assert not pasteable(words), words
    for words in ("sysctl -w vm.swappiness=1", "isolcpus=2-3", "sudo lspci -vv", "x; dmesg | tail"):
        assert pasteable(words), words


def test_each_finding_names_evidence_of_a_file_and_a_text() -> None:
    for f in asking():
        assert f.evidence, f
        assert all(e.path for e in f.evidence), f


@pytest.mark.parametrize("make", [healthy, bare])
def test_a_guest_is_never_sent_to_the_bios(make: object) -> None:
    import dataclasses

    assert callable(make)
    s = make()
    s = dataclasses.replace(s, host=dataclasses.replace(s.host, virtual="kvm"))
    broken = [s, topo(s, nodes=s.topology.nodes[:1])]
    if len(s.topology.nodes) > 1:
        broken += [
            with_node(s, 1, memory_bytes=0),
            with_node(s, 1, memory_bytes=60 * GIB),
            with_node(s, 1, distances=((0, 5), (1, 3))),
            with_node(s, 1, cpus=cpus("7-15")),
        ]
    loud = 0
    for machine in broken:
        for f in judge(machine, Policy(), 0):
            if f.verdict in (Verdict.WARN, Verdict.FAIL, Verdict.INFO):
                loud += 1
                assert not re.search(r"BIOS|firmware|DIMM|dmidecode|reseat", f.remedy), f
    assert loud or make is bare


def test_proofs_are_commands() -> None:
    """`explain` shows what a person runs to see the same: its first word is a program."""
    vague = [c.id for c in CHECKS if not c.id.startswith("paste.") and not pasteable(c.prove)]
    assert vague == []


def test_proofs_are_what_a_shell_reads() -> None:
    """Not only look like commands: bash parses each as it stands."""
    wrong = {}
    for c in CHECKS:
        if c.id.startswith("paste."):
            continue
        text = c.prove if not c.prove.endswith(".") else c.prove[:-1]
        if said := read_by_bash(text):
            wrong[c.id] = said
    assert wrong == {}


def test_huge_pages_are_judged_against_a_policy_s_need() -> None:
    def verdict(mib: int, s: Snapshot) -> set[Verdict]:
        rule = Rule(bounds={"mib_2m": mib})
        found = judge(s, Policy(rules={"memory.hugepages-need": rule}), 0)
        return {f.verdict for f in found if f.id == "memory.hugepages-need"}

    whole = next(s for c, n, s, _ in CASES if (c, n) == ("locality.unit", "whole"))
    half = next(s for c, n, s, _ in CASES if (c, n) == ("locality.unit", "no huge pages there"))
    assert verdict(1024, whole) == {Verdict.OK}
    assert verdict(1026, whole) == {Verdict.FAIL}
    assert verdict(1024, half) == {Verdict.FAIL}
    assert verdict(0, half) == {Verdict.NA}
