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

    Understands nvidia-smi (its table, -q, -L, topo -m and -p2p, nvlink, --query-gpu as CSV),
    rocm-smi, amd-smi, lscpu (-e, -p, -J too), numactl -H, numastat, lstopo, dmidecode -t memory,
    lspci -vv, ibstat, rdma link, fuser and lsof of /dev/nvidia*, systemctl status, environment
    variables, libvirt and QEMU NUMA cells, gres.conf and slurmd, NCCL topology XML, dmesg and
    journal, /proc/cmdline, kernel files as `path: value` lines or under their own names, sysctl
    lines, whole reports (vLLM's collect_env, an issue with code fences), terminal transcripts, and
    directories that hold sys/ or proc/; tuned, grub, kernel configurations, irqbalance, systemd
    units, taskset, numactl -s, strace, ps, docker and Kubernetes options, df, ls -l /dev/shm, ipcs,
    free, DPDK command lines and logs, ethtool, ip, nstat, ss, XDP, chronyc, ptp4l. It never invents
    a value: what has two readings stays UNKNOWN, and a matrix that cannot be read is REFUSED.
    """
    import time

    from nodeagent.check.judge import judge
    from nodeagent.cli.output import emit_json, even_unheard
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
    with even_unheard():
        if invocation.output == "table":
            print_findings(
                findings, everything=everything, kinds=pasted.kinds if pasted is not None else ()
            )
        else:
            emit_json(
                "findings",
                as_json(findings, everything=everything, facts=paste.facts, repairs=repairs),
            )
    verdict: Verdict = worst(findings)
    return exit_code(verdict.value, fail_on)


def _gather(paths: tuple[str, ...], stack: ExitStack) -> tuple[list[Text], Root | None]:
    """All files; a directory that holds sys/ or proc/ is a machine's tree."""
    from nodeagent.discover.paste.files import (
        MAX_BYTES,
        TREES,
        decode,
        is_folder,
        read_file,
        read_folder,
    )
    from nodeagent.discover.paste.part import Text
    from nodeagent.discover.root import Root
    from nodeagent.errors import UsageError

    texts: list[Text] = []
    root: Root | None = None
    for path in paths:
        if path == "-":
            with click.open_file("-", "rb") as stream:
                texts.append(Text(name="stdin", text=decode("stdin", stream.read(MAX_BYTES + 1))))
        elif not is_folder(path):
            texts.append(read_file(path))
        else:
            if any((Path(path) / top).is_dir() for top in TREES):
                if root is not None:
                    raise UsageError(
                        f"{path}: a second machine's tree, expected one machine",
                        "diagnose each alone",
                    )
                root = stack.enter_context(Root.open(path))
            texts += read_folder(path)
    return texts, root
