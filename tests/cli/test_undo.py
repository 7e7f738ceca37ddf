"""undo, place release and place status with a real actor: one act, what is left, what is said."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from nodeagent.model.cpuset import CpuSet
from tests.cli.conftest import Site, masks


def applied(site: Site, *names: str, threads: int = 1) -> dict[str, int]:
    site.workloads(*names)
    pids = {n: site.sleeper(n, threads) for n in names}
    site.actor()
    done = site.ctl("place", "apply", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    return pids


def journal(site: Site) -> list[dict[str, object]]:
    found = json.loads(site.ctl("-o", "json", "place", "status").stdout)["journal"]
    assert isinstance(found, list)
    return found


def test_looked_at_first_then_one_act_then_a_workload_then_all(site: Site, two: CpuSet) -> None:
    pids = applied(site, "one", "two", "three")
    looked = site.ctl("undo", "--plan")
    assert looked.returncode == 0 and "Undo of 3 acts: 3 to put back. Nothing was changed." in (
        looked.stdout
    )
    assert f"({pids['two']}): CPU " in looked.stdout and f" -> {two}, 2 threads" in looked.stdout
    assert all(masks(p) != {str(two)} for p in pids.values())
    body = json.loads(site.ctl("-o", "json", "undo", "--plan").stdout)
    assert [w["workload"] for w in body["would_undo"]] == ["three", "two", "one"]
    numbers = {e["workload"]: str(e["id"]) for e in journal(site)}

    one = site.ctl("undo", numbers["one"])
    assert one.returncode == 0 and "Undo of 1 act: 1 done." in one.stdout
    assert masks(pids["one"]) == {str(two)} != masks(pids["two"])
    again = site.ctl("undo", numbers["one"])
    assert again.returncode == 3 and f"no act {numbers['one']}" in again.stdout
    assert site.ctl("undo", numbers["one"], "--plan").returncode == 3

    release = site.ctl("place", "release", "two", "--plan")
    assert "Undo of 1 act" in release.stdout and masks(pids["two"]) != {str(two)}
    assert site.ctl("place", "release", "two").returncode == 0
    assert masks(pids["two"]) == {str(two)} != masks(pids["three"])
    unknown = site.ctl("place", "release", "four")
    assert unknown.returncode == 0 and "Workload four is not pinned" in unknown.stdout
    assert site.ctl("place", "release").returncode == 0
    assert masks(pids["three"]) == {str(two)}
    for args in (("undo",), ("undo", "--plan"), ("place", "release")):
        nothing = site.ctl(*args)
        assert nothing.returncode == 0
        assert nothing.stdout == "Nothing is pinned by nodeagent: nothing to undo.\n"


def test_what_somebody_changed_later_is_left_and_said(site: Site, two: CpuSet) -> None:
    pid = applied(site, "one")["one"]
    now = CpuSet.parse(next(iter(masks(pid))))
    other = two - now
    os.sched_setaffinity(pid, other.ids)
    status = site.ctl("place", "status")
    assert "Not held: 1 of 1 workload (one)." in status.stdout
    assert "somebody moved it since" in status.stdout
    looked = site.ctl("undo", "--plan").stdout
    assert f"1 thread on CPU {other} was not put there by this act" in looked
    done = site.ctl("undo")
    assert done.returncode == 0
    assert "was set to" in done.stdout and "by somebody later" in done.stdout
    assert "of 1, something was left as somebody set it later" in done.stdout
    assert masks(pid) == {str(other), str(two)}


def test_ended_and_frozen(site: Site, two: CpuSet) -> None:
    pids = applied(site, "one", "two")
    site.end(pids["one"])
    looked = site.ctl("undo", "--plan").stdout
    assert (
        "has ended: nothing to write back" in looked and "1 of ended processes to close" in looked
    )
    (site.folder / "run/freeze").touch()
    assert "Frozen: frozen by" in site.ctl("undo", "--plan").stdout
    frozen = site.ctl("undo")
    assert frozen.returncode == 3 and masks(pids["two"]) != {str(two)}
    (site.folder / "run/freeze").unlink()
    body = json.loads(site.ctl("-o", "json", "undo").stdout)
    assert sorted(r["outcome"] for r in body["results"]) == ["done", "gone"]
    assert masks(pids["two"]) == {str(two)}


def test_status_without_an_actor_without_rights_and_elsewhere(
    site: Site, two: CpuSet, as_root: None
) -> None:
    pid = applied(site, "one")["one"]
    whole = json.loads(site.ctl("-o", "json", "place", "status").stdout)
    (row,) = whole["held"]
    assert row["pid"] == pid and row["held"] and row["by"].startswith("root (pid ")
    assert row["act"] == whole["journal"][0]["id"] and row["since_ns"] > 0
    assert row["memory_local"] is None or 0 <= row["memory_local"] <= 1
    # Nobody else may ask the actor or read its journal: that is said, and the rest is shown.
    site.folder.chmod(0o755)
    for parent in list(site.folder.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)
    bare = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            *site.command("place", "status"),
        ],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd="/",
    )
    if "Permission denied" in bare.stderr and not bare.stdout:
        pytest.skip("another user may not read this checkout")
    assert bare.returncode == 0, bare.stderr
    assert "All are held" in bare.stdout or "It is held" in bare.stdout
    assert "since when and by whom is not known" in bare.stdout
    assert "Nothing is pinned" not in bare.stdout and "nothing is pinned" not in bare.stdout


def test_of_a_recorded_machine(site: Site) -> None:
    from pathlib import Path

    machine = Path(__file__).resolve().parent.parent / "hosts/two-socket-8gpu.capture"
    site.workloads("one")
    shown = site.ctl("--host", str(machine), "place", "status", "--workloads", str(site.file))
    assert shown.returncode == 0, shown.stderr
    assert "none of 1 workload has a process there" in shown.stdout
    assert "pinned by nodeagent" not in shown.stdout
    for args in (("undo",), ("undo", "--plan"), ("place", "release"), ("place", "apply", "--yes")):
        done = site.ctl("--host", str(machine), *args)
        assert done.returncode == 64 and "--host names another" in done.stderr, args


def test_the_shell_is_offered_the_workloads(site: Site) -> None:
    site.workloads("rank0", "rank1", "index0")
    for words in ("place release ra", "place apply --only ra", "place plan --container ra"):
        line = f"nodeagentctl --config {site.config} {words}"
        done = subprocess.run(
            [str(site.bin_dir / "nodeagentctl")],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "_NODEAGENTCTL_COMPLETE": "bash_complete",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(line.split()) - 1),
            },
        )
        assert done.stdout.split() == ["plain,rank0", "plain,rank1"], (words, done.stdout)
        assert not done.stderr
    # A file that is wrong offers nothing, and says nothing into the line that is being typed.
    site.file.write_text("[[workload")
    env = {
        **os.environ,
        "_NODEAGENTCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": f"nodeagentctl --config {site.config} place release ",
        "COMP_CWORD": "5",
    }
    done = subprocess.run(
        [str(site.bin_dir / "nodeagentctl")], capture_output=True, text=True, env=env
    )
    assert done.stdout.strip() == "" and "Traceback" not in done.stderr
