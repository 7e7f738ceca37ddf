/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
 * Who is watched. Masks and tgids lie in mmapable memory: a new placement is a few stores by the
 * reader, no system call, no reload, no patched kernel text. All zero (as loaded): nothing happens. */
#ifndef NODEAGENT_GATE_H
#define NODEAGENT_GATE_H
#include "runq_abi.h"

/* A section of its own, so that the reader finds it at offset 0 of its map. */
struct na_gate gate SEC(".data.gate") = {};

#define NA_NOT_WATCHED NA_SLOTS

static __always_inline bool gate_bit(const __u64 *words, __u32 cpu)
{
	return words[NA_CLAMP(cpu >> 6, NA_CPU_WORDS)] >> (cpu & 63) & 1;
}

static __always_inline bool gate_armed(__u32 cpu)
{
	return cpu < NA_MAX_CPUS && gate_bit(gate.armed, cpu);
}

static __always_inline bool gate_watched(__u32 cpu)
{
	return gate_bit(gate.watched, cpu);
}

/* Slot of a process by tgid alone, or NA_NOT_WATCHED. Most tasks end at the first, empty entry. */
static __always_inline __u32 gate_tgid(__u32 tgid)
{
	__u32 at = tgid * 2654435769u >> 24;

	if (!tgid) /* the idle task */
		return NA_NOT_WATCHED;
#pragma unroll
	for (int i = 0; i < NA_TGID_PROBES; i++) {
		__u64 index = NA_CLAMP(at + i, NA_TGIDS);
		__u32 seen = gate.tgids[index];

		if (!seen)
			return NA_NOT_WATCHED;
		if (seen == tgid)
			return gate.slot_of[index] & (NA_SLOTS - 1);
	}
	return NA_NOT_WATCHED;
}

/* Slot of a task, or NA_NOT_WATCHED: a pid that was given to another process is not watched, and
 * the reader is told. */
static __always_inline __u32 gate_task(struct task_struct *task)
{
	__u32 index = gate_tgid(task->tgid);
	struct na_slot *slot;

	if (index == NA_NOT_WATCHED)
		return index;
	slot = &gate.slots[NA_CLAMP(index, NA_SLOTS)];
	if (task->group_leader->start_boottime - slot->start_ns >= NA_CLOCK_TICK_NS) {
		slot->stale = 1;
		return NA_NOT_WATCHED;
	}
	return index;
}

#endif
