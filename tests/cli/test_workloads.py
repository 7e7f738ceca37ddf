"""What a plan needs to know of the machine before it may say anything about a workload."""

from __future__ import annotations

import pytest

from nodeagent.cli.workloads import need_titles
from nodeagent.errors import NodeagentError
from nodeagent.model.placement import Match, Workload

REASON = "command lines: no answer within 10 s"


def _workload(name: str, match: Match) -> Workload:
    return Workload(name=name, kind="custom", match=match, cpus=1)


@pytest.mark.parametrize(
    "match", [Match(title="VLLM::*"), Match(cmdline="x", comm="y"), Match(parent="z")]
)
def test_a_workload_known_by_its_title_is_not_planned_without_titles(match: Match) -> None:
    other = _workload("other", Match(comm="sleep"))
    with pytest.raises(NodeagentError, match=f"processes are rank0 is not known: {REASON}") as told:
        need_titles((other, _workload("rank0", match)), REASON)
    assert "comm, unit or cgroup" in told.value.remedy and told.value.exit_code == 3


def test_others_are_planned_all_the_same() -> None:
    by_other = Match(comm="sleep", cgroup="/x", unit="y", pid=1)
    need_titles((_workload("a", by_other),), REASON)
    need_titles((_workload("a", Match(title="x")),), "")
