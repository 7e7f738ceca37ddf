"""One cell, word or blank without an end: every reader's time grows with the text, not its square.

A pattern that tries anew at each character would need hours for these, and the suite ends what
hangs. `test_blanks_without_an_end` says how the commonest way there is closed.
"""

from __future__ import annotations

import pytest

from nodeagent.discover.paste.part import MAX_BLANK, Text, clean
from nodeagent.discover.paste.read import read_paste

SIZE = 1 << 20
ENDLESS = {
    "blanks": " ",
    "tabs": "\t",
    "blank lines": "\n",
    "lines of a blank": " \n",
    "a name": "A1",
    "a word": "a",
    "digits": "1",
    "columns": "GPU0\t",
    "addresses": "0000:00:00.0 ",
    "a mask": "0x1",
    "a list": "1-2,",
    "options": "a=b;",
    "brackets": "[",
    "colons": "0:",
    "dots": "a.",
    "bars": "| ",
    "colours": "\x1b[",
    "quotes": '"',
    "tags": '<a b="c"',
    "objects": '{"a":',
    "calls": "set_mempolicy(",
    "binds": "binding",
    "drivers": "amdgpu: ",
    "log prefixes": "kernel: [1] ",
}


@pytest.mark.slow
@pytest.mark.parametrize("atom", ENDLESS.values(), ids=ENDLESS)
def test_a_line_without_an_end(atom: str) -> None:
    paste = read_paste([Text(name="dmesg.txt", text=atom * (SIZE // len(atom)) + "!")])
    assert paste.snapshot.pasted is not None


def test_blanks_without_an_end() -> None:
    assert clean("a" + " " * 5000 + "b") == "a" + " " * MAX_BLANK + "b"
    assert clean("a" + " \n" * 5000 + "b") == "a \n" + "\n" * MAX_BLANK + "b"
    table = "a" + " " * MAX_BLANK + "b\n\n\t c\n"
    assert clean(table) == table.replace("\t c", "\t c")
