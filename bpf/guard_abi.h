/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
 * What the guard's programs and their reader share: one mapped array and a ring buffer. Read by cffi
 * too: plain C, integer #defines. */
#ifndef NODEAGENT_GUARD_ABI_H
#define NODEAGENT_GUARD_ABI_H
#ifndef __bpf__
#include <stdint.h>
#endif

#define NG_CPU_WORDS 32
#define NG_MAX_CPUS 2048
#define NG_SLOTS 256
#define NG_TGIDS 1024
#define NG_TGID_PROBES 16
#define NG_OWN 4
#define NG_SAID 1024
#define NG_RING_BYTES 262144
#define NG_NAME 64
/* A stranger's exec asks for an early look at most this often. */
#define NG_EXEC_GAP_NS 1000000000

#define NG_FORK 0
#define NG_EXEC 1
#define NG_EXIT 2
#define NG_MOVED 3
#define NG_AFFINITY 4
#define NG_CGROUP 5
#define NG_CPUSET 6
#define NG_KINDS 7

/* One guarded process. Written by the reader but for `told`. */
struct ng_slot {
	uint64_t start_ns; /* its start since boot, rounded down to the tick of /proc/PID/stat */
	uint64_t mask[32]; /* where its threads belong; all ones: anywhere */
	uint32_t told[4];  /* generation in which each of NG_FORK .. NG_MOVED was last told */
};

/* Who changed what was told already in this generation; direct-mapped by both. */
struct ng_said {
	uint32_t author; /* tgid */
	uint32_t tid;
	uint32_t kind;
	uint32_t generation;
};

struct ng_watch {
	uint64_t armed[32];     /* CPUs on which the programs do anything at all; by the reader */
	uint32_t generation;    /* by the reader, before it looks at the processes itself; from 1 */
	uint32_t watching;      /* processes in the table, and 1 where programs to come are awaited; by the reader */
	uint32_t own[4];        /* tgids whose changes are our own; by the loader */
	uint32_t tgids[1024];   /* open addressing: 0 empty, 0xffffffff removed; by the reader */
	uint16_t slot_of[1024]; /* of the tgid at the same index */
	struct ng_slot slots[256];
	struct ng_said said[1024];
	uint64_t exec_ns;   /* when a stranger's exec was last told */
	uint64_t counts[7]; /* what happened, by kind, told or not */
	uint64_t lost;      /* told to a full ring */
};

/* A record of the ring. */
struct ng_note {
	uint64_t at_ns; /* CLOCK_MONOTONIC */
	uint32_t kind;
	uint32_t tgid; /* the guarded process; 0: a stranger's exec, or a cpuset */
	uint32_t tid;
	uint32_t cpu; /* NG_MOVED: where to; a short NG_AFFINITY: tgid of the author, told before */
};

/* A record of NG_AFFINITY, NG_CGROUP or NG_CPUSET: with who did it, as it was at that moment. */
struct ng_author {
	struct ng_note note;
	uint32_t tgid;
	uint32_t uid;
	uint32_t loginuid;  /* 0xffffffff: no login session */
	uint32_t sessionid; /* of the audit subsystem */
	uint32_t has_mask;
	uint32_t unused;
	uint64_t cgroup_id; /* NG_CPUSET: of the cpuset; else of the cgroup it went to; 0: none */
	char comm[16];
	char leaf[64];   /* its cgroup's last name, in the unified hierarchy */
	char parent[64]; /* the one above */
	char file[64];   /* NG_CPUSET: the file written; NG_CGROUP: the path */
	uint64_t mask[32]; /* NG_AFFINITY, if has_mask: what was asked for */
};

#endif
