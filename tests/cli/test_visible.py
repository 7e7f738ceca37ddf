"""What a process calls itself reaches a terminal escaped, in every table and line."""

from __future__ import annotations

import pytest
from rich.table import Table
from rich.text import Text

from nodeagent.cli.output import console

ODD = "\x1b]0;x\x07[/red]\x9b2J[bold]"


@pytest.mark.parametrize("kind", ["line", "text", "table", "style"])
def test_no_control_character_of_a_name_is_printed(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = console()
    if kind == "line":
        out.print(f"a {ODD} b")
    elif kind == "text":
        out.print(Text.assemble((ODD, "bold"), " b"))
    elif kind == "style":
        out.print(ODD, style="red")
    else:
        table = Table(title=ODD)
        table.add_column(ODD)
        table.add_row(ODD)
        out.print(table)
    seen = capsys.readouterr().out
    assert "\x1b" not in seen and "\x07" not in seen and "\x9b" not in seen
    assert r"\x1b]0;x" in seen
    assert "[/red]" in seen
