"""Draws the pictures of README.md from real runs: nothing in them is typed in.

screen.svg: the live screen of the main job on the machine where this is run, at its last moment.
Only the host name is replaced. topology.svg and plan.svg: a made-up machine of tests/hosts, with
findings on two devices, and the workloads of examples/units.toml planned for it. Called by
script/pictures; with the word `plan`, only that one is drawn.
"""

from __future__ import annotations

import dataclasses
import html
import io
import pathlib
import re
import subprocess
import sys

from rich.console import Console

from nodeagent.cli.main import Invocation
from nodeagent.cli.planned import planned
from nodeagent.cli.render.flow import say
from nodeagent.cli.render.plan import plan_sentence, print_plan
from nodeagent.cli.standalone.job import Job
from nodeagent.cli.standalone.screen import render
from nodeagent.cli.standalone.view import View
from nodeagent.cli.standalone.watch import Options, Watch
from nodeagent.cli.standalone.workplace import Workplace
from nodeagent.errors import NodeagentError

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
MACHINE = PROJECT / "tests" / "hosts" / "hgx-10nic.capture"
COLUMNS = 112
CELL = 12.2
"""Width of a column in rich's SVG."""
SECONDS = 12.0
RATE_PER_S = 150_000

# rich's own, but for its fonts: it names some that a browser would fetch from elsewhere. The size
# makes a letter of DejaVu Sans Mono as wide (12.2) as rich counts.
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: "DejaVu Sans Mono", "Liberation Mono", Menlo, Consolas, monospace;
  font-size: 20.26px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def last_view() -> View:
    """Runs the main job and gives the last moment at which everything was running."""
    seen: list[View] = []

    def keep(view: View) -> None:
        if view.step == "running" and view.status is not None and view.cost is not None:
            seen[:] = [view]

    options = Options(
        seconds=SECONDS,
        rate=RATE_PER_S,
        host=None,
        config=PROJECT / "examples" / "standalone.toml",
        examples=PROJECT / "examples",
        live=True,
        period_s=2.0,
    )
    try:
        Job(Watch(options=options, work=Workplace.default(), show=keep)).run()
    except NodeagentError as error:
        sys.exit(f"error: {error}\nremedy: {error.remedy}")
    if not seen:
        sys.exit("error: the run ended before its screen was complete\nremedy: run it again")
    return seen[0]


def word_by_word(svg: str) -> str:
    """Each word at its own place: viewers differ in how they treat leading and repeated blanks."""

    def words(text: re.Match[str]) -> str:
        before, x, middle, after, content = text.groups()
        # None of the screen's letters is wider than one column.
        return "".join(
            f'{before}x="{float(x) + word.start() * CELL:.1f}"{middle}'
            f'textLength="{len(word[0]) * CELL:.1f}"{after}{html.escape(word[0])}</text>'
            for word in re.finditer(r"[^\xa0 ]+", html.unescape(content))
        )

    return re.sub(
        r'(<text [^>]*?)x="([\d.]+)"([^>]*?)textLength="[\d.]+"([^>]*>)([^<]*)</text>', words, svg
    )


def screen() -> str:
    """The live screen as SVG, with this machine's name left out."""
    view = last_view()
    assert view.status is not None
    view = dataclasses.replace(view, status=dataclasses.replace(view.status, hostname="node"))
    # A terminal that is written to nowhere: rich keeps what it drew.
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(render(view))
    svg = console.export_svg(title="script/run", code_format=FORMAT, unique_id="screen")
    return re.sub(r"[ \t]+\n", "\n", word_by_word(svg))


def plan() -> str:
    """`place plan` for a recorded machine as SVG."""
    invocation = Invocation(host=str(MACHINE), output="table", socket=None)
    made = planned(invocation, str(PROJECT / "examples" / "units.toml"), None)
    short = dataclasses.replace(
        made, file="examples/units.toml", recording=MACHINE.relative_to(PROJECT).as_posix()
    )
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    print_plan(console, short)
    console.print()
    say(console, plan_sentence(short))
    title = "nodeagentctl place plan"
    svg = console.export_svg(title=title, code_format=FORMAT, unique_id="plan")
    return re.sub(r"[ \t]+\n", "\n", word_by_word(svg))


def main() -> None:
    """The pictures, or a sentence why not."""
    (HERE / "plan.svg").write_text(plan(), encoding="utf-8")
    if sys.argv[1:] == ["plan"]:
        return
    (HERE / "screen.svg").write_text(screen(), encoding="utf-8")
    tool = pathlib.Path(sys.executable).with_name("nodeagentctl")
    picture = HERE / "topology.svg"
    subprocess.run([tool, "--host", MACHINE, "topology", "show", "--svg", picture], check=True)


if __name__ == "__main__":
    main()
