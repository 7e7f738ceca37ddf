"""What docs/style.md says and no linter knows."""

from __future__ import annotations

import ast
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "nodeagent"

BLIND = {"cli/main.py:main", "controller/main.py:main", "daemon/loop.py:_turn"}
"""Where `except Exception` stands: around the turn of the loop, and around main."""


def blind(source: str) -> list[str]:
    """Functions that catch whatever comes, unless the handler only puts right and raises again."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.ExceptHandler):
                continue
            names = [] if node.type is None else ast.walk(node.type)
            caught = {n.id for n in names if isinstance(n, ast.Name)}
            last = node.body[-1]
            again = isinstance(last, ast.Raise) and last.exc is None
            every = node.type is None or caught & {"BaseException", "Exception"}
            if every and (not again or any(isinstance(n, ast.Return) for n in ast.walk(node))):
                found.append(function.name)
    return found


def test_exceptions_are_caught_by_name() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{name}"
        for path in PACKAGE.rglob("*.py")
        for name in blind(path.read_text())
    }
    assert found == BLIND


def test_the_rule_sees_what_it_should() -> None:
    shape = "def f():\n try: g()\n except {}:\n  {}\n"
    assert blind(shape.format("Exception", "pass")) == ["f"]
    assert blind(shape.format("(OSError, BaseException)", "return")) == ["f"]
    assert blind(shape.format("Exception as e", "if e: return\n  raise")) == ["f"]
    assert blind(shape.format("BaseException", "g()\n  raise")) == []
    assert blind(shape.format("ValueError", "pass")) == []
    assert blind("def f():\n try: g()\n except:\n  pass\n") == ["f"]
