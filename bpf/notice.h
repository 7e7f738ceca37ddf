/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
 * One question: what happened to a guarded process that asks for an early look: a thread or child
 * was born, a program begun, it ended, a thread went to a CPU outside its mask.
 *
 * The reader looks itself, so each kind is told once for a process and look, however often it
 * happens: a storm of threads costs a table look-up and an addition each. The ring wakes the reader
 * only when it had caught up (the kernel's own rule), so at most once a look. */
#ifndef NODEAGENT_NOTICE_H
#define NODEAGENT_NOTICE_H
#include "guard.h"

static __always_inline void notice_tell(__u32 kind, __u32 tgid, __u32 tid, __u32 cpu)
{
	struct ng_note note = {
		.at_ns = bpf_ktime_get_ns(), .kind = kind, .tgid = tgid, .tid = tid, .cpu = cpu};

	if (bpf_ringbuf_output(&notes, &note, sizeof(note), 0))
		__sync_fetch_and_add(&watch.lost, 1);
}

/* parent: who is guarded; task: what happened to it, a child or thread of its own, or itself. */
static __always_inline void notice(struct ng_slot *slot, __u32 kind, struct task_struct *parent,
				   struct task_struct *task, __u32 cpu)
{
	__u32 generation = watch.generation;

	guard_count(kind);
	if (slot->told[kind] == generation)
		return;
	slot->told[kind] = generation;
	notice_tell(kind, BPF_CORE_READ(parent, tgid), BPF_CORE_READ(task, pid), cpu);
}

static __always_inline void notice_fork(struct task_struct *parent, struct task_struct *child)
{
	struct ng_slot *slot = guard_task(parent);

	if (slot)
		notice(slot, NG_FORK, parent, child, 0);
}

/* Workloads are known by their titles, which only the reader can judge: any program may be one.
 * Of strangers' one a second is told; the reader's own pace is the net. */
static __always_inline void notice_exec(struct task_struct *task)
{
	struct ng_slot *slot = guard_task(task);
	__u64 now;

	if (slot) {
		notice(slot, NG_EXEC, task, task, 0);
		return;
	}
	if (!watch.watching)
		return;
	guard_count(NG_EXEC);
	now = bpf_ktime_get_ns();
	if (now - watch.exec_ns < NG_EXEC_GAP_NS)
		return;
	watch.exec_ns = now;
	notice_tell(NG_EXEC, 0, BPF_CORE_READ(task, pid), 0);
}

static __always_inline void notice_exit(struct task_struct *task)
{
	struct ng_slot *slot;

	if (BPF_CORE_READ(task, pid) != BPF_CORE_READ(task, tgid))
		return;
	slot = guard_task(task);
	if (slot)
		notice(slot, NG_EXIT, task, task, 0);
}

/* The hottest hook of the four: every migration of every task of the machine ends at the table. */
static __always_inline void notice_migrate(struct task_struct *task, __u32 cpu)
{
	struct ng_slot *slot = guard_task(task);

	if (!slot || cpu >= NG_MAX_CPUS)
		return;
	if (slot->mask[NA_CLAMP(cpu >> 6, NG_CPU_WORDS)] >> (cpu & 63) & 1)
		return;
	notice(slot, NG_MOVED, task, task, cpu);
}

#endif
