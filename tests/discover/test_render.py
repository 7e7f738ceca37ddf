"""What people look at: the tree within 100 columns, the picture without overlaps."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

HOSTS = pathlib.Path(__file__).parent.parent / "hosts"
CAPTURES = sorted(HOSTS.glob("*.capture"))
SVG = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float]


def show(bin_dir: pathlib.Path, capture: pathlib.Path, *args: str) -> str:
    done = subprocess.run(
        [bin_dir / "nodeagentctl", "--host", capture, *args], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda p: p.stem)
def test_tree_names_every_device_within_100_columns(
    bin_dir: pathlib.Path, capture: pathlib.Path
) -> None:
    text = show(bin_dir, capture, "topology", "show")
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    golden = json.loads(capture.with_suffix(".json").read_text())
    for bdf in golden["gpus"] + golden["nics"] + golden["nvmes"]:
        assert text.count(bdf) == 1
    for node in golden["numa_nodes"]:
        assert f"NUMA node {node['id']}" in text


def boxes(group: ET.Element) -> tuple[Rectangle, list[ET.Element]]:
    moved = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", group.attrib["transform"])
    rectangle = group.find(f"{SVG}rect")
    assert moved is not None and rectangle is not None
    x, y = float(moved[1]), float(moved[2])
    size = (float(rectangle.attrib["width"]), float(rectangle.attrib["height"]))
    return (x, y, *size), group.findall(f"{SVG}g")


def inside(group: ET.Element) -> int:
    """Checks that boxes lie within theirs and do not overlap; gives their number."""
    (_, _, width, height), below = boxes(group)
    places = [boxes(child)[0] for child in below]
    for x, y, w, h in places:
        assert x >= 0 and y >= 0 and x + w <= width + 0.2 and y + h <= height + 0.2
    for (ax, ay, aw, ah), (bx, by, bw, bh) in combinations(places, 2):
        assert ax + aw <= bx or bx + bw <= ax or ay + ah <= by or by + bh <= ay
    for text in group.findall(f"{SVG}text"):
        assert float(text.attrib["y"]) <= height
    return 1 + sum(map(inside, below))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda p: p.stem)
def test_picture_shows_every_device_and_nothing_overlaps(
    bin_dir: pathlib.Path, capture: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "machine.svg"
    show(bin_dir, capture, "topology", "show", "--svg", str(file))
    text = file.read_text()
    picture = ET.fromstring(text)
    (top,) = picture.findall(f"{SVG}g")
    golden = json.loads(capture.with_suffix(".json").read_text())
    devices = golden["gpus"] + golden["nics"] + golden["nvmes"]
    assert inside(top) > len(devices) + len(golden["numa_nodes"])
    for bdf in devices:
        assert f"{bdf}</text>" in text
    (_, _, width, height), _ = boxes(top)
    assert width < float(picture.attrib["width"]) < 1500
    assert height < float(picture.attrib["height"])


def test_a_picture_that_cannot_be_written_is_a_sentence(bin_dir: pathlib.Path) -> None:
    done = subprocess.run(
        [bin_dir / "nodeagentctl", "topology", "show", "--svg", "/nowhere/x.svg"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "/nowhere/x.svg" in done.stderr and "remedy:" in done.stderr
