"""Lines of the kernel about itself and its tasks: panic, stalls, out of memory, crashes.

Source: Linux kernel/panic.c, kernel/hung_task.c, kernel/watchdog.c, kernel/watchdog_perf.c,
kernel/rcu/tree_stall.h, kernel/workqueue.c, mm/oom_kill.c, mm/memcontrol-v1.c, lib/show_mem.c,
arch/x86/mm/fault.c, kernel/time/clocksource.c.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.klog_rule import Details, Topic, groups, rule


def _killed(m: re.Match[str]) -> Details:
    return {"pid": int(m["pid"])} if m["pid"] else {}


_BEFORE = re.compile(r":\s|[\])]\s|[\"|>;]\s*")
"""What ends a prefix that nobody knows; no kernel names a task so."""


def _named(m: re.Match[str]) -> Details:
    found = dict(groups(m))
    return found | {"process": _BEFORE.split(m["process"])[-1].strip()}


def _task(m: re.Match[str]) -> Details:
    return {"process": m["task"], "pid": int(m["pid"]), "seconds": int(m["s"])}


def _lockup(m: re.Match[str]) -> Details:
    found: dict[str, str | int | bool | None] = {"cpu": int(m["cpu"]), "seconds": int(m["s"])}
    return found | ({"process": m["task"], "pid": int(m["pid"])} if m["pid"] else {})


PANIC = Topic(
    re.compile(
        r"[Pp]anic|BUG|Oops|general protection|kernel NULL|paging request|invalid opcode"
        r"|double fault"
    ),
    (
        rule("panic", r"Kernel [Pp]anic - not syncing"),
        rule(
            "soft_lockup",
            r"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<s>\d+)s!"
            r"(?: \[(?P<task>.+):(?P<pid>\d+)\])?",
            details=_lockup,
        ),
        rule(
            "workqueue_lockup",
            r"BUG: workqueue lockup - pool (?:cpus=(?P<cpus>\S+) )?.*stuck for (?P<seconds>\d+)s",
            details=groups,
        ),
        rule(
            "oops",
            r"BUG: (?:unable to handle|kernel NULL pointer|Bad page state|Bad rss-counter"
            r"|scheduling while atomic|sleeping function)|kernel BUG at |\bOops: "
            r"|Unable to handle kernel |general protection fault(?:: \d{4}|, probably)"
            r"|\b(?:invalid opcode|double fault|divide error|stack segment): \d{4}",
        ),
    ),
)

STALL = Topic(
    re.compile(
        r"blocked|LOCKUP|stall|starved|hogged|NMI handler|RT throttling|hrtimer: interrupt"
        r"|unstable|timer wakeup|oom_cgroup"
    ),
    (
        rule(
            "hung_task",
            r"task (?P<task>.+?):(?P<pid>\d+) blocked (?:in I/O wait )?for more than (?P<s>\d+) "
            r"seconds",
            details=_task,
        ),
        rule(
            "hung_task",
            r"INFO: task (?P<process>.+?):(?P<pid>\d+)(?: <\w+>)? (?:is )?blocked on an? ",
            details=groups,
        ),
        rule("soft_lockup", r"Watchdog detected hard LOCKUP on cpu ?(?P<cpu>\d+)", details=groups),
        rule(
            "rcu_stall",
            r"\A(?>.*?rcu).*?(?:detected (?:expedited )?stalls?\b|self-detected stall|"
            r"kthread (?:starved for|timer wakeup didn't happen))",
        ),
        rule("rt_throttled", r"sched: (?:RT throttling activated|DL replenish)"),
        rule(
            "workqueue_hog",
            r"workqueue: (?P<function>\S+)(?: \[\w+\])? hogged CPU for >(?P<us>\d+)us",
            fault=None,
            details=groups,
        ),
        rule("nmi_long", r"NMI handler \(\S+\) took too long to run", fault=None),
        rule("nmi_long", r"hrtimer: interrupt took \d+ ns", fault=None),
        rule("clocksource", r"clocksource: .*Marking clocksource .* as unstable"),
        rule("clocksource", r"TSC found unstable|[Mm]arking (?:TSC|tsc) unstable"),
    ),
)

OOM = Topic(
    re.compile(
        r"oom|ut[ _]of[ _]memory|dump_header|[Kk]illed"
        r"|emory cgroup stats|Tasks state|Mem-Info|failcnt|total_vm"
        r"|\] +\d+ +\d+ +\d+ +\d+ +\d+"
    ),
    (
        rule("oom", r"^(?P<process>.*\S) invoked oom-killer", details=_named),
        rule(
            "oom",
            r"[Oo]ut of memory(?: \(oom_kill_allocating_task\))?: [Kk]ill(?:ed)? process "
            r"(?P<pid>\d+)?",
            details=_killed,
        ),
        rule("oom", r"[Oo]ut of memory and no killable processes"),
        rule("oom", r"oom-kill:constraint=(?:.*,pid=(?P<pid>\d+))?", details=_killed),
        rule(
            "oom",
            r"oom_reaper: (?:reaped process|unable to reap pid:) ?(?P<pid>\d+)?",
            details=_killed,
        ),
        rule(
            "oom",
            # The oldest form ends with the name: nothing may follow it.
            r"\bKilled process (?P<pid>\d+)[ ,]+(?:UID \d+, )?\((?:.*(?:total-vm|anon-rss|UID)"
            r"|[^()]{1,24}\)\s*$)",
            details=groups,
        ),
        rule("oom", r"Task in \S+ killed as a result of limit of"),
        rule("oom", r"Tasks in \S+ are going to be killed due to memory\.oom\.group set"),
        rule("oom", r"Memory cgroup stats for "),
        rule("oom", r"\b(?:memory(?:\+swap)?|kmem|swap): usage \d+kB, limit \d+kB, failcnt \d+"),
        rule("oom", r"Tasks state \(memory values in pages\)|\[ *pid *\] +uid +tgid +total_vm"),
        rule(
            "oom",
            # mm/percpu.c lists the CPUs of its groups in the same columns, at every boot.
            r"\A(?!.*pcpu-alloc: ).*?\[ *(?P<pid>\d+)\](?: +\d+){5,9} +-?\d+ +\S",
            details=groups,
        ),
        rule("oom", r"\bMem-Info:\s*$"),
        rule(
            "oom",
            r"\b(?:oom_kill_process|out_of_memory|mem_cgroup_out_of_memory|dump_header|"
            r"pagefault_out_of_memory)\+0x",
        ),
        rule("oom", r"systemd-oomd(?:\[\d+\])?: Killed "),
    ),
)

CRASH = Topic(
    re.compile(r"segfault|traps: |bad frame"),
    (
        rule(
            "segfault",
            r"^(?:traps: )?(?P<process>\S.*?)\[(?P<pid>\d+)\]:? (?:segfault at |general protection"
            r"|trap (?:invalid opcode|divide error|int3|stack segment)|bad frame in)",
            fault=None,
            details=_named,
        ),
        rule("segfault", r"\bsegfault at [0-9a-f]+ (?:ip|rip) [0-9a-f]+ ", fault=None),
    ),
)
