"""`nodeagentctl explain ID`: a check's page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from nodeagent.check.record import Check


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from nodeagent.check.judge import CHECKS

    return [CompletionItem(c.id, help=c.title) for c in CHECKS if c.id.startswith(incomplete)]


def _group(name: str) -> tuple[Check, ...]:
    """The checks of a group, such as `numa`; none for anything else."""
    from nodeagent.check.judge import CHECKS

    return tuple(c for c in CHECKS if c.id.startswith(f"{name.rstrip('.')}."))


def _emit(checks: list[dict[str, str]]) -> None:
    """findings/v1 without findings: the pages stand in `checks`."""
    from nodeagent.cli.output import emit_json
    from nodeagent.cli.render.findings import as_json

    emit_json("findings", {**as_json((), everything=False), "checks": checks})


@click.command(
    epilog="\b\nExamples:  nodeagentctl explain isolation.irqaffinity-overlap\n"
    "           nodeagentctl explain numa       (lists a group)\n"
    "           nodeagentctl explain            (lists every check)"
)
@click.argument("check_id", metavar="[ID]", required=False, shell_complete=_complete)
@click.option("--markdown", is_flag=True, help="Every page at once, as Markdown (docs/checks.md).")
@click.pass_obj
def explain(invocation: Invocation, check_id: str | None, markdown: bool) -> None:
    """Tell what a check means, why it matters, how to prove it by hand and how to mend it."""
    import difflib

    from nodeagent.check.judge import BY_ID, CHECKS
    from nodeagent.check.page import markdown as document
    from nodeagent.check.page import sections
    from nodeagent.cli.output import console, text_only
    from nodeagent.errors import UsageError

    if markdown:
        text_only(invocation.output, "explain --markdown prints a document")
        click.echo(document(CHECKS), nl=False)
        return
    listed = CHECKS if check_id is None else _group(check_id)
    if listed:
        if invocation.output != "table":
            _emit([{"id": c.id, "title": c.title} for c in listed])
            return
        width = max(len(c.id) for c in listed)
        for c in listed:
            click.echo(f"{c.id:{width}}  {c.title}")
        return
    assert check_id is not None
    found = BY_ID.get(check_id)
    if found is None:
        close = difflib.get_close_matches(check_id, list(BY_ID), 3, 0.5)
        raise UsageError(
            f"there is no check {check_id}",
            f"did you mean {', '.join(close)}?" if close else "nodeagentctl explain lists them all",
        )
    if invocation.output != "table":
        page = {h.lower().replace(" ", "_"): text for h, text in sections(found)}
        _emit([{"id": found.id, "title": found.title, **page}])
        return
    from rich.padding import Padding
    from rich.text import Text

    out = console()
    out.print(Text.assemble((found.id, "bold"), f"  {found.title}"))
    for heading, text in sections(found):
        out.print(Text(f"\n{heading}", "bold cyan"))
        if heading == "Prove it by hand":
            out.print(Text(f"  {text}"), soft_wrap=True)
        else:
            out.print(Padding(Text(text), (0, 0, 0, 2)))
