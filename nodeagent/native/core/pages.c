/* SPDX-License-Identifier: Apache-2.0
 * Where the pages of a process are, and moving them: move_pages(2) in bounded steps, each read back.
 *
 * What the call says of a page is not where the page is: EBUSY pages may have moved all the same (the second half of
 * a huge page, for one), and a call that could not move one page leaves the rest untried. So after each call every
 * page is asked again. Source: move_pages(2), Linux mm/migrate.c do_pages_move(). */
#include "pages_abi.h"
#include "numa_abi.h"
#include <errno.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MPOL_MF_MOVE 2
#define UNSET (-4096) /* below every errno: the kernel said nothing of this page */

enum why { WHY_UNTRIED, WHY_BUSY, WHY_SHARED };

struct work {
	void *pages[NA_MOVE_PAGES];
	int nodes[NA_MOVE_PAGES];
	int status[NA_MOVE_PAGES];
	uint32_t index[NA_MOVE_PAGES]; /* of pages[] in todo[] */
	void *todo[NA_MOVE_PAGES];
	uint8_t why[NA_MOVE_PAGES];
};

static long pages_call(int pid, size_t count, void **pages, const int *nodes, int *status, int flags)
{
	long rc = syscall(SYS_move_pages, pid, count, pages, nodes, status, flags);
	return rc < 0 ? -errno : rc;
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool among(int node, const uint64_t *nodes, size_t words)
{
	return (size_t)node / 64 < words && (nodes[node / 64] >> (node % 64) & 1);
}

static void count(uint64_t *by_node, int node)
{
	if (node < NA_MAX_NODES)
		by_node[node]++;
}

/* Asks where pages are, and picks those that are to move. */
static long collect(int pid, const struct na_walk *walk, const uint64_t *nodes, size_t words, struct na_walked *out,
		    uint64_t *by_node, struct work *w, size_t *todo)
{
	uint64_t at = walk->start;
	size_t room = walk->move_pages < NA_MOVE_PAGES ? walk->move_pages : NA_MOVE_PAGES;

	while (at < walk->end && out->looked < walk->look_pages) {
		size_t n = 0;
		for (uint64_t a = at; a < walk->end && n < NA_MOVE_PAGES && out->looked + n < walk->look_pages; n++) {
			w->pages[n] = (void *)(uintptr_t)a;
			a += walk->page_bytes;
		}
		long rc = pages_call(pid, n, w->pages, NULL, w->status, 0);
		if (rc < 0)
			return rc;
		for (size_t i = 0; i < n; i++) {
			int node = w->status[i];
			if (node >= 0 && walk->target >= 0 && !among(node, nodes, words)) {
				if (*todo == room) {
					out->next = at;
					return 0;
				}
				w->todo[(*todo)++] = w->pages[i];
			} else if (node >= 0) {
				count(by_node, node);
			}
			out->looked++;
			at += walk->page_bytes;
		}
	}
	out->next = at;
	return 0;
}

/* Moves todo[], call after call while one of them leaves pages untried. */
static long move(int pid, int target, const uint64_t *nodes, size_t words, struct na_walked *out, struct work *w,
		 size_t todo)
{
	size_t left = todo;

	memset(w->why, WHY_UNTRIED, sizeof(w->why));
	for (size_t i = 0; i < todo; i++)
		w->index[i] = (uint32_t)i;
	while (left > 0 && out->calls < NA_MOVE_CALLS && !out->full) {
		for (size_t i = 0; i < left; i++) {
			w->pages[i] = w->todo[w->index[i]];
			w->nodes[i] = target;
			w->status[i] = UNSET;
		}
		uint64_t began = now_ns();
		long rc = pages_call(pid, left, w->pages, w->nodes, w->status, MPOL_MF_MOVE);
		uint64_t took = now_ns() - began;
		out->calls++;
		out->moving_ns += took;
		if (took > out->longest_ns)
			out->longest_ns = took;
		if (rc == -ENOMEM)
			out->full = 1;
		else if (rc < 0)
			return rc;
		/* A page that could not be moved ends the call, at the next page that was refused or at its end. What
		 * comes after the last page with a word of its own was perhaps not tried. */
		size_t told = 0;
		for (size_t i = 0; i < left; i++) {
			if (w->status[i] != UNSET)
				told = i + 1;
			if (w->status[i] == -EACCES)
				w->why[w->index[i]] = WHY_SHARED;
		}
		size_t tried = rc > 0 && told > 0 ? told : left;
		for (size_t i = 0; i < tried; i++)
			if (w->why[w->index[i]] != WHY_SHARED)
				w->why[w->index[i]] = WHY_BUSY;
		if (rc <= 0 || tried == left)
			break;
		/* Again with those that are not there yet. */
		rc = pages_call(pid, left, w->pages, NULL, w->status, 0);
		if (rc < 0)
			return rc;
		size_t next = 0;
		for (size_t i = tried; i < left; i++)
			if (w->status[i] >= 0 && !among(w->status[i], nodes, words))
				w->index[next++] = w->index[i];
		left = next;
	}
	return 0;
}

int na_walk_pages(int pid, const struct na_walk *walk, const uint64_t *nodes, size_t words, struct na_walked *out,
		  uint64_t *by_node)
{
	size_t todo = 0;
	long rc;

	memset(out, 0, sizeof(*out));
	out->next = walk->start;
	if (walk->page_bytes == 0 || walk->end < walk->start || walk->target >= NA_MAX_NODES)
		return -EINVAL;
	struct work *w = malloc(sizeof(*w));
	if (!w)
		return -ENOMEM;
	rc = collect(pid, walk, nodes, words, out, by_node, w, &todo);
	if (rc == 0 && todo > 0) {
		rc = move(pid, walk->target, nodes, words, out, w, todo);
		long back = pages_call(pid, todo, w->todo, NULL, w->status, 0);
		for (size_t i = 0; back == 0 && i < todo; i++) {
			int node = w->status[i];
			if (node < 0) {
				out->vanished++;
				continue;
			}
			count(by_node, node);
			if (among(node, nodes, words))
				out->moved++;
			else if (w->why[i] == WHY_SHARED)
				out->shared++;
			else if (w->why[i] == WHY_BUSY)
				out->busy++;
			else
				out->untried++;
		}
		if (rc == 0)
			rc = back;
	}
	free(w);
	return (int)rc;
}

int na_mbind(void *start, size_t bytes, int mode, const uint64_t *mask, size_t words, unsigned int flags)
{
	/* The kernel reads maxnode - 1 bits. */
	long rc = syscall(SYS_mbind, start, bytes, mode, mask, words ? words * 64 + 1 : 0, flags);
	return rc < 0 ? -errno : 0;
}

int na_give_up(int capability)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
	struct __user_cap_data_struct sets[2];

	if (capability < 0 || capability > 63)
		return -EINVAL;
	if (syscall(SYS_capget, &header, sets) < 0)
		return -errno;
	uint32_t bit = ~(1u << capability % 32);
	sets[capability / 32].effective &= bit;
	sets[capability / 32].permitted &= bit;
	sets[capability / 32].inheritable &= bit;
	return syscall(SYS_capset, &header, sets) < 0 ? -errno : 0;
}
