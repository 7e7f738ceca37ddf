/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
 * What the kernel's side and the reader share: memory of array maps that both map. All values are
 * written by one side only, as the comments say. Read by cffi too: plain C, integer #defines. */
#ifndef NODEAGENT_RUNQ_ABI_H
#define NODEAGENT_RUNQ_ABI_H
#ifndef __bpf__
#include <stdint.h>
#endif

#define NA_MAX_CPUS 2048
#define NA_CPU_WORDS 32
#define NA_SLOTS 64
#define NA_TGIDS 256
#define NA_TGID_PROBES 8
#define NA_THREADS 4096
#define NA_MAX_SHARDS 8
#define NA_BUCKETS 256
#define NA_CLOCK_TICK_NS 10000000

/* Buckets of nodeagent/model/histogram.py; values in nanoseconds. */
struct na_hist {
	uint64_t counts[256];
	uint64_t samples;
	uint64_t total;
	uint64_t maximum;
	uint64_t unused[5];
};

/* One watched process. Written by the reader but for `stale`. */
struct na_slot {
	uint64_t start_ns;   /* its start since boot, rounded down to the clock tick of /proc/PID/stat */
	uint64_t began_ns;   /* CLOCK_MONOTONIC when the watch began */
	uint32_t generation; /* 1 and up, never used twice; 0: free */
	uint32_t stale;      /* set by the program: the pid now belongs to a process of another start */
	uint64_t unused;
};

/* The gate: which CPUs, which processes. Written by the reader, read by the programs first of all. */
struct na_gate {
	uint64_t armed[32];   /* CPUs on which the programs do anything at all */
	uint64_t watched[32]; /* CPUs on which the wait of every task is measured */
	uint32_t tgids[256];  /* open addressing: 0 empty, 0xffffffff removed */
	uint8_t slot_of[256]; /* of the tgid at the same index */
	struct na_slot slots[64];
};

/* One CPU. Written by the programs on that CPU only, with interrupts off: no atomics. */
struct na_cpu {
	uint64_t running;    /* tgid << 32 | tid of the thread that runs */
	uint64_t since_ns;   /* CLOCK_MONOTONIC when it came, if it is watched */
	uint64_t exec_in;    /* its sum_exec_runtime then */
	uint32_t generation; /* of its slot then; 0: not watched */
	uint32_t slot;
	uint64_t sequence;   /* odd while the four above and run_ns change */
	uint64_t switches;   /* calls that passed the gate */
	uint64_t dropped;    /* waits that were not seen, or put out of the table */
	uint64_t mended;     /* waits whose end was not traced, told from the run after */
	uint64_t run_ns[64]; /* by slot: what ended runs took */
	struct na_hist runq; /* waits of every task, if the CPU is watched */
};

/* One thread; direct-mapped by tid. Tids of one process mostly follow each
 * other, so they seldom meet; one that does puts the earlier out, which is counted. */
struct na_thread {
	uint64_t queued_ns;  /* CLOCK_MONOTONIC; 0: it does not wait */
	uint64_t exec_ns;    /* its sum_exec_runtime when it last left a CPU */
	uint32_t tid;        /* 0: none */
	uint32_t generation; /* of its slot then; 0: exec_ns is not known */
	uint32_t arrivals;   /* how often it had come to a CPU: tells an old queued_ns from a new one */
	uint32_t arrivals_left; /* the same, when it last left a CPU */
};

#endif
