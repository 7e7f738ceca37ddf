"""The drive that brings nodeagent into a machine: this checkout's build, at /opt/nodeagent.

    /opt/nodeagent/bin, lib      the virtual environment that script/setup made, without its tools
    /opt/nodeagent/src           tests, systemd, examples and pyproject.toml of the checkout

Made anew when one of them changed: seconds, and the system's image stays as it is.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from tests.vm.image import PROJECT, NoImageError

VENV = PROJECT / ".venv"
SOURCES = ("tests", "systemd", "examples", "pyproject.toml", "docs/workloads.md")
LEFT_OUT = shutil.ignore_patterns(
    *("mypy*", "*__mypyc*", "ruff*", "mesonbuild", "meson*", "pip", "pip-*", "setuptools*"),
    *("grpc_tools", "importlinter", "import_linter*", "grimp*", "ninja*", "hosts", "bench"),
    *(".*_cache", "node_modules", "*.pyi", "*.capture"),
)


def make() -> pathlib.Path:
    """The drive's file. Raises NoImageError where script/setup --test has not been run."""
    if not (VENV / ".built").exists():
        raise NoImageError(f"{VENV} is not built: script/setup --test")
    build = PROJECT / "build" / "vm"
    build.mkdir(parents=True, exist_ok=True)
    drive, stamp = build / "nodeagent.ext4", build / "nodeagent.stamp"
    wanted = _content()
    if drive.exists() and stamp.exists() and stamp.read_text() == wanted:
        return drive
    stamp.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="payload-", dir=build) as name:
        work = pathlib.Path(name)
        _tree(work / "tree")
        made = work / "drive"
        kibibytes = int(subprocess.check_output(["du", "-sk", work / "tree"]).split()[0])
        with made.open("wb") as file:
            file.truncate((kibibytes * 5 // 4 + (16 << 10)) << 10)
        subprocess.run(
            [
                *("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0"),
                *("-d", work / "tree", made),
            ],
            env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
            check=True,
        )
        # A machine that runs has the old one open, and keeps it.
        made.rename(drive)
    stamp.write_text(wanted)
    return drive


def _content() -> str:
    """What the drive is made of, in one word: file names, sizes and times."""
    found = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    for stamp in (".built", ".locked"):
        found.update((VENV / stamp).read_bytes())
    for source in SOURCES:
        at = PROJECT / source
        for path in sorted(at.rglob("*")) if at.is_dir() else [at]:
            if path.is_file() and "__pycache__" not in path.parts:
                state = path.stat()
                found.update(f"{path} {state.st_size} {state.st_mtime_ns}\n".encode())
    return found.hexdigest()


def _tree(tree: pathlib.Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    tree.mkdir()
    shutil.copytree(
        VENV / "lib",
        tree / "lib",
        symlinks=True,
        ignore=LEFT_OUT,
        copy_function=os.link,
    )
    binaries = tree / "bin"
    binaries.mkdir()
    for name in ("python", "python3", version):
        (binaries / name).symlink_to("/usr/bin/python3")
    old = f"#!{VENV}/bin/"
    for script in (VENV / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        if text.startswith(old.encode()):
            line, _, rest = text.partition(b"\n")
            name = line.decode().removeprefix(old)
            (binaries / script.name).write_bytes(f"#!/opt/nodeagent/bin/{name}\n".encode() + rest)
            (binaries / script.name).chmod(0o755)
    (tree / "pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\n"
        f"version = {'.'.join(map(str, sys.version_info[:3]))}\n"
    )
    for source in SOURCES:
        at = tree / "src" / source
        at.parent.mkdir(parents=True, exist_ok=True)
        if (PROJECT / source).is_dir():
            shutil.copytree(PROJECT / source, at, ignore=LEFT_OUT)
        else:
            shutil.copy(PROJECT / source, at)


if __name__ == "__main__":
    print(make())
