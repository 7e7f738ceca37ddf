"""A machine as one text file that diffs: one line for each file that was read.

    /proc/cmdline: ro quiet                  a file of one line
    /proc/meminfo:                           a file of several lines (each after a tab), or empty
        MemTotal: 131580 kB
    /sys/bus/pci/devices/0000:3b:00.0 -> /sys/devices/pci0000:3a/0000:3b:00.0
    /sys/class/net/eth0/queues/rx-0/         a name that was seen in a listing
    /sys/.../secret ! Permission denied      a read that failed

Blanks, `%` and a last `:` in paths are percent-encoded. The first line is MAGIC, the last one
counts the entries and the lines before it, so that a cut file is known as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodeagent.discover.store import Entry, Failed, Link
from nodeagent.errors import ReadError

MAGIC = "# nodeagent capture v1"
_END = re.compile(r"# end, ([0-9]{1,9}) entries(?:, ([0-9]{1,9}) lines)?")
_DIGITS = re.compile(r"([0-9]{1,18})")


def written(table: Mapping[str, Entry]) -> list[str]:
    """The paths that get an entry: all but folders that something below them tells of."""
    parents = {p.rpartition("/")[0] for p in table}
    paths = sorted(table, key=_natural)
    return [p for p in paths if table[p] is not None or p not in parents]


def render(table: Mapping[str, Entry]) -> str:
    """The capture's text; order is by path, numbers as numbers, so that two captures diff."""
    lines = [MAGIC]
    paths = written(table)
    for path in paths:
        entry = table[path]
        name = "/" + _encode(path)
        if entry is None:
            lines.append(f"{name}/")
        elif isinstance(entry, Link):
            lines.append(f"{name} -> {_encode(entry.target)}")
        elif isinstance(entry, Failed):
            lines.append(f"{name} ! {_visible(entry.reason)}")
        else:
            lines += _file(name, entry)
    lines.append(f"# end, {len(paths)} entries, {len(lines)} lines")
    return "\n".join(lines) + "\n"


def _file(name: str, data: bytes) -> list[str]:
    try:
        text = data.decode().strip("\0 \t\r\n")
    except UnicodeDecodeError:
        return [f"{name} ! binary, expected text"]
    if "\0" in text:
        return [f"{name} ! binary, expected text"]
    body = [_visible(line.rstrip("\r")) for line in text.split("\n")]
    if len(body) == 1:
        return [f"{name}: {body[0]}" if body[0] else f"{name}:"]
    return [f"{name}:", *(f"\t{line}" for line in body)]


def _visible(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line
    )


def _natural(path: str) -> list[tuple[int, int, str]]:
    return [
        (0, int(part), "") if part[0] in "0123456789" else (1, 0, part)
        for part in _DIGITS.split(path)
        if part
    ]


def _encode(path: str) -> str:
    for char, code in (("%", "%25"), (" ", "%20"), ("\n", "%0A"), ("\t", "%09")):
        path = path.replace(char, code)
    # A colon at the end is how a line says that a file's text follows.
    return path[:-1] + "%3A" if path.endswith(":") else path


def _decode(path: str) -> str:
    if "%" in path:
        for char, code in (("\t", "%09"), ("\n", "%0A"), (" ", "%20"), (":", "%3A")):
            path = path.replace(code, char)
        path = path.replace("%25", "%")
    return path


def parse(name: str, data: bytes) -> dict[str, Entry]:
    """The table that was rendered. Raises ReadError with the line that is damaged."""
    table: dict[str, Entry] = {}
    lines = data.decode("utf-8", "replace").split("\n")
    path = ""
    body: list[str] | None = None
    for number, line in enumerate(lines, 1):
        if line[:1] == "\t":
            if body is None:
                raise _damaged(name, number, line)
            body.append(line[1:])
            continue
        if body:
            table[path] = "\n".join(body).encode()
        body = None
        if line[:1] != "/":
            if line and line[0] != "#":
                raise _damaged(name, number, line)
            m = _END.fullmatch(line)
            if m:
                if int(m[1]) != len(table):
                    raise _bad(name, f"it holds {len(table)} entries and says {m[1]}")
                if m[2] is not None and int(m[2]) != number - 1:
                    raise _bad(name, f"it holds {number - 1} lines and says {m[2]}")
                return table
            continue
        head, _, value = line.partition(" ")
        kind = head[-1]
        if kind == ":":
            path = _decode(head[1:-1])
            table[path] = value.encode()
            if not value:
                body = []
        elif kind == "/" and not value:
            table[_decode(head[1:-1])] = None
        elif value.startswith("-> "):
            table[_decode(head[1:])] = Link(_decode(value[3:]))
        elif value.startswith("! "):
            table[_decode(head[1:])] = Failed(value[2:])
        else:
            raise _damaged(name, number, line)
    raise _bad(name, "it is cut: its last line, which counts the entries, is missing")


def _damaged(name: str, number: int, line: str) -> ReadError:
    return _bad(name, f"line {number} is damaged: {line[:60]!r}")


def _bad(name: str, reason: str) -> ReadError:
    return ReadError(name, f"cannot be read as a capture: {reason}", "capture the machine again")
