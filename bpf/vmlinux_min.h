/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
 * The few kernel types our programs read, written by hand. preserve_access_index: the loader
 * (CO-RE) replaces each offset by the running kernel's own, so only the names must be right.
 * Renames of the kernel belong here, with the commit, as `struct x___old`. */
#ifndef NODEAGENT_VMLINUX_MIN_H
#define NODEAGENT_VMLINUX_MIN_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef signed short __s16;
typedef unsigned int __u32;
typedef signed int __s32;
typedef unsigned long long __u64;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u16 __sum16;
typedef __u8 uint8_t;
typedef __u16 uint16_t;
typedef __u32 uint32_t;
typedef __u64 uint64_t;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

/* Source: include/uapi/linux/bpf.h */
enum bpf_map_type {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_RINGBUF = 27,
};
enum {
	BPF_F_MMAPABLE = 1U << 10,
	BPF_RB_NO_WAKEUP = 1U << 0,
};

#define NA_KERNEL __attribute__((preserve_access_index))

/* Where CONFIG_SCHED_INFO is built (SCHEDSTATS and TASK_DELAY_ACCT select it), it is always kept since
 * Linux c5895d3f06cb (v5.14). */
struct sched_info {
	unsigned long pcount;
} NA_KERNEL;

struct sched_entity {
	__u64 sum_exec_runtime;
} NA_KERNEL;

typedef struct {
	unsigned int val;
} NA_KERNEL kuid_t;

/* `parent` has been `__parent` since Linux 633488947ef6 (v6.15). */
struct kernfs_node {
	struct kernfs_node *parent;
	const char *name;
	__u64 id;
} NA_KERNEL;

struct kernfs_node___new {
	struct kernfs_node *__parent;
} NA_KERNEL;

struct kernfs_open_file {
	struct kernfs_node *kn;
} NA_KERNEL;

struct cgroup {
	struct kernfs_node *kn;
} NA_KERNEL;

struct css_set {
	struct cgroup *dfl_cgrp;
} NA_KERNEL;

/* Linux 713a2e21a513 (v6.2). */
struct affinity_context {
	const void *new_mask;
} NA_KERNEL;

/* x86-64; and arm64, whose first member lies in a union. */
struct pt_regs {
	unsigned long orig_ax;
	unsigned long di;
	unsigned long si;
	unsigned long dx;
} NA_KERNEL;

struct pt_regs___arm {
	__u64 regs[31];
	__s32 syscallno;
} NA_KERNEL;

/* __state: Linux 2f064a59a11f (v5.14); before, `state`. loginuid, sessionid: with CONFIG_AUDIT. */
struct task_struct {
	unsigned int __state;
	int on_cpu;
	int wake_cpu;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	__u64 start_boottime;
	struct sched_entity se;
	struct sched_info sched_info;
	struct css_set *cgroups;
	kuid_t loginuid;
	unsigned int sessionid;
} NA_KERNEL;

/* The verifier of 6.1 does not know what clang knows about a range; an index goes through here, so
 * that the mask stays next to the access. */
#define NA_CLAMP(index, size)                                                                      \
	({                                                                                         \
		__u64 index_ = (index);                                                            \
		asm volatile("" : "+r"(index_));                                                   \
		index_ & ((size) - 1);                                                             \
	})

#endif
