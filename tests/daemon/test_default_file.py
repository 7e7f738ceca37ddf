"""Without --config: every program reads /etc/nodeagent/nodeagent.toml where there is one.

Each runs in a mount namespace of its own, with another folder in the place of /etc.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BIND = 'mount --bind "$0" /etc && exec "$@"'


class Etc:
    """Programs that see `folder` as /etc."""

    def __init__(self, folder: Path, bin_dir: Path) -> None:
        self.folder = folder / "etc"
        self.folder.mkdir()
        for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache", "localtime"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy("/etc/" + name, self.folder / name)
        self.bin_dir = bin_dir
        self.run_dir = folder / "run"
        self.file = self.folder / "nodeagent/nodeagent.toml"
        self.started: list[subprocess.Popen[str]] = []

    def configure(self, text: str) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(
            f'[daemon]\nrun_dir = "{self.run_dir}"\n'
            f'state_dir = "{self.run_dir.parent}/state"\n{text}'
        )

    def command(self, program: str, *args: str) -> list[str]:
        inside = [str(self.bin_dir / program), *args]
        return ["unshare", "-m", "sh", "-c", BIND, str(self.folder), *inside]

    def start(self, program: str, word: str, *args: str) -> list[str]:
        """What it says until a line has that word."""
        process = subprocess.Popen(
            self.command(program, *args), stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.started.append(process)
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line.strip())
            if word in line:
                return said
        raise AssertionError(f"it ended: {said}")

    def ask(self, program: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(program, *args), capture_output=True, text=True)


@pytest.fixture
def etc(bin_dir: Path, as_root: None) -> Iterator[Etc]:
    # Not below pytest's own folder: a path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="na-etc-") as folder:
        Path(folder).chmod(0o755)
        found = Etc(Path(folder), bin_dir)
        if subprocess.run(found.command("python", "-c", ""), capture_output=True).returncode != 0:
            pytest.skip("no mount namespace can be made here")
        yield found
        for process in found.started:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def test_all_three_read_the_same_default_file_and_say_so(etc: Etc) -> None:
    etc.configure('[pin]\nallow = ["threads"]\n')
    actor = etc.start("nodeagent-actor", "ready on", "--user", "root")
    assert any("configured by /etc/nodeagent/nodeagent.toml" in line for line in actor)
    assert f"ready on {etc.run_dir}/actor.sock; allowed: threads" in actor[-1]
    daemon = etc.start("nodeagentd", "configured by")
    assert "configured by /etc/nodeagent/nodeagent.toml (no --config was given)" in daemon[-1]
    etc.start("nodeagentd", "runs already in")
    for _ in range(600):
        if (etc.run_dir / "api.sock").exists():
            break
        subprocess.run(["sleep", "0.1"], check=True)
    asked = etc.ask("nodeagentctl", "status")
    assert asked.returncode == 0, asked.stderr
    shown = etc.ask("nodeagentctl", "config").stdout
    assert "/etc/nodeagent/nodeagent.toml:2" in "".join(shown.split())


def test_without_a_file_the_daemon_observes_with_the_defaults(etc: Etc) -> None:
    # The default run folder belongs to this test machine: only what is said before it is looked at.
    said = etc.ask("nodeagentd", "--config", "/etc/nodeagent/nodeagent.toml")
    assert said.returncode == 64 and "No such file" in said.stderr
    said = etc.ask("nodeagent-actor", "--run-dir", "/proc/nothing")
    assert "no --config, and no /etc/nodeagent/nodeagent.toml: defaults" in said.stderr


def test_a_wrong_default_file_is_refused_and_not_passed_over(etc: Etc) -> None:
    etc.configure("[pin]\nalow = []\n")
    for program in ("nodeagentd", "nodeagent-actor"):
        done = etc.ask(program)
        assert done.returncode == 64, program
        assert "/etc/nodeagent/nodeagent.toml:5: unknown setting alow" in done.stderr.replace(
            "'", ""
        ), done.stderr


Spoil = Callable[[Path], None]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: os.chown(f, 65534, 0), "owns it"),
        (lambda f: f.chmod(0o666), "its mode is 0666"),
        (lambda f: f.chmod(0o664), "its mode is 0664"),
        (lambda f: os.chown(f.parent, 65534, 0), "its folder"),
        (lambda f: f.parent.chmod(0o777), "its mode is 0777"),
    ],
)
@pytest.mark.parametrize("linked", [False, True])
def test_the_actor_as_root_takes_no_file_that_others_may_write(
    spoil: Spoil, words: str, linked: bool, tmp_path: Path, bin_dir: Path, as_root: None
) -> None:
    file = tmp_path / "conf/nodeagent.toml"
    file.parent.mkdir(mode=0o755)
    file.write_text(f'[daemon]\nrun_dir = "{tmp_path}/run"\nstate_dir = "{tmp_path}/state"\n')
    file.chmod(0o644)
    spoil(file)
    named = file
    if linked:
        named = tmp_path / "link.toml"
        named.symlink_to(file)
    done = subprocess.run(
        [bin_dir / "nodeagent-actor", "--config", named], capture_output=True, text=True
    )
    assert done.returncode == 64 and "others than root may write it" in done.stderr
    assert words in done.stderr and "remedy: chown root:root" in done.stderr
    assert not (tmp_path / "run").exists(), "it had begun"


def test_the_actor_as_root_takes_one_below_a_sticky_folder(
    tmp_path: Path, bin_dir: Path, as_root: None
) -> None:
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    file = folder / "nodeagent.toml"
    # It ends for this setting, which it reads only after who may write it was looked at.
    file.write_text("[pin]\nalow = []\n")
    done = subprocess.run(
        [bin_dir / "nodeagent-actor", "--config", file], capture_output=True, text=True
    )
    assert "unknown setting" in done.stderr


def test_another_user_may_keep_its_own_file(tmp_path: Path, bin_dir: Path, as_root: None) -> None:
    with tempfile.TemporaryDirectory(prefix="na-own-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        file = folder / "nodeagent.toml"
        file.write_text("[pin]\nalow = []\n")
        os.chown(file, 65534, 65534)
        done = subprocess.run(
            [bin_dir / "nodeagent-actor", "--config", file],
            capture_output=True,
            text=True,
            user=65534,
            group=65534,
        )
    assert "unknown setting" in done.stderr, done.stderr
