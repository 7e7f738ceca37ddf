// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The guard's programs: one a hook, entry points only. Those marked `?` are loaded one way at a time,
 * as the kernel lets us (nodeagent/probe/guarding.py). The gate comes first. */
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* Bytes of the kernel's own cpumask: no more of it is read. */
const volatile __u32 guard_mask_bytes = 8;

#include "author.h"
#include "notice.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("tp_btf/sched_process_fork")
int BPF_PROG(guard_fork, struct task_struct *parent, struct task_struct *child)
{
	if (guard_here())
		notice_fork(parent, child);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(guard_exec, struct task_struct *task)
{
	if (guard_here())
		notice_exec(task);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(guard_exit, struct task_struct *task)
{
	if (guard_here())
		notice_exit(task);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(guard_migrate, struct task_struct *task, int cpu)
{
	if (guard_here())
		notice_migrate(task, cpu);
	return 0;
}

SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(guard_attach, struct cgroup *to, const char *path, struct task_struct *task)
{
	if (guard_here())
		author_attach(to, path, task);
	return 0;
}

SEC("?lsm/task_setscheduler")
int BPF_PROG(author_by_lsm, struct task_struct *task)
{
	if (guard_here())
		author_lsm(task);
	return 0;
}

/* The second argument: the mask itself, since Linux 713a2e21a513 (v6.2) a struct that names it. */
static __always_inline const void *asked_mask(__u64 argument)
{
	struct affinity_context *context = (void *)argument;

	if (bpf_core_type_exists(struct affinity_context))
		return BPF_CORE_READ(context, new_mask);
	return (void *)argument;
}

SEC("?fentry/__sched_setaffinity")
int BPF_PROG(author_by_fentry, struct task_struct *task, __u64 second)
{
	if (guard_here())
		author_affinity(task, asked_mask(second));
	return 0;
}

SEC("?kprobe/__sched_setaffinity")
int author_by_kprobe(struct pt_regs *regs)
{
	if (!guard_here())
		return 0;
	if (bpf_core_field_exists(regs->di)) {
		author_affinity((void *)regs->di, asked_mask(regs->si));
	} else {
		struct pt_regs___arm *arm = (void *)regs;

		author_affinity((void *)arm->regs[0], asked_mask(arm->regs[1]));
	}
	return 0;
}

SEC("?fentry/cpuset_write_resmask")
int BPF_PROG(cpuset_by_fentry, struct kernfs_open_file *of)
{
	if (guard_here())
		author_cpuset(of);
	return 0;
}

SEC("?kprobe/cpuset_write_resmask")
int cpuset_by_kprobe(struct pt_regs *regs)
{
	if (!guard_here())
		return 0;
	if (bpf_core_field_exists(regs->di))
		author_cpuset((void *)regs->di);
	else
		author_cpuset((void *)((struct pt_regs___arm *)regs)->regs[0]);
	return 0;
}
