/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
 * One question: who changes where a guarded process may run. Taken at the moment of the change, for
 * the author may be gone before anybody looks: command, user, login session, cgroup.
 *
 * One record for an author, process and look says all, a short one names each further thread; what the
 * ring has no room for is counted. */
#ifndef NODEAGENT_AUTHOR_H
#define NODEAGENT_AUTHOR_H
#include "guard.h"

/* Beside a kind: what was told of a process, not of a thread. */
#define NG_WHOLE 256

/* Numbers of system calls that pass the hook of LSM and change no affinity; x86-64 and arm64. */
#define X86_SETPARAM 142
#define X86_SETSCHEDULER 144
#define X86_SETAFFINITY 203
#define X86_SETATTR 314
#define ARM_SETPARAM 118
#define ARM_SETSCHEDULER 119
#define ARM_SETAFFINITY 122
#define ARM_SETATTR 274

/* The table is only a help: two CPUs that meet in an entry tell once too often at worst. */
static __always_inline bool author_said(__u32 author, __u32 tid, __u32 kind)
{
	__u32 at = (author * 2654435769u ^ tid * 2246822519u ^ kind) & (NG_SAID - 1);
	struct ng_said *said = &watch.said[NA_CLAMP(at, NG_SAID)];

	if (said->author == author && said->tid == tid && said->kind == kind &&
	    said->generation == watch.generation)
		return true;
	said->author = author;
	said->tid = tid;
	said->kind = kind;
	said->generation = watch.generation;
	return false;
}

static __always_inline bool author_is_own(__u32 tgid)
{
#pragma unroll
	for (int i = 0; i < NG_OWN; i++)
		if (watch.own[i] == tgid)
			return true;
	return false;
}

static __always_inline struct kernfs_node *author_above(struct kernfs_node *node)
{
	/* __parent: Linux 633488947ef6 (v6.15). */
	if (bpf_core_field_exists(node->parent))
		return BPF_CORE_READ(node, parent);
	return BPF_CORE_READ((struct kernfs_node___new *)node, __parent);
}

static __always_inline void author_name(char *into, struct kernfs_node *node)
{
	const char *name = node ? BPF_CORE_READ(node, name) : NULL;

	if (name)
		bpf_probe_read_kernel_str(into, NG_NAME, name);
}

/* A record with everything about who runs now; NULL: no room, counted. To be submitted. */
static __always_inline struct ng_author *author_begin(__u32 kind, __u32 tgid, __u32 tid)
{
	struct task_struct *me = (void *)bpf_get_current_task();
	struct kernfs_node *node = BPF_CORE_READ(me, cgroups, dfl_cgrp, kn);
	struct ng_author *record = bpf_ringbuf_reserve(&notes, sizeof(*record), 0);

	if (!record) {
		__sync_fetch_and_add(&watch.lost, 1);
		return NULL;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->note.at_ns = bpf_ktime_get_ns();
	record->note.kind = kind;
	record->note.tgid = tgid;
	record->note.tid = tid;
	record->tgid = bpf_get_current_pid_tgid() >> 32;
	record->uid = bpf_get_current_uid_gid();
	record->loginuid = -1;
	record->sessionid = -1;
	if (bpf_core_field_exists(me->loginuid)) {
		record->loginuid = BPF_CORE_READ(me, loginuid.val);
		record->sessionid = BPF_CORE_READ(me, sessionid);
	}
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	author_name(record->leaf, node);
	author_name(record->parent, node ? author_above(node) : NULL);
	return record;
}

/* Whether a change of this task by who runs now is to be told in full; a short record is written here. */
static __always_inline bool author_counts(__u32 kind, struct task_struct *task)
{
	__u32 tgid, tid, me = bpf_get_current_pid_tgid() >> 32;

	if (!guard_task(task) || author_is_own(me))
		return false;
	guard_count(kind);
	tgid = BPF_CORE_READ(task, tgid);
	tid = BPF_CORE_READ(task, pid);
	if (!author_said(me, tgid, kind | NG_WHOLE))
		return true;
	/* Into a cgroup a process goes as a whole. */
	if (kind == NG_AFFINITY && !author_said(me, tid, kind)) {
		struct ng_note note = {
			.at_ns = bpf_ktime_get_ns(), .kind = kind, .tgid = tgid, .tid = tid, .cpu = me};

		if (bpf_ringbuf_output(&notes, &note, sizeof(note), 0))
			__sync_fetch_and_add(&watch.lost, 1);
	}
	return false;
}

/* mask: kernel memory, NULL: not known. */
static __always_inline void author_affinity(struct task_struct *task, const void *mask)
{
	struct ng_author *record;

	if (!author_counts(NG_AFFINITY, task))
		return;
	record = author_begin(NG_AFFINITY, BPF_CORE_READ(task, tgid), BPF_CORE_READ(task, pid));
	if (!record)
		return;
	if (mask)
		record->has_mask = !bpf_probe_read_kernel(record->mask, guard_mask_bytes & 511, mask);
	bpf_ringbuf_submit(record, 0);
}

/* LSM asks before priorities, affinities and cpusets alike; the system call under way tells which.
 * A change of cpuset comes as a write to a file of the cgroup file system. */
static __always_inline void author_lsm(struct task_struct *task)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct pt_regs *regs = (void *)bpf_task_pt_regs(me);
	struct ng_author *record;
	__u64 bytes = 0, from = 0;
	__s32 call;
	bool sets;

	if (bpf_core_field_exists(regs->orig_ax)) {
		call = regs->orig_ax;
		if (call == X86_SETPARAM || call == X86_SETSCHEDULER || call == X86_SETATTR)
			return;
		sets = call == X86_SETAFFINITY;
		if (sets) {
			bytes = regs->si;
			from = regs->dx;
		}
	} else {
		struct pt_regs___arm *arm = (void *)regs;

		call = arm->syscallno;
		if (call == ARM_SETPARAM || call == ARM_SETSCHEDULER || call == ARM_SETATTR)
			return;
		sets = call == ARM_SETAFFINITY;
		if (sets) {
			bytes = arm->regs[1];
			from = arm->regs[2];
		}
	}
	if (!author_counts(sets ? NG_AFFINITY : NG_CGROUP, task))
		return;
	record = author_begin(sets ? NG_AFFINITY : NG_CGROUP, task->tgid, task->pid);
	if (!record)
		return;
	if (bytes > sizeof(record->mask))
		bytes = sizeof(record->mask);
	asm volatile("" : "+r"(bytes));
	bytes &= 511;
	if (bytes && bytes <= sizeof(record->mask) && from)
		record->has_mask = !bpf_probe_read_user(record->mask, bytes, (void *)from);
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void author_attach(struct cgroup *to, const char *path,
					  struct task_struct *task)
{
	struct ng_author *record;

	if (!author_counts(NG_CGROUP, task))
		return;
	record = author_begin(NG_CGROUP, BPF_CORE_READ(task, tgid), BPF_CORE_READ(task, pid));
	if (!record)
		return;
	record->cgroup_id = BPF_CORE_READ(to, kn, id);
	bpf_probe_read_kernel_str(record->file, NG_NAME, path);
	bpf_ringbuf_submit(record, 0);
}

/* A cpuset's file was written: which processes live below, the reader knows. */
static __always_inline void author_cpuset(struct kernfs_open_file *of)
{
	struct kernfs_node *node = BPF_CORE_READ(of, kn);
	__u32 me = bpf_get_current_pid_tgid() >> 32;
	struct ng_author *record;

	if (!watch.watching || author_is_own(me))
		return;
	guard_count(NG_CPUSET);
	if (author_said(me, BPF_CORE_READ(node, id), NG_CPUSET))
		return;
	record = author_begin(NG_CPUSET, 0, 0);
	if (!record)
		return;
	record->cgroup_id = BPF_CORE_READ(author_above(node), id);
	author_name(record->file, node);
	bpf_ringbuf_submit(record, 0);
}

#endif
