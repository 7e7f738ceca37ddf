"""The daemon judges by the baseline in its state folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from nodeagent.check.baseline import encode, shape
from nodeagent.daemon.doors import real_doors
from nodeagent.daemon.setup import BASELINE, set_up
from nodeagent.model.baseline import Baseline
from nodeagent.model.finding import Verdict
from tests.check.machines import healthy, topo

H = healthy()


def config(folder: Path) -> Path:
    file = folder / "nodeagent.toml"
    file.write_text(f'[daemon]\nrun_dir = "{folder}"\nstate_dir = "{folder}"\n')
    return file


def verdicts(folder: Path, lost: bool) -> list[Verdict]:
    s = dataclasses.replace(topo(H, pci=H.topology.pci[2:], relations=()), gpus=H.gpus[1:])
    found = set_up(config(folder), real_doors()).judge(s if lost else H, 10**18)
    return [f.verdict for f in found if f.id == "baseline.holds"]


def test_a_lost_gpu_fails_where_a_baseline_was_accepted(tmp_path: Path) -> None:
    assert verdicts(tmp_path, lost=True) == [Verdict.NA]
    accepted = Baseline(accepted="2026-01-01", traits=shape(H))
    (tmp_path / BASELINE).write_text(encode(accepted))
    assert verdicts(tmp_path, lost=False) == [Verdict.OK]
    assert Verdict.FAIL in verdicts(tmp_path, lost=True)


@pytest.mark.parametrize("text", ["", "{", '{"schema":"nodeagent.baseline/v9"}', "\x00\x01"])
def test_a_damaged_baseline_stops_no_daemon(tmp_path: Path, text: str) -> None:
    (tmp_path / BASELINE).write_text(text)
    judge = set_up(config(tmp_path), real_doors()).judge
    (found,) = (f for f in judge(H, 10**18) if f.id == "baseline.holds")
    assert found.verdict is Verdict.UNKNOWN
    assert str(tmp_path / BASELINE) in found.message
    assert "baseline accept" in found.remedy


def test_a_baseline_that_is_no_file_stops_no_daemon(tmp_path: Path) -> None:
    (tmp_path / BASELINE).mkdir()
    assert verdicts(tmp_path, lost=False) == [Verdict.UNKNOWN]
    (tmp_path / BASELINE).rmdir()
    (tmp_path / BASELINE).symlink_to(BASELINE)
    assert verdicts(tmp_path, lost=False) == [Verdict.UNKNOWN]
