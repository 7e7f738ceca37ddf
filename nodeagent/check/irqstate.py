"""irq: lines whose affinity the kernel keeps to itself, and interrupts that nobody claimed."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.irq import irqs_of, lands, managed
from nodeagent.check.isolation import quiet
from nodeagent.check.record import (
    NO_SUCH_FILE,
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    ok,
    saw,
    some,
    warn,
)


@check(
    "irq.managed",
    "interrupts whose affinity the kernel manages stay off isolated CPUs",
    means="WARN when such interrupts (queues of NVMe, virtio-blk, RAID controllers) fired on "
    "isolated CPUs although their queue has others, and isolcpus= has no managed_irq flag. What is "
    "managed is read from debugfs as root, else known by the queue's name: "
    "the evidence says which. NA without isolated CPUs, or without such interrupts.",
    why="A write to smp_affinity of a managed interrupt gives EIO: neither irqbalance nor a script "
    "moves it. Only isolcpus=managed_irq keeps it off, and only where its queue also has a CPU "
    "that is not isolated.",
    prove="grep -l AFFINITY_MANAGED /sys/kernel/debug/irq/irqs/*; grep nvme /proc/interrupts",
    mend="Boot with isolcpus=managed_irq,domain,CPUS; start I/O from housekeeping CPUs; for NVMe "
    "nvme.poll_queues= takes interrupts away altogether.",
    source="Linux Documentation/admin-guide/kernel-parameters.rst, isolcpus= (managed_irq); "
    "kernel/irq/manage.c irq_do_set_affinity()",
)
def managed_on_isolated(s: Seen) -> Iterator[Judged]:
    """Managed interrupts that fired on isolated CPUs."""
    cpus, (path, text) = quiet(s)
    mine = [i for i in irqs_of(s) if managed(i)]
    if not mine:
        raise NotApplicable("no interrupt is known to be managed by the kernel")
    fired = [(i, sum(n for c, n in i.counts if c in cpus)) for i in mine]
    hit = [(i, n) for i, n in fired if n and lands(i) & cpus]
    flagged = "managed_irq" in (s.snapshot.arg("isolcpus") or "").split(",")
    if not hit:
        yield ok(
            f"irq {some(i.number for i in mine)}",
            f"{len(mine)} managed interrupts did not fire on CPUs {cpus}",
            saw(path, text),
        )
        return
    helps = [(i, n) for i, n in hit if (i.affinity or lands(i)) - cpus]
    first, count = max(helps or hit, key=lambda h: h[1])
    by_kernel = first.managed_by.startswith("sys/")
    evidence = (
        saw(first.managed_by, "IRQD_AFFINITY_MANAGED")
        if by_kernel
        else saw("proc/interrupts", f"{first.name}: a queue whose driver asks for managed masks"),
        saw("proc/interrupts", f"{first.name}: {count} on CPUs {cpus}"),
        saw(path, text),
    )
    subject = f"irq {some(i.number for i, _ in helps or hit)}"
    if flagged or not helps:
        yield ok(
            subject,
            f"{len(hit)} managed interrupts fired on isolated CPUs: their queues have no other "
            "CPU, and fire only for I/O started there",
            *evidence,
        )
        return
    yield warn(
        subject,
        f"{len(helps)} managed interrupts fired on isolated CPUs {cpus} although their queues have "
        "other CPUs: isolcpus= has no managed_irq flag",
        *evidence,
        remedy=f"boot with isolcpus=managed_irq,domain,{cpus}",
    )


@check(
    "irq.spurious",
    "every interrupt has somebody who claims it",
    means="FAIL when the kernel log says that an interrupt was switched off because nobody cared; "
    "WARN when more than `unhandled` of a line's last 100,000 interrupts were claimed by nobody, "
    "or more than `errors` error interrupts were counted.",
    why="A line that is switched off leaves its device to a slow poll, or dead; the interrupts "
    "before that are pure loss for the CPU that takes them. Often a shared legacy line, a device "
    "without driver, or firmware that routes an event wrongly.",
    prove="grep -H unhandled /proc/irq/*/spurious; grep -E 'ERR|MIS' /proc/interrupts; "
    "dmesg | grep -i 'nobody cared'",
    mend="Load the driver of the device on that line, or let it use MSI; update the firmware; "
    "irqpoll is a crutch.",
    source="Linux kernel/irq/spurious.c note_interrupt(); Documentation/filesystems/proc.rst",
    bounds={"unhandled": 1000, "errors": 100},
)
def spurious(s: Seen) -> Iterator[Judged]:
    """The log, each line's own count, and the sums of error interrupts."""
    said = s.snapshot.texts.get("log/irq-nobody-cared")
    irqs = s.snapshot.irqs
    reason = s.snapshot.why_unread("proc/interrupts")
    if not irqs and said is None and reason not in (None, NO_SUCH_FILE):
        raise s.unread("proc/interrupts", reason or "")
    if said is not None:
        line = (said.splitlines() or [""])[0]
        yield fail(
            "irq",
            "the kernel switched an interrupt off that nobody claimed",
            saw("kernel log", line),
            remedy="grep -H . /proc/irq/*/spurious | grep -v 'unhandled 0'; lspci -vv shows whose "
            "line it is",
        )
    many = [i for i in irqs if (i.unhandled or 0) > s.bounds["unhandled"]]
    for irq in many:
        yield warn(
            f"irq {irq.number}",
            f"{irq.unhandled} of the last 100,000 interrupts of {irq.name} were claimed by nobody",
            saw(f"proc/irq/{irq.number}/spurious", f"unhandled {irq.unhandled}"),
            remedy="load the driver of the device on that line, or let it use MSI (lspci -vv)",
        )
    errors = []
    for row in s.snapshot.texts.get("derived/interrupt_errors", "").splitlines():
        name, _, count = row.partition(": ")
        if name != "MCE" and count.isdigit() and int(count) > s.bounds["errors"]:
            errors.append(row)
    for row in errors:
        yield warn(
            "irq",
            f"the interrupt controller counts errors: {row}",
            saw("proc/interrupts", row),
            remedy="grep -E 'ERR|MIS' /proc/interrupts twice: growing ones need a firmware update",
        )
    told = any(i.unhandled is not None for i in irqs)
    if not told and said is None and not errors:
        raise NotApplicable("nothing tells of interrupts that nobody claimed")
    if said is None and not many and not errors:
        yield ok("irq", "every interrupt has somebody who claims it")
