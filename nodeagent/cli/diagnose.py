"""`nodeagentctl diagnose PATH... | -`: judges what people paste."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nodeagent.cli.check import ALL, FAIL_ON, POLICY, exit_code
from nodeagent.cli.main import Invocation

if TYPE_CHECKING:
    from nodeagent.discover.paste.part import Text
    from nodeagent.discover.root import Root

MAX_BYTES = 64 << 20
"""Of one file; larger ones are refused with a sentence."""
MAX_FILES = 1_000


@click.command(
    epilog="\b\nExamples:  nvidia-smi topo -m | nodeagentctl diagnose -\n"
    "           nodeagentctl diagnose topo.txt lscpu.txt dmesg.txt\n"
    "           nodeagentctl -o json diagnose REPORT_DIR\n"
    "\b\nExit codes: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN or REFUSE"
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...|-")
@POLICY
@ALL
@FAIL_ON
@click.pass_obj
def diagnose(
    invocation: Invocation,
    paths: tuple[str, ...],
    policy: str | None,
    everything: bool,
    fail_on: str,
) -> int:
    """Judge pasted text, with no agent on the machine it came from.

    Understands nvidia-smi topo -m, rocm-smi --showtopo, lscpu, numactl -H, lspci -vv, NCCL topology
    XML, dmesg and journal, /proc/cmdline, kernel files as `path: value` lines or under their own
    names, sysctl lines, and directories that hold sys/ or proc/. It never invents a value: what has
    two readings stays UNKNOWN, and a matrix that cannot be read is REFUSED.
    """
    import time

    from nodeagent.check.judge import judge
    from nodeagent.cli.output import emit_json
    from nodeagent.cli.policy import read_policy
    from nodeagent.cli.render.findings import as_json, print_findings
    from nodeagent.discover.paste.read import read_paste
    from nodeagent.model.finding import Verdict, worst

    rules = read_policy(policy)
    with ExitStack() as stack:
        texts, root = _gather(paths, stack)
        paste = read_paste(texts, root)
    findings = judge(paste.snapshot, rules, time.time_ns())
    pasted = paste.snapshot.pasted
    repairs = pasted.repairs if pasted is not None else ()
    if invocation.output == "table":
        print_findings(findings, everything=everything)
    else:
        emit_json(
            "findings",
            as_json(findings, everything=everything, facts=paste.facts, repairs=repairs),
        )
    verdict: Verdict = worst(findings)
    return exit_code(verdict.value, fail_on)


def _gather(paths: tuple[str, ...], stack: ExitStack) -> tuple[list[Text], Root | None]:
    """All files; a directory that holds sys/ or proc/ is a machine's tree."""
    from nodeagent.discover.paste.part import Text
    from nodeagent.discover.root import Root
    from nodeagent.errors import UsageError

    texts: list[Text] = []
    root: Root | None = None
    for path in paths:
        if path == "-":
            with click.open_file("-", "rb") as stream:
                texts.append(Text(name="stdin", text=_decode("stdin", stream.read(MAX_BYTES + 1))))
            continue
        where = Path(path)
        if not where.exists():
            raise UsageError(
                f"{path}: there is no such file or directory, expected what somebody pasted",
                "give files, a directory, or - for stdin",
            )
        if not where.is_dir():
            texts.append(_read(where, path))
            continue
        if any((where / top).is_dir() for top in ("sys", "proc")):
            if root is not None:
                raise UsageError(
                    f"{path}: a second machine's tree, expected one machine", "diagnose each alone"
                )
            root = stack.enter_context(Root.open(path))
        files = [f for f in sorted(where.rglob("*")) if f.is_file() and not f.is_symlink()]
        files = [f for f in files if f.relative_to(where).parts[0] not in ("sys", "proc")]
        if len(files) > MAX_FILES:
            raise UsageError(
                f"{path}: {len(files)} files, expected at most {MAX_FILES}", "give fewer files"
            )
        texts += [_read(f, str(f.relative_to(where))) for f in files]
    return texts, root


def _read(path: Path, name: str) -> Text:
    from nodeagent.discover.paste.part import Text
    from nodeagent.errors import ReadError
    from nodeagent.given import read_given

    try:
        data = read_given(path, MAX_BYTES)
    except OSError as error:
        raise ReadError(
            str(path), error.strerror or str(error), "give a file that can be read"
        ) from error
    return Text(name=name, text=_decode(name, data))


def _decode(name: str, data: bytes) -> str:
    """UTF-8, or UTF-16 with its mark (PowerShell); other bytes are replaced, never fatal."""
    from nodeagent.errors import ReadError

    if len(data) > MAX_BYTES:
        raise ReadError(
            name, f"larger than {MAX_BYTES >> 20} MiB", "cut it to the part that counts"
        )
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")
