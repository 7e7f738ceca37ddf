"""`nodeagentctl topology check`: the machine, judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation

if TYPE_CHECKING:
    from nodeagent.model.baseline import Baseline

FAIL_ON = click.option(
    "--fail-on",
    type=click.Choice(["warn", "fail"]),
    default="warn",
    show_default=True,
    help="fail: exit 0 for WARN.",
)
POLICY = click.option(
    "--policy", metavar="FILE", help="Policy file (TOML): switches, grades, bounds, waivers."
)
ALL = click.option("--all", "everything", is_flag=True, help="Also what is OK or not applicable.")


def exit_code(verdict: str, fail_on: str) -> int:
    """Monitoring-plugin convention: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN or REFUSE."""
    from nodeagent.model.finding import EXIT_CODE, Verdict

    return 0 if verdict == "WARN" and fail_on == "fail" else EXIT_CODE[Verdict(verdict)]


def _baseline(file: str | None) -> Baseline | None:
    """The baseline that was asked for, else this machine's own, if there is one. One of this
    machine that cannot be used becomes a finding: everything else is judged all the same."""
    from nodeagent.cli.baseline import default_file, find_baseline
    from nodeagent.errors import ConfigError
    from nodeagent.model.baseline import unusable

    try:
        found = find_baseline(file)
    except ConfigError as error:
        if file is not None:
            raise
        return unusable(default_file(), str(error), error.remedy)
    if found is None and file is not None:
        raise ConfigError(
            f"{file}: there is no baseline", f"nodeagentctl baseline accept --file {file}"
        )
    return found


@click.command(
    epilog="\b\nExamples:  nodeagentctl topology check\n"
    "           nodeagentctl --host machine.tar.xz topology check --all\n"
    "           nodeagentctl topology check --policy policy.toml --fail-on fail\n"
    "\b\nExit codes: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN"
)
@POLICY
@click.option(
    "--baseline",
    metavar="FILE",
    help="What the machine should have (baseline accept).  [default: this machine's]",
)
@ALL
@FAIL_ON
@click.option("--policy-example", is_flag=True, help="Print a complete policy file and exit.")
@click.pass_obj
def check(
    invocation: Invocation,
    policy: str | None,
    baseline: str | None,
    everything: bool,
    fail_on: str,
    policy_example: bool,
) -> int:
    """Judge this machine, or a recorded one: what is wrong, and how to mend it.

    Works without root; what it could not see is UNKNOWN and names the file or the right.
    """
    import dataclasses
    import datetime
    import time

    if policy_example:
        from nodeagent.check.policyfile import example
        from nodeagent.cli.output import text_only

        text_only(invocation.output, "--policy-example prints a policy file")
        click.echo(example(datetime.datetime.now(datetime.UTC).date()), nl=False)
        return 0
    from nodeagent.check.judge import judge
    from nodeagent.cli.host import read_host
    from nodeagent.cli.output import emit_json, even_unheard
    from nodeagent.cli.policy import read_policy
    from nodeagent.cli.render.findings import as_json, print_findings
    from nodeagent.model.finding import worst

    rules = read_policy(policy)
    snapshot = read_host(invocation)
    if baseline is not None or invocation.host is None:
        snapshot = dataclasses.replace(snapshot, baseline=_baseline(baseline))
    findings = judge(snapshot, rules, time.time_ns())
    with even_unheard():
        if invocation.output == "table":
            print_findings(findings, everything=everything)
        else:
            emit_json("findings", as_json(findings, everything=everything))
    return exit_code(worst(findings).value, fail_on)
