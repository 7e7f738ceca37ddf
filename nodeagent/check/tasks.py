"""What a task's name tells: idle task, kernel thread, the CPU it is bound to, what to do.

Source: Linux Documentation/admin-guide/kernel-per-CPU-kthreads.rst, kernel/workqueue.c.
"""

from __future__ import annotations

import re

_BOUND = re.compile(
    r"(?:kworker/(\d+):|(?:ksoftirqd|migration|cpuhp|rcuc|idle_inject|irq_work|ktimers|watchdog|"
    r"stopper|posixcputmr)/(\d+)\b)"
)
_KERNEL = re.compile(
    r"kworker/|ksoftirqd/|migration/|cpuhp/|rcu|irq/\d+|ktimers/|watchdog/|kswapd|kcompactd|"
    r"khugepaged|ksmd|kthreadd|idle_inject/|irq_work/|kauditd|jbd2/|xfsaild/|nvidia-modeset|"
    r"nv_queue|stopper/|posixcputmr/"
)


def is_idle(task: str, pid: int | None = None) -> bool:
    """The idle task: it is nobody who waits or works."""
    return task.startswith(("swapper", "<idle>", "idle/")) or (pid == 0 and not task)


def bound_cpu(task: str) -> int | None:
    """The CPU a kernel thread is bound to by its name; None for unbound workers (kworker/u64:3)
    and for threads of user space."""
    m = _BOUND.match(task)
    return int(m[1] or m[2]) if m else None


def described(task: str) -> str:
    """The name with what it tells."""
    cpu = bound_cpu(task)
    if cpu is not None:
        return f"{task} (bound to CPU {cpu}, as its name says)"
    if task.startswith("kworker/u"):
        return f"{task} (unbound worker)"
    if _KERNEL.match(task):
        return f"{task} (kernel thread)"
    return task


def is_kernel(task: str) -> bool:
    """Whether it is a thread of the kernel, by its name."""
    return _KERNEL.match(task) is not None


def remedy(task: str, cpu: int | None) -> str:
    """What keeps this task from a CPU."""
    where = cpu if cpu is not None else "CPU"
    if task.startswith("kworker/u"):
        return (
            "echo HOUSEKEEPING_MASK > /sys/devices/virtual/workqueue/cpumask  # moves unbound "
            "workers"
        )
    if task.startswith("kworker/"):
        return (
            "trace-cmd record -e workqueue:workqueue_execute_start  names the function; boot with "
            f"isolcpus=/nohz_full= for CPU {where} so that nothing queues work there"
        )
    if task.startswith("ksoftirqd/"):
        return "move the interrupts that raise its softirqs: /proc/irq/N/smp_affinity_list"
    if task.startswith("migration/"):
        return "trace-cmd record -e sched:sched_migrate_task  shows who moves tasks there"
    if task.startswith("rcu"):
        return f"boot with rcu_nocbs={where} and bind rcuo threads to housekeeping CPUs"
    if m := re.match(r"irq/(\d+)", task):
        return f"echo HOUSEKEEPING_CPUS > /proc/irq/{m[1]}/smp_affinity_list"
    return f"keep it off CPU {where}: isolcpus=, a cpuset partition, or taskset -pc OTHER PID"
