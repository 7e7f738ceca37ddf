"""The configuration file: text to Config with the line of every key, and back to text.

Parsing, `nodeagentctl config` and docs/configuration.md all walk the one table in
model/settings.py.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import ipaddress
import json
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from nodeagent.errors import ConfigError, ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.freeze import FreezeWindow
from nodeagent.model.placement import Consent
from nodeagent.model.settings import DEFAULT_PATH, About, Config, FeedSource
from nodeagent.model.tomltext import document as document_of

MAX_BYTES = 1 << 20
"""A larger configuration file is a mistake, not a configuration."""

REMEDY = "nodeagentctl config --example prints every setting with its default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table: where it is written and what may be written there."""

    section: str
    key: str
    type: object
    default: object
    """dataclasses.MISSING: it must be given."""
    about: About

    @property
    def path(self) -> str:
        """`section.key`."""
        return f"{self.section}.{self.key}"

    @property
    def expected(self) -> str:
        """What may stand there, in words."""
        about = self.about
        unit = f" ({about.unit})" if about.unit else ""
        if typing.get_origin(self.type) is tuple:
            item = typing.get_args(self.type)[0]
            words = _choices(item)
            return f"a list of {' | '.join(words)}" if words else f"a list of text{unit}"
        if words := _choices(self.type):
            return " | ".join(words)
        if self.type is bool:
            return "true or false"
        if self.type in (int, float):
            kind = "a whole number" if self.type is int else "a number"
            return f"{kind} from {_number(about.ge)} to {_number(about.le)}{unit}"
        return f"text{unit}" + (f" that fits {about.pattern}" if about.pattern else "")

    def fits(self, value: object) -> bool:
        """Whether a value of the right type is within the bounds."""
        about = self.about
        if isinstance(value, str):
            return about.pattern is None or re.search(about.pattern, value) is not None
        if isinstance(value, int | float) and not isinstance(value, bool):
            above = about.ge is None or value >= about.ge
            return above and (about.le is None or value <= about.le)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A parsed file: the settings, and the line of each `section.key` that stands in it."""

    config: Config
    path: str
    lines: Mapping[str, int]
    windows: tuple[FreezeWindow, ...]
    housekeeping: CpuSet | None

    def source(self, key: str) -> str:
        """`FILE:LINE`, or `default`."""
        line = self.lines.get(key)
        return "default" if line is None else f"{self.path}:{line}"


def sections() -> tuple[tuple[str, type, bool], ...]:
    """(name, dataclass, whether it is an array of tables) in the file's order."""
    hints = typing.get_type_hints(Config)
    out: list[tuple[str, type, bool]] = []
    for f in dataclasses.fields(Config):
        hint = hints[f.name]
        many = typing.get_origin(hint) is tuple
        out.append((f.name, typing.get_args(hint)[0] if many else hint, many))
    return tuple(out)


def table(section: str, shape: type) -> tuple[Setting, ...]:
    """The rows of one section."""
    hints = typing.get_type_hints(shape, include_extras=True)
    rows: list[Setting] = []
    for f in dataclasses.fields(shape):
        kind, about = typing.get_args(hints[f.name])
        assert isinstance(about, About)
        rows.append(Setting(section=section, key=f.name, type=kind, default=f.default, about=about))
    return tuple(rows)


def parse(text: str, path: str) -> Loaded:
    """The configuration in `text`; `path` names it in sentences. Raises ConfigError."""
    tables = document_of(text, path, REMEDY)
    lines = key_lines(text)

    def fail(key: str, sentence: str, remedy: str = REMEDY) -> ConfigError:
        return ConfigError(f"{path}:{lines.get(key, 1)}: {sentence}", remedy)

    known = {name: (shape, many) for name, shape, many in sections()}
    built: dict[str, object] = {}
    for name, value in tables.items():
        if name not in known:
            raise fail(name, f"unknown section [{name}]", _nearest(name, list(known), "section"))
        shape, many = known[name]
        if many:
            if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
                raise fail(name, f"[{name}] must be written [[{name}]], once for each")
            built[name] = tuple(
                _section(f"{name}[{i}]", name, shape, v, fail) for i, v in enumerate(value)
            )
        else:
            if not isinstance(value, dict):
                raise fail(name, f"{name}: saw {_show(value)}, expected a section [{name}]")
            built[name] = _section(name, name, shape, value, fail)
    config = Config(**built)  # type: ignore[arg-type]  # built from the same table
    windows, housekeeping = _possible(config, fail)
    return Loaded(config=config, path=path, lines=lines, windows=windows, housekeeping=housekeeping)


def _section(
    at: str,
    section: str,
    shape: type,
    given: Mapping[str, object],
    fail: Callable[..., ConfigError],
) -> object:
    rows = {row.key: row for row in table(section, shape)}
    values: dict[str, object] = {}
    for key, value in given.items():
        row = rows.get(key)
        if row is None:
            raise fail(
                f"{at}.{key}",
                f"unknown setting {key} in [{section}]",
                _nearest(key, list(rows), "setting"),
            )
        # bool is an int to Python, and no number to a person.
        wrong = isinstance(value, bool) and row.type is not bool
        try:
            values[key] = msgspec.convert(value, row.type)
            wrong = wrong or not row.fits(values[key])
        except msgspec.ValidationError:
            wrong = True
        if wrong:
            raise fail(
                f"{at}.{key}",
                f"[{section}] {key}: saw {_show(value)}, expected {row.expected}",
            )
    for key, row in rows.items():
        if row.default is dataclasses.MISSING and key not in values:
            raise fail(at, f"[[{section}]] has no {key}, expected {row.expected}")
    return shape(**values)


def _possible(
    config: Config, fail: Callable[..., ConfigError]
) -> tuple[tuple[FreezeWindow, ...], CpuSet | None]:
    """What types cannot say: values that contradict one another or mean nothing."""
    for key in ("run_dir", "state_dir"):
        value = getattr(config.daemon, key)
        if not value.startswith("/"):
            raise fail(
                f"daemon.{key}", f"[daemon] {key}: saw {_show(value)}, expected an absolute path"
            )
    for consent in config.pin.auto:
        if consent not in config.pin.allow:
            raise fail(
                "pin.auto",
                f"[pin] auto names {consent}, which allow does not",
                f"add {consent} to [pin] allow, or take it out of auto",
            )
    if Consent.MEMORY in config.pin.auto:
        raise fail(
            "pin.auto",
            "[pin] auto names memory, and a running process's memory is never moved by the daemon "
            "itself",
            "take it out of auto; nodeagentctl place apply --yes moves it",
        )
    windows: list[FreezeWindow] = []
    for text in config.pin.freeze:
        try:
            windows.append(FreezeWindow.parse(text))
        except ParseError as error:
            raise fail(
                "pin.freeze", f"[pin] freeze: saw {_show(text)}, expected {error.expected}"
            ) from error
    housekeeping: CpuSet | None = None
    if config.place.housekeeping:
        try:
            housekeeping = CpuSet.parse(config.place.housekeeping)
        except ParseError as error:
            raise fail(
                "place.housekeeping",
                f"[place] housekeeping: saw {_show(error.seen)}, expected {error.expected}",
            ) from error
    if config.controller.address and not is_address(config.controller.address):
        raise fail(
            "controller.address",
            f"[controller] address: saw {_show(config.controller.address)}, expected HOST:PORT",
        )
    seen: set[str] = set()
    for i, feed in enumerate(config.feed):
        if feed.name in seen:
            raise fail(
                f"feed[{i}].name", f"two feeds are named {feed.name}", "give each feed its own name"
            )
        seen.add(feed.name)
        needed = ("group", "port") if feed.source is FeedSource.SOCKET else ("path",)
        for key in needed:
            if not getattr(feed, key):
                raise fail(f"feed[{i}]", f"feed {feed.name} has source {feed.source} and no {key}")
        for key in ("group", "group_b"):
            if value := getattr(feed, key):
                try:
                    ipaddress.ip_address(value)
                except ValueError as error:
                    raise fail(
                        f"feed[{i}].{key}",
                        f"[feed] {key}: saw {_show(value)}, expected an IP address",
                    ) from error
    return tuple(windows), housekeeping


def is_address(text: str) -> bool:
    """Whether it is HOST:PORT, in printable ASCII; an IPv6 host stands in brackets."""
    host, _, port = text.rpartition(":")
    plain = bool(host) and host.isascii() and host.isprintable() and " " not in host
    return plain and len(port) <= 5 and port.isascii() and port.isdigit() and 0 < int(port) < 65536


def _choices(kind: object) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return [member.value for member in kind]
    return []


def _nearest(word: str, words: list[str], what: str) -> str:
    close = difflib.get_close_matches(word, words, 1)
    return f"did you mean {close[0]}?" if close else f"{what}s here: {', '.join(words)}"


def _show(value: object) -> str:
    if isinstance(value, str | bool | int | float | list):
        shown = json.dumps(value, default=str, ensure_ascii=False)
    else:
        shown = "a section" if isinstance(value, dict) else str(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


# Where keys stand.

_MAX_PARTS = 8
"""Of a dotted key; no setting has more, and a hostile one half a million."""


def key_lines(text: str) -> dict[str, int]:
    """Line (from 1) of every section and key of valid TOML: `pin`, `pin.allow`, `feed[0].name`."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    prefix = ""
    at = counted = 0
    number = 1
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        number += text.count("\n", counted, at)
        counted = at
        line = text[at:end].strip()
        if not line or line.startswith("#"):
            at = end + 1
            continue
        if line.startswith("[["):
            name = _bare(line[2 : line.index("]]")])
            index = counts.get(name, -1) + 1
            counts[name] = index
            prefix = f"{name}[{index}]"
            lines[prefix] = number
            lines.setdefault(name, number)
            at = end + 1
        elif line.startswith("["):
            prefix = _bare(line[1 : line.index("]")])
            lines[prefix] = number
            lines.setdefault(prefix.partition(".")[0], number)
            at = end + 1
        else:
            key, rest = _key(text, at)
            full = f"{prefix}.{key}" if prefix else key
            parts = full.split(".")
            for i in range(1, min(len(parts), _MAX_PARTS) + 1):
                lines.setdefault(".".join(parts[:i]), number)
            at = _after_value(text, rest)
    return lines


def _bare(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _key(text: str, at: int) -> tuple[str, int]:
    """The key at `at` and the offset behind its `=`."""
    i = at
    while i < len(text) and text[i] != "=":
        i = _after_string(text, i) if text[i] in "\"'" else i + 1
    return _bare(text[at:i]), i + 1


def _after_value(text: str, at: int) -> int:
    """Offset of the line behind the value that begins at `at`."""
    depth = 0
    while at < len(text):
        c = text[at]
        if c in "\"'":
            at = _after_string(text, at)
            continue
        if c == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        if c == "\n" and depth == 0:
            return at + 1
        depth += (c in "[{") - (c in "]}")
        at += 1
    return at


def _after_string(text: str, at: int) -> int:
    """Offset behind the string that begins at `at`."""
    c = text[at]
    mark = c * 3 if text.startswith(c * 3, at) else c
    at += len(mark)
    while at < len(text) and not text.startswith(mark, at):
        at += 2 if c == '"' and text[at] == "\\" else 1
    at += len(mark)
    # A string of three marks may end in one or two quotes of its own.
    while len(mark) == 3 and text.startswith(c, at):
        at += 1
    return at


# Back to text.


def _number(value: float | None) -> str:
    """Whole numbers to the last digit, for that is where they are refused."""
    if value is None:
        return "any"
    return str(int(value)) if value == int(value) else f"{value:g}"


def toml(value: object) -> str:
    """A setting's value as TOML."""
    if isinstance(value, tuple):
        return "[" + ", ".join(toml(v) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.StrEnum | str):
        return json.dumps(str(value), ensure_ascii=False)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _wrapped(text: str, width: int = 96) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def example() -> str:
    """A complete file: every setting, commented out, with its default. It changes nothing."""
    out = [
        "# Every setting of nodeagentd, commented out, with its default; where the default is "
        "empty,",
        "# the line is an example and the words before it say so. An empty file is a valid one: "
        "the daemon",
        "# then observes and changes nothing.",
    ]
    for name, shape, many in sections():
        head = f"[[{name}]]" if many else f"[{name}]"
        out += ["", f"# {head}" if many else head]
        for row in table(name, shape):
            default = None if row.default is dataclasses.MISSING else toml(row.default)
            sample = row.about.example
            shown = sample if default in (None, '""', "[]") and sample else default
            text = f"{row.about.text} Expected: {row.expected}."
            if shown != default:
                text += " Required." if default is None else f" Default: {default}; for example:"
            out += [f"# {line}" for line in _wrapped(text)]
            out.append(f"# {row.key} = {shown}")
    return "\n".join(out) + "\n"


def document() -> str:
    """docs/configuration.md."""
    out = [
        "# Configuration",
        "",
        "Made from `nodeagent/model/settings.py` by `nodeagentctl config --markdown`; a test "
        "compares. The file is",
        f"`{DEFAULT_PATH}`, in TOML. `nodeagentctl config --show` prints each setting with its "
        "source, and",
        "`nodeagentctl config --example` a complete file. A wrong file is refused with one "
        "sentence that names file and line, exit 64;",
        "on SIGHUP a wrong file is refused likewise and the daemon goes on with the settings it "
        "has.",
    ]
    for name, shape, many in sections():
        out += ["", f"## `[[{name}]]`, once for each" if many else f"## `[{name}]`", ""]
        if shape.__doc__:
            out += [" ".join(shape.__doc__.split()), ""]
        out += ["| setting | default | expected | meaning |", "|---|---|---|---|"]
        for row in table(name, shape):
            default = "required" if row.default is dataclasses.MISSING else f"`{toml(row.default)}`"
            expected = row.expected.replace("|", "\\|")
            out.append(f"| `{row.key}` | {default} | {expected} | {row.about.text} |")
    return "\n".join(out) + "\n"


def shown(loaded: Loaded) -> list[tuple[str, str, str]]:
    """(setting, value as TOML, source) of every setting in force."""
    rows: list[tuple[str, str, str]] = []
    for name, shape, many in sections():
        values = getattr(loaded.config, name)
        for i, value in enumerate(values if many else (values,)):
            at = f"{name}[{i}]" if many else name
            rows += [
                (f"{at}.{r.key}", toml(getattr(value, r.key)), loaded.source(f"{at}.{r.key}"))
                for r in table(name, shape)
            ]
    return rows
