"""`place boot --plan` on recorded machines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

HOSTS = Path(__file__).resolve().parents[1] / "hosts"
WORKLOADS = """
[[workload]]
name = "poll"
cpus = 2
isolated = true
near = "gpu:0"
hugepages = { "2MiB" = "4GiB" }
match = { comm = "poll" }
"""


def run(bin_dir: Path, folder: Path, capture: str, *args: str) -> subprocess.CompletedProcess[str]:
    file = folder / "w.toml"
    file.write_text(WORKLOADS)
    command = [str(bin_dir / "nodeagentctl"), *args[:2]]
    command += ["--host", str(HOSTS / f"{capture}.capture")]
    command += ["place", "boot", "--workloads", str(file), *args[2:]]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_arguments_with_reasons(bin_dir: Path, tmp_path: Path) -> None:
    done = run(bin_dir, tmp_path, "two-socket-8gpu", "-o", "json", "--plan")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["schema"] == "nodeagent.boot/v1"
    by_name = {a["name"]: a for a in body["arguments"]}
    assert by_name["isolcpus"]["text"] == f"isolcpus=managed_irq,domain,{body['isolated']}"
    assert by_name["isolcpus"]["change"] == "add" and by_name["isolcpus"]["before"] is None
    assert by_name["hugepages"]["text"].startswith("hugepagesz=2M hugepages=0:2048")
    assert by_name["iommu"]["change"] == "keep" and by_name["iommu"]["before"] in body["cmdline"]
    assert all(a["why"] and a["text"] in body["set"] for a in body["arguments"])


def test_for_people_it_says_what_to_write_where(bin_dir: Path, tmp_path: Path) -> None:
    done = run(bin_dir, tmp_path, "two-socket-8gpu", "-o", "table", "--plan", "--detailed-exitcode")
    assert done.returncode == 1, done.stderr
    assert "Put in:    isolcpus=managed_irq,domain," in done.stdout
    assert "GRUB_CMDLINE_LINUX" in done.stdout and "+ nohz_full=" in done.stdout


def test_only_with_plan(bin_dir: Path, tmp_path: Path) -> None:
    done = run(bin_dir, tmp_path, "two-socket-8gpu", "-o", "table")
    assert done.returncode == 64 and "--plan was not given" in done.stderr
