"""The page that a run writes: what stands between its marks, and nothing else."""

from __future__ import annotations

import pathlib

from tests.vm import report
from tests.vm.report import Ended


def test_only_what_is_between_the_marks_changes(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "vm.md"
    page.write_text(f"# Title\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    kept = report.Report()
    kept.measured("A rule", "so it is")
    kept.write(
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
        page,
    )
    text = page.read_text()
    assert text.startswith(f"# Title\n{report.BEGIN}\n") and text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text and "test_other" not in text
    assert "1 passed, 1 failed, 1 skipped" in text
    assert "### A rule\n\nso it is" in text
    assert "| `test_a.py::test_z` | skipped: no QEMU |" in text
