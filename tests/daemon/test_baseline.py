"""The daemon judges by the baseline in its state folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from nodeagent.check.baseline import encode, shape
from nodeagent.daemon.doors import real_doors
from nodeagent.daemon.setup import BASELINE, set_up
from nodeagent.errors import ConfigError
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


def test_a_damaged_baseline_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / BASELINE).write_text("{")
    with pytest.raises(ConfigError, match=BASELINE):
        set_up(config(tmp_path), real_doors())
