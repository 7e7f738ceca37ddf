/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NODEAGENT_PAGES_ABI_H
#define NODEAGENT_PAGES_ABI_H
#include <stddef.h>
#include <stdint.h>

#define NA_MOVE_CALLS 64   /* move_pages(2) calls of one walk at most */
#define NA_MOVE_PAGES 16384 /* pages that one walk moves at most: 64 MiB of 4 KiB */
#define NA_LOOK_ONLY -1

/* What na_walk_pages is to do. Addresses and sizes in bytes. */
struct na_walk {
	uint64_t start;
	uint64_t end;
	uint64_t page_bytes;  /* from one address to the next */
	uint64_t look_pages;  /* look at no more than these */
	uint64_t move_pages;  /* move no more than these */
	int32_t target;       /* node to move to, or NA_LOOK_ONLY */
	uint32_t reserved;
};

/* What it saw and did. Every page that was looked at, and did not vanish, is counted in the by_node of its last
 * look: after the move, where one was tried. */
struct na_walked {
	uint64_t next;       /* where to go on */
	uint64_t looked;
	uint64_t moved;
	uint64_t shared;     /* stay: other processes map them too (EACCES) */
	uint64_t busy;       /* stay: pinned for DMA, or held by the kernel just then */
	uint64_t untried;    /* stay: NA_MOVE_CALLS were used up */
	uint64_t vanished;
	uint64_t longest_ns; /* the longest call that moved */
	uint64_t moving_ns;  /* all of them */
	uint32_t calls;
	uint32_t full;       /* 1: the target had no page left (ENOMEM) */
};

/* Walks the pages of process pid (0: this one) from start to end: those on a node outside `nodes` (words of 64) are
 * moved to the target, and every one of them is asked again where it is. by_node has NA_MAX_NODES counters, added
 * to. Stops at end, or at the first bound. 0 or -errno: ESRCH, EPERM, ENODEV (no such target), EACCES (the target
 * is not among the process's Mems_allowed), ENOMEM (our own), EINVAL. */
int na_walk_pages(int pid, const struct na_walk *walk, const uint64_t *nodes, size_t words, struct na_walked *out,
		  uint64_t *by_node);

/* mbind(2) of our own memory. 0 or -errno. */
int na_mbind(void *start, size_t bytes, int mode, const uint64_t *mask, size_t words, unsigned int flags);

#define NA_CAP_SYS_PTRACE 19

/* Gives a capability up: effective, permitted and inheritable, for this thread and what it starts. 0 or -errno. */
int na_give_up(int capability);

#endif
