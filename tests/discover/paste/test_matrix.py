"""Topology matrices: read right, repaired where there is one reading, or refused."""

from __future__ import annotations

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.discover.paste.matrix import read_matrix
from nodeagent.discover.paste.part import Part, clean
from nodeagent.discover.paste.rocm import amd_smi_topology, read_rocm

TABBED = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV4\tPIX\t0-15\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tSYS\t16-31\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)


def read(text: str) -> Part:
    part = read_matrix(clean(text))
    assert part is not None
    return part


def test_a_tabbed_matrix() -> None:
    facts = read(TABBED).facts
    assert facts == {
        "gpus": ["GPU0", "GPU1"],
        "nics": ["NIC0"],
        "links": {
            "GPU0-GPU1": "NV4",
            "GPU0-NIC0": "PIX",
            "GPU1-GPU0": "NV4",
            "GPU1-NIC0": "SYS",
            "NIC0-GPU0": "PIX",
            "NIC0-GPU1": "SYS",
        },
        "truncated": False,
        "cpu_affinity": {"GPU0": "0-15", "GPU1": "16-31"},
        "numa_affinity": {"GPU0": "0", "GPU1": "1"},
        "gpu_numa_id": {"GPU0": None, "GPU1": None},
        "nic_names": {"NIC0": "mlx5_0"},
    }


def markdown(text: str) -> str:
    """The rows as a table of Markdown, what follows as it is."""
    head, *rows = text.split("\n")
    out = ["|" + head.replace("\t", " | ") + " |"]
    out.append("|" + "---|" * (head.count("\t") + 1))
    for row in rows:
        cells = row.replace("\t\t", "\t").split("\t")
        name = f"| **{cells[0]}** | "
        out.append(name + " | ".join(c.strip() for c in cells[1:]) + " |" if "\t" in row else row)
    return "\n".join(out)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.expandtabs(8),
        lambda t: "".join(f"# {line}\n" for line in t.splitlines()),
        lambda t: "".join(f"> {line}\n" for line in t.expandtabs(8).splitlines()),
        lambda t: t.replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1").replace("ID\n", "ID\x1b[0m\n"),
        lambda t: t.replace("\n", "\r\n"),
        lambda t: "Some words before\n\n" + t,
        lambda t: "".join(f"// {line}\n" for line in t.splitlines()),
        lambda t: "".join(f"[0] {line}\n" for line in t.splitlines()),
        lambda t: json.dumps(t),
        lambda t: repr(t),
        lambda t: markdown(t),
    ],
    ids=[
        "blanks",
        "commented",
        "quoted",
        "colour",
        "windows",
        "in a report",
        "in code",
        "ranked",
        "json",
        "repr",
        "markdown",
    ],
)
def test_the_same_matrix_in_other_clothes(change: object) -> None:
    assert callable(change)
    part = read(change(TABBED))
    assert part.facts == read(TABBED).facts
    assert part.repairs == ()


ALIGNED = (
    "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
    "GPU0     X      NV4     0-15            0               N/A\n"
    "GPU1    NV4      X                      1               N/A\n"
)


def test_a_blank_affinity_is_null_and_moves_nothing() -> None:
    for text in (ALIGNED, TABBED.replace("SYS\t16-31\t1", "SYS\t\t1")):
        part = read(text)
        assert part.facts["cpu_affinity"] == {"GPU0": "0-15", "GPU1": None}
        assert part.facts["numa_affinity"] == {"GPU0": "0", "GPU1": "1"}
        assert part.unclear == ()


def test_a_value_stands_where_the_tabs_put_it() -> None:
    # Where tabs became blanks after a blank column, the value stands midway between two headings.
    part = read(TABBED.replace("SYS\t16-31\t1", "SYS\t\t1").expandtabs(8))
    assert part.facts["cpu_affinity"] == {"GPU0": "0-15", "GPU1": None}
    assert part.facts["numa_affinity"] == {"GPU0": "0", "GPU1": "1"}
    assert part.unclear == ()


@pytest.mark.parametrize(
    ("tail", "cpu", "node", "own"),
    [
        ("\t\t\tN/A", None, None, None),
        ("\t\t\t7", None, None, "7"),
        ("\t3\t\tN/A", None, "3", None),
        ("0-15\t\t\t7", "0-15", None, "7"),
        ("0-15\t\tN/A\t\t7", "0-15", None, "7"),
        ("0,2,4,6,8,10,12,14,16,18,20,22\t5\t\t", "0,2,4,6,8,10,12,14,16,18,20,22", "5", None),
    ],
)
def test_blank_cells_between_aligned_columns(
    tail: str, cpu: str | None, node: str | None, own: str | None
) -> None:
    text = f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t{tail}\n".expandtabs(8)
    for indent in ("", "   ", "        "):
        part = read("".join(f"{indent}{line}\n" for line in text.splitlines()))
        assert part.unclear == ()
        assert part.facts["cpu_affinity"] == {"GPU0": cpu}
        assert part.facts["numa_affinity"] == {"GPU0": node}
        assert part.facts["gpu_numa_id"] == {"GPU0": own}


def test_a_value_between_two_headings_stays_open() -> None:
    moved = "GPU1    NV4      X              2               N/A"
    part = read(ALIGNED.replace(ALIGNED.splitlines()[2], moved))
    assert part.facts["cpu_affinity"] == {"GPU0": "0-15", "GPU1": None}
    assert part.facts["numa_affinity"] == {"GPU0": "0", "GPU1": "2"}
    odd = "GPU1    NV4      X" + " " * 14 + "6" + " " * 10 + "N/A"
    part = read(ALIGNED.replace(ALIGNED.splitlines()[2], odd))
    assert part.facts["numa_affinity"] == {"GPU0": "0", "GPU1": None}
    assert len(part.unclear) == 1


def test_glued_cells_are_split_and_told() -> None:
    part = read(
        TABBED.expandtabs(8).replace("NV4     PIX", "NV4PIX").replace("NIC0    CPU", "NIC0CPU")
    )
    assert part.facts["links"] == read(TABBED).facts["links"]
    assert part.repairs == ("line 2: cell 'NV4PIX' read as NV4 PIX",)
    part = read(TABBED.replace("GPU1\tNIC0\tCPU", "GPU1NIC0\tCPU"))
    assert part.facts["links"] == read(TABBED).facts["links"]
    assert part.repairs == ("line 1: header 'GPU1NIC0' read as GPU1 NIC0",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TABBED.split("\n", 1)[1], "without its header"),
        (TABBED.replace("NV4\t X \tSYS", "NV4\t X "), "2 cells"),
        (TABBED.replace("NV4\t X \tSYS", " X \tNV4\tSYS"), "the X of GPU1"),
        (TABBED.replace("NV4\t X \tSYS", "NV4\tNV4\tSYS"), "the X of GPU1"),
        (TABBED.split("\n")[0] + "\n", "one for each GPU"),
        ("  NIC0:  NIC4 CPU Affinity NUMA Affinity\n  NIC1: mlx5_1\n", "no rows"),
    ],
)
def test_a_matrix_without_one_reading_is_refused(text: str, says: str) -> None:
    part = read(text)
    assert part.refused is not None
    assert says in part.refused
    assert part.facts == {}


def test_two_affinities_for_one_heading_stay_open() -> None:
    part = read(ALIGNED.replace("0-15            0", "0-15 8-9        0"))
    assert part.facts["cpu_affinity"] == {"GPU0": None, "GPU1": None}
    assert part.facts["numa_affinity"] == {"GPU0": None, "GPU1": "1"}
    assert len(part.unclear) == 1


def test_a_cut_matrix_is_truncated() -> None:
    part = read("\n".join(TABBED.split("\n")[:2]))
    assert part.facts["truncated"] is True
    assert part.refused is None


def test_a_text_that_ends_in_a_row_keeps_the_whole_rows() -> None:
    row = TABBED.split("\n")[2]
    for cut in range(len("GPU1\tNV4\t"), len(row) - len("N/A")):
        part = read("\n".join([*TABBED.split("\n")[:2], row[:cut]]))
        links = part.facts["links"]
        assert isinstance(links, dict)
        assert links["GPU0-NIC0"] == "PIX"
        assert links.get("GPU1-NIC0", "SYS") == "SYS"
        assert part.facts["truncated"] is ("GPU1-NIC0" not in links)
        assert part.facts["cpu_affinity"] in ({"GPU0": "0-15"}, {"GPU0": "0-15", "GPU1": None})
        assert len(part.repairs) == 1


def test_nothing_collected_is_an_empty_matrix() -> None:
    facts = read("Could not collect\n").facts
    assert facts == {"gpus": [], "nics": [], "links": {}, "truncated": False}


def test_other_text_is_no_matrix() -> None:
    for text in ("", "GPU0 is hot", "Architecture: x86_64", "GPU0: NVIDIA A100\nGPU1: A100\n"):
        assert read_matrix(text) is None, text


CLASSES = st.sampled_from(["NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])


@given(st.data(), st.integers(1, 5), st.integers(0, 4))
def test_what_is_printed_is_what_is_read(data: st.DataObject, gpus: int, nics: int) -> None:
    names = [f"GPU{i}" for i in range(gpus)] + [f"mlx5_{i}" for i in range(nics)]
    links = {(a, b): data.draw(CLASSES) for a in names for b in names if a != b}
    affinity = {g: data.draw(st.sampled_from(["", "0-7", "0-7,64-71"])) for g in names[:gpus]}
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for a in names:
        cells = [" X " if a == b else links[a, b] for b in names]
        lines.append(
            f"{a}\t" + "\t".join(cells) + f"\t{affinity.get(a, '')}\t" + ("0" * (a in affinity))
        )
    text = "\n".join(lines)
    if data.draw(st.booleans()):
        text = text.expandtabs(8)
    facts = read(text).facts
    assert facts["links"] == {f"{a}-{b}": c for (a, b), c in links.items()}
    assert facts["cpu_affinity"] == {g: v or None for g, v in affinity.items()}


@given(st.integers(0, len(TABBED)), st.integers(0, len(TABBED)), st.text(max_size=3))
def test_damage_never_raises_and_never_puts_a_link_elsewhere(a: int, b: int, new: str) -> None:
    text = TABBED[: min(a, b)] + new + TABBED[max(a, b) :]
    part = read_matrix(clean(text))
    read_rocm(text)
    if part is None or part.refused or max(a, b) - min(a, b) + len(new) > 2:
        return
    good = read(TABBED).facts["links"]
    found = part.facts["links"]
    assert isinstance(good, dict) and isinstance(found, dict)
    # Two characters can change one cell, or blur two; they cannot shift a row.
    assert sum(good.get(pair) != c for pair, c in found.items()) <= 6


ROCM = """
============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1
GPU0   0            15
GPU1   15           0
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0
======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 1
GPU[1]\t\t: (Topology) Numa Affinity: 1
================================== End of ROCm SMI Log ===================================
"""


def test_rocm_smi() -> None:
    part = read_rocm(ROCM)
    assert part is not None
    assert part.facts == {
        "gpus": ["GPU0", "GPU1"],
        "links": {"GPU0-GPU1": "XGMI", "GPU1-GPU0": "XGMI"},
        "weight": {"GPU0-GPU1": 15, "GPU1-GPU0": 15},
        "numa_node": {"GPU0": 0, "GPU1": 1},
        "numa_affinity": {"GPU0": "0", "GPU1": "1"},
    }
    cut = read_rocm(ROCM.replace("GPU1   XGMI         0", "GPU1   XGMI"))
    assert cut is not None
    assert cut.refused is not None


def test_amd_smi_topology() -> None:
    text = (
        "WEIGHT TABLE:\n             0001:05:00.0 0002:05:00.0\n0001:05:00.0 0            15\n"
        "0002:05:00.0 15           0\n\nHOPS TABLE:\n             0001:05:00.0 0002:05:00.0\n"
        "0001:05:00.0 0            1\n0002:05:00.0 1            0\n\nLINK TYPE TABLE:\n"
        "             0001:05:00.0 0002:05:00.0\n0001:05:00.0 SELF         XGMI\n"
        "0002:05:00.0 XGMI         SELF\n\nNUMA BW TABLE:\n"
        "             0001:05:00.0 0002:05:00.0\n0001:05:00.0 N/A          50-50\n"
        "0002:05:00.0 50-50        N/A\n"
    )
    part = read_rocm(amd_smi_topology(text))
    assert part is not None
    assert part.facts["gpus"] == ["GPU0", "GPU1"]
    assert part.facts["links"] == {"GPU0-GPU1": "XGMI", "GPU1-GPU0": "XGMI"}
    assert part.facts["weight"] == {"GPU0-GPU1": 15, "GPU1-GPU0": 15}
    assert part.facts["hops"] == {"GPU0-GPU1": 1, "GPU1-GPU0": 1}


def test_every_public_matrix(shared: pathlib.Path) -> None:
    for folder in sorted((shared / "corpus/machines/topo_matrix").iterdir()):
        text = clean((folder / "topo.txt").read_text())
        expected = json.loads((folder / "reference.json").read_text())
        part = read_rocm(text) or read(text)
        assert part.facts["links"] == expected["links"], folder.name
        assert part.refused is None, folder.name
