"""irq: who sets interrupt masks, whether they took effect, and how queues are spread."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.check.irq import FIRED, irqs_of, lands
from nodeagent.check.isolation import hex_mask, quiet
from nodeagent.check.locality import data_nics
from nodeagent.check.record import (
    READ_BY_HAND,
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    fail,
    ok,
    saw,
    share,
    some,
    warn,
)
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.snapshot import Irq

CONFIGS = ("etc/default/irqbalance", "etc/sysconfig/irqbalance")
RUNS = "run/irqbalance"
ONE_CPU_PERCENT = 99
"""With this share of all counts on one CPU it does the work of all queues."""
_SETTING = re.compile(
    r"""^\s*(?:export\s+)?(IRQBALANCE_BANNED_CPUS|IRQBALANCE_BANNED_CPULIST)\s*=\s*["']?"""
    r"""([^"'#\n]*)""",
    re.MULTILINE,
)


@check(
    "irq.effective",
    "interrupt masks that were set are in force",
    means="WARN when a device's interrupt is delivered to a CPU outside the mask that was set for "
    "it: the kernel found no free vector there (ENOSPC), or it has not fired since. NA where the "
    "kernel tells only one of the two.",
    why="The write succeeds, smp_affinity reads back as written, and the interrupt stays where it "
    "was: on the isolated CPU or the other socket.",
    prove="grep . /proc/irq/*/smp_affinity_list /proc/irq/*/effective_affinity_list",
    mend="Free vectors: fewer queues (ethtool -L NIC combined N) or more CPUs in the mask; then "
    "write the mask again.",
    source="Linux kernel/irq/manage.c irq_do_set_affinity(); arch/x86/kernel/apic/vector.c "
    "(-ENOSPC)",
)
def effective(s: Seen) -> Iterator[Judged]:
    """smp_affinity_list against effective_affinity_list."""
    irqs = irqs_of(s)
    s.whole("proc/irq", leaf="effective_affinity")
    s.whole("proc/irq", leaf="smp_affinity")
    online = s.snapshot.topology.online
    both = [i for i in irqs if i.affinity and i.effective and (i.affinity & online or not online)]
    if not both:
        raise NotApplicable("no interrupt tells both masks")
    off = [i for i in both if not (i.effective or CpuSet()) <= (i.affinity or CpuSet())]
    fired = [i for i in off if not i.counts or any(n for _, n in i.counts)]
    if fired:
        first = fired[0]
        yield warn(
            f"irq {some(i.number for i in fired)}",
            f"{len(fired)} interrupts go to other CPUs than their masks say: {first.name} is set "
            f"to {first.affinity}, but goes to {first.effective}",
            saw(f"proc/irq/{first.number}/smp_affinity_list", str(first.affinity)),
            saw(f"proc/irq/{first.number}/effective_affinity_list", str(first.effective)),
            remedy=f"echo {first.affinity} > /proc/irq/{first.number}/smp_affinity_list; dmesg | "
            "grep -iE 'vector|affinity'",
        )
    else:
        yield ok("irq", f"{len(both)} interrupts go where their masks say")


@check(
    "irq.irqbalance",
    "irqbalance leaves the isolated CPUs out",
    means="FAIL when irqbalance runs and a list of banned CPUs in its configuration does not cover "
    "the isolated ones: giving a list switches off its own, which is the isolated and nohz_full "
    "CPUs. OK when it does not run, or has no list. NA without isolation.",
    why="irqbalance moves device interrupts every ten seconds; what was set by hand is undone.",
    prove="pgrep -a irqbalance; cat /etc/default/irqbalance /etc/sysconfig/irqbalance "
    "/sys/devices/system/cpu/isolated",
    mend="Delete the IRQBALANCE_BANNED_CPUS line, or name all isolated CPUs in "
    "IRQBALANCE_BANNED_CPULIST; systemctl restart irqbalance.",
    source="irqbalance(1), IRQBALANCE_BANNED_CPUS; irqbalance cputree.c setup_banned_cpus()",
)
def irqbalance(s: Seen) -> Iterator[Judged]:
    """Its banned list against the isolated CPUs."""
    cpus, where = quiet(s)
    if s.snapshot.pasted is None:
        s.whole(RUNS)
        running = s.snapshot.texts.get(RUNS)
        if running == "0":
            yield ok("irqbalance", "irqbalance does not run")
            return
        if running is None:
            raise NotApplicable("whether irqbalance runs is not told")
    configs = [(p, s.snapshot.texts[p]) for p in CONFIGS if p in s.snapshot.texts]
    for path in CONFIGS:
        reason = s.snapshot.why_unread(path)
        if reason is not None:
            raise s.unread(path, reason)
    found = [(p, m) for p, text in configs for m in _SETTING.finditer(text) if m[2].strip()]
    if not configs and s.snapshot.pasted is not None:
        raise NotApplicable("no configuration of irqbalance was pasted")
    if not found:
        yield ok("irqbalance", f"it leaves CPUs {cpus} out by itself", saw(*where))
        return
    path, m = found[-1]
    try:
        banned = CpuSet.parse_mask(m[2]) if m[1] == "IRQBALANCE_BANNED_CPUS" else CpuSet.parse(m[2])
    except ParseError as error:
        raise Missing(path, str(error), READ_BY_HAND) from error
    evidence = saw(path, m[0].strip()), saw(*where)
    if open_to := cpus - banned:
        remedy = (
            f"IRQBALANCE_BANNED_CPUS={hex_mask(cpus | banned)}"
            if m[1] == "IRQBALANCE_BANNED_CPUS"
            else f"IRQBALANCE_BANNED_CPULIST={cpus | banned}"
        )
        yield fail(
            f"cpu {open_to}",
            f"irqbalance bans CPUs {banned or 'none'} by its configuration, so that the isolated "
            f"CPUs {open_to} get interrupts",
            *evidence,
            remedy=f"{remedy}  # in /{path}; systemctl restart irqbalance",
        )
    else:
        yield ok("irqbalance", f"it is told to leave CPUs {cpus} out", *evidence)


@check(
    "irq.one-cpu",
    "a NIC's queues interrupt several CPUs",
    means="WARN when a data NIC that is up has `queues` or more interrupts that fired, and all go "
    "to one CPU. NA when no data NIC is up. Of a pasted /proc/interrupts: the same by the names "
    "of the queues and their counts.",
    why="One CPU then does the work of all queues: at line rate it is the bottleneck, and the NIC "
    "drops although the others are idle.",
    prove="grep NIC /proc/interrupts; grep . /proc/irq/*/effective_affinity_list",
    mend="Spread them: set_irq_affinity.sh NIC; ethtool -X NIC equal N. Or start irqbalance, which "
    "moves interrupts that were pinned by hand too.",
    source="Linux Documentation/networking/scaling.rst, 'RSS IRQ configuration'",
    bounds={"queues": 4},
)
def one_cpu(s: Seen) -> Iterator[Judged]:
    """Where the interrupts of each data NIC land."""
    if s.snapshot.pasted is not None:
        yield from _pasted_queues(s)
        return
    s.devices()
    up = {n.bdf: n.name for n in s.snapshot.nics if n.bdf and n.operstate == "up"}
    nics = [p for p in data_nics(s) if p.bdf in up]
    if not nics:
        s.whole("sys/class/net")
        raise NotApplicable("no data NIC is up")
    irqs = irqs_of(s)
    s.whole("proc/irq", leaf="effective_affinity")
    judged, bad = 0, False
    for nic in nics:
        mine = [i for i in irqs if i.bdf == nic.bdf and lands(i) and any(n for _, n in i.counts)]
        if len(mine) < s.bounds["queues"]:
            continue
        judged += 1
        spread = CpuSet.of(c for i in mine for c in lands(i))
        if len(spread) == 1:
            bad = True
            yield warn(
                up[nic.bdf],
                f"all {len(mine)} interrupts of {up[nic.bdf]} go to CPU {spread}",
                *(saw(f"proc/irq/{i.number}/effective_affinity_list", str(lands(i)))
                  for i in mine[:2]),
                remedy="echo CPU > /proc/irq/N/smp_affinity_list  # for each of "
                f"{some(i.number for i in mine)}; or systemctl start irqbalance, which moves "
                "interrupts that were pinned by hand too",
            )  # fmt: skip
    if not judged:
        raise NotApplicable("no data NIC has several interrupts that fired")
    if not bad:
        yield ok("irq", f"the queues of {judged} data NICs interrupt several CPUs")


_QUEUE = re.compile(
    r"(?P<nic>(?!nvme)[A-Za-z][\w.@:-]*?)[-_.:@]?(?:TxRx|[rt]xq?|comp|fp|queue|q|input|output"
    r"|Tx-Rx)[-_.:]?\d+(?:[-@].*)?",
    re.IGNORECASE,
)
"""A NIC's queue, as drivers name its interrupt: eth0-TxRx-3, mlx5_comp7@pci:..., input.1."""


def _pasted_queues(s: Seen) -> Iterator[Judged]:
    """Queues by their names: on which CPUs their interrupts fired, or where the masks send them."""
    groups: dict[str, list[Irq]] = {}
    for irq in s.snapshot.irqs:
        m = _QUEUE.fullmatch(irq.name.strip()[:200])
        if m is not None and sum(n for _, n in irq.counts) >= FIRED:
            groups.setdefault(m["nic"] + (f" {irq.bdf}" if irq.bdf else ""), []).append(irq)
    many = {nic: g for nic, g in groups.items() if len(g) >= s.bounds["queues"]}
    head = s.snapshot.texts.get("proc/interrupts", "").lstrip().partition("\n")[0].split()
    if not many or len(head) < 2:
        raise NotApplicable("no NIC's queues that fired were pasted")
    for nic, irqs in many.items():
        counts: dict[int, int] = {}
        for irq in irqs:
            for cpu, n in irq.counts:
                counts[cpu] = counts.get(cpu, 0) + n
        busiest = max(counts, key=lambda c: counts[c])
        if share(counts[busiest], sum(counts.values())) < ONE_CPU_PERCENT:
            yield ok(nic, f"its {len(irqs)} queues interrupted {len(counts)} CPUs")
            continue
        yield warn(
            nic,
            f"all {len(irqs)} queues of {nic} interrupted CPU {busiest}",
            *(saw("proc/interrupts", f"{i.number}: {i.name}: {dict(i.counts).get(busiest, 0)} on "
                                     f"CPU {busiest}") for i in irqs[:3]),
            remedy="systemctl start irqbalance, or one CPU each: "
            + "; ".join(f"echo {n} > /proc/irq/{i.number}/smp_affinity_list"
                        for n, i in enumerate(irqs[:4])),
        )  # fmt: skip
