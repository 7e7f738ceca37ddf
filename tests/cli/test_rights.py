"""What root, the admins, the readers and everybody else may ask: one daemon and one actor, started
as their units start them, in a mount namespace with an /etc of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

BIND = 'mount --bind "$0" /etc && exec "$@"'
DAEMON, ADMINS = 61000, 61010
WHO = {"root": None, "admin": (61001, ADMINS), "reader": (61002, DAEMON), "other": (61003, None)}
WORD = f"sleep 600.{os.getpid()}"


class Machine:
    """Its folder, and how a command runs on it as somebody."""

    def __init__(self, folder: Path, bin_dir: Path) -> None:
        self.folder, self.bin_dir = folder, bin_dir
        self.etc, self.run = folder / "etc", folder / "run"
        self.started: list[subprocess.Popen[bytes]] = []

    def lay_out(self) -> None:
        self.folder.chmod(0o755)
        (self.etc / "nodeagent").mkdir(parents=True)
        for name in ("nsswitch.conf", "ld.so.cache", "localtime"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy("/etc/" + name, self.etc / name)
        people = "".join(f"{n}r:x:{u[0]}:{u[0]}::/:\n" for n, u in WHO.items() if u is not None)
        passwd = Path("/etc/passwd").read_text() + f"nodeagent:x:{DAEMON}:{DAEMON}::/:\n" + people
        (self.etc / "passwd").write_text(passwd)
        groups = Path("/etc/group").read_text()
        groups += f"nodeagent:x:{DAEMON}:\nnodeagent-admin:x:{ADMINS}:\n"
        (self.etc / "group").write_text(groups)
        (self.etc / "nodeagent/nodeagent.toml").write_text(
            f'[daemon]\nrun_dir = "{self.run}"\nstate_dir = "{self.folder}/state"\n'
            '[pin]\nallow = ["threads"]\n[place]\nworkloads = "w.toml"\n'
        )
        (self.etc / "nodeagent/w.toml").write_text(
            '[[workload]]\nname = "w"\ncpus = 1\nsharing = "shared"\n'
            f'match = {{ cmdline = "^{WORD}$" }}\n'
        )
        # As systemd and tmpfiles.d make them.
        self.run.mkdir()
        os.chown(self.run, 0, DAEMON)
        self.run.chmod(0o1775)
        (self.folder / "state").mkdir(mode=0o750)
        os.chown(self.folder / "state", DAEMON, DAEMON)

    def command(self, who: str, *args: str) -> list[str]:
        prefix: list[str] = []
        if WHO.get(who) is not None or who == "daemon":
            uid, group = WHO.get(who) or (DAEMON, None)
            groups = ["--groups", str(group)] if group is not None else ["--clear-groups"]
            prefix = ["setpriv", "--reuid", str(uid), "--regid", str(uid), *groups]
        return ["unshare", "-m", "sh", "-c", BIND, str(self.etc), *prefix, *args]

    def start(self, who: str, *args: str) -> None:
        with (self.folder / "log").open("ab") as log:
            argv = self.command(who, *args)
            self.started.append(subprocess.Popen(argv, stdout=log, stderr=log))

    def ctl(self, who: str, *args: str) -> tuple[int, str]:
        argv = self.command(who, str(self.bin_dir / "nodeagentctl"), *args)
        done = subprocess.run(argv, capture_output=True, text=True)
        return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def machine(bin_dir: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("needs root to start programs as other users")
    with tempfile.TemporaryDirectory(prefix="na-rights-") as name:
        found = Machine(Path(name), bin_dir)
        found.lay_out()
        if subprocess.run(found.command("root", "true"), capture_output=True).returncode != 0:
            pytest.skip("no mount namespace can be made here")
        try:
            found.start("root", *WORD.split())
            actor = ("--user", "nodeagent", "--state-dir", f"{name}/actor")
            found.start("root", str(bin_dir / "nodeagent-actor"), *actor)
            found.start("daemon", str(bin_dir / "nodeagentd"))
            for _ in range(600):
                if found.ctl("root", "status")[0] == 0 and (found.run / "actor.sock").exists():
                    break
                time.sleep(0.1)
            yield found
        finally:
            for process in found.started:
                process.terminate()
                process.wait()


def test_who_may_ask_the_daemon(machine: Machine) -> None:
    for who in ("root", "admin", "reader"):
        code, said = machine.ctl(who, "status")
        assert code == 0, (who, said)
    code, said = machine.ctl("other", "status")
    assert code == 3 and "no right to connect" in said and "usermod -aG nodeagent" in said


@pytest.mark.parametrize("who", ["root", "admin", "reader", "other"])
def test_everybody_plans_and_sees_what_is_pinned(machine: Machine, who: str) -> None:
    code, said = machine.ctl(who, "place", "plan")
    assert code == 0 and "Plan: 1 to change" in said
    barred = "Make it so, as root or in group nodeagent-admin: nodeagentctl place apply" in said
    assert barred is (who in ("reader", "other")), said
    code, said = machine.ctl(who, "place", "status")
    assert code == 0 and "Not held: 1 of 1 workload (w)" in said
    asks_daemon, asks_actor = who != "other", who in ("root", "admin")
    assert ("is measured by the daemon" in said) is not asks_daemon
    assert ("since when and by whom is not known" in said) is not asks_actor


def test_root_and_admins_act_and_undo_what_the_other_did(machine: Machine) -> None:
    for one, other in (("admin", "root"), ("root", "admin")):
        code, said = machine.ctl(one, "place", "apply", "--yes")
        assert code == 0 and "1 done and read back" in said, (one, said)
        assert "1 to put back" in machine.ctl(other, "undo", "--plan")[1]
        code, said = machine.ctl(other, "undo")
        assert code == 0 and "1 done" in said, (other, said)


@pytest.mark.parametrize("who", ["reader", "other"])
def test_nobody_else_acts(machine: Machine, who: str) -> None:
    for command in (["place", "apply", "--yes"], ["undo"], ["undo", "--plan"],
                    ["place", "release", "w"]):  # fmt: skip
        code, said = machine.ctl(who, *command)
        assert code == 3 and "may not speak to the actor" in said, (command, said)
        assert "be root, or in group nodeagent-admin" in said


def test_the_sockets_are_for_whom_the_table_says(machine: Machine) -> None:
    def of(name: str) -> tuple[int, int, int]:
        found = (machine.run / name).stat()
        return found.st_mode & 0o777, found.st_uid, found.st_gid

    assert of("api.sock") == (0o660, DAEMON, DAEMON)
    assert of("actor.sock") == (0o660, DAEMON, ADMINS)
