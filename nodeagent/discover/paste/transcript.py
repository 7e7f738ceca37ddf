"""A terminal's transcript, or several files in one text: cut at prompts and headers.

`$ cat FILE`, `==> FILE <==` (head, tail), `FILE:` or `FILE` alone on a line (a loop of echo and
cat), `::::` frames (more), Markdown headings that name a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

COMMANDS = frozenset(
    [
        "bpftool",
        "cat",
        "chronyc",
        "chrt",
        "crictl",
        "cset",
        "cyclictest",
        "df",
        "dmesg",
        "docker",
        "dpdk-devbind",
        "dpdk-devbind.py",
        "dpdk-hugepages",
        "dpdk-hugepages.py",
        "dpdk-hugepages.sh",
        "env",
        "ethtool",
        "find",
        "for",
        "free",
        "getconf",
        "grep",
        "grubby",
        "head",
        "ip",
        "ipcs",
        "irqbalance",
        "journalctl",
        "kubectl",
        "ls",
        "lscpu",
        "lsipc",
        "lsmod",
        "modinfo",
        "more",
        "mount",
        "netstat",
        "nproc",
        "nstat",
        "numactl",
        "numastat",
        "nvidia-smi",
        "phc2sys",
        "phc_ctl",
        "podman",
        "printenv",
        "ps",
        "ptp4l",
        "prlimit",
        "sed",
        "ss",
        "strace",
        "swapon",
        "sysctl",
        "systemctl",
        "tail",
        "taskset",
        "tcpdump",
        "timedatectl",
        "top",
        "tuned-adm",
        "ulimit",
        "uname",
        "which",
        "xdp-loader",
        "zcat",
        "zgrep",
        "echo",
    ]
)
"""What a line after a bare `#` must begin with to be a command and no comment."""
_PROMPT = re.compile(
    r"^\s*(?:"
    r"(?P<host>\[[^\]\s]+[@ "
    r"][^\]]*\][#$%>]|(?:\([\w.-]+\)\s*)?[\w.-]+@[\w.-]+[:~]?[^\s#$%>]*\s?[#$%>]"
    r"|(?:sh|bash)-\d\.\d[#$])"
    r"|(?P<bare>[#$%>]|\+))\s*(?P<command>\S.*)$"
)
_PATH = (
    r"/(?:sys|proc|etc|boot)/"
    r"(?:[^\s:<>'\"`]|:(?=[0-9a-fA-F]{2}[:.]))+"
)
_HEADER = re.compile(
    rf"^\s*(?:==>\s*(?P<head>\S.*?)\s*<==|(?:[-=#*]{{1,5}}\s*)?`?(?P<path>{_PATH})`?\s*:?"
    r"(?:\s*[-=#*]{1,5})?)\s*$"
)
_TITLED = re.compile(r"^[#*>\-\s\w.,()]*?`(?P<command>[^`]+)`\s*:?\s*\**\s*$")
_WRAPPERS = re.compile(r"^(?:sudo(?:\s+-\w+)*|time|watch(?:\s+-\S+)*|LC_ALL=\S+|LANG=\S+)\s+")
MAX_SECTIONS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A piece of a text: what a command printed, or what a file holds. `command` and `path` None:
    nobody says."""

    command: str | None
    path: str | None
    text: str


def sections(text: str) -> tuple[Section, ...]:
    """The pieces, in order; one piece without a command when nothing cuts the text."""
    found: list[Section] = []
    head: tuple[str | None, str | None] = (None, None)
    body: list[str] = []
    for line in text.split("\n"):
        cut = _cut(line) if len(found) < MAX_SECTIONS else None
        if cut is None:
            body.append(line)
            continue
        found.append(Section(command=head[0], path=head[1], text="\n".join(body)))
        head, body = cut, []
    found.append(Section(command=head[0], path=head[1], text="\n".join(body)))
    return tuple(
        Section(command=f.command, path=f.path, text=_unfenced(f.text))
        for i, f in enumerate(found)
        if i or f.text.strip() or len(found) == 1
    )


def _cut(line: str) -> tuple[str | None, str | None] | None:
    """(command, path) when a line begins a new piece."""
    if not line or len(line) > 400 or line.isspace():
        return None
    if m := _HEADER.match(line):
        return None, (m["head"] or m["path"]).strip()
    m = _PROMPT.match(line)
    if m is not None:
        command = _plain(m["command"])
        if m["host"] or command.split()[0] in COMMANDS:
            return command, file_of(command)
    if "`" in line and (m := _TITLED.match(line)):
        command = _plain(m["command"])
        if command.split()[:1] and command.split()[0] in COMMANDS:
            return command, file_of(command)
    return None


def _plain(command: str) -> str:
    command = command.strip()
    while m := _WRAPPERS.match(command):
        command = command[m.end() :]
    return command


def file_of(command: str) -> str | None:
    """The one file whose whole text a command prints; None for several, or none."""
    words = command.partition("|")[0].partition(";")[0].split()
    if not words or words[0] not in ("cat", "head", "tail", "more", "zcat"):
        return None
    files = [w for w in words[1:] if not w.startswith("-") and not w.isdigit()]
    return files[0].strip("'\"") if len(files) == 1 and "*" not in files[0] else None


def _unfenced(text: str) -> str:
    lines = text.split("\n")
    first, last = 0, len(lines)
    while first < last and _is_frame(lines[first]):
        first += 1
    while last > first and _is_frame(lines[last - 1]):
        last -= 1
    return "\n".join(lines[first:last])


def _is_frame(line: str) -> bool:
    return not line or not (bare := line.strip()) or bare.startswith("```")


def commands(text: str, program: str) -> Iterator[tuple[str, str]]:
    """(arguments, output) of each run of `program` in a transcript."""
    for section in sections(text):
        words = (section.command or "").split(None, 1)
        if words and words[0].rpartition("/")[2] == program:
            yield (words[1] if len(words) > 1 else ""), section.text
