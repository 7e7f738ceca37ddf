"""Conditions of checks at their edges: each of these fails when the clause it is about is taken
away."""

from __future__ import annotations

import dataclasses

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.latency import Bucket, Quota, Times
from nodeagent.model.pasted import Pasted, Report
from nodeagent.model.snapshot import Snapshot
from tests.check.machines import bare, healthy, isolated, topo, with_pci, with_texts

GPU0 = "0000:11:00.0"


def answers(check_id: str, s: Snapshot) -> list[Finding]:
    return [f for f in judge(s, Policy(), 0) if f.id == check_id]


def said(*reports: Report, **texts: str) -> Snapshot:
    s = dataclasses.replace(bare(), pasted=Pasted(kinds=("values",), reports=reports))
    return with_texts(s, dict(texts))


def test_real_time_threads_that_never_run_are_told() -> None:
    at = "proc/sys/kernel/sched_rt_"
    s = with_texts(isolated(), {f"{at}runtime_us": "0", f"{at}period_us": "1000000"})
    (found,) = answers("isolation.rt-throttling", s)
    assert found.verdict is Verdict.INFO and "1000 ms" in found.message


def test_a_controller_of_no_interest_is_not_held_against_its_bridge() -> None:
    """USB, management and storage functions tell what they like."""
    s = with_pci(healthy(), GPU0, class_code="0c03", vendor="8086", numa_node=1)
    (found,) = answers("contradiction.bridge-node", s)
    assert found.verdict is Verdict.OK


def test_one_quota_alone_has_not_changed() -> None:
    one = Quota(source="a", quota_us=1, period_us=10, label="before")
    (found,) = answers("cgroup.quota-changed", said(one))
    assert found.verdict is Verdict.NA


def test_a_pasted_group_is_told_once() -> None:
    text = "nr_periods 9\nnr_throttled 8"
    at = "sys/fs/cgroup"
    s = with_texts(said(), {f"{at}/job/cpu.stat": text, f"{at}/pasted/cpu.stat": text})
    assert [f.subject for f in answers("cgroup.throttled", s)] == ["/sys/fs/cgroup/job"]
    other = with_texts(s, {f"{at}/pasted/cpu.stat": "nr_periods 9\nnr_throttled 7"})
    assert len(answers("cgroup.throttled", other)) == 2


def test_only_a_function_is_probed_by_its_name() -> None:
    slow = (Bucket(low_us=65536, high_us=131071, count=5),)
    proofs = {
        about: answers("jitter.function", said(Times(source="t", about=about, name="x",
                                                     buckets=slow)))
        for about in ("function", "irq")
    }  # fmt: skip
    by_function, by_interrupt = (str([f.remedy for f in proofs[k]]) for k in ("function", "irq"))
    assert "kprobe:x" in by_function
    assert "kprobe:x" not in by_interrupt


def test_a_tree_without_groups_proves_no_iommu_off() -> None:
    """A whole machine without IOMMU groups has none; a tree recorded in part tells nothing."""
    pci = tuple(dataclasses.replace(p, iommu_group=None) for p in healthy().topology.pci)
    whole = topo(healthy(), pci=pci)
    (found,) = answers("pcie.iommu", whole)
    assert found.verdict is Verdict.OK
    (found,) = answers("pcie.iommu", dataclasses.replace(whole, complete=False, live=False))
    assert found.verdict is Verdict.UNKNOWN
