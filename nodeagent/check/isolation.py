"""isolation: are the CPUs that were promised to be quiet really left alone, all of them, by all?"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from nodeagent.check.bootargs import Asked, asked
from nodeagent.check.record import (
    PASTE_MORE,
    RECORD_MORE,
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    shown,
    some,
    warn,
)
from nodeagent.model.cpuset import CpuSet

PARAMETERS = "Linux Documentation/admin-guide/kernel-parameters.rst"
CMDLINE = "proc/cmdline"
ISOLATED = "sys/devices/system/cpu/isolated"
NOHZ_FULL = "sys/devices/system/cpu/nohz_full"
PARTITION = "sys/fs/cgroup/cpuset.cpus.isolated"
WORKQUEUE = "sys/devices/virtual/workqueue/cpumask"
DEFAULT_AFFINITY = "proc/irq/default_smp_affinity"
LISTS = ("isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity", "kthread_cpus")
OTHER_ARGUMENTS = frozenset(["rcu_nocb_poll", "nohz", "rcu_nocbs_poll"])
"""Arguments of the kernel whose names look like one of these."""
LACKS_NOHZ = "grep NO_HZ_FULL /boot/config-*  # boot a kernel that has it =y; or drop nohz_full="
BOOT = "in GRUB_CMDLINE_LINUX of /etc/default/grub, then update-grub and reboot"


def given(s: Seen, name: str) -> Asked | None:
    """The argument as asked for, None when it is not on the command line. Raises Missing when the
    line could not be read, or says N while nobody told the highest CPU."""
    value = s.arg(name)
    if value is None:
        return None
    found = asked(name, value, s.last_cpu)
    if found.needs_last:
        raise Missing(
            "sys/devices/system/cpu/possible",
            f"needed to know what N means in {found.text}",
            PASTE_MORE if s.snapshot.pasted is not None else RECORD_MORE,
        )
    return found


def meant(name: str) -> str | None:
    """The isolation argument that a name is, or is a slip of the pen for (isolcpu, nohz_ful); None
    for other names."""
    plain = name.replace("-", "_").lower()
    if plain in OTHER_ARGUMENTS:
        return None
    return next(iter(difflib.get_close_matches(plain, LISTS, n=1, cutoff=0.85)), None)


def quiet(s: Seen) -> tuple[CpuSet, tuple[str, str]]:
    """The CPUs asked or made to be quiet and where that is written; NotApplicable when nobody asked
    for any."""
    for name in ("isolcpus", "nohz_full"):
        found = _maybe(s, name)
        if found is not None and found.cpus:
            return found.cpus, (CMDLINE, found.text)
    for path in (ISOLATED, NOHZ_FULL, PARTITION):
        text = s.snapshot.texts.get(path)
        if text:
            cpus = s.cpus(path, absent="")
            if cpus:
                return cpus, (path, text)
    s.arg("isolcpus")  # says so when the command line could not be seen
    raise NotApplicable("no CPU is isolated or nohz_full")


def _maybe(s: Seen, name: str) -> Asked | None:
    value = s.snapshot.arg(name)
    return None if value is None else given(s, name)


@check(
    "isolation.syntax",
    "CPU lists on the kernel command line can be read",
    means="FAIL when a CPU list of isolcpus, nohz_full, rcu_nocbs, irqaffinity or kthread_cpus is "
    "one that the kernel cannot parse, or whose name is misspelt (isolcpu=); WARN for flags "
    "of isolcpus it does not know and for CPUs the machine does not have. N, all and "
    "strides (0-15:2/4) are read as the kernel reads them.",
    why="The kernel drops an argument it cannot parse with one early log line and boots on, so the "
    "CPUs are not isolated although /proc/cmdline says so.",
    prove="cat /proc/cmdline /sys/devices/system/cpu/possible; dmesg | grep -iE 'isolcpus|nohz|"
    "housekeeping'",
    mend="Write lists such as 2-15,34-47 or 4-N, flags of isolcpus first: "
    "isolcpus=managed_irq,domain,4-N.",
    source=f"{PARAMETERS}, 'cpu lists'; kernel/sched/isolation.c housekeeping_isolcpus_setup()",
)
def syntax(s: Seen) -> Iterator[Judged]:
    """Each list on its own."""
    s.arg("isolcpus")
    any_given = False
    for name in LISTS:
        found = given(s, name)
        if found is None:
            continue
        any_given = True
        evidence = saw(CMDLINE, found.text)
        last = s.last_cpu
        if found.error is not None:
            yield fail(
                name,
                f"the kernel cannot read {found.text} ({found.error}) and ignores it",
                evidence,
                remedy=f"{name}=4-15  # a list of this form; {BOOT}",
            )
        elif found.unknown_flags:
            yield warn(
                name,
                f"isolcpus has flags the kernel does not know: {', '.join(found.unknown_flags)}",
                evidence,
                remedy=f"isolcpus=managed_irq,domain,{found.cpus or 'LIST'}  # {BOOT}",
            )
        elif last is not None and found.cpus and max(found.cpus.ids) > last:
            beyond = CpuSet.of(c for c in found.cpus if c > last)
            yield warn(
                name,
                f"{found.text} names CPUs {beyond}, but the highest possible CPU is {last}",
                evidence,
                saw("sys/devices/system/cpu/possible", str(s.snapshot.topology.possible)),
                remedy=f"{name}={min(found.cpus.ids)}-N  # N is always the last CPU; {BOOT}",
            )
        else:
            yield ok(name, f"{found.text} names CPUs {found.cpus or 'none of its own'}", evidence)
    for odd, value in s.snapshot.boot_args:
        right = meant(odd)
        if value and right is not None and odd.replace("-", "_") not in LISTS:
            any_given = True
            yield fail(
                odd,
                f"{odd}={value} is no argument of the kernel, it does nothing: {right}= is meant",
                saw(CMDLINE, f"{odd}={value}"),
                remedy=f"{right}={value}  # {BOOT}",
            )
    if not any_given:
        raise NotApplicable("the command line names no CPU list")


@check(
    "isolation.unknown-parameters",
    "the kernel knows every isolation argument",
    means="FAIL when the kernel log says that it does not know isolcpus, nohz_full, rcu_nocbs or "
    "irqaffinity, or that nohz_full is not supported. NA when no kernel log that reaches "
    "back to the boot was read.",
    why="An argument the kernel does not know is passed on to user space and does nothing.",
    prove="dmesg | grep -E 'Unknown kernel command line|Housekeeping:'",
    mend="Boot a kernel built with CONFIG_NO_HZ_FULL and CONFIG_RCU_NOCB_CPU, or drop "
    "the argument.",
    source="Linux init/main.c print_unknown_bootoptions(); kernel/sched/isolation.c",
)
def unknown_parameters(s: Seen) -> Iterator[Judged]:
    """What the log said about the command line."""
    texts = s.snapshot.texts
    if s.snapshot.events is None:
        s.whole("derived/kernel_log")
        raise NotApplicable("no kernel log was read")
    words = texts.get("log/unknown-parameters", "")
    lost = [w for w in words.split() if meant(w.partition("=")[0]) is not None]
    if "log/nohz-unsupported" in texts and not any(w.startswith("nohz_full") for w in lost):
        yield fail(
            "nohz_full",
            "this kernel was built without CONFIG_NO_HZ_FULL and ignores nohz_full=",
            saw("kernel log", texts["log/nohz-unsupported"]),
            remedy=LACKS_NOHZ,
        )
    if lost:
        yield fail(
            some(w.partition("=")[0] for w in lost),
            f"the kernel does not know {some(lost)}: {'they do' if len(lost) > 1 else 'it does'} "
            "nothing",
            saw("kernel log", f"Unknown kernel command line parameters {words}"),
            remedy="; ".join(f"{meant(n)}={v} instead of {n}=" for n, v in slips) + f"  # {BOOT}"
            if (
                slips := [
                    (n, v)
                    for n, _, v in (w.partition("=") for w in lost)
                    if n.replace("-", "_") not in LISTS
                ]
            )
            else "grep -E 'NO_HZ_FULL|RCU_NOCB_CPU' /boot/config-*  # boot a kernel that has "
            "them =y; or drop the arguments",
        )
    if not lost and "log/nohz-unsupported" not in texts:
        if "log/from-boot" not in texts:
            raise NotApplicable("the log does not reach back to the boot")
        yield ok("command line", "the log names no isolation argument that the kernel dropped")


@check(
    "isolation.in-force",
    "isolcpus= is in force",
    means="FAIL when isolcpus= asks for CPUs that /sys/devices/system/cpu/isolated does not list; "
    "OK when all are there. INFO when CPUs are isolated at run time only (cpuset partition), and "
    "when isolcpus= has flags without domain, so that tasks are balanced as before (WARN where "
    "somebody pasted the empty list beside it).",
    why="The text of /proc/cmdline proves only that somebody asked. What the scheduler does is in "
    "/sys: without it, any task may be balanced onto the CPUs of a pinned thread.",
    prove="cat /proc/cmdline /sys/devices/system/cpu/isolated",
    mend="See dmesg for why the argument was dropped; check that the boot loader's configuration "
    "was regenerated and that the running kernel was booted with it.",
    source="kernel/sched/isolation.c; drivers/base/cpu.c print_cpus_isolated()",
)
def in_force(s: Seen) -> Iterator[Judged]:
    """Asked against in force."""
    found = given(s, "isolcpus")
    if found is None:
        now = s.cpus(ISOLATED, absent="this kernel lists no isolated CPUs")
        if not now:
            raise NotApplicable("isolcpus= is not on the command line and no CPU is isolated")
        yield info(
            f"cpu {now}",
            f"CPUs {now} are isolated at run time, not by isolcpus=",
            saw(ISOLATED, str(now)),
        )
        return
    if found.error is None and found.cpus and not found.domain:
        empty = s.snapshot.pasted is not None and s.snapshot.texts.get(ISOLATED) == ""
        yield (warn if empty else info)(
            f"cpu {found.cpus}",
            f"{found.text} has flags, but not domain: the scheduler still balances tasks onto "
            f"CPUs {found.cpus}",
            saw(CMDLINE, found.text),
            *((saw(ISOLATED, "empty"),) if empty else ()),
            remedy=f"isolcpus={','.join(sorted({*found.flags, 'domain'}))},{found.cpus}  # {BOOT}"
            "; or isolate them by a cpuset partition",
        )
        return
    if found.error is not None or not found.domain:
        raise NotApplicable(f"{found.text} asks for no scheduler isolation")
    now = s.cpus(ISOLATED, absent="this kernel lists no isolated CPUs")
    evidence = saw(CMDLINE, found.text), saw(ISOLATED, str(now))
    possible = s.snapshot.topology.possible
    want = found.cpus & possible if possible else found.cpus
    if lacking := want - now:
        yield fail(
            f"cpu {lacking}",
            f"isolcpus= asks for {found.cpus}, but the kernel isolates {now or 'none'}: "
            f"CPUs {lacking} are open to every task",
            *evidence,
            remedy="dmesg | grep -iE 'isolcpus|housekeeping|Unknown kernel command line'",
        )
    else:
        yield ok(f"cpu {now}", f"CPUs {want} are isolated, as isolcpus= asks", *evidence)


@check(
    "isolation.nohz-full-in-force",
    "nohz_full= is in force",
    means="FAIL when nohz_full= asks for CPUs that /sys/devices/system/cpu/nohz_full does not "
    "list, or when the kernel was built without CONFIG_NO_HZ_FULL.",
    why="Without it the scheduler's tick interrupts the pinned thread 100 to 1,000 times a second. "
    "A kernel without CONFIG_NO_HZ_FULL ignores the argument with one early log line.",
    prove="cat /proc/cmdline /sys/devices/system/cpu/nohz_full; "
    "grep NO_HZ_FULL /boot/config-$(uname -r)",
    mend="Boot a kernel built with CONFIG_NO_HZ_FULL=y (uname -r tells the one that runs), or take "
    "nohz_full= away so that nobody relies on it.",
    source="Linux Documentation/timers/no_hz.rst; kernel/sched/isolation.c",
)
def nohz_full_in_force(s: Seen) -> Iterator[Judged]:
    """Asked against in force."""
    found = given(s, "nohz_full")
    if found is None or found.error is not None:
        raise NotApplicable("nohz_full= is not on the command line")
    remedy = LACKS_NOHZ
    try:
        text = s.text(NOHZ_FULL, absent="no such file")
    except NotApplicable:
        if s.snapshot.pasted:
            raise
        yield fail(
            f"cpu {found.cpus}",
            f"{found.text} is asked for, but this kernel has no {shown(NOHZ_FULL)}: it was built "
            "without CONFIG_NO_HZ_FULL",
            saw(CMDLINE, found.text),
            saw(NOHZ_FULL, "no such file"),
            remedy=remedy,
        )
        return
    now = s.cpus(NOHZ_FULL, absent="")
    evidence = saw(CMDLINE, found.text), saw(NOHZ_FULL, text)
    possible = s.snapshot.topology.possible
    lacking = (found.cpus & possible if possible else found.cpus) - now
    # The kernel always keeps the tick on the boot CPU.
    if lacking - CpuSet.of((0,)):
        yield fail(
            f"cpu {lacking}",
            f"nohz_full= asks for {found.cpus}, but in force is {now or 'none'}: the tick stays on "
            f"CPUs {lacking}",
            *evidence,
            remedy=remedy,
        )
    else:
        yield ok(f"cpu {now}", f"the tick may stop on CPUs {now}, as asked", *evidence)


@check(
    "isolation.consistent",
    "isolcpus, nohz_full and rcu_nocbs name the same CPUs",
    means="WARN when a CPU is in one of isolcpus= and nohz_full= but not in the other, or when "
    "rcu_nocbs= leaves out an isolated CPU; INFO (WARN of a paste) when nohz_full= stands alone "
    "and no CPU is isolated. A larger rcu_nocbs is fine, and nohz_full CPUs are "
    "offloaded whether rcu_nocbs names them or not.",
    why="Each argument removes one source of jitter. A CPU in only one of them has the rest: tasks "
    "balanced onto it, the tick, or RCU callbacks run in softirq.",
    prove="tr ' ' '\\n' < /proc/cmdline | grep -E 'isolcpus|nohz_full|rcu_nocbs'",
    mend="Give the three arguments one list.",
    source="Linux Documentation/timers/no_hz.rst; kernel/rcu/tree_nocb.h rcu_init_nohz()",
)
def consistent(s: Seen) -> Iterator[Judged]:
    """The three lists against one another."""
    isolcpus, nohz = given(s, "isolcpus"), given(s, "nohz_full")
    if isolcpus is None and nohz is None:
        raise NotApplicable("neither isolcpus= nor nohz_full= is on the command line")
    rcu = given(s, "rcu_nocbs")
    evidence = [saw(CMDLINE, a.text) for a in (isolcpus, nohz, rcu) if a is not None]
    wrong = False
    if isolcpus is not None and nohz is not None:
        for name, only in (
            ("isolcpus= but not in nohz_full=", isolcpus.cpus - nohz.cpus),
            ("nohz_full= but not in isolcpus=", nohz.cpus - isolcpus.cpus),
        ):
            if only and not (isolcpus.error or nohz.error):
                wrong = True
                yield warn(
                    f"cpu {only}",
                    f"CPUs {only} are in {name}: half isolated",
                    *evidence,
                    remedy=f"isolcpus={isolcpus.cpus | nohz.cpus} "
                    f"nohz_full={isolcpus.cpus | nohz.cpus}  "
                    f"# {BOOT}",
                )
    both = (isolcpus.cpus if isolcpus else CpuSet()) | (nohz.cpus if nohz else CpuSet())
    offloaded = (rcu.cpus if rcu else CpuSet()) | (nohz.cpus if nohz else CpuSet())
    if rcu is not None and not rcu.error and (only := both - offloaded):
        wrong = True
        yield warn(
            f"cpu {only}",
            f"isolated CPUs {only} are not in rcu_nocbs=: their RCU callbacks run on them",
            *evidence,
            remedy=f"rcu_nocbs={both}  # {BOOT}",
        )
    if isolcpus is None and nohz is not None and s.snapshot.texts.get(ISOLATED) == "":
        wrong = True
        yield (warn if s.snapshot.pasted else info)(
            f"cpu {nohz.cpus}",
            f"nohz_full={nohz.cpus} stops the tick only: nothing isolates these CPUs, tasks are "
            "balanced onto them, and with a second one there the tick comes back",
            *evidence,
            saw(ISOLATED, "empty"),
            remedy=f"isolcpus=managed_irq,domain,{nohz.cpus}  # {BOOT}; or a cpuset partition",
        )
    if not wrong:
        yield ok(f"cpu {both}", f"the lists agree on CPUs {both}", *evidence)


@check(
    "isolation.irqaffinity-overlap",
    "irqaffinity= leaves the isolated CPUs out",
    means="FAIL when irqaffinity= names an isolated or nohz_full CPU; NA when irqaffinity= is not "
    "given (then isolation.default-affinity looks at what the kernel uses).",
    why="irqaffinity= is where interrupts go by default. When it names isolated CPUs, device "
    "interrupts land on them and the isolation is for nothing.",
    prove="cat /proc/cmdline; cat /proc/irq/default_smp_affinity; "
    "grep . /proc/irq/*/effective_affinity_list",
    mend="Name only the housekeeping CPUs in irqaffinity=; a generator must expand N before it "
    "subtracts.",
    source=f"{PARAMETERS}, irqaffinity=, isolcpus=",
)
def irqaffinity_overlap(s: Seen) -> Iterator[Judged]:
    """Default IRQ mask against isolated CPUs."""
    irq = given(s, "irqaffinity")
    if irq is None or irq.error:
        raise NotApplicable("irqaffinity= is not on the command line")
    cpus, (path, text) = quiet(s)
    evidence = saw(CMDLINE, irq.text), saw(path, text)
    if both := irq.cpus & cpus:
        rest = irq.cpus - cpus
        yield fail(
            f"cpu {both}",
            f"irqaffinity={irq.cpus} covers the isolated CPUs {both}: interrupts land there",
            *evidence,
            remedy=f"irqaffinity={rest}  # {BOOT}" if rest else f"drop irqaffinity=  # {BOOT}",
        )
    else:
        yield ok(f"cpu {cpus}", f"irqaffinity={irq.cpus} leaves CPUs {cpus} out", *evidence)


@check(
    "isolation.default-affinity",
    "new interrupts do not start on isolated CPUs",
    means="WARN when /proc/irq/default_smp_affinity names an isolated CPU and irqaffinity= is not "
    "given: an interrupt that a driver requests later starts there.",
    why="Drivers request interrupts at any time (a queue added, a device reset). Each starts with "
    "the default mask.",
    prove="cat /proc/irq/default_smp_affinity",
    mend="irqaffinity= with the housekeeping CPUs on the command line, or write their mask into "
    "/proc/irq/default_smp_affinity at boot.",
    source="Linux Documentation/core-api/irq/irq-affinity.rst",
)
def default_affinity(s: Seen) -> Iterator[Judged]:
    """The kernel's own default mask."""
    cpus, (path, text) = quiet(s)
    if (s.snapshot if s.snapshot.pasted else s).arg("irqaffinity") is not None:
        raise NotApplicable("irqaffinity= is given; isolation.irqaffinity-overlap judges it")
    mask_text = s.text(DEFAULT_AFFINITY, absent="this kernel has no default IRQ affinity")
    online = s.snapshot.topology.online
    mask = s.mask(DEFAULT_AFFINITY, absent="")
    evidence = saw(DEFAULT_AFFINITY, mask_text), saw(path, text)
    if both := mask & cpus & (online or cpus):
        yield warn(
            f"cpu {both}",
            f"new interrupts may start on the isolated CPUs {both}",
            *evidence,
            remedy=f"irqaffinity={(online or mask) - cpus}  # {BOOT}",
        )
    else:
        yield ok(f"cpu {cpus}", "new interrupts start elsewhere", *evidence)


@check(
    "isolation.kthread-cpus",
    "kthread_cpus= leaves the isolated CPUs out",
    means="FAIL when kthread_cpus= (vendor kernels) names an isolated CPU.",
    why="Unbound kernel threads would run on the CPUs that were to be quiet.",
    prove="cat /proc/cmdline; ps -eo pid,psr,comm | grep '\\[k'",
    mend="Name only housekeeping CPUs in kthread_cpus=.",
    source="Red Hat and Wind River kernels: kthread_cpus=; upstream kthreads follow isolcpus= "
    "(kernel/kthread.c, housekeeping_cpumask(HK_TYPE_KTHREAD))",
)
def kthread_cpus(s: Seen) -> Iterator[Judged]:
    """Kernel threads' mask against isolated CPUs."""
    found = given(s, "kthread_cpus")
    if found is None or found.error:
        raise NotApplicable("kthread_cpus= is not on the command line")
    cpus, (path, text) = quiet(s)
    evidence = saw(CMDLINE, found.text), saw(path, text)
    if both := found.cpus & cpus:
        yield fail(
            f"cpu {both}",
            f"kthread_cpus={found.cpus} puts kernel threads on the isolated CPUs {both}",
            *evidence,
            remedy=f"kthread_cpus={found.cpus - cpus}  # {BOOT}",
        )
    else:
        yield ok(f"cpu {cpus}", f"kthread_cpus={found.cpus} leaves CPUs {cpus} out", *evidence)


@check(
    "isolation.workqueue",
    "unbound workqueues stay off isolated CPUs",
    means="WARN when /sys/devices/virtual/workqueue/cpumask names an isolated CPU.",
    why="Writeback, block and driver work is queued on unbound workqueues; their workers run "
    "wherever this mask allows, tens of microseconds to milliseconds at a time.",
    prove="cat /sys/devices/virtual/workqueue/cpumask /sys/devices/system/cpu/isolated",
    mend="Write the mask of the housekeeping CPUs into it at boot.",
    source="Linux Documentation/core-api/workqueue.rst, 'Affinity Scopes'; "
    "kernel/workqueue.c workqueue_set_unbound_cpumask()",
)
def workqueue(s: Seen) -> Iterator[Judged]:
    """Unbound workqueues' mask against isolated CPUs."""
    cpus, (path, text) = quiet(s)
    wq = s.text(WORKQUEUE, absent="this kernel has no workqueue mask")
    mask = s.mask(WORKQUEUE, absent="")
    online = s.snapshot.topology.online
    evidence = saw(WORKQUEUE, wq), saw(path, text)
    if both := mask & cpus & (online or cpus):
        keep = (online or mask) - cpus
        yield warn(
            f"cpu {both}",
            f"unbound workqueues may run on the isolated CPUs {both}",
            *evidence,
            remedy=f"echo {hex_mask(keep)} > /sys/devices/virtual/workqueue/cpumask"
            if keep
            else f"isolcpus={min(2, max(cpus.ids))}-N  # leave housekeeping CPUs over; {BOOT}",
        )
    else:
        yield ok(f"cpu {cpus}", "unbound workqueues run elsewhere", *evidence)


def hex_mask(cpus: CpuSet) -> str:
    """A CPU mask as the kernel's mask files take it, words of 32 bits from the highest."""
    value = sum(1 << c for c in cpus)
    words: list[str] = []
    while value or not words:
        words.append(f"{value & 0xFFFFFFFF:08x}")
        value >>= 32
    return ",".join(reversed(words))


@check(
    "isolation.housekeeping",
    "enough CPUs are left for everything else",
    means="FAIL when no CPU is left to the system, WARN when fewer than `pus` are.",
    why="Interrupts, kernel threads, daemons and every container runtime need CPUs; when they "
    "starve, the isolated ones wait for them (RCU grace periods, TLB shootdowns, page cache).",
    prove="cat /sys/devices/system/cpu/online /sys/devices/system/cpu/isolated",
    mend="Leave at least one whole core on each NUMA node to the system.",
    source="Red Hat, 'Low latency tuning': reserved CPUs for each NUMA node",
    bounds={"pus": 2},
)
def housekeeping(s: Seen) -> Iterator[Judged]:
    """What isolation leaves over."""
    cpus, (path, text) = quiet(s)
    online, known = s.snapshot.topology.online, "online"
    if s.snapshot.pasted and not cpus <= online:
        # Files of a few CPUs were pasted: the others are not offline for that.
        online, known = s.snapshot.topology.possible, "possible"
    if not online:
        raise s.gone("sys/devices/system/cpu/online", "the online CPUs are not known")
    rest = online - cpus
    evidence = saw(path, text), saw(f"sys/devices/system/cpu/{known}", str(online))
    if not rest:
        yield fail(
            f"cpu {cpus}",
            f"every {known} CPU is isolated: none is left to the system",
            *evidence,
            remedy=f"isolcpus={min(2, max(online.ids))}-N  # leave a core of each node out; {BOOT}",
        )
    elif len(rest) < s.bounds["pus"]:
        yield warn(
            f"cpu {rest}",
            f"only CPUs {rest} are left to the system ({len(rest)} of {len(online)})",
            *evidence,
            remedy=f"isolcpus={int(s.bounds['pus'])}-N  # or another list that leaves "
            f"{s.bounds['pus']:g} PUs out; {BOOT}",
        )
    else:
        yield ok(f"cpu {rest}", f"{len(rest)} PUs are left to the system", *evidence)


@check(
    "isolation.no-balancing",
    "threads on isolcpus CPUs must be pinned one by one",
    means="INFO when isolcpus= takes CPUs out of load balancing.",
    why="Inside an isolcpus= set nobody balances: two threads of one process allowed on the whole "
    "set may share one CPU while the next is idle.",
    prove="taskset -pc PID; ps -Lo tid,psr,comm -p PID",
    mend="Pin each thread to its own CPU, or use a cpuset partition, which can be changed at run "
    "time.",
    source=f"{PARAMETERS}, isolcpus= domain; cgroup-v2.rst, cpuset.cpus.partition",
)
def no_balancing(s: Seen) -> Iterator[Judged]:
    """A reminder where it matters."""
    found = given(s, "isolcpus")
    if found is None or found.error or not found.domain or len(found.cpus) < 2:
        raise NotApplicable("isolcpus= takes no set of CPUs out of load balancing")
    yield info(
        f"cpu {found.cpus}",
        f"nothing balances load among CPUs {found.cpus}: pin each thread there to one CPU",
        saw(CMDLINE, found.text),
    )
