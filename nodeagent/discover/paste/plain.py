"""Pasted text without what trackers, chats, terminals and log collectors put around it. Every line
keeps its number, so that findings can name it.

Source: Kubernetes CRI log format; docker compose logs; srun --label; systemd journal short format;
the log prefixes of vLLM, torchrun and Ray.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator

MAX_LINE = 20_000
_SPACES = str.maketrans({"\u00a0": " ", "\u2007": " ", "\u202f": " ", "\u200b": "", "\u2060": "",
                         "\ufeff": "", "\u00ad": ""})  # fmt: skip
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|nbsp|#39|#x27|apos);")
_RUN = re.compile(r"[ \t]{1000,}")
"""Longer than any tool's table is wide: patterns would try such a run again and again."""
_QUOTE = re.compile(r"^[ \t]{0,3}(?:>[ \t]?)+")
_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})[\w+.{}-]*\s*$")
_TAG = re.compile(r"^\s*</?(?:details|summary|pre|code|br|p|div|b)\b[^<>]{0,60}>\s*", re.IGNORECASE)
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIX = re.compile(
    rf"{_STAMP}[ \t]+(?:stdout|stderr)[ \t]+[FP][ ]"
    rf"|{_STAMP} [\w.-]{{1,64}} [\w./@-]{{1,64}}\[\d{{1,8}}\]: "
    rf"|{_STAMP} - (?:[\w.]{{1,60}} - )?(?:INFO|WARNING|ERROR|DEBUG) - "
    rf"|\[{_STAMP}\][ ]"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} {1,8}\d{1,8} [\w./-]{1,80}:\d{1,6}\] "
    rf"|{_STAMP}(?:[ \t](?=\S)|[ \t]{{2}}|\t|$)"
    r"|\[(?:rank ?\d{1,5}|\d{1,4},\d{1,5}|default\d{1,5})\](?:<\w+>)?:?[ ]?"
    r"|\[pod/[^\]\s]{1,200}\][ ]?"
    r"|\((?:EngineCore|Worker|APIServer|APIServer_\d+|EngineCore_\d+|EngineCore_DP\d+|VllmWorker"
    r"|VllmWorkerProcess|RayWorkerWrapper|Worker_\w{1,20})[^()\n]{0,40}\)[ ]?"
    r"|(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\]? ?"
    r"|[a-z][\w.]{0,60}-\d{1,3}[ ]{1,30}\|[ ]"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,64} [\w./@-]{1,64}(?:\[\d{1,8}\])?: "
)
_SAME = re.compile(r"(?:[A-Za-z][\w.-]{0,62}: |[\w+-]{0,80}[./][\w./+-]{0,200}:)")
"""A host by pdsh or clush, or a file by grep; all lines must have the same."""
_TABLE = re.compile(r"^[ \t#]*(?:GPU0\s|Architecture:|CPU\(s\):)", re.MULTILINE)
_NUMBERED = re.compile(r"^ {0,5}(\d{1,6})\t")
_LABEL = re.compile(r"^ ?\d{1,5}: ")
_COMMENT = re.compile(r"^[ \t]*#[ \t]?")
MAX_PREFIXES = 4


def tidy(text: str) -> str:
    """Without quotation marks, code fences, tags and entities: what a log reader gets too."""
    text = _RUN.sub("        ", text.translate(_SPACES))
    if _ENTITY.search(text):
        text = html.unescape(text).translate(_SPACES)
    lines = text.split("\n")
    quoted = any(line.lstrip(" \t").startswith(">") for line in lines)
    out: list[str] = []
    for line in lines:
        if not line:
            out.append(line)
            continue
        if quoted:
            line = _QUOTE.sub("", line, count=1)
        if line.lstrip(" \t")[:1] in "`~" and _FENCE.match(line):
            line = ""
        elif line.lstrip(" \t").startswith("<"):
            line = _untagged(line)
        out.append(line)
    return "\n".join(out)


def _untagged(line: str) -> str:
    """Without the tags of a web page at its start; XML that tools write has others."""
    for _ in range(MAX_PREFIXES):
        m = _TAG.match(line)
        if m is None:
            break
        line = line[m.end() :]
    return re.sub(r"\s*</(?:summary|pre|code|details|p|div|b)>\s*$", "", line[:MAX_LINE])


def bare(text: str) -> str:
    """Also without the prefixes that log collectors put before each line, and without comment
    marks where every line has one."""
    lines = _unlabelled(text.split("\n"))
    full = [line for line in lines if line.strip()]
    if len(full) > 2 and all(_COMMENT.match(line) for line in full):
        lines = [_COMMENT.sub("", line, count=1) for line in lines]
    if len(full) > 2 and all(_LABEL.match(line) for line in full):
        lines = [_LABEL.sub("", line, count=1) for line in lines]
    return "\n".join(_unprefixed(line) if line else line for line in lines)


def _unlabelled(lines: list[str]) -> list[str]:
    """Tables without the host, the file or the line's number that one tool put before all lines.
    Other texts keep theirs: a name before each line may be what the line is about."""
    full = [line for line in lines if line.strip()]
    if len(full) < 3:
        return lines
    label = None
    if m := _SAME.match(full[0]):
        label = re.compile(re.escape(m[0]) + r"(?:\d{1,7}[:-])?")
        if not all(label.match(line) for line in full):
            return lines
    else:
        numbers = [int(m[1]) if (m := _NUMBERED.match(line)) else -1 for line in full]
        if all(a >= 0 and b > a for a, b in itertools.pairwise(numbers)):
            label = _NUMBERED
    if label is None:
        return lines
    without = [label.sub("", line, count=1) for line in lines]
    return without if _TABLE.search("\n".join(without)) else lines


def _unprefixed(line: str) -> str:
    for _ in range(MAX_PREFIXES):
        m = _PREFIX.match(line)
        if m is None:
            break
        line = line[m.end() :]
    return line


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """The fenced blocks of a Markdown text: (number of the first line, what was written just
    above, text)."""
    if "```" not in text and "~~~" not in text:
        return
    start = 0
    held: list[str] | None = None
    title = above = ""
    for number, line in enumerate(text.split("\n"), 1):
        if _FENCE.match(line):
            if held is None:
                held, start, title = [], number + 1, above
            else:
                yield start, title, "\n".join(held)
                held = None
        elif held is not None:
            held.append(line)
        elif line.strip():
            above = line.strip().strip("#*` ").rstrip(":")
