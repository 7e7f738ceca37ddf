/* SPDX-License-Identifier: Apache-2.0
 * Two processes on two cores, measured in short windows; what ours and the peers' programs share.
 * A window in which either side lost its core to somebody else says nothing about the code: such windows are told apart
 * (involuntary context switches of both), and left out where enough whole ones remain. */
#ifndef PAIR_H
#define PAIR_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_WINDOWS 4096

struct pair {
	uint32_t arrived[2]; /* windows each side has come to */
	uint8_t pad0[120];
	uint64_t cursor; /* of the receiver, where a peer needs one */
	uint8_t pad1[120];
	uint64_t ended_ns[MAX_WINDOWS]; /* by the receiver */
	uint64_t bad; /* records that were not what was sent */
	uint8_t whole[2][MAX_WINDOWS]; /* 1: that side kept its core */
};

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CPU time of this thread: what another process took from the core is not our cost. */
static inline uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void *shared_bytes(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (at == MAP_FAILED) {
		perror("mmap");
		exit(3);
	}
	return at;
}

/* Side 0 to the first allowed CPU, side 1 to the last; one CPU alone: it is shared. */
static inline void pin(int side)
{
	cpu_set_t all, one;
	CPU_ZERO(&all);
	CPU_ZERO(&one);
	if (sched_getaffinity(0, sizeof(all), &all))
		return;
	int chosen = -1;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && (side || chosen < 0))
			chosen = cpu;
	CPU_SET(chosen, &one);
	(void)sched_setaffinity(0, sizeof(one), &one);
}

static inline long switches(void)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nivcsw;
}

/* Both come here before a window; nobody goes on alone. */
static inline void meet(struct pair *pair, int side, uint32_t window)
{
	__atomic_store_n(&pair->arrived[side], window + 1, __ATOMIC_RELEASE);
	for (uint32_t turn = 1; __atomic_load_n(&pair->arrived[!side], __ATOMIC_ACQUIRE) <= window; turn++)
		if (turn % 4096 == 0)
			sched_yield();
}

static inline int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static inline double quantile(double *values, int count, double q)
{
	qsort(values, (size_t)count, sizeof(*values), by_value);
	int at = (int)(q * count);
	return count ? values[at < count ? at : count - 1] : 0;
}

/* One side of a window's work: records [first, first + count). The receiver returns how many were wrong. */
typedef uint64_t (*pair_side)(void *context, struct pair *pair, uint64_t first, uint64_t count);

/* Prints "rate MMSG_PER_S WHOLE WINDOWS": the median over whole windows, over all where fewer than five are whole. */
static inline int run_windows(void *context, pair_side send_side, pair_side receive_side, uint32_t windows, uint64_t count)
{
	struct pair *pair = (struct pair *)shared_bytes(sizeof(*pair));
	double rates[MAX_WINDOWS], all[MAX_WINDOWS];
	uint64_t began[MAX_WINDOWS];
	if (windows > MAX_WINDOWS)
		windows = MAX_WINDOWS;
	pid_t child = fork();
	if (child < 0)
		return 3;
	int side = child == 0;
	if (side)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	pin(side);
	for (uint32_t window = 0; window < windows; window++) {
		long before = switches();
		meet(pair, side, window);
		if (side) {
			pair->bad += receive_side(context, pair, window * count, count);
			pair->ended_ns[window] = now_ns();
		} else {
			began[window] = now_ns();
			send_side(context, pair, window * count, count);
		}
		pair->whole[side][window] = switches() == before;
	}
	if (side)
		_exit(0);
	int status, whole = 0;
	waitpid(child, &status, 0);
	if (status || pair->bad) {
		fprintf(stderr, "the receiver found %llu wrong records (status %d)\n", (unsigned long long)pair->bad, status);
		return 1;
	}
	for (uint32_t window = 0; window < windows; window++) {
		all[window] = (double)count * 1e3 / (double)(pair->ended_ns[window] - began[window]);
		if (pair->whole[0][window] && pair->whole[1][window])
			rates[whole++] = all[window];
	}
	double rate = whole >= 5 ? quantile(rates, whole, 0.5) : quantile(all, (int)windows, 0.5);
	printf("rate %.3f %d %u\n", rate, whole, windows);
	return 0;
}
#endif
