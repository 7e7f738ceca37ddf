/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
 * One question: how long do watched threads, and tasks on watched CPUs, wait in a run queue; and
 * for how long did each watched process run on each CPU.
 *
 * A wait begins with a wake-up or a preemption and ends with the switch to the thread. Its beginning
 * lies in a direct-mapped array, not in task storage: nothing is allocated under a run queue's lock,
 * and the look-up is inlined. The scheduler's own sched_info.last_queued would save the hooks on
 * wake-ups, but its clock is not read again between a preempting wake-up and its switch
 * (rq_clock_skip_update() in wakeup_preempt()): the time to leave idle, or to the end of an
 * interrupt, would read 0. */
#ifndef NODEAGENT_RUNQ_H
#define NODEAGENT_RUNQ_H
#include "gate.h"
#include "histogram.h"

/* Histograms of a slot: one for each CPU up to NA_MAX_SHARDS, then shared, with atomic adds. */
const volatile __u32 shards = 1;
const volatile bool shared_shards = true;

/* The loader sets max_entries: CPUs, slots * shards. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct na_cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct na_hist);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NA_THREADS);
	__type(key, __u32);
	__type(value, struct na_thread);
} threads SEC(".maps");

static __always_inline __u32 runq_arrivals(struct task_struct *task)
{
	return bpf_core_field_exists(task->sched_info.pcount) ? task->sched_info.pcount : 0;
}

static __always_inline struct na_thread *runq_thread(struct task_struct *task)
{
	__u32 index = task->pid & (NA_THREADS - 1);

	return bpf_map_lookup_elem(&threads, &index);
}

/* The entry becomes the task's. Both orders of the stores of two threads that meet in one leave a
 * time that is a few nanoseconds off, or an entry that fits neither and is not used. */
static __always_inline void runq_claim(struct na_cpu *cpu, struct na_thread *thread, __u32 tid)
{
	if (thread->tid == tid)
		return;
	if (thread->tid && thread->queued_ns)
		cpu->dropped += 1;
	thread->queued_ns = 0;
	thread->generation = 0;
	thread->tid = tid;
}

static __always_inline void runq_count(struct na_cpu *cpu, __u32 here, __u32 index, bool watched,
				       __u64 wait)
{
	__u32 shard = index * shards + here % shards;
	struct na_hist *hist;

	if (watched)
		hist_add(&cpu->runq, wait, false);
	hist = index == NA_NOT_WATCHED ? NULL : bpf_map_lookup_elem(&slots, &shard);
	if (hist)
		hist_add(hist, wait, shared_shards);
}

/* How long the thread that leaves has run: what sum_exec_runtime (the first number of
 * /proc/PID/schedstat, just brought up to date) grew by since it last left a CPU. */
static __always_inline __u64 runq_ran(struct na_cpu *cpu, struct na_thread *thread,
				      struct na_slot *slot, struct task_struct *task, __u64 now)
{
	__u64 exec = task->se.sum_exec_runtime, since = slot->began_ns;

	if (thread->generation == slot->generation && exec >= thread->exec_ns)
		return exec - thread->exec_ns;
	if (cpu->generation == slot->generation && (int)cpu->running == task->pid)
		return exec - cpu->exec_in;
	/* It came before the watch began, or its coming was not seen. */
	if (thread->queued_ns > since)
		since = thread->queued_ns;
	return now - since < exec ? now - since : exec;
}

/* The thread that leaves: its run ends; if it is still runnable, it waits from now on. */
static __always_inline void runq_left(struct na_cpu *cpu, __u32 here, __u32 index, bool watched,
				      bool runnable, struct task_struct *task, __u64 now)
{
	struct na_thread *thread = runq_thread(task);
	__u64 ran = 0, queued;
	__u32 arrivals;
	int missed;

	if (!thread)
		return;
	runq_claim(cpu, thread, task->pid);
	queued = thread->queued_ns;
	arrivals = runq_arrivals(task);
	if (index != NA_NOT_WATCHED) {
		struct na_slot *slot = &gate.slots[NA_CLAMP(index, NA_SLOTS)];
		bool seen = cpu->generation == slot->generation && (int)cpu->running == task->pid;

		ran = runq_ran(cpu, thread, slot, task, now);
		cpu->run_ns[NA_CLAMP(index, NA_SLOTS)] += ran;
		/* Noted as waiting and since then on a CPU once: the switch to it was not traced. A
		 * 6.18 guest was met whose hooks are passed over now and then, ftrace's too. */
		if (!seen && queued && thread->arrivals + 1 == arrivals && now - queued > ran) {
			runq_count(cpu, here, index, watched, now - queued - ran);
			cpu->mended += 1;
			seen = true;
		}
		/* It came once since it last left; what is more was not seen at all. */
		if (thread->generation == slot->generation) {
			missed = arrivals - thread->arrivals_left - seen;
			cpu->dropped += missed > 0 ? missed : 0;
		}
		thread->exec_ns = task->se.sum_exec_runtime;
		thread->arrivals_left = arrivals;
		thread->generation = slot->generation;
	}
	thread->arrivals = arrivals;
	thread->queued_ns = runnable ? now : 0;
}

/* The thread that comes: its wait ends, its run begins. */
static __always_inline void runq_came(struct na_cpu *cpu, __u32 here, __u32 index, bool watched,
				      struct task_struct *task, __u64 now)
{
	struct na_thread *thread = runq_thread(task);

	if (thread && thread->tid == (__u32)task->pid && thread->queued_ns) {
		/* If it has been on a CPU since, one that is not armed, the time is an old one. */
		if (thread->arrivals == runq_arrivals(task))
			runq_count(cpu, here, index, watched,
				   now > thread->queued_ns ? now - thread->queued_ns : 0);
		thread->queued_ns = 0;
	}
	if (index == NA_NOT_WATCHED)
		return;
	cpu->exec_in = task->se.sum_exec_runtime;
	cpu->since_ns = now;
	cpu->slot = index;
	cpu->generation = gate.slots[NA_CLAMP(index, NA_SLOTS)].generation;
}

static __always_inline void runq_switch(__u32 here, bool preempt, struct task_struct *prev,
					struct task_struct *next)
{
	struct na_cpu *cpu = bpf_map_lookup_elem(&cpus, &here);
	__u32 from, to;
	bool watched;
	__u64 now;

	if (!cpu)
		return;
	from = gate_task(prev);
	to = gate_task(next);
	watched = gate_watched(here);
	/* Plain stores, in this order for the compiler; where the machine orders weakly a reader may
	 * once see a run twice or not yet, and its next reading mends it. */
	cpu->sequence += 1;
	barrier();
	cpu->switches += 1;
	if (from != NA_NOT_WATCHED || to != NA_NOT_WATCHED || watched) {
		now = bpf_ktime_get_ns();
		if ((from != NA_NOT_WATCHED || watched) && prev->pid)
			runq_left(cpu, here, from, watched, preempt || !prev->__state, prev, now);
		cpu->generation = 0;
		if ((to != NA_NOT_WATCHED || watched) && next->pid)
			runq_came(cpu, here, to, watched, next, now);
	} else {
		cpu->generation = 0;
	}
	cpu->running = (__u64)next->tgid << 32 | (__u32)next->pid;
	barrier();
	cpu->sequence += 1;
}

static __always_inline void runq_wakeup(__u32 here, struct task_struct *task)
{
	struct na_thread *thread;
	struct na_cpu *cpu;

	if (gate_task(task) == NA_NOT_WATCHED && !gate_watched(task->wake_cpu))
		return;
	cpu = bpf_map_lookup_elem(&cpus, &here);
	thread = runq_thread(task);
	/* Woken while it runs, on its way to sleep: it does not wait. */
	if (!cpu || !thread || task->on_cpu)
		return;
	runq_claim(cpu, thread, task->pid);
	/* Woken while it waits: it waits since it was preempted. */
	if (thread->queued_ns && thread->arrivals == runq_arrivals(task))
		return;
	thread->arrivals = runq_arrivals(task);
	thread->queued_ns = bpf_ktime_get_ns();
}

#endif
