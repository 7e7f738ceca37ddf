/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
 * Which processes are guarded. As in gate.h all of it lies in mapped memory: the reader steers with
 * a few stores. Most tasks end at the table's first, empty entry. */
#ifndef NODEAGENT_GUARD_H
#define NODEAGENT_GUARD_H
#include "guard_abi.h"

#define NG_TICK_NS 10000000

struct ng_watch watch SEC(".data.watch") = {};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, NG_RING_BYTES);
} notes SEC(".maps");

/* Whether this CPU may be used by us at all. */
static __always_inline bool guard_here(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return cpu < NG_MAX_CPUS && watch.armed[NA_CLAMP(cpu >> 6, NG_CPU_WORDS)] >> (cpu & 63) & 1;
}

static __always_inline struct ng_slot *guard_tgid(__u32 tgid)
{
	__u32 at = tgid * 2654435769u >> 22;

	if (!tgid)
		return NULL;
#pragma unroll
	for (int i = 0; i < NG_TGID_PROBES; i++) {
		__u64 index = NA_CLAMP(at + i, NG_TGIDS);
		__u32 seen = watch.tgids[index];

		if (!seen)
			return NULL;
		if (seen == tgid)
			return &watch.slots[NA_CLAMP(watch.slot_of[index], NG_SLOTS)];
	}
	return NULL;
}

/* Slot of a task's process, or NULL; a pid that was given to another process is not guarded.
 * Read by bpf_probe_read_kernel(): kprobes may not do otherwise. */
static __always_inline struct ng_slot *guard_task(struct task_struct *task)
{
	struct ng_slot *slot = guard_tgid(BPF_CORE_READ(task, tgid));

	if (slot && BPF_CORE_READ(task, group_leader, start_boottime) - slot->start_ns >= NG_TICK_NS)
		return NULL;
	return slot;
}

static __always_inline void guard_count(__u32 kind)
{
	__sync_fetch_and_add(&watch.counts[kind], 1);
}

#endif
