"""The units: systemd finds nothing wrong with them, and they ask for no more than they say."""

from __future__ import annotations

import configparser
import pathlib
import re
import shutil
import subprocess

import pytest

SYSTEMD = pathlib.Path(__file__).resolve().parents[2] / "systemd"
UNITS = sorted(p.name for p in SYSTEMD.glob("*.service"))


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed here: apt-get install systemd")
    return found


@pytest.fixture
def image(tmp_path: pathlib.Path) -> pathlib.Path:
    """A root with the units, the users and an executable behind every ExecStart."""
    root = tmp_path / "root"
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    for name in UNITS:
        text = (SYSTEMD / name).read_text()
        (units / name).write_text(text)
        for program in re.findall(r"^Exec\w+=(\S+)", text, re.M):
            stub = root / program.lstrip("/")
            stub.parent.mkdir(parents=True, exist_ok=True)
            stub.write_text("#!/bin/sh\n")
            stub.chmod(0o755)
    # What they order themselves against; a real system has these.
    for other in ("multi-user", "local-fs", "network-online", "sysinit", "basic", "shutdown",
                  "sockets", "timers", "paths", "slices", "swap", "cryptsetup"):  # fmt: skip
        (units / f"{other}.target").write_text("[Unit]\nDescription=there\n")
    return root


def test_units_are_all_there() -> None:
    assert UNITS == [
        "nodeagent-actor.service",
        "nodeagent-controller.service",
        "nodeagent-feeder@.service",
        "nodeagentd.service",
    ]


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(name: str, image: pathlib.Path) -> None:
    unit = name.replace("@.", "@itch.")
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", f"--root={image}", unit],
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stderr.splitlines() if "nodeagent" in line]
    assert done.returncode == 0 and said == [], done.stderr


def test_a_wrong_unit_would_be_found(image: pathlib.Path) -> None:
    path = image / "etc/systemd/system/nodeagentd.service"
    path.write_text(path.read_text().replace("WatchdogSec=60", "WatchdogSec=soon"))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", f"--root={image}", path.name],
        capture_output=True,
        text=True,
    )
    assert "nodeagentd.service" in done.stderr and "soon" in done.stderr


@pytest.mark.parametrize("name", ["nodeagentd.service", "nodeagent-actor.service"])
def test_exposure_is_low(name: str, image: pathlib.Path) -> None:
    """systemd's own score: below 4 is what it calls OK."""
    done = subprocess.run(
        [tool("systemd-analyze"), "security", "--offline=yes", f"--root={image}",
         "--threshold=40", name],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-400:] + done.stderr


def read(name: str) -> configparser.SectionProxy:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(SYSTEMD / name)
    return unit["Service"]


def test_rights_are_what_the_design_says() -> None:
    daemon, actor = read("nodeagentd.service"), read("nodeagent-actor.service")
    assert daemon["CapabilityBoundingSet"] == "" and daemon["User"] == "nodeagent"
    assert "CAP_SYS_ADMIN" not in actor["CapabilityBoundingSet"].split()
    # In a network of its own it would see no NIC of the host in sysfs.
    assert actor["RestrictAddressFamilies"] == "AF_UNIX" and "PrivateNetwork" not in actor
    assert actor["IPAddressDeny"] == "any"
    writable = actor["ReadWritePaths"].split()
    assert writable == [
        *("/run/nodeagent", "/sys/fs/cgroup", "/sys/devices"),
        # Drop-ins that systemd leaves behind (docs/adr/0021).
        *("-/run/systemd/system.control", "-/run/systemd/transient"),
    ]
    for name in UNITS:
        service = read(name)
        assert "DynamicUser" not in service and service["Type"] == "notify"
        assert service["NoNewPrivileges"] == "yes"


@pytest.mark.parametrize("name", UNITS)
def test_each_capability_is_justified(name: str) -> None:
    text = (SYSTEMD / name).read_text()
    granted = set(re.findall(r"^(?:CapabilityBoundingSet|AmbientCapabilities)=(.*)$", text, re.M))
    reasons = " ".join(line for line in text.splitlines() if line.startswith("#"))
    for capability in " ".join(granted).split():
        assert re.search(rf"\b{capability}\b.*:", reasons), capability


def test_users_and_folders_are_made(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "r"
    for folder in ("etc", "usr/lib/sysusers.d", "run", "var/lib"):
        (root / folder).mkdir(parents=True)
    users = SYSTEMD / "sysusers.d/nodeagent.conf"
    subprocess.run([tool("systemd-sysusers"), f"--root={root}", users], check=True)
    made = (root / "etc/passwd").read_text()
    assert "nodeagent:x:" in made and "nodeagent-controller:x:" in made
    groups = (root / "etc/group").read_text()
    assert "nodeagent-admin:x:" in groups
