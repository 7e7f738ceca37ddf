"""Random machines, printed as nvidia-smi prints them, damaged as trackers, chats and terminals do:
read back right, left open or refused, and never wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.discover.paste.matrix import read_matrix
from nodeagent.discover.paste.part import clean
from nodeagent.discover.paste.plain import bare, tidy


@dataclasses.dataclass(frozen=True)
class Printed:
    """What stands in a matrix."""

    gpus: list[str]
    nics: list[str]
    links: dict[tuple[str, str], str]
    cpus: dict[str, str]
    nodes: dict[str, str]
    style: str
    """Generation of drivers: old (CPU only), numa, id (with GPU NUMA ID)."""

    @property
    def columns(self) -> list[str]:
        names = {"old": 1, "numa": 2, "id": 3}
        return ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][: names[self.style]]

    def text(self) -> str:
        names = self.gpus + self.nics
        lines = ["\t" + "\t".join(names + self.columns)]
        for a in names:
            row = [a] + [" X " if a == b else self.links[a, b] for b in names]
            if a in self.gpus:
                row += [self.cpus[a], self.nodes[a]][: len(self.columns)]
                row += ["", "N/A"] if self.style == "id" else []
            else:
                row += [""] * len(self.columns)
            lines.append("\t".join(row))
        return "\n".join(lines) + "\n"


@st.composite
def machines(draw: st.DrawFn) -> Printed:
    gpus = [f"GPU{i}" for i in range(draw(st.integers(1, 8)))]
    stem = draw(st.sampled_from(["NIC", "mlx5_"]))
    nics = [f"{stem}{i}" for i in range(draw(st.integers(0, 5)))]
    nvlink = draw(st.sampled_from(["NV1", "NV4", "NV12", "NV18", "NVB", "SYS", "PIX"]))
    near = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS"])
    links: dict[tuple[str, str], str] = {}
    for a in gpus + nics:
        for b in gpus + nics:
            if a != b:
                both = a in gpus and b in gpus
                links[a, b] = links.get((b, a)) or (nvlink if both else draw(near))
    blank = draw(st.booleans())
    cpu = st.sampled_from(["0-15", "16-31", "0-7,64-71", "0,2,4,6"])
    cpus = {g: "" if blank and draw(st.booleans()) else draw(cpu) for g in gpus}
    return Printed(
        gpus=gpus,
        nics=nics,
        links=links,
        cpus=cpus,
        nodes={g: draw(st.sampled_from(["0", "1", "0-1"])) for g in gpus},
        style=draw(st.sampled_from(["old", "numa", "id"])),
    )


def _each(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(change(line) + "\n" for line in text.splitlines())


def _narrow(text: str, width: int = 60) -> str:
    """As a window of so many columns breaks it, at blanks."""
    out = []
    for line in text.expandtabs(8).splitlines():
        while len(line) > width and " " in line[:width].strip():
            cut = line.rfind(" ", 0, width)
            out.append(line[:cut])
            line = line[cut + 1 :]
        out.append(line)
    return "\n".join(out) + "\n"


DAMAGE: dict[str, Callable[[str], str]] = {
    "none": lambda t: t,
    "tabs to blanks": lambda t: t.expandtabs(8),
    "tabs to one blank": lambda t: t.replace("\t", " "),
    "tabs to four": lambda t: t.replace("\t", "    "),
    "blanks squeezed": _each(lambda line: " ".join(line.split())),
    "quoted": _each(lambda line: "> " + line),
    "quoted twice": _each(lambda line: ">> " + line),
    "commented": _each(lambda line: "# " + line),
    "fenced": lambda t: f"Words.\n```text\n{t}```\nMore words.\n",
    "colour": lambda t: "\x1b[4m" + t.replace("\n", "\x1b[0m\n", 1),
    "rank": _each(lambda line: "[rank0]: " + line),
    "container": _each(lambda line: "2026-01-02T03:04:05.678901234Z stdout F " + line),
    "compose": _each(lambda line: "vllm-1  | " + line),
    "stamped": _each(lambda line: "2026-01-02 03:04:05,678 " + line),
    "entities": lambda t: t.replace("\t", "&nbsp;&nbsp;&nbsp;&nbsp;"),
    "hard blanks": lambda t: t.expandtabs(8).replace(" ", "\u00a0"),
    "windows": lambda t: t.replace("\n", "\r\n"),
    "narrow": _narrow,
    "glued": lambda t: t.replace("\tSYS\tSYS", "\tSYSSYS").replace("\tNV12\tNV12", "\tNV12NV12"),
    "glued header": lambda t: t.replace("GPU0\tGPU1", "GPU0GPU1", 1),
    "glued names": lambda t: t.replace("\nGPU1\tPIX", "\nGPU1PIX").replace("GPU1\tNV", "GPU1NV"),
    "glued affinity": lambda t: t.replace("SYS\t0-15", "SYS0-15").replace(" X \t16", "X16"),
    "cut below": lambda t: "\n".join(t.splitlines()[:2]) + "\n",
    "header lost": lambda t: t.split("\n", 1)[1],
    "a row lost": lambda t: "\n".join(x for i, x in enumerate(t.splitlines()) if i != 2) + "\n",
    "a cell lost": lambda t: t.replace("\tSYS\t", "\t", 1),
    "trailing blanks": _each(str.rstrip),
}


@settings(max_examples=200, deadline=None)
@given(machines(), st.lists(st.sampled_from(sorted(DAMAGE)), min_size=1, max_size=2, unique=True))
def test_damage_is_mended_or_refused_and_never_misread(m: Printed, damage: list[str]) -> None:
    text = m.text()
    for name in damage:
        text = DAMAGE[name](text)
    read_right(m, text)


@pytest.mark.parametrize("style", ["old", "numa", "id"])
def test_a_window_of_any_width_misleads_nobody(style: str) -> None:
    """Blank cells beside full ones, and headings broken in every place."""
    gpus, nics = [f"GPU{i}" for i in range(3)], [f"NIC{i}" for i in range(3)]
    links = {(a, b): "PIX" for a in gpus + nics for b in gpus + nics if a != b}
    cpus = {"GPU0": "", "GPU1": "0-15", "GPU2": ""}
    nodes = {"GPU0": "0", "GPU1": "0", "GPU2": "1"}
    m = Printed(gpus=gpus, nics=nics, links=links, cpus=cpus, nodes=nodes, style=style)
    read = [read_right(m, _narrow(m.text(), width)) for width in range(12, 110)]
    assert sum(read) > 50, "most widths have one reading"


def read_right(m: Printed, text: str) -> bool:
    """Whether it was read; what was read is what was printed."""
    part = read_matrix(bare(tidy(clean(text))))
    if part is None or part.refused is not None:
        return False
    assert part.matrix is not None
    for pair, found in part.matrix.links.items():
        assert m.links[pair] == found, (pair, text)
    for g, cpus in part.matrix.cpu_affinity.items():
        assert cpus is None or set(cpus) == set(_cpus(m.cpus[g])), (g, text)
    for g, nodes in part.matrix.numa_affinity.items():
        assert nodes is None or set(nodes) == set(_cpus(m.nodes[g])), (g, text)
    return True


def _cpus(text: str) -> list[int]:
    found: list[int] = []
    for word in filter(None, text.split(",")):
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


LOSSLESS = sorted(
    {
        "none", "tabs to blanks", "quoted", "quoted twice", "commented", "fenced", "colour", "rank",
        "container", "compose", "stamped", "windows", "glued", "glued header", "glued names",
    }
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(machines(), st.sampled_from(LOSSLESS))
def test_what_loses_nothing_is_read_whole(m: Printed, damage: str) -> None:
    m = dataclasses.replace(m, cpus={g: c or "0-15" for g, c in m.cpus.items()})
    part = read_matrix(bare(tidy(clean(DAMAGE[damage](m.text())))))
    assert part is not None
    assert part.refused is None, (part.refused, m.text())
    assert part.facts["links"] == {f"{a}-{b}": c for (a, b), c in m.links.items()}
    assert part.unclear == ()


def test_lines_that_a_narrow_window_broke_are_put_together() -> None:
    text = (
        "        GPU0    GPU1    NIC0\n    NIC1    CPU Affinity    NUMA Affinity\n"
        "GPU0     X      NV4     PIX\n    SYS     0-15    0\n"
        "GPU1    NV4      X      SYS\n    PIX     16-31   1\n"
        "NIC0    PIX     SYS      X\n    SYS\nNIC1    SYS     PIX     SYS\n     X\n"
    )
    part = read_matrix(text)
    assert part is not None and part.refused is None
    assert part.facts["cpu_affinity"] == {"GPU0": "0-15", "GPU1": "16-31"}
    assert part.facts["nics"] == ["NIC0", "NIC1"]
    assert len(part.repairs) == 5


def test_two_matrices_of_one_text() -> None:
    one = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
    same = read_matrix(one + "\n" + one)
    assert same is not None and same.unclear == ()
    other = read_matrix(one + "\n" + one.replace("NV4", "SYS"))
    assert other is not None
    assert other.facts["links"] == {"GPU0-GPU1": "NV4", "GPU1-GPU0": "NV4"}
    assert "further matrix" in other.unclear[0]


def test_a_peer_matrix_is_no_topology_matrix() -> None:
    peers = " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n"
    assert read_matrix(peers) is None
    one = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
    both = read_matrix(peers + "\n" + one)
    assert both is not None and both.facts["links"] == {"GPU0-GPU1": "NV4", "GPU1-GPU0": "NV4"}
