"""topology check and explain as processes, on a small recorded machine."""

from __future__ import annotations

import datetime
import json
import pathlib
import subprocess

import pytest

FILES = {
    "proc/cmdline": "isolcpus=2-3 nohz_full=2-3 irqaffinity=0-3",
    "proc/meminfo": "MemTotal: 1024 kB",
    "sys/devices/system/cpu/possible": "0-3",
    "sys/devices/system/cpu/present": "0-3",
    "sys/devices/system/cpu/online": "0-3",
    "sys/devices/system/cpu/isolated": "2-3",
    "sys/devices/system/cpu/nohz_full": "2-3",
}


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> pathlib.Path:
    for path, text in FILES.items():
        file = tmp_path / "machine" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return tmp_path / "machine"


def run(bin_dir: pathlib.Path, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [bin_dir / "nodeagentctl", *map(str, args)], capture_output=True, text=True
    )


def test_the_contract_s_json(bin_dir: pathlib.Path, machine: pathlib.Path) -> None:
    done = run(bin_dir, "--host", machine, "-o", "json", "topology", "check")
    out = json.loads(done.stdout)
    assert out["schema"] == "nodeagent.findings/v1"
    assert (out["verdict"], done.returncode) == ("FAIL", 2)
    by = {f["id"]: f for f in out["findings"]}
    overlap = by["isolation.irqaffinity-overlap"]
    assert overlap["verdict"] == "FAIL"
    assert overlap["subject"] == "cpu 2-3"
    assert {"path": "/proc/cmdline", "text": "irqaffinity=0-3"} in overlap["evidence"]
    assert overlap["remedy"].startswith("irqaffinity=0-1")
    assert overlap["doc"].startswith("docs/checks.md#")
    assert overlap["waived_until"] is None
    assert "NA" not in {f["verdict"] for f in out["findings"]}
    whole = json.loads(
        run(bin_dir, "--host", machine, "-o", "json", "topology", "check", "--all").stdout
    )
    assert "NA" in {f["verdict"] for f in whole["findings"]}


def test_the_first_line_is_for_the_monitoring(bin_dir: pathlib.Path, machine: pathlib.Path) -> None:
    done = run(bin_dir, "--host", machine, "topology", "check")
    first = done.stdout.splitlines()[0]
    assert first.startswith("FAIL - ")
    assert "worst isolation.irqaffinity-overlap | findings=" in first
    assert "remedy  irqaffinity=0-1" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_waived_findings_are_shown_and_not_counted(
    bin_dir: pathlib.Path, machine: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    policy = tmp_path / "policy.toml"
    soon = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=20)
    policy.write_text(
        '[[waive]]\nid = "isolation.irqaffinity-overlap"\nsubject = "cpu 2-3"\n'
        f'reason = "drained"\nuntil = {soon}\n'
    )
    done = run(bin_dir, "--host", machine, "-o", "json", "topology", "check", "--policy", policy)
    out = json.loads(done.stdout)
    by = {f["id"]: f for f in out["findings"]}
    assert by["isolation.irqaffinity-overlap"]["waived_until"] == str(soon)
    assert out["verdict"] != "FAIL"
    text = run(bin_dir, "--host", machine, "topology", "check", "--policy", policy).stdout
    assert "WAIVED  isolation.irqaffinity-overlap" in text


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[checks.\n", 1, "not TOML"),
        ('[checks."memory.thpp"]\nenabled = false\n', 1, "there is no check memory.thpp"),
        ('[checks."memory.thp"]\n\nenabledd = false\n', 3, "unknown setting enabledd"),
        ('[checks."memory.thp"]\nenabled = 3\n', 2, "expected bool"),
        ('[checks."memory.thp"]\ngrade = "BAD"\n', 2, "expected INFO, WARN or FAIL"),
        ('[checks."memory.thp"]\nbounds = { x = 1 }\n', 2, "has no bound x"),
        ('[[waive]]\nid = "memory.thp"\nsubject = "*"\nreason = "r"\n', 1, "until"),
        (
            '[[waive]]\nid = "memory.thp"\nsubject = "*"\nreason = "r"\nuntil = 2999-01-01\n',
            5,
            "at most 90 days",
        ),
        ("[other]\n", 1, "unknown section [other]"),
    ],
)
def test_a_wrong_policy_names_file_and_line(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, text: str, line: int, says: str
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(text)
    done = run(bin_dir, "topology", "check", "--policy", policy)
    assert done.returncode == 64, done.stderr
    assert f"{policy}:{line}: " in done.stderr
    assert says in done.stderr
    assert "remedy: " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_printed_example_is_a_valid_policy(
    bin_dir: pathlib.Path, machine: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    example = run(bin_dir, "topology", "check", "--policy-example").stdout
    policy = tmp_path / "policy.toml"
    policy.write_text(example)
    done = run(bin_dir, "--host", machine, "topology", "check", "--policy", policy)
    assert done.returncode == 2, done.stderr


def test_fail_on_fail_lets_warnings_pass(
    bin_dir: pathlib.Path, machine: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[checks."isolation.irqaffinity-overlap"]\ngrade = "WARN"\n')
    args = ("--host", machine, "topology", "check", "--policy", policy)
    assert run(bin_dir, *args).returncode == 1
    assert run(bin_dir, *args, "--fail-on", "fail").returncode == 0


def test_explain(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "explain", "isolation.irqaffinity-overlap")
    assert done.returncode == 0
    for heading in ("What it means", "Why it matters", "Prove it by hand", "Mend it", "Source"):
        assert heading in done.stdout
    wrong = run(bin_dir, "explain", "isolation.irqafinity-overlap")
    assert wrong.returncode == 64
    assert "did you mean isolation.irqaffinity-overlap" in wrong.stderr
    assert "isolation.in-force" in run(bin_dir, "explain").stdout
    group = run(bin_dir, "explain", "isolation").stdout.splitlines()
    assert len(group) > 10 and all(line.startswith("isolation.") for line in group)
    out = json.loads(run(bin_dir, "-o", "json", "explain", "numa").stdout)
    assert {c["id"].partition(".")[0] for c in out["checks"]} == {"numa"}
