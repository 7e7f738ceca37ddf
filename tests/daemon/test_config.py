"""The configuration: one table, and one sentence for whatever is wrong with a file."""

from __future__ import annotations

import pathlib
import subprocess
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.daemon.config import load
from nodeagent.errors import ConfigError
from nodeagent.model.configfile import document, example, key_lines, parse, shown
from nodeagent.model.placement import Consent
from nodeagent.model.settings import Config, OnStop

ROOT = pathlib.Path(__file__).resolve().parents[2]

WRONG = [
    ("[daemon]\nintervall_s = 2\n", 2, "unknown setting intervall_s in [daemon]", "interval_s"),
    ("\n[deamon]\n", 2, "unknown section [deamon]", "daemon"),
    ("[daemon]\n\n# x\ninterval_s = 'fast'\n", 4, 'saw "fast", expected a number from 0.2', ""),
    ("[daemon]\ninterval_s = 0\n", 2, "saw 0, expected a number from 0.2 to 60 (s)", ""),
    ("[daemon]\ninterval_s = true\n", 2, "saw true, expected a number", ""),
    ("[daemon]\nrun_dir = 'run'\n", 2, "expected an absolute path", ""),
    ("[pin]\nallow = [\n  'threads',\n  'thread']\n", 2, "expected a list of threads | ", ""),
    ("[pin]\nallow = 'threads'\n", 2, 'saw "threads", expected a list', ""),
    (
        "[pin]\nauto = ['irq']\n",
        2,
        "auto names irq, which allow does not",
        "add irq to [pin] allow",
    ),
    (
        "[pin]\nallow = ['memory']\nauto = ['memory']\n",
        3,
        "a running process's memory is never moved by the daemon itself",
        "place apply --yes moves it",
    ),
    ("pin.allow = ['irq']\npin.on_stop = 1\n", 2, "saw 1, expected keep | release", ""),
    ("[pin]\nfreeze = ['Mon 9-10 UTC']\n", 2, 'saw "Mon 9-10 UTC", expected DAYS', ""),
    ("[pin]\nfreeze = ['Mon 09:00-10:00 Mars/Base']\n", 2, "a time zone this machine knows", ""),
    ("[place]\nhousekeeping = '3-1'\n", 2, 'saw "3-1", expected a CPU list', ""),
    ("[controller]\naddress = 'here'\n", 2, "expected HOST:PORT", ""),
    ("[feed]\nname = 'a'\n", 1, "[feed] must be written [[feed]]", ""),
    ("daemon = 3\n", 1, "saw 3, expected a section [daemon]", ""),
    ("[[feed]]\nport = 1\n", 1, "[[feed]] has no name", ""),
    ("[[feed]]\nname = 'A b'\n", 2, "expected text that fits", ""),
    (
        "[[feed]]\nname='a'\ngroup='239.0.0.1'\nport=1\n[[feed]]\nname='a'\ngroup='239.0.0.1'\nport=2\n",
        6,
        "two feeds are named a",
        "own name",
    ),
    ("[[feed]]\nname='a'\n[[feed]]\n", 3, "[[feed]] has no name", ""),
    ("[[feed]]\nname='a'\n", 1, "feed a has source socket and no group", ""),
    ("[daemon\n", 1, "not TOML", ""),
    ("[daemon]\ninterval_s = 1\ninterval_s = 2\n", 3, "not TOML", ""),
]


@pytest.mark.parametrize(("text", "line", "sentence", "remedy"), WRONG)
def test_wrong_file(text: str, line: int, sentence: str, remedy: str) -> None:
    """One sentence with file, line, what was seen and expected; and a remedy."""
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.toml")
    assert str(caught.value).startswith(f"x.toml:{line}: "), str(caught.value)
    assert sentence in str(caught.value)
    assert caught.value.remedy
    assert remedy in caught.value.remedy
    assert caught.value.exit_code == 64


def test_empty_file_is_the_default_and_consents_to_nothing() -> None:
    config = parse("", "x").config
    assert config == Config()
    assert config.pin.allow == () and config.pin.auto == ()
    assert not config.probe.enabled
    assert config.pin.on_stop is OnStop.KEEP


def test_example_is_valid_and_changes_nothing() -> None:
    assert parse(example(), "x").config == Config()


def test_example_with_every_line_uncommented_is_toml() -> None:
    text = "\n".join(
        line.removeprefix("# ") if " = " in line or line.startswith("# [[") else line
        for line in example().splitlines()
    )
    assert set(tomllib.loads(text)) == set(Config.__dataclass_fields__)


def test_sources() -> None:
    loaded = parse("[pin]\n# why\nallow = ['threads']\n", "/etc/n.toml")
    rows = {name: (value, source) for name, value, source in shown(loaded)}
    assert rows["pin.allow"] == ('["threads"]', "/etc/n.toml:3")
    assert rows["pin.auto"] == ("[]", "default")
    assert loaded.config.pin.allow == (Consent.THREADS,)


def test_document_is_the_generated_one() -> None:
    """`nodeagentctl config --markdown > docs/configuration.md` after a change of the table."""
    assert (ROOT / "docs/configuration.md").read_text() == document()


@pytest.mark.parametrize("name", ["examples/standalone.toml", "systemd/nodeagent.toml"])
def test_shipped_files_are_valid(name: str) -> None:
    load(ROOT / name)


def test_shipped_default_observes_only() -> None:
    config = load(ROOT / "systemd/nodeagent.toml").config
    assert config.pin.allow == () and config.pin.auto == () and not config.probe.enabled


def test_missing_binary_and_huge_files(tmp_path: pathlib.Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError, match="No such file"):
        load(missing)
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"[daemon]\n\xff\xfe")
    with pytest.raises(ConfigError, match=r"b\.toml:2: not UTF-8"):
        load(binary)
    huge = tmp_path / "h.toml"
    huge.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match="over 1048576 bytes"):
        load(huge)
    with pytest.raises(ConfigError, match="directory"):
        load(tmp_path)


def test_command(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The command: example round trip, a wrong file exits 64 with sentence and remedy."""
    ctl = str(bin_dir / "nodeagentctl")
    made = subprocess.run([ctl, "config", "--example"], capture_output=True, text=True, check=True)
    # No value stands there as a default that is none: consent above all.
    assert 'Default: []; for example:\n# allow = ["threads"]\n' in made.stdout
    file = tmp_path / "n.toml"
    file.write_text(made.stdout.replace("# interval_s = 2\n", "interval_s = 5\n"))
    table = subprocess.run(
        [ctl, "config", "--file", file], capture_output=True, text=True, check=True
    )
    row = next(r for r in table.stdout.splitlines() if r.startswith("daemon.interval_s"))
    assert row.split()[1] == "5" and "default" not in row
    file.write_text("[daemon]\nx=1\n")
    wrong = subprocess.run([ctl, "config", "--file", file], capture_output=True, text=True)
    assert wrong.returncode == 64
    assert wrong.stderr.splitlines()[0] == f"error: {file}:2: unknown setting x in [daemon]"
    assert wrong.stderr.splitlines()[1].startswith("remedy: settings here: run_dir")
    assert "Traceback" not in wrong.stderr


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text, "x.toml")
    except ConfigError as error:
        assert error.remedy


@given(
    section=st.sampled_from([*Config.__dataclass_fields__, "x"]),
    key=st.sampled_from(["interval_s", "allow", "auto", "freeze", "name", "port", "address", "y"]),
    value=_values,
)
def test_any_value_is_read_or_refused(section: str, key: str, value: object) -> None:
    import json

    if value is None:
        value = "none"
    text = f"[{section}]\n{key} = {json.dumps(value)}\n"
    try:
        parse(text, "x.toml")
    except ConfigError as error:
        assert str(error).startswith("x.toml:")


def test_key_lines_see_through_strings_arrays_and_comments() -> None:
    text = (
        '# [no]\n[a]\nx = """\n[b]\ny = 1\n"""\n"z" = [ # ]\n  "]", \'[\',\n]\n'
        "[[f]]\nn = {k = '=#'} # t\n[[f]]\nn.m = 1\n"
    )
    tomllib.loads(text)
    lines = key_lines(text)
    assert {k: lines[k] for k in ("a", "a.x", "a.z", "f[0]", "f[0].n", "f[1].n.m")} == {
        "a": 2,
        "a.x": 3,
        "a.z": 7,
        "f[0]": 10,
        "f[0].n": 11,
        "f[1].n.m": 13,
    }
    assert "b" not in lines and "no" not in lines
