"""isolation and irq: what files and people ask for against what is in force, from pasted texts."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.isolation import CMDLINE, LISTS, quiet
from nodeagent.check.record import (
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
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostreport import (
    BootFile,
    Irqbalance,
    KernelConfig,
    TunedActive,
    Wanted,
)
from nodeagent.model.pasted import Pasted

RELEASE = "proc/sys/kernel/osrelease"
NEEDS = {
    "nohz_full": "CONFIG_NO_HZ_FULL",
    "rcu_nocbs": "CONFIG_RCU_NOCB_CPU",
    "isolcpus": "CONFIG_CPU_ISOLATION",
}
SLOW = (
    "CONFIG_PROVE_LOCKING", "CONFIG_KASAN", "CONFIG_KCSAN", "CONFIG_DEBUG_PAGEALLOC",
    "CONFIG_DEBUG_OBJECTS", "CONFIG_LOCK_STAT", "CONFIG_DEBUG_PREEMPT", "CONFIG_KMEMLEAK",
    "CONFIG_DEBUG_ATOMIC_SLEEP", "CONFIG_UBSAN_TRAP", "CONFIG_SLUB_DEBUG_ON",
)  # fmt: skip
"""Options of debugging kernels that cost every call."""


def given(s: Seen) -> Pasted:
    """What was pasted. Raises NotApplicable on a machine that was read."""
    if s.snapshot.pasted is None:
        raise NotApplicable("nothing was pasted")
    return s.snapshot.pasted


@check(
    "isolation.boot-file",
    "the running kernel was booted with what the boot loader's file says",
    means="WARN when isolcpus, nohz_full, rcu_nocbs or irqaffinity stand in the boot loader's file "
    "(/etc/default/grub, a BLS entry) and not, or otherwise, in /proc/cmdline.",
    why="The file counts only after update-grub (grub2-mkconfig, grubby) and a reboot; until then "
    "nothing is isolated.",
    prove="grep CMDLINE /etc/default/grub; cat /proc/cmdline",
    mend="update-grub (Debian, Ubuntu) or grub2-mkconfig -o /boot/grub2/grub.cfg; reboot.",
    source="grub manual, GRUB_CMDLINE_LINUX; UAPI Boot Loader Specification",
)
def boot_file(s: Seen) -> Iterator[Judged]:
    """Arguments of the file against those of the running kernel."""
    files = given(s).of(BootFile)
    if not files:
        raise NotApplicable("no boot loader's file was pasted")
    running = s.text(CMDLINE, absent="no command line was pasted")
    for file in files:
        wanted = {
            n.replace("-", "_"): v
            for n, _, v in (w.strip("\"'").partition("=") for w in file.arguments.split())
            if n.replace("-", "_") in LISTS
        }
        other = [f"{n}={v}" for n, v in wanted.items() if s.snapshot.arg(n) != v]
        if other:
            yield warn(
                some(w.partition("=")[0] for w in other),
                f"{some(other)} stands in the boot loader's file, but the running kernel was not "
                "booted with it",
                saw(file.source, file.arguments),
                saw(CMDLINE, running),
                remedy="update-grub  # or grub2-mkconfig -o /boot/grub2/grub.cfg; then reboot",
            )
        else:
            yield ok("boot arguments", "the running kernel has the file's isolation arguments")


@check(
    "isolation.kernel-config",
    "the kernel was built with what the isolation needs",
    means="FAIL when the command line asks for nohz_full, rcu_nocbs or isolcpus and the running "
    "kernel was built without its option; WARN when no command line was pasted and nohz_full "
    "would do nothing, and for options of a debugging kernel. A configuration of another release "
    "than the running one is not judged.",
    why="Without CONFIG_NO_HZ_FULL the argument is dropped with one early log line. Lock and "
    "memory "
    "debugging cost microseconds in every call.",
    prove="grep -E 'NO_HZ_FULL|RCU_NOCB|CPU_ISOLATION|CONFIG_HZ=' /boot/config-$(uname -r)",
    mend="Boot the distribution's low-latency or real-time kernel, or build one with the option.",
    source="Linux kernel/time/Kconfig, kernel/rcu/Kconfig, init/Kconfig, lib/Kconfig.debug",
)
def kernel_config(s: Seen) -> Iterator[Judged]:
    """Options of the running kernel's configuration."""
    configs = given(s).of(KernelConfig)
    running = s.snapshot.texts.get(RELEASE, "").strip()
    mine = [c for c in configs if c.release is None or not running or c.release == running]
    if not mine:
        raise NotApplicable("no configuration of the running kernel was pasted")
    if len({c.release for c in mine}) > 1:
        raise NotApplicable("configurations of several kernels, and not which one runs")
    options = {k: v for c in mine for k, v in c.options.items()}
    source = mine[0].source
    bad = False
    for name, option in NEEDS.items():
        has = options.get(option)
        on = s.snapshot.arg(name) is not None
        if has == "n" and (on or (not s.snapshot.boot_args and name == "nohz_full")):
            bad = True
            sentence = f"the kernel was built without {option}: {name}= does nothing"
            remedy = f"boot a kernel with {option}=y, or drop {name}="
            judged = fail if on else warn
            yield judged(name, sentence, saw(source, f"# {option} is not set"), remedy=remedy)
    if slow := [o for o in SLOW if options.get(o) == "y"]:
        bad = True
        yield warn(
            "debugging kernel",
            f"the kernel was built for debugging: {some(slow)}",
            *(saw(source, f"{o}=y") for o in slow[:3]),
            remedy="uname -r  # boot the distribution's production kernel",
        )
    if not bad:
        yield ok("kernel", "the kernel has what the isolation arguments need", saw(source, "=y"))


@check(
    "isolation.tuned-verify",
    "tuned's profile is applied as written",
    means="WARN when tuned-adm says that no profile is active or that the settings differ from it.",
    why="Settings that something else changed later are not what the profile's author measured.",
    prove="tuned-adm active; tuned-adm verify; tail /var/log/tuned/tuned.log",
    mend="tuned-adm profile NAME; find who changed the setting in /var/log/tuned/tuned.log.",
    source="tuned-adm(8), verify",
)
def tuned_verify(s: Seen) -> Iterator[Judged]:
    """What tuned-adm says of itself."""
    found = given(s).of(TunedActive)
    if not found:
        raise NotApplicable("no output of tuned-adm was pasted")
    for told in found:
        if told.verified is False:
            yield warn(
                "tuned",
                "the settings differ from tuned's profile",
                saw(told.source, "Verification failed"),
                remedy="grep ERROR /var/log/tuned/tuned.log, then tuned-adm profile NAME",
            )
        elif told.profile is None and told.verified is None:
            yield warn(
                "tuned",
                "tuned runs without a profile: nothing is tuned",
                saw(told.source, "No current active profile."),
                remedy="tuned-adm profile cpu-partitioning  # or latency-performance",
            )
        else:
            yield ok("tuned", f"profile {told.profile or 'verified'}")


@check(
    "irq.irqbalance-says",
    "irqbalance knows the isolated CPUs",
    means="FAIL when the CPUs that `irqbalance --debug` says it leaves out do not cover the "
    "isolated ones.",
    why="It reads its own environment: a list of banned CPUs replaces what it would find out "
    "itself, and interrupts move onto the isolated CPUs.",
    prove="irqbalance --debug --oneshot | head; cat /sys/devices/system/cpu/isolated",
    mend="Delete IRQBALANCE_BANNED_CPUS, or name every isolated CPU in IRQBALANCE_BANNED_CPULIST.",
    source="irqbalance cputree.c setup_banned_cpus()",
)
def irqbalance_says(s: Seen) -> Iterator[Judged]:
    """Its sets against the isolated CPUs."""
    told = [x for x in given(s).of(Irqbalance) if not (x.isolated is x.nohz_full is x.banned)]
    if not told:
        raise NotApplicable("no output of irqbalance was pasted")
    cpus, where = quiet(s)
    left_out = CpuSet()
    for x in told:
        left_out |= (x.isolated or CpuSet()) | (x.nohz_full or CpuSet()) | (x.banned or CpuSet())
    source = told[0].source
    if open_to := cpus - left_out:
        yield fail(
            f"cpu {open_to}",
            f"irqbalance leaves out CPUs {left_out or 'none'}: it moves interrupts onto the "
            f"isolated CPUs {open_to}",
            saw(source, f"left out: {left_out or 'none'}"),
            saw(*where),
            remedy=f"IRQBALANCE_BANNED_CPULIST={cpus | left_out}  # in /etc/default/irqbalance; "
            "systemctl restart irqbalance",
        )
    else:
        yield ok("irqbalance", f"it leaves CPUs {cpus} out", saw(source, str(left_out)))


@check(
    "irq.asked",
    "interrupts go where they were asked to",
    means="FAIL when a pasted interrupt's mask lies outside the CPUs that somebody asked for.",
    why="A write to smp_affinity may be refused (managed interrupt, no free vector) or undone by "
    "irqbalance; only reading back tells.",
    prove="cat /proc/irq/N/smp_affinity_list /proc/irq/N/effective_affinity_list",
    mend="Fewer queues (ethtool -L NIC combined N) so that each has a vector on the CPUs wanted; "
    "keep irqbalance from it.",
    source="Linux Documentation/core-api/irq/irq-affinity.rst; kernel/irq/manage.c",
)
def irq_asked(s: Seen) -> Iterator[Judged]:
    """Wanted CPUs against the masks."""
    wanted = given(s).of(Wanted)
    irqs = {i.number: i for i in s.snapshot.irqs if i.effective or i.affinity}
    pairs = [
        (irqs[n], w)
        for w in wanted
        for n in ([w.irq] if w.irq is not None else irqs if len(irqs) <= 4 else ())
        if n in irqs
    ]
    if not pairs:
        raise NotApplicable("nobody says where a pasted interrupt was wanted")
    for irq, want in pairs:
        lands = irq.effective or irq.affinity or CpuSet()
        path = f"proc/irq/{irq.number}/smp_affinity"
        if lands <= want.cpus:
            yield ok(f"irq {irq.number}", f"it goes to CPUs {lands}, as asked")
            continue
        yield fail(
            f"irq {irq.number}",
            f"interrupt {irq.number} was asked to CPUs {want.cpus}, but goes to {lands}: not "
            f"applied",
            saw(path, str(lands)),
            saw(want.source, str(want.cpus)),
            remedy=f"echo {want.cpus} > /proc/irq/{irq.number}/smp_affinity_list and read it back; "
            "fewer queues: ethtool -L NIC combined N; stop irqbalance",
        )
