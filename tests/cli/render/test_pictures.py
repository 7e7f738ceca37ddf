"""What people look at: the tree within 100 columns, the picture without overlaps or overflow.

On every machine of tests/hosts and, where it is present, every recorded one of the shared corpus.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import pathlib
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.cli.render.devices import shown
from nodeagent.cli.render.machine import machine
from nodeagent.cli.render.marks import place
from nodeagent.cli.render.topology_svg import topology_svg
from nodeagent.cli.render.topology_tree import print_topology
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.model.finding import Evidence, Finding, Verdict
from nodeagent.model.snapshot import GpuFacts, Snapshot
from nodeagent.model.topology import PeerLink
from tests.hosts.generate import BIG, made

TESTS = pathlib.Path(__file__).parents[2]
CORPUS = TESTS.parents[1] / "shared" / "corpus" / "machines"
CAPTURES = sorted((TESTS / "hosts").glob("*.capture"))
RECORDED = sorted(CORPUS.glob("sysfs*/*/snapshot.tar.xz"))
EACH = pytest.mark.parametrize(
    "file", [*CAPTURES, *RECORDED], ids=lambda p: p.parent.name if p.suffix == ".xz" else p.stem
)
SVG = "{http://www.w3.org/2000/svg}"
WIDE, NARROW = set("mwMW@%GOQ"), set("iljtfrI.,:;!|'()[]/- ")


@functools.cache
def read(path: pathlib.Path) -> tuple[Snapshot, tuple[Finding, ...]]:
    with Root.open(str(path)) as root:
        snapshot = read_snapshot(root)
    return snapshot, judge(snapshot, Policy(), 0)


def tree_of(
    snapshot: Snapshot, findings: tuple[Finding, ...], capsys: pytest.CaptureFixture[str]
) -> str:
    print_topology(snapshot, findings)
    return capsys.readouterr().out


@EACH
def test_tree_names_every_device_within_100_columns(
    file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot, findings = read(file)
    text = tree_of(snapshot, findings, capsys)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in text
    above = text.partition("\n\n")[0]
    for function in filter(shown, snapshot.topology.pci):
        assert above.count(f" {function.bdf}") == 1
    named = named_nodes(above)
    assert {n.id for n in snapshot.topology.nodes} == named
    # A machine of any size is a screen or three, not a scroll.
    assert len(lines) < 60 + 2 * len(snapshot.topology.nodes) + 3 * len(snapshot.topology.pci)


def named_nodes(tree: str) -> set[int]:
    found: set[int] = set()
    for text in re.findall(r"NUMA nodes? ([0-9,-]+)", tree):
        for part in text.split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def test_a_thousand_cpus_and_64_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    with made(BIG["giant"](), "giant") as root:
        snapshot = read_snapshot(root)
    findings = judge(snapshot, Policy(), 0)
    text = tree_of(snapshot, findings, capsys)
    assert max(map(len, text.splitlines())) <= 100
    assert named_nodes(text) == set(range(64))
    check_picture(topology_svg(snapshot, findings))


# ---- the picture as rectangles -------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A rectangle on the page and the boxes that it lies in."""

    x: float
    y: float
    width: float
    height: float
    path: tuple[int, ...]
    text: str = ""

    def holds(self, other: Box) -> bool:
        return (
            self.x - 0.3 <= other.x
            and self.y - 0.3 <= other.y
            and other.x + other.width <= self.x + self.width + 0.3
            and other.y + other.height <= self.y + self.height + 0.3
        )

    def meets(self, other: Box) -> bool:
        return (
            self.x + 0.3 < other.x + other.width
            and other.x + 0.3 < self.x + self.width
            and self.y + 0.3 < other.y + other.height
            and other.y + 0.3 < self.y + self.height
        )


def measured(text: str, size: float, bold: bool) -> float:
    """Upper bound of a text in any common sans-serif face: not the table that the picture uses."""
    em = sum(1.0 if c in WIDE or ord(c) > 0x250 else 0.29 if c in NARROW else 0.61 for c in text)
    return em * size * (1.08 if bold else 1.0)


def boxes(picture: ET.Element) -> tuple[list[Box], list[Box]]:
    """(groups, texts) with absolute places."""
    groups: list[Box] = []
    texts: list[Box] = []

    def walk(group: ET.Element, x: float, y: float, path: tuple[int, ...]) -> None:
        moved = re.fullmatch(r"translate\((-?[\d.]+) (-?[\d.]+)\)", group.attrib["transform"])
        rectangle = group.find(f"{SVG}rect")
        assert moved is not None and rectangle is not None
        x, y = x + float(moved[1]), y + float(moved[2])
        size = (float(rectangle.attrib["width"]), float(rectangle.attrib["height"]))
        path = (*path, len(groups))
        groups.append(Box(x, y, *size, path))
        for text in group.findall(f"{SVG}text"):
            letters = float(text.attrib["font-size"])
            words = text.text or ""
            width = measured(words, letters, text.get("font-weight") == "bold")
            at = (x + float(text.attrib["x"]), y + float(text.attrib["y"]) - 0.76 * letters)
            texts.append(Box(*at, width, 0.95 * letters, path, words))
        for child in group.findall(f"{SVG}g"):
            walk(child, x, y, path)

    for group in picture.findall(f"{SVG}g"):
        walk(group, 0, 0, ())
    return groups, texts


def apart(things: list[Box]) -> Iterator[tuple[Box, Box]]:
    """Pairs that meet although neither lies in the other by structure (sweep from the left)."""
    active: list[Box] = []
    for box in sorted(things, key=lambda b: b.x):
        active = [a for a in active if a.x + a.width > box.x]
        for other in active:
            nested = other.path[: len(box.path)] == box.path or (
                box.path[: len(other.path)] == other.path
            )
            if not nested and box.meets(other):
                yield box, other
        active.append(box)


def check_picture(svg: str) -> None:
    """Everything lies in its box, nothing lies on anything else."""
    picture = ET.fromstring(svg)
    groups, texts = boxes(picture)
    page = Box(0, 0, float(picture.attrib["width"]), float(picture.attrib["height"]), ())
    by_path = {g.path: g for g in groups}
    for group in groups:
        outer = by_path.get(group.path[:-1], page)
        assert outer.holds(group), (outer, group)
    for text in texts:
        assert by_path[text.path].holds(text), (by_path[text.path], text)
    assert not list(apart([g for g in groups if g.width and g.height]))
    for i, text in enumerate(texts):
        for other in texts[i + 1 :]:
            assert not text.meets(other), (text, other)
    leaves = [g for g in groups if not any(o.path[:-1] == g.path for o in groups)]
    for text in texts:
        for leaf in leaves:
            if text.path[: len(leaf.path)] != leaf.path and leaf.height > 6:
                assert not text.meets(leaf), (text, leaf)


@EACH
def test_nothing_overlaps_or_leaves_its_box(file: pathlib.Path) -> None:
    snapshot, findings = read(file)
    svg = topology_svg(snapshot, findings)
    check_picture(svg)
    assert float(ET.fromstring(svg).attrib["width"]) <= 3000
    for function in filter(shown, snapshot.topology.pci):
        assert svg.count(f">{function.bdf}</text>") == 1
    for outside in ("href", "url(", "<image", "<script", "<style", "@import"):
        assert outside not in svg


@EACH
def test_every_finding_is_marked_and_listed(
    file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot, findings = read(file)
    svg, tree = topology_svg(snapshot, findings), tree_of(snapshot, findings, capsys)
    bad = {f.id for f in findings if f.verdict in (Verdict.FAIL, Verdict.WARN)}
    for name in bad:
        # Beside what it is about and in the list below.
        assert len(re.findall(rf"[✗▲] {re.escape(name)}\b", tree)) >= 2
        assert f" {name}</text>" in svg
    if not bad:
        assert "nothing wrong in" in tree and "nothing wrong in" in svg


# ---- marks -------------------------------------------------------------------------------------


def finding(verdict: Verdict, subject: str, id: str = "pcie.width") -> Finding:
    return Finding(
        id=id, verdict=verdict, subject=subject, message="made up", evidence=(), remedy=""
    )


def server() -> Snapshot:
    return read(TESTS / "hosts" / "two-socket-8gpu.capture")[0]


@pytest.mark.parametrize(
    ("subject", "keys"),
    [
        ("0000:18:00.0", {"0000:18:00.0"}),
        ("gpu 0000:18:00.0, 0000:3a:00.0", {"0000:18:00.0", "0000:3a:00.0"}),
        # The port above a device is drawn with it; the root port with the switch below it.
        ("0000:17:00.0", {"0000:17:00.0"}),
        ("bridge 0000:15:01.0", {"0000:15:01.0"}),
        ("node 1", {"node 1"}),
        ("nodes 0-1", {"node 0", "node 1"}),
        ("package 1", {"package 1"}),
        ("cpu 0-3", {"node 0"}),
        ("cpu 0-31", {"machine"}),
        ("GPU3", {"0000:5c:00.0"}),
        ("eth7", {"0000:db:00.0"}),
        ("nvme2", {"0000:4d:00.0"}),
        ("net.core.rmem_max", {"machine"}),
        ("0000:ff:1f.7", {"machine"}),
    ],
)
def test_a_finding_belongs_to_what_it_names(subject: str, keys: set[str]) -> None:
    snapshot = server()
    (mark,) = place(snapshot, machine(snapshot), (finding(Verdict.WARN, subject),)).marks
    assert mark.keys == keys


def test_a_cut_subject_is_completed_from_its_evidence() -> None:
    snapshot = server()
    cut = replace(
        finding(Verdict.WARN, "gpu 0000:18:00.0 and 1 more"),
        evidence=(Evidence(path="/sys/bus/pci/devices/0000:3a:00.0/x", text="1"),),
    )
    (mark,) = place(snapshot, machine(snapshot), (cut,)).marks
    assert mark.keys == {"0000:18:00.0", "0000:3a:00.0"}


def test_marks_are_numbered_worst_first_and_waived_ones_are_not_drawn() -> None:
    snapshot = server()
    given = (
        finding(Verdict.INFO, "GPU1"),
        finding(Verdict.FAIL, "GPU2"),
        finding(Verdict.OK, "GPU3"),
        finding(Verdict.UNKNOWN, "machine"),
        replace(finding(Verdict.FAIL, "GPU4"), waived_until="2030-01-01"),
    )
    marks = place(snapshot, machine(snapshot), given)
    told = [(m.number, m.finding.verdict) for m in marks.marks]
    assert told == [(1, Verdict.FAIL), (2, Verdict.INFO)]
    assert (marks.questions, marks.answers) == (1, 1)


def test_many_findings_on_one_device_are_counted_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    snapshot = server()
    many = tuple(finding(Verdict.FAIL, "GPU0", f"made.up-{i}") for i in range(40))
    check_picture(topology_svg(snapshot, many))
    text = tree_of(snapshot, many, capsys)
    assert "and 37 more" in text and max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((18,), "NVLink: 18 links between every two of 8 GPUs"),
        ((1,), "NVLink: 1 link between every two of 8 GPUs"),
        # A cube of meshes: some pairs have two links, some one, some none.
        ((2, 1, 0), "NVLink: links between GPUs"),
        ((0,), ""),
    ],
    ids=str,
)
def test_direct_links_are_summed_up(
    counts: tuple[int, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = server()
    turn = itertools.cycle(counts)

    def links() -> tuple[PeerLink, ...]:
        count = next(turn)
        return (PeerLink(type="nvlink", count=count),) if count else ()

    relations = tuple(
        replace(r, links=links()) if r.links else r for r in snapshot.topology.relations
    )
    snapshot = replace(snapshot, topology=replace(snapshot.topology, relations=relations))
    svg = topology_svg(snapshot, ())
    check_picture(svg)
    assert ("NVLink" in svg) is bool(said) and said in svg
    tree = tree_of(snapshot, (), capsys)
    assert ("NV2" in tree) is (2 in counts) and ("NV18" in tree) is (18 in counts)


# ---- hostile and bare input ---------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script>",
    "\x1b[2J\x07\x00",
    "\u202egnp.exe",
    "]]>&amp;\"'" + "W" * 400,
    "漢字" * 60,
    "\ud800\uffff",
)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_texts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = server()
    snapshot = replace(
        snapshot,
        host=replace(snapshot.host, hostname=name, cpu_model=name),
        nics=tuple(replace(n, name=name, rdma=name) for n in snapshot.nics),
        nvmes=tuple(replace(d, model=name) for d in snapshot.nvmes),
        gpus=tuple(
            GpuFacts(bdf=g.bdf, index=g.index, name=name, error=name) for g in snapshot.gpus
        ),
    )
    bad = (replace(finding(Verdict.FAIL, f"GPU1 {name}"), message=name),)
    svg = topology_svg(snapshot, bad)
    svg.encode()
    check_picture(svg)
    assert "<script" not in svg and "\x1b" not in svg and "\u202e" not in svg
    text = tree_of(snapshot, bad, capsys)
    assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text


def test_nothing_known_is_said(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text("ro quiet\n")
    snapshot, findings = read(tmp_path)
    text = tree_of(snapshot, findings, capsys)
    assert "CPUs not known, no PCI devices seen" in text
    check_picture(topology_svg(snapshot, findings))


# ---- the command -------------------------------------------------------------------------------


def show(bin_dir: pathlib.Path, *args: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    capture = TESTS / "hosts" / "nps4-4gpu.capture"
    return subprocess.run(
        [bin_dir / "nodeagentctl", "--host", capture, "topology", "show", *args],
        capture_output=True,
        env=os.environ | env,
        check=False,
    )


def test_the_command_marks_what_the_policy_leaves(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert "▲ irq.on-isolated" in show(bin_dir).stdout.decode()
    policy = tmp_path / "policy.toml"
    policy.write_text('[checks."irq.on-isolated"]\nenabled = false\n')
    done = show(bin_dir, "--policy", str(policy))
    assert done.returncode == 0, done.stderr
    assert "irq.on-isolated" not in done.stdout.decode()
    file = tmp_path / "machine.svg"
    assert show(bin_dir, "--svg", str(file)).returncode == 0
    check_picture(file.read_text())
    assert "irq.on-isolated" in file.read_text()


def test_a_terminal_without_unicode_gets_ascii(bin_dir: pathlib.Path) -> None:
    done = show(bin_dir, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "+-- NUMA node 0" in done.stdout.decode("ascii")
    assert "! irq.on-isolated" in done.stdout.decode("ascii")


def test_a_picture_that_cannot_be_written_is_a_sentence(bin_dir: pathlib.Path) -> None:
    done = show(bin_dir, "--svg", "/nowhere/x.svg")
    assert done.returncode == 3
    assert b"/nowhere/x.svg" in done.stderr and b"remedy:" in done.stderr


def test_colour_on_a_terminal_only_and_never_with_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    snapshot, findings = read(TESTS / "hosts" / "nps4-4gpu.capture")
    seen: Callable[[], str]
    for no_color, coloured in (("", True), ("1", False)):
        out = Terminal()
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("NO_COLOR", no_color)
        print_topology(snapshot, findings)
        seen = out.getvalue
        assert ("\x1b[33m" in seen() or "\x1b[1;32m" in seen()) is coloured
