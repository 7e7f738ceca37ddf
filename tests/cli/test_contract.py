"""Every command of nodeagentctl, walked: help with an example, wrong usage, JSON, colour."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import re
import subprocess
from collections.abc import Iterator

import click
import pytest

from nodeagent.cli.main import cli

HOSTS = pathlib.Path(__file__).resolve().parent.parent / "hosts"
MACHINE = HOSTS / "two-socket-8gpu.capture"
WORKLOADS = HOSTS.parent.parent / "examples" / "workloads.toml"
ESCAPE = "\x1b["


def tree(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Each command's words after `nodeagentctl`, groups included."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1] if path else "nodeagentctl")
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, f"{name} is listed and cannot be loaded"
            yield from tree(below, (*path, name))


EVERY = sorted(tree(cli, ()))
LEAVES = [p for p in EVERY if not any(q != p and q[: len(p)] == p for q in EVERY)]


def named(path: tuple[str, ...]) -> str:
    return " ".join(path) or "nodeagentctl"


def run(
    bin_dir: pathlib.Path, *args: str | os.PathLike[str], **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [bin_dir / "nodeagentctl", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )


def resolve(path: tuple[str, ...]) -> tuple[click.Command, click.Context]:
    """The command at a path, with the contexts a call would have."""
    command: click.Command = cli
    context = click.Context(cli, info_name="nodeagentctl", **cli.context_settings)
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(context, name)
        assert found is not None
        command = found
        context = click.Context(command, info_name=name, parent=context)
    return command, context


@pytest.mark.parametrize("path", EVERY, ids=named)
def test_help_has_an_example_of_that_very_command(path: tuple[str, ...]) -> None:
    command, context = resolve(path)
    text = command.get_help(context)
    examples = text.partition("Example")[2]
    assert examples, text
    if path == ("run",):
        assert "script/run" in examples
    else:
        options = r"(?: -\S+(?: \S+)?)*"
        words = r"\s+".join(re.escape(p) for p in path)
        inner = r"nodeagentctl" + options + r"\s+" + words if path else "nodeagentctl "
        # Options of a group may stand between its name and its command.
        if path[:1] == ("fleet",):
            inner = r"nodeagentctl" + options + r"\s+fleet" + options + r"\s+" + " ".join(path[1:])
        assert re.search(inner, examples), f"no example of `{named(path)}` in:\n{text}"


@pytest.mark.parametrize("path", EVERY, ids=named)
def test_every_option_says_what_it_is(path: tuple[str, ...]) -> None:
    command, context = resolve(path)
    assert command.get_short_help_str(200).strip(), "a line in the list of commands"
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.opts} has no help"
            shown = parameter.make_metavar(context) if not parameter.is_flag else ""
            assert not re.search(r"\b(INTEGER|FLOAT|TEXT)\b", shown), (
                f"{parameter.opts}: {shown} names no unit"
            )


@pytest.mark.parametrize("path", EVERY, ids=named)
def test_help_is_not_cut_short(path: tuple[str, ...]) -> None:
    command, context = resolve(path)
    context.terminal_width = 80
    for line in command.get_help(context).splitlines():
        assert len(line) <= 80, line
        assert line.startswith("Usage:") or not line.endswith("..."), f"cut short: {line}"


def wrong_option(path: tuple[str, ...]) -> list[str]:
    """`exec` passes on what follows its own options, so there a wrong one needs a wrong value."""
    return ["exec", "--policy", "no-such-policy"] if path == ("exec",) else [*path, "--no-such"]


@pytest.mark.parametrize("path", EVERY, ids=named)
def test_wrong_option_is_64_with_a_remedy(bin_dir: pathlib.Path, path: tuple[str, ...]) -> None:
    done = run(bin_dir, *wrong_option(path))
    assert done.returncode == 64, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("remedy: nodeagentctl")


@pytest.mark.parametrize("option", ["-o", "--host", "--socket"])
def test_a_global_option_behind_the_command_is_told_its_place(
    bin_dir: pathlib.Path, option: str
) -> None:
    done = run(bin_dir, "topology", "show", option, "json")
    assert done.returncode == 64
    assert re.search(rf"remedy: .*nodeagentctl {option} \S+ topology show", done.stderr)


READ = [
    (("topology", "show"), "topology"),
    (("topology", "check"), "findings"),
    (("capture", "--list"), "capture"),
    (("place", "plan", "--workloads", str(WORKLOADS)), "placement"),
]
LOCAL = [
    (("diff", str(MACHINE), str(MACHINE)), "diff"),
    (("explain",), "findings"),
    (("explain", "isolation.in-force"), "findings"),
    (("diagnose", str(MACHINE)), "findings"),
    (("config", "--show"), "config"),
    (("ring", "include"), "ring"),
]


@pytest.mark.parametrize(
    ("args", "schema"),
    [(("--host", str(MACHINE), *args), schema) for args, schema in READ] + LOCAL,
    ids=lambda value: named(value) if isinstance(value, tuple) else value,
)
def test_json_is_one_object_with_its_schema(
    bin_dir: pathlib.Path, args: tuple[str, ...], schema: str
) -> None:
    done = run(bin_dir, "-o", "json", *args)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert json.loads(done.stdout)["schema"] == f"nodeagent.{schema}/v1"


def test_capture_tells_what_it_wrote_as_json(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "a.capture"
    done = run(bin_dir, "-o", "json", "--host", MACHINE, "capture", target)
    said = json.loads(done.stdout)
    assert said["file"] == str(target)
    # One line a path, and the last line counts them.
    assert f"# end, {said['entries']} entries" in target.read_text()


TEXTS = [
    ("completion", "bash"),
    ("config", "--example"),
    ("config", "--markdown"),
    ("explain", "--markdown"),
    ("topology", "check", "--policy-example"),
    ("capture", "-"),
]


@pytest.mark.parametrize("args", TEXTS, ids=named)
def test_what_is_a_text_refuses_json(bin_dir: pathlib.Path, args: tuple[str, ...]) -> None:
    done = run(bin_dir, "-o", "json", *args)
    assert (done.returncode, done.stdout) == (64, "")
    assert "remedy: leave -o out" in done.stderr


NOBODY = [
    ("status",),
    ("events",),
    ("ring", "stat"),
    ("feed", "status"),
    ("undo",),
    ("place", "release"),
    ("place", "apply", "--yes", "--workloads", str(WORKLOADS)),
    ("fleet", "--controller", "127.0.0.1:1", "nodes"),
    ("fleet", "--controller", "127.0.0.1:1", "events"),
    ("fleet", "--controller", "127.0.0.1:1", "node", "x"),
]


@pytest.mark.parametrize("args", NOBODY, ids=named)
def test_nobody_to_ask_is_3_with_a_remedy(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, args: tuple[str, ...]
) -> None:
    done = run(bin_dir, "-o", "json", "--socket", tmp_path / "api.sock", *args)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "error: " in done.stderr
    assert "remedy: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "args",
    [("ring", "tail", "itch"), ("fleet", "watch"), ("status", "--watch"), ("events", "--follow")],
    ids=named,
)
def test_a_stream_asks_for_json_lines(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, args: tuple[str, ...]
) -> None:
    done = run(bin_dir, "-o", "json", "--socket", tmp_path / "api.sock", *args)
    assert (done.returncode, done.stdout) == (64, "")
    assert "-o jsonl" in done.stderr


@pytest.mark.parametrize("args", [args for args, _ in READ], ids=named)
def test_piped_output_has_no_colour(bin_dir: pathlib.Path, args: tuple[str, ...]) -> None:
    done = run(bin_dir, "--host", MACHINE, *args, TERM="xterm-256color")
    assert done.stdout
    assert ESCAPE not in done.stdout + done.stderr


def on_terminal(bin_dir: pathlib.Path, *args: str | os.PathLike[str], **env: str) -> str:
    """What the command writes to a terminal."""
    here, there = pty.openpty()
    child = subprocess.Popen(
        [bin_dir / "nodeagentctl", *args],
        stdin=there,
        stdout=there,
        stderr=there,
        env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, **env},
    )
    os.close(there)
    said = b""
    while True:
        try:
            more = os.read(here, 65536)
        except OSError:  # EIO: nobody holds the other end any more
            break
        if not more:
            break
        said += more
    child.wait()
    os.close(here)
    return said.decode()


def test_a_terminal_has_colour_unless_no_color_is_set(bin_dir: pathlib.Path) -> None:
    args = ("--host", MACHINE, "topology", "check")
    assert ESCAPE in on_terminal(bin_dir, *args, TERM="xterm-256color")
    plain = on_terminal(bin_dir, *args, TERM="xterm-256color", NO_COLOR="1")
    # Bold and dim are no colours (no-color.org): only the codes 30 to 49 and 90 to 107 are.
    codes = [int(c) for m in re.findall(r"\x1b\[([\d;]*)m", plain) for c in m.split(";") if c]
    assert not [c for c in codes if 30 <= c <= 49 or 90 <= c <= 107]


def test_our_own_fault_is_70(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A broken installation: a module of ours that cannot be imported."""
    broken = tmp_path / "msgspec.py"
    broken.write_text("raise RuntimeError('spoiled')\n")
    done = run(bin_dir, "topology", "show", PYTHONPATH=str(tmp_path))
    assert done.returncode == 70, done.stderr
    assert "our own" in done.stderr or "its own fault" in done.stderr
    assert "remedy: " in done.stderr
    assert "Traceback" not in done.stderr
