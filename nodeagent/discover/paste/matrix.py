"""`nvidia-smi topo -m`: a matrix of devices, repaired only where there is one reading.

Source: nvidia-smi topo -h (legend); the layout of drivers 384 to 580.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from dataclasses import dataclass

from nodeagent.discover.paste.part import Part, cpulist
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.matrix import LinkMatrix

HEADINGS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_HEADING = re.compile(r"CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID", re.IGNORECASE)
_PIECE = re.compile(r"(?<!\S)(?:CPU|NUMA|GPU(?:\s+NUMA)?)\s*$", re.IGNORECASE)
"""What is left of a heading at the end of a line that a narrow window broke in it."""
_CLASS = re.compile(r"X|NV\d{1,2}|NVB|C2C|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|NS|DR|U")
_CELL = re.compile(r"X|NV\d{1,2}|NVB|C2C|PIX|PXB|PHB|NODE|SYS|SOC")
_PEER = re.compile(r"X|OK|CNS|GNS|TNS|NS|DR|U|True|False")
"""Cells of `nvidia-smi topo -p2p` and `rocm-smi --showtopoaccess`, whose headers are alike."""
_CALLED = re.compile(r"^\s*GPU [Tt]opology ?:")
"""What a report puts before the header, sometimes on its line."""
_AFFINITY = re.compile(r"(?:\d+(?:-\d+)?,)*\d+(?:-\d+)?|N/A")
_GLUED_CELLS = re.compile(rf"(?:{_CELL.pattern}){{2,}}")
_GLUED_OR_ONE = re.compile(rf"(?:{_CELL.pattern})+")
_GLUED_LIST = re.compile(r"(X|PIX|PXB|PHB|NODE|SYS|SOC)((?:\d+(?:-\d+)?,)*\d+(?:-\d+)?|N/A)")
"""The last class and the CPU list in one word; behind NV12 the digits would have two readings."""
_GPU = re.compile(r"GPU\d+")
_NAME = re.compile(
    r"(?:GPU|NIC)\d+|mlx\d+_(?:bond_)?\d+|[A-Za-z][A-Za-z0-9_.:\-]{0,60}\d[\w.:\-]{0,60}"
)
_GLUED_NAMES = re.compile(r"(?:(?:GPU|NIC)\d+|mlx\d_\d+){2,}")
_ONE_NAME = re.compile(r"(?:GPU|NIC)\d+|mlx\d_\d+")
_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_MARKS = re.compile(r"^\s*(?:\[\d{1,5}\]:?\s?)?(?:(?:[#>|;*%]+|//+)\s?)*")
"""Comment and quotation marks, and the rank that a launcher prints before each line."""
_RULE = re.compile(r"[\s|:+-]*-{2}[\s|:+-]*")
_TABLE = re.compile(r"(?m)^[ \t>]*\|[ \t*`]*\|[ \t*`]*GPU\d+[ \t*`]*\|")
_ESCAPED = re.compile(r"GPU\d+\\t.{0,20000}?\\n", re.DOTALL)
_NOTHING = re.compile(r"(?:.*[:=]\s*)?(?:could not collect|n/a)\s*", re.IGNORECASE)


class Damaged(ParseError):  # noqa: N818  # what the matrix is
    """A matrix that has no single reading."""


class Short(Damaged):
    """A row with fewer cells than the header has devices."""


@dataclass(frozen=True, slots=True)
class _Header:
    line: int
    devices: tuple[str, ...]
    headings: tuple[tuple[str, int], ...]
    """(heading, column where it starts)."""
    starts: tuple[int, ...] = ()
    """Columns where the devices' names start; (): they were glued, and columns mean nothing."""
    end: int = 0
    """Its last line: more than its first one where a window was narrow."""
    wrapped: bool = False


def read_matrix(text: str) -> Part | None:
    """The matrix in a text; None when the text speaks of none. A Part with `refused` when it does
    and cannot be read."""
    if _ESCAPED.search(text):
        text = text.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "")
        text = re.sub(r"(?m)^[ ]*['\"](?=\s*GPU)", "", text)
    lines = [_unmarked(line) for line in _columns(text).split("\n")]
    repairs: list[str] = []
    headers: list[_Header] = []
    for i, line in enumerate(lines):
        mended: list[str] = []
        if (h := _header(i, line, mended)) and not _peers(lines, h):
            headers.append(h)
            repairs += mended if len(headers) == 1 else []
    header = headers[0] if headers else None
    if header is None:
        if _NOTHING.fullmatch(text.strip()):
            return _part(LinkMatrix(gpus=(), nics=(), links={}), [], [])
        return _headless(text, lines)
    end = headers[1].line if len(headers) > 1 else len(lines)
    try:
        part = _read(lines[:end], _whole(lines[:end], header, repairs), repairs)
    except Damaged as damage:
        return _refused(str(damage))
    return _others(lines, headers[1:], part)


def _peers(lines: list[str], header: _Header) -> bool:
    """Whether the rows below are those of a peer-to-peer matrix."""
    for line in lines[header.line + 1 : header.line + 4]:
        words = line.split()
        if len(words) > 1 and words[0] in header.devices:
            rest = words[1:]
            return all(_PEER.fullmatch(w) for w in rest) and any(w != "X" for w in rest)
    return False


def _others(lines: list[str], headers: list[_Header], part: Part) -> Part:
    """Says where a further matrix of the text differs: which of them counts is not told."""
    for i, header in enumerate(headers):
        end = headers[i + 1].line if i + 1 < len(headers) else len(lines)
        ignored: list[str] = []
        try:
            other = _read(lines[:end], _whole(lines[:end], header, ignored), ignored)
        except Damaged as damage:
            why = f"line {header.line + 1}: a further matrix cannot be read: {damage}"
        else:
            if other.facts.get("links") == part.facts.get("links"):
                continue
            why = f"line {header.line + 1}: a further matrix says other things and is not judged"
        part = dataclasses.replace(part, unclear=(*part.unclear, why))
    return part


def _whole(lines: list[str], header: _Header, repairs: list[str]) -> _Header:
    """The header with the lines that a narrow window broke off it. What follows is more names, or
    headings; rows begin with a device of the header and a class."""
    found = header
    while found.end + 1 < len(lines):
        line = lines[found.end + 1]
        if piece := _PIECE.search(lines[found.end]):
            line = f"{piece[0].strip()} {line.lstrip()}"
        more = _names(line)
        first = _HEADING.search(line)
        if more is None or (not more and first is None) or set(more) & set(found.devices):
            break
        if found.headings and more:
            break
        repairs.append(f"line {found.end + 2}: the header goes on over this line")
        offset = 10_000 * (found.end + 1 - found.line)
        headings = tuple((_heading(m[0]), m.start() + offset) for m in _HEADING.finditer(line))
        found = dataclasses.replace(
            found,
            devices=found.devices + tuple(more),
            headings=found.headings + headings,
            end=found.end + 1,
            wrapped=True,
        )
    if _PIECE.search(lines[found.end]):
        repairs.append(f"line {found.end + 1}: the header ends in a heading, no affinity is read")
        found = dataclasses.replace(found, headings=())
    return found


def _names(line: str) -> list[str] | None:
    """The device names of a line that holds nothing else but headings; None for another line."""
    first = _HEADING.search(line)
    words = (line[: first.start()] if first else _PIECE.sub("", line)).split()
    if any(_CLASS.fullmatch(w) or not _NAME.fullmatch(w) for w in words):
        return None
    return words


def _headless(text: str, lines: list[str]) -> Part | None:
    """No header: refused when rows, headings or a NIC legend show that a matrix was meant."""
    for number, line in enumerate(lines, 1):
        tokens = line.split()
        peers = all(_PEER.fullmatch(t) for t in tokens[1:]) and set(tokens[1:]) != {"X"}
        row = len(tokens) > 1 and _GPU.fullmatch(tokens[0]) and _CELL.fullmatch(tokens[1])
        if row and not peers:
            return _refused(f"line {number}: a row of a topology matrix without its header")
    if _HEADING.search(text) and re.search(r"^[ \t]*NIC\d+[ \t]*:", text, re.MULTILINE):
        return _refused("a NIC legend and headings of a topology matrix, but no rows")
    return None


def _refused(why: str) -> Part:
    return Part(kind="matrix", refused=f"the topology matrix cannot be read: {why}")


def _columns(text: str) -> str:
    """A Markdown table with tabs between its cells; another text as it is."""
    if not _TABLE.search(text):
        return text
    out = []
    for line in text.split("\n"):
        row = line.strip(" \t>\r")
        if row.startswith("|") and row.count("|") > 2:
            cells = [c.strip(" \t*`") for c in row.strip("|").split("|")]
            line = "" if _RULE.fullmatch(row) else "\t".join(cells)
        out.append(line)
    return "\n".join(out)


def _unmarked(line: str) -> str:
    """Without comment and quotation marks, columns kept, carriage returns as blanks."""
    m = _MARKS.match(line)
    head = line[: m.end()] if m else ""
    return re.sub(r"\S", " ", head) + line[len(head) :].replace("\r", " ").rstrip()


def _header(index: int, line: str, repairs: list[str]) -> _Header | None:
    """The header, if this line is one: device names only, then headings."""
    if called := _CALLED.match(line):
        line = " " * called.end() + line[called.end() :]
    first = _HEADING.search(line)
    names = line[: first.start()] if first else _PIECE.sub("", line)
    devices: list[str] = []
    mended: list[str] = []
    for token in names.split():
        if _GLUED_NAMES.fullmatch(token):
            parts = _ONE_NAME.findall(token)
            mended.append(f"line {index + 1}: header {token!r} read as {' '.join(parts)}")
            devices += parts
        elif _CLASS.fullmatch(token) or not _NAME.fullmatch(token):
            return None
        else:
            devices.append(token)
    if not devices or not _GPU.fullmatch(devices[0]) or (first is None and len(devices) < 2):
        return None
    repairs += mended
    found = tuple((_heading(m[0]), m.start()) for m in _HEADING.finditer(line))
    starts = () if mended else tuple(m.start() for m in re.finditer(r"\S+", names))
    return _Header(index, tuple(devices), found, starts=starts, end=index)


def _heading(text: str) -> str:
    words = " ".join(text.split()).lower()
    return next(h for h in HEADINGS if h.lower() == words)


def _read(lines: list[str], header: _Header, repairs: list[str]) -> Part:
    devices = header.devices
    if len(set(devices)) != len(devices):
        raise Damaged("header", " ".join(devices), "each device once")
    links: dict[tuple[str, str], str] = {}
    columns: dict[str, dict[str, CpuSet | None]] = {name: {} for name, _ in header.headings}
    rows: list[str] = []
    unclear: list[str] = []
    legend: dict[str, str] = {}
    last = max((i for i, line in enumerate(lines) if line.strip()), default=0)
    whole_rows = 0
    for index in range(header.end + 1, len(lines)):
        line = lines[index]
        tokens = line.split()
        if tokens and (apart := _unglued(tokens[0], devices)):
            repairs.append(f"line {index + 1}: {tokens[0]!r} read as {' '.join(apart)}")
            line = line.replace(tokens[0], " ".join(apart), 1)
            tokens = line.split()
        if m := _LEGEND.match(line):
            legend[m[1]] = m[2]
        if len(tokens) < 2 or tokens[0] not in devices or tokens[0] in rows:
            continue
        if not _CELL.match(tokens[1]):
            continue
        name = tokens[0]
        whole = _joined(lines, index, line, devices, header, repairs)
        loose = header.wrapped or whole != line
        line = whole
        try:
            cells, rest_at = _cells(index + 1, line, name, devices, repairs)
        except Short:
            if index < last or not rows:
                raise
            repairs.append(f"line {index + 1}: the text ends in this row, which is left out")
            break
        for column, cell in zip(devices, cells, strict=True):
            if cell != "X":
                links[name, column] = cell
        rows.append(name)
        if _GPU.fullmatch(name):
            ends = line.rstrip().endswith("N/A")
            short = len(line[rest_at:].split()) < len(header.headings)
            if index == last and whole_rows == len(rows) - 1 > 0 and short and not ends:
                # The rows above end with N/A: this one breaks off before it, perhaps in a list.
                repairs.append(f"line {index + 1}: the text ends in this row's affinities")
                for values in columns.values():
                    values[name] = None
                break
            whole_rows += ends
            found = _rest(index + 1, line, rest_at, header, unclear, loose=loose)
            for heading, value in found.items():
                columns[heading][name] = value
    if not rows:
        raise Damaged("rows", "none", "one for each GPU of the header")
    gpus = tuple(d for d in devices if _GPU.fullmatch(d))
    nics = tuple(d for d in devices if d not in gpus)
    matrix = LinkMatrix(
        gpus=gpus,
        nics=nics,
        links=links,
        cpu_affinity=columns.get("CPU Affinity", {}),
        numa_affinity=columns.get("NUMA Affinity", {}),
        gpu_numa_id=columns.get("GPU NUMA ID", {}),
        nic_names={n: legend[n] for n in nics if n in legend},
        columns=tuple(name for name, _ in header.headings),
        rows=tuple(rows),
        truncated=any(g not in rows for g in gpus),
    )
    return _part(matrix, repairs, unclear)


def _unglued(token: str, devices: tuple[str, ...]) -> tuple[str, str] | None:
    """A row's name and its first class, written as one word. None: it is not, or there are two
    ways to cut it."""
    if token in devices:
        return None
    cuts = [
        (d, token[len(d) :])
        for d in devices
        if token.startswith(d) and _CELL.fullmatch(token[len(d) :])
    ]
    return cuts[0] if len(cuts) == 1 else None


def _joined(
    lines: list[str],
    index: int,
    line: str,
    devices: tuple[str, ...],
    header: _Header,
    repairs: list[str],
) -> str:
    """The row with the lines that a narrow window broke off it: classes, then affinities."""
    at = index
    while at + 1 < len(lines) and at - index < 8:
        words = lines[at + 1].split()
        cells = sum(len(_CELL.findall(w)) for w in line.split()[1:] if _GLUED_OR_ONE.fullmatch(w))
        full = cells >= len(devices)
        if not words or words[0] in devices or _LEGEND.match(lines[at + 1]):
            break
        if full and not (header.wrapped and all(_AFFINITY.fullmatch(w) for w in words)):
            break
        if not all(_CELL.fullmatch(w) or _AFFINITY.fullmatch(w) for w in words):
            break
        line = f"{line} {' '.join(words)}"
        at += 1
    if at > index:
        repairs.append(f"line {index + 1}: the row goes on over {at - index} more lines")
    return line


def _cells(
    number: int, line: str, name: str, devices: tuple[str, ...], repairs: list[str]
) -> tuple[list[str], int]:
    """The row's cells and the offset behind the last of them. The X of the row stands in its own
    column, or the row is refused: a shifted row would put every link on the wrong device."""
    cells: list[str] = []
    end = 0
    for i, m in enumerate(re.finditer(r"\S+", line)):
        if i == 0:
            continue
        if len(cells) == len(devices):
            break
        token = m[0]
        if _CELL.fullmatch(token):
            cells.append(token)
        elif _GLUED_CELLS.fullmatch(token):
            parts = [p[0] for p in _CELL.finditer(token)]
            if "".join(parts) != token:
                raise Damaged(f"line {number}", token, "classes such as PIX or NV18")
            repairs.append(f"line {number}: cell {token!r} read as {' '.join(parts)}")
            cells += parts
        elif len(cells) == len(devices) - 1 and (glued := _GLUED_LIST.fullmatch(token)):
            repairs.append(f"line {number}: {token!r} read as {glued[1]} {glued[2]}")
            cells.append(glued[1])
            end = m.start() + len(glued[1])
            break
        else:
            break
        end = m.end()
    if len(cells) != len(devices):
        raise Short(f"line {number}", f"{len(cells)} cells", f"{len(devices)}, as in the header")
    if end and (more := line[end:].split()) and _CELL.fullmatch(more[0]):
        raise Damaged(f"line {number}", f"{more[0]} behind", f"{len(devices)} cells, as the header")
    if cells.index("X") != devices.index(name) if "X" in cells else True:
        raise Damaged(f"line {number}", line, f"the X of {name} in its own column")
    return cells, end


def _rest(
    number: int, line: str, at: int, header: _Header, unclear: list[str], *, loose: bool
) -> dict[str, CpuSet | None]:
    """Affinity columns of a row. Blank cells are None; where a value could belong to two columns
    it belongs to none. `loose`: columns of the text mean nothing, lines were put together."""
    names = [name for name, _ in header.headings]
    values: dict[str, CpuSet | None] = dict.fromkeys(names)
    tokens = [(m.start() + at, m[0]) for m in re.finditer(r"\S+", line[at:])]
    if not names or not tokens:
        return values
    if len(tokens) == len(names):
        found = dict(zip(names, (t for _, t in tokens), strict=True))
    elif len(tokens) > len(names):
        unclear.append(f"line {number}: {len(tokens)} values behind the links, {len(names)} headed")
        return values
    elif loose:
        found = {}
    elif "\t" in line[at:]:
        found = _by_tabs(line[at:], names)
    else:
        found = {}
        if _aligned(line[:at], header):
            found = _by_stops(tokens, line[:at], names) or _by_columns(tokens, header)
    if len(found) != len(tokens) and len(tokens) != len(names):
        unclear.append(f"line {number}: {' '.join(t for _, t in tokens)!r} fits several columns")
        return values
    for heading, text in found.items():
        try:
            values[heading] = cpulist(text)
        except ParseError:
            unclear.append(f"line {number}: {heading} {text!r} is no list")
    return values


def _by_tabs(rest: str, names: list[str]) -> dict[str, str]:
    """nvidia-smi puts one tab before CPU and NUMA affinity and two before the GPU's NUMA id."""
    fields = [f.strip() for f in rest.split("\t")[1:]]
    found = dict(zip(names, fields, strict=False))
    if names[-1:] == ["GPU NUMA ID"] and len(fields) > len(names):
        found["GPU NUMA ID"] = next((f for f in fields[len(names) - 1 :] if f), "")
    return {k: v for k, v in found.items() if v}


def _aligned(row: str, header: _Header) -> bool:
    """Whether the row's classes stand under their devices: else its columns mean nothing. A lone X
    stands one to the right."""
    cells = [m.start() - (m[0] == "X") for m in re.finditer(r"\S+", row)][1:]
    return len(cells) == len(header.starts) and all(
        abs(cell - start) <= 1 for cell, start in zip(cells, header.starts, strict=True)
    )


TAB = 8


def _by_stops(tokens: list[tuple[int, str]], row: str, names: list[str]) -> dict[str, str]:
    """Values that stand where nvidia-smi's tabs put them, once a terminal made blanks of the tabs:
    one tab before each affinity (two before a N/A of older drivers), two before the GPU's NUMA id.
    {}: no way to lay them out gives these places, or several do."""
    origin = len(row) - len(row.lstrip())
    cells = [m.start() - (m[0] == "X") - origin for m in re.finditer(r"\S+", row)]
    if any(cell != TAB * i for i, cell in enumerate(cells)):
        return {}
    base = origin + TAB * len(cells)
    ways: list[dict[str, str]] = []
    for chosen in itertools.combinations(names, len(tokens)):
        for extra in (0, 1):
            at = base
            starts: list[int] = []
            rest = list(tokens)
            for i, name in enumerate(names):
                value = rest.pop(0)[1] if name in chosen else ""
                if i:
                    tabs = 2 if name == "GPU NUMA ID" else 1
                    tabs += extra if (name, value) == ("NUMA Affinity", "N/A") else 0
                    at = ((at - origin) // TAB + tabs) * TAB + origin
                if value:
                    starts.append(at)
                at += len(value)
            way = dict(zip(chosen, (t for _, t in tokens), strict=True))
            if starts == [start for start, _ in tokens] and way not in ways:
                ways.append(way)
    return ways[0] if len(ways) == 1 else {}


def _by_columns(tokens: list[tuple[int, str]], header: _Header) -> dict[str, str]:
    """Each value under the heading that starts nearest to it."""
    found: dict[str, str] = {}
    for start, token in tokens:
        near = sorted(header.headings, key=lambda h: abs(h[1] - start))
        if len(near) > 1 and abs(near[0][1] - start) == abs(near[1][1] - start):
            return {}
        if near[0][0] in found:
            return {}
        found[near[0][0]] = token
    return found


def _part(matrix: LinkMatrix, repairs: list[str], unclear: list[str]) -> Part:
    facts: dict[str, object] = {
        "gpus": list(matrix.gpus),
        "nics": list(matrix.nics),
        "links": {f"{a}-{b}": c for (a, b), c in matrix.links.items()},
        "truncated": matrix.truncated,
    }
    for heading, key, values in (
        ("CPU Affinity", "cpu_affinity", matrix.cpu_affinity),
        ("NUMA Affinity", "numa_affinity", matrix.numa_affinity),
        ("GPU NUMA ID", "gpu_numa_id", matrix.gpu_numa_id),
    ):
        if heading in matrix.columns:
            facts[key] = {g: None if v is None else str(v) for g, v in values.items()}
    if matrix.nic_names:
        facts["nic_names"] = dict(matrix.nic_names)
    return Part(
        kind="matrix",
        facts=facts,
        matrix=matrix,
        repairs=tuple(repairs),
        unclear=tuple(unclear),
    )
