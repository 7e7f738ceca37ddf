"""The page that a run writes: what stands between its marks, and nothing else."""

from __future__ import annotations

import pathlib

from tests.vm import report
from tests.vm.conftest import by_machine
from tests.vm.machine import machines
from tests.vm.report import Ended


def test_only_what_is_between_the_marks_changes(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "vm.md"
    page.write_text(f"# Title\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    kept = report.Report()
    kept.measured("A rule", "so it is")
    kept.ended(
        [
            Ended(nodeid="tests/vm/test_a.py::test_x", when="setup", outcome="passed"),
            Ended(nodeid="tests/vm/test_a.py::test_x", when="call", outcome="passed"),
            Ended(nodeid="tests/vm/test_a.py::test_x", when="teardown", outcome="failed"),
            Ended(nodeid="tests/vm/test_a.py::test_y", when="call", outcome="passed"),
            Ended(
                nodeid="tests/vm/test_a.py::test_z",
                when="setup",
                outcome="skipped",
                why="no QEMU",
            ),
            Ended(nodeid="tests/cli/test_b.py::test_other", when="call", outcome="failed"),
        ],
        "2026-01-02 03:04",
    )
    kept.write(page, fresh=True)
    text = page.read_text()
    assert text.startswith(f"# Title\n{report.BEGIN}\n") and text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text and "test_other" not in text
    assert "1 passed, 1 failed, 1 skipped" in text
    assert "### A rule\n\nso it is" in text
    assert "| test_a.py::test_z | 2026-01-02 03:04 | skipped: no QEMU |" in text


def test_a_run_of_a_part_keeps_the_other_rows(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "vm.md"
    page.write_text(f"{report.BEGIN}\n{report.END}\n")
    name = "tests/vm/test_a.py::test_{}"
    both = report.Report()
    both.measured("Rule", "| a |\n|---|\n| 1 |")
    both.booted(machines()["smt"], release="6", state="running", accelerator="tcg", seconds=9)
    both.ended([Ended(nodeid=name.format(n), when="call", outcome="passed") for n in "xy"], "then")
    both.write(page, fresh=True)
    one = report.Report()
    one.ended([Ended(nodeid=name.format("x"), when="call", outcome="failed")], "now")
    one.write(page, fresh=False)
    kept = report.parse(page.read_text().partition(report.BEGIN)[2].partition(report.END)[0])
    assert kept.sections == both.sections and kept.machines == both.machines
    assert kept.tests == {
        "test_a.py::test_x": "| test_a.py::test_x | now | failed |",
        "test_a.py::test_y": "| test_a.py::test_y | then | passed |",
    }
    one.write(page, fresh=True)
    assert "test_y" not in page.read_text()


def test_each_machine_of_a_file_is_booted_once() -> None:
    tests = [
        (1, "a", "x"),
        (2, "a", "y"),
        (3, "a", "x"),
        (4, "b", "y"),
        (5, "b", ""),
        (6, "b", "y"),
    ]
    assert by_machine(tests) == [1, 3, 2, 4, 6, 5]
