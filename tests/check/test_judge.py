"""The judgement as a whole: quiet on a healthy machine, sensible on a small one, never fooled."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib

import pytest

from nodeagent.check.judge import BY_ID, CHECKS, judge
from nodeagent.check.page import markdown
from nodeagent.check.policy import Policy, Rule, Waive
from nodeagent.check.summary import folded, sentence, summary
from nodeagent.model.finding import Finding, Verdict, worst
from nodeagent.model.snapshot import Snapshot
from tests.check.machines import (
    CPU,
    TEXTS,
    bare,
    healthy,
    isolated,
    recorded,
    topo,
    unreadable,
    with_cmdline,
    with_texts,
)

NOW = 1_780_000_000 * 10**9
TODAY = datetime.datetime.fromtimestamp(NOW / 1e9, datetime.UTC).date()
THP = "sys/kernel/mm/transparent_hugepage/enabled"


def found(s: Snapshot, policy: Policy | None = None) -> tuple[Finding, ...]:
    return judge(s, policy or Policy(), NOW)


@pytest.mark.parametrize("machine", [healthy, isolated, bare])
def test_a_good_machine_is_quiet(machine: object) -> None:
    assert callable(machine)
    answers = found(machine())
    loud = [f for f in answers if f.verdict not in (Verdict.OK, Verdict.NA, Verdict.INFO)]
    assert loud == []
    assert worst(answers) is Verdict.OK


def test_every_check_has_a_whole_page_and_a_unique_id() -> None:
    assert len({c.id for c in CHECKS}) == len(CHECKS) >= 30
    for c in CHECKS:
        for text in (c.title, c.means, c.why, c.prove, c.mend, c.source):
            assert len(text) > 5, c.id


def test_the_page_is_the_committed_one() -> None:
    committed = pathlib.Path(__file__).parents[2] / "docs" / "checks.md"
    assert committed.read_text() == markdown(CHECKS), "nodeagentctl explain --markdown > it"


def test_what_warns_or_fails_has_evidence_and_a_remedy() -> None:
    s = with_texts(
        isolated("isolcpus=2-6 nohz_full=2-5 irqaffinity=0-15 idle=poll"), {THP: "[always]"}
    )
    loud = [f for f in found(s) if f.verdict in (Verdict.WARN, Verdict.FAIL)]
    assert {f.id for f in loud} >= {"isolation.irqaffinity-overlap", "cpu.idle-poll", "memory.thp"}
    for f in loud:
        assert f.evidence and f.remedy and f.doc.startswith("docs/checks.md#"), f


@pytest.mark.parametrize("path", sorted(TEXTS))
def test_an_unreadable_setting_never_reads_ok(path: str) -> None:
    for machine in (healthy(), isolated()):
        answers = found(unreadable(machine, path))
        assert worst(answers) in (Verdict.UNKNOWN, Verdict.WARN, Verdict.FAIL), path


MAY_BE_EMPTY = {
    "proc/cmdline",
    f"{CPU}/isolated",
    f"{CPU}/nohz_full",
    "proc/sys/kernel/watchdog_cpumask",
    "sys/fs/cgroup/cgroup.controllers",
}


@pytest.mark.parametrize("path", sorted(TEXTS.keys() - MAY_BE_EMPTY))
def test_an_empty_file_is_no_good_news(path: str) -> None:
    for machine in (healthy(), isolated()):
        machine = with_cmdline(machine, machine.texts["proc/cmdline"].replace("iommu=pt", ""))
        needed = {
            f.id
            for f in found(unreadable(machine, path))
            if f.verdict is Verdict.UNKNOWN and f.id != "reading.complete"
        }
        for f in found(with_texts(machine, {path: ""})):
            assert f.id not in needed or f.verdict is not Verdict.OK, (path, f)


def test_devices_that_could_not_be_listed_are_not_absent() -> None:
    s = topo(healthy(), pci=(), relations=())
    s = dataclasses.replace(s, gpus=())
    answers = found(unreadable(s, "sys/bus/pci/devices", reason="Input/output error"))
    by = {f.id: f for f in answers}
    for check_id in ("locality.gpu-nic", "pcie.width", "gpu.driver"):
        assert by[check_id].verdict is Verdict.UNKNOWN, by[check_id]
        assert "/sys/bus/pci/devices" in by[check_id].message


def test_one_line_folds_all_that_need_root() -> None:
    paths = (THP, "proc/sys/vm/swappiness", "proc/sys/kernel/numa_balancing")
    lines = folded(found(unreadable(healthy(), *paths)))
    unknown = [f for f in lines if f.verdict is Verdict.UNKNOWN]
    assert [f.id for f in unknown] == ["reading.folded"]
    assert "sudo" in unknown[0].remedy
    assert "memory.thp" in unknown[0].message


def test_a_recording_made_without_root_is_to_be_recorded_again() -> None:
    kept = dataclasses.replace(unreadable(healthy(), THP, "proc/sys/vm/swappiness"), live=False)
    (unknown,) = (f for f in folded(found(kept)) if f.verdict is Verdict.UNKNOWN)
    assert "need a recording made as root" in unknown.message
    assert unknown.remedy.endswith("sudo nodeagentctl capture FILE")


def test_a_recording_with_too_little_says_so_in_one_line() -> None:
    lines = folded(found(recorded(healthy(), [THP, "proc/sys/vm/swappiness"])))
    unknown = [f for f in lines if f.verdict is Verdict.UNKNOWN]
    assert len(unknown) == 1
    assert "recording" in unknown[0].message


def test_a_file_this_kernel_does_not_have_is_not_applicable() -> None:
    by = {f.id: f for f in found(with_texts(healthy(), {THP: None}))}
    assert by["memory.thp"].verdict is Verdict.NA


def test_policy_switches_grades_and_bounds() -> None:
    s = with_texts(healthy(), {THP: "[always] madvise never"})
    assert worst(found(s)) is Verdict.WARN
    off = Policy(rules={"memory.thp": Rule(enabled=False)})
    assert "memory.thp" not in {f.id for f in found(s, off)}
    graded = Policy(rules={"memory.thp": Rule(grade=Verdict.FAIL)})
    assert worst(found(s, graded)) is Verdict.FAIL
    lenient = Policy(rules={"memory.thp": Rule(grade=Verdict.INFO)})
    assert worst(found(s, lenient)) is Verdict.OK
    few = Policy(rules={"isolation.housekeeping": Rule(bounds={"pus": 13})})
    assert worst(found(isolated())) is Verdict.OK
    assert worst(found(isolated(), few)) is Verdict.WARN


def test_a_grade_never_touches_ok_and_unknown() -> None:
    graded = Policy(rules={"memory.thp": Rule(grade=Verdict.FAIL)})
    by = {f.id: f for f in found(healthy(), graded)}
    assert by["memory.thp"].verdict is Verdict.OK
    by = {f.id: f for f in found(unreadable(healthy(), THP), graded)}
    assert by["memory.thp"].verdict is Verdict.UNKNOWN


def test_a_waiver_holds_until_its_day_ends() -> None:
    s = with_texts(healthy(), {THP: "[always] madvise never"})

    def waived(until: datetime.date, subject: str = "*") -> Verdict:
        w = Waive(id="memory.thp", subject=subject, reason="measured", until=until)
        return worst(found(s, Policy(waives=(w,))))

    assert waived(TODAY) is Verdict.OK
    assert waived(TODAY - datetime.timedelta(days=1)) is Verdict.WARN
    assert waived(TODAY, "another subject") is Verdict.WARN
    assert waived(TODAY, "transparent*") is Verdict.OK


def test_a_waiver_that_ran_out_is_told() -> None:
    s = with_texts(healthy(), {THP: "[always] madvise never"})
    past = TODAY - datetime.timedelta(days=1)
    w = Waive(id="memory.thp", subject="*", reason="measured", until=past)
    by = {f.id: f for f in found(s, Policy(waives=(w,)))}
    assert by["memory.thp"].message.endswith(f"(its waiver ran out on {past}: measured)")


def test_a_waiver_hides_no_unknown() -> None:
    w = Waive(id="memory.thp", subject="*", reason="measured", until=TODAY)
    s = unreadable(healthy(), THP)
    off = Policy(waives=(w,), rules={"reading.complete": Rule(enabled=False)})
    assert worst(found(s, off)) is Verdict.UNKNOWN


def test_the_first_line_is_a_monitoring_plugin_line() -> None:
    line = summary(found(isolated("isolcpus=2,3,6,7 nohz_full=2,3,6,7 irqaffinity=0-15")))
    said, _, figures = line.partition(" | ")
    assert said == "FAIL - 1 finding, worst isolation.irqaffinity-overlap"
    assert figures.startswith("findings=1 fail=1 warn=0 ")
    assert summary(found(healthy())).startswith("OK - ")
    assert summary(found(unreadable(healthy(), THP))).startswith("UNKNOWN - ")


def test_policies_name_checks_that_exist() -> None:
    assert set(BY_ID) == {c.id for c in CHECKS}
    assert f"{CPU}/isolated" in TEXTS


@pytest.mark.parametrize(
    ("subject", "message", "said"),
    [
        ("node 1", "node 1 has 62 GiB", "node 1 has 62 GiB"),
        ("cpu 3,15", "CPUs 3,15 are offline", "CPUs 3,15 are offline"),
        ("cpu 3,15", "CPUs 3,151 are offline", "cpu 3,15: CPUs 3,151 are offline"),
        ("GPU 2", "it had 2 errors", "GPU 2: it had 2 errors"),
        ("0000:3b:00.0", "GPU 0000:3b:00.0 runs on x8", "GPU 0000:3b:00.0 runs on x8"),
        ("0000:3b:00", "0000:3b:00.0 runs on x8", "0000:3b:00: 0000:3b:00.0 runs on x8"),
        ("kernel.numa_balancing", "balancing is on", "kernel.numa_balancing: balancing is on"),
    ],
)
def test_a_sentence_names_its_subject_once(subject: str, message: str, said: str) -> None:
    finding = Finding(
        id="x.y", verdict=Verdict.WARN, subject=subject, message=message, evidence=(), remedy="z"
    )
    assert sentence(finding) == said
