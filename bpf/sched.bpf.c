// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The programs on the scheduler's hooks: one program a hook, entry points only; each question is a
 * header. The gate comes first: a CPU that is not armed pays for the call and one load. */
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "runq.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (gate_armed(cpu))
		runq_switch(cpu, preempt, prev, next);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(sched_wakeup, struct task_struct *task)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (gate_armed(cpu))
		runq_wakeup(cpu, task);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(sched_wakeup_new, struct task_struct *task)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (gate_armed(cpu))
		runq_wakeup(cpu, task);
	return 0;
}

/* Run once on each armed CPU by the loader (BPF_PROG_TEST_RUN): who runs there, so that a thread
 * which is never switched out is seen too. */
SEC("raw_tp")
int seed(void *ctx)
{
	__u32 here = bpf_get_smp_processor_id();
	struct na_cpu *cpu = bpf_map_lookup_elem(&cpus, &here);

	if (cpu && !cpu->running)
		cpu->running = bpf_get_current_pid_tgid();
	return 0;
}
