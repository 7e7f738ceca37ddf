"""script/bench [NAME...] [--quick] [-o table|json] [--write]: runs tests/bench/NAME.py in turn.

A benchmark module offers `rows(quick: bool) -> Iterable[Row]`. `--write` puts the table into
docs/benchmarks.md, between the markers of that name, with the machine it ran on.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import sys
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from row import Row  # noqa: E402

FRAME = {"main.py", "row.py", "veth.py", "__init__.py"}


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "pus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "virtual": "hypervisor" in pathlib.Path("/proc/cpuinfo").read_text(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def run(name: str, quick: bool) -> list[Row]:
    """The rows of one module; a fault of it is a row with the sentence."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    rows: list[Row] = []
    # A dataclass looks its own module up there.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        for row in module.rows(quick):
            rows.append(row)
            print(f"  {row.name}: {row.value} {row.unit} {row.note}", file=sys.stderr, flush=True)
    except Exception as error:
        traceback.print_exc()
        rows.append(Row(name=f"{name}.fault", value=None, unit="", target="", note=f"{error}"))
    return rows


def number(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(rows: list[Row]) -> str:
    """A Markdown table."""
    lines = [
        "| what | value | unit | target | met | peer | peer's | ratio | note |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    words = {True: "yes", False: "**missed**", None: "-"}
    for r in rows:
        lines.append(
            f"| {r.name} | {number(r.value)} | {r.unit} | {r.target or '-'} | {words[r.met]} "
            f"| {r.peer or '-'} | {number(r.peer_value)} | {number(r.ratio)} | {r.note} |"
        )
    return "\n".join(lines)


def write(results: dict[str, list[Row]], about: dict[str, object]) -> None:
    """Replaces each module's section of docs/benchmarks.md."""
    path = ROOT / "docs" / "benchmarks.md"
    text = (
        path.read_text()
        if path.exists()
        else "# Benchmarks\n\nWritten by `script/bench --write`. Trust ratios within one run; a "
        "shared virtual machine is noisy.\n"
    )
    for name, rows in results.items():
        start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        what = ", ".join(f"{k} {v}" for k, v in about.items())
        section = f"{start}\n## {name}\n\nMachine: {what}.\n\n{table(rows)}\n{end}"
        if start in text and end in text:
            text = text[: text.index(start)] + section + text[text.index(end) + len(end) :]
        else:
            text = text.rstrip() + "\n\n" + section + "\n"
    path.write_text(text)


def main() -> int:
    """Runs the named benchmarks, or all."""
    known = sorted(p.stem for p in HERE.glob("*.py") if p.name not in FRAME)
    parser = argparse.ArgumentParser(prog="script/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="all within 120 s")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    unknown = [n for n in args.names if n not in known]
    if unknown:
        print(
            f"error: no benchmark {unknown[0]}, expected one of {', '.join(known)}", file=sys.stderr
        )
        return 64
    about = machine()
    results = {}
    for name in args.names or known:
        print(f"{name}:", file=sys.stderr, flush=True)
        results[name] = run(name, args.quick)
    if args.write:
        write(results, about)
    every = [r for rows in results.values() for r in rows]
    if args.output == "json":
        body = {
            "schema": "nodeagent.bench/v1",
            "machine": about,
            "results": [
                {
                    "name": r.name,
                    "value": r.value,
                    "unit": r.unit,
                    "peer": r.peer,
                    "peer_value": r.peer_value,
                    "ratio": r.ratio,
                    "target": r.target,
                    "met": r.met,
                    "note": r.note,
                }
                for r in every
            ],
        }
        print(json.dumps(body))
    else:
        print(table(every))
    return 2 if any(r.met is False for r in every) else 0


if __name__ == "__main__":
    sys.exit(main())
