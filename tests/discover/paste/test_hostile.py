"""Texts made to keep a reader busy: each would take hours where a pattern tries again and again."""

from __future__ import annotations

import pytest

from nodeagent.discover.legible import MAX_DIGITS, legible
from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.discover.redact import Masks, redact

N = 1_000_000

TEXTS = {
    "a key that never ends": "a" + " " * N,
    "a heading that never ends": "CPU" + " " * N,
    "a banner that never ends": "=" * N + " " * N + "x",
    "a name of names": "GPU0 " + "mlx5_0" * (N // 6),
    "lines of names": ("mlx5_0" * 1300 + "\n") * (N // 8000),
    "no killer": ("oom " * 2000 + "\n") * (N // 8000),
    "no fault": ("segfault" + "[1" * 4000 + "\n") * (N // 8000),
    "blank lines under a heading": "GPU0 NUMA Affinity\n" + "\n" * N,
    "stamps": "[0]" * (N // 3) + " panic",
    "an empty colour": "\x1b[" + "0;" * N,
    "a path": "/sys/" + "a/" * (N // 2),
    "a setting": "kernel" + ".a" * (N // 2),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_text_is_read_in_one_go(name: str) -> None:
    read_paste([Text(name="dmesg.txt", text=TEXTS[name])])


def test_numbers_that_only_look_like_digits_are_none() -> None:
    text = "CPU(s): \u00b2\nSocket(s): " + "1" * 5000 + "\nModel name: x\nThread(s) per core: 2\n"
    paste = read_paste([Text(name="lscpu.txt", text=text + "NUMA node0 CPU(s): 0-3\n")])
    assert paste.snapshot.topology.nodes[0].id == 0


def test_masks_are_numbered_by_kind_and_many_cost_no_more_each() -> None:
    masks = Masks()
    assert masks.of("ip", "10.0.0.1") == "<ip-1>"
    assert masks.of("mac", "a") == "<mac-1>"
    assert [masks.of("ip", f"10.0.0.{i}") for i in (2, 1, 3)] == ["<ip-2>", "<ip-1>", "<ip-3>"]
    for i in range(300_000):
        masks.of("path", str(i))
    assert masks.of("path", "new") == "<path-300001>"


def test_a_version_that_never_ends_is_masked_in_one_go() -> None:
    table = redact({"proc/version": b"a" * N + b" joe@build"}, Masks())
    assert table["proc/version"] == b"a" * N + b" <user-1>@<host-1>"


def test_what_int_cannot_take_is_no_digit() -> None:
    assert legible("a 4\u00b2 \u0663 \udc80 b") == "a 4\ufffd \ufffd \ufffd b"
    assert legible("1" * MAX_DIGITS) == "1" * MAX_DIGITS
    assert legible("x" + "1" * (MAX_DIGITS + 1) + "y") == "x\ufffdy"


@pytest.mark.parametrize("number", ["..", "\u00b2", "9" * 5000, "1.2.3", "."])
def test_a_figure_that_is_none_stops_no_reader(number: str) -> None:
    for text in (
        f"Maximum:\t {number} 3 (us)\n    Core:\t 0 1\n",
        f"core_i: 0 1\nint_max(ns): {number} 3\nint_n: {number} 4\n",
        f"CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: {number}\n",
        f"Stratum         : 2\nSystem time     : {number} seconds slow of NTP time\n"
        "Leap status     : Normal\n",
        f"driver: {number}\nversion: 1\nbus-info: x\ndriver: \n",
        f"some avg10={number} avg60=0.00 avg300=0.00 total=0\n",
    ):
        read_paste([Text(name="a.txt", text=text)])
