/* SPDX-License-Identifier: Apache-2.0
 * Speed of the ring: publish without a reader, lossless to one busy reader, one-way hop between two processes. Prints one
 * "name value unit" line each; medians of RUNS runs. Not a test: script/bench runs it. usage: ring_bench [SCALE] */
#include "ring_view.h"
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define RUNS 5

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof(*values), by_value);
	return values[count / 2];
}

static struct na_ring *make(uint64_t capacity)
{
	struct na_ring_config config = {.feed = "bench", .kind = NA_RING_TICKS, .capacity = capacity, .node = -1};
	struct na_ring *ring;
	char why[256] = "";
	if (na_ring_create(&config, NULL, &ring, why, sizeof(why)) < 0) {
		fprintf(stderr, "%s\n", why);
		exit(3);
	}
	return ring;
}

static struct na_view *view_of(struct na_ring *ring)
{
	struct na_view *view;
	char why[256];
	if (nar_view_open(ring->info.fd, NA_RING_TICKS, 1, &view, why, sizeof(why)) < 0)
		exit(3);
	return view;
}

/* Of this thread: what another process took from the core is not the ring's cost. */
static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ns of CPU a tick: push one, commit one; and in bursts of 32. */
static double publish(uint64_t count, unsigned burst)
{
	struct na_ring *ring = make(1 << 16);
	struct na_tick tick = {.kind = NA_KIND_ADD};
	uint64_t began = cpu_ns();
	for (uint64_t i = 0; i < count; i++) {
		tick.price = (int64_t)i;
		tick.ref = i;
		na_ring_push(ring, &tick);
		if (i % burst == burst - 1) {
			na_ring_commit(ring);
			na_ring_flush(ring);
		}
	}
	double ns = (double)(cpu_ns() - began) / (double)count;
	na_ring_destroy(ring);
	return ns;
}

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	(void)sched_setaffinity(0, sizeof(set), &set);
}

/* Mmsg/s to one reader process that keeps up: a full ring's worth at a time, then its cursor is waited for. */
static double lossless(uint64_t count)
{
	struct na_ring *ring = make(1 << 16);
	uint64_t *shared = (uint64_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(1);
		struct na_view *view = view_of(ring);
		uint64_t at = 0, bad = 0;
		__atomic_store_n(shared + 32, 1, __ATOMIC_RELEASE);
		while (at < count) {
			uint64_t n = nar_available(view, at, 1024);
			for (uint64_t i = 0; i < n; i++)
				bad += nar_tick(view, at + i)->ref != at + i;
			if (!n)
				continue;
			bad += nar_overwritten(view, at, n);
			at += n;
			__atomic_store_n(shared, at, __ATOMIC_RELEASE);
		}
		_exit(bad != 0);
	}
	pin(0);
	while (!__atomic_load_n(shared + 32, __ATOMIC_ACQUIRE))
		;
	struct na_tick tick = {.kind = NA_KIND_ADD};
	uint64_t began = nar_now_ns(), limit = ring->capacity - 64;
	for (uint64_t i = 0; i < count; i++) {
		tick.ref = i;
		while (i >= limit) {
			na_ring_commit(ring);
			limit = __atomic_load_n(shared, __ATOMIC_ACQUIRE) + ring->capacity - 64;
		}
		na_ring_push(ring, &tick);
		if (i % 16 == 15)
			na_ring_commit(ring);
	}
	na_ring_commit(ring);
	int status;
	waitpid(child, &status, 0);
	double rate = (double)count * 1e3 / (double)(nar_now_ns() - began);
	if (status)
		fprintf(stderr, "lossless: the reader found wrong records\n");
	na_ring_destroy(ring);
	munmap(shared, 4096);
	return status ? 0 : rate;
}

/* One-way p50 in ns: a tick there, a tick back, halved. */
static double hop(uint64_t count)
{
	struct na_ring *there = make(1 << 15), *back = make(1 << 15);
	double *times = (double *)calloc(count, sizeof(*times));
	struct na_tick tick = {.kind = NA_KIND_ADD};
	pid_t child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(1);
		struct na_view *in = view_of(there);
		for (uint64_t i = 0; i < count; i++) {
			while (!nar_available(in, i, 1))
				;
			na_ring_push(back, &tick);
			na_ring_commit(back);
		}
		_exit(0);
	}
	pin(0);
	struct na_view *in = view_of(back);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t began = nar_now_ns();
		na_ring_push(there, &tick);
		na_ring_commit(there);
		while (!nar_available(in, i, 1))
			;
		times[i] = (double)(nar_now_ns() - began) / 2;
	}
	waitpid(child, NULL, 0);
	double p50 = median(times, (int)count);
	free(times);
	nar_view_unref(in);
	na_ring_destroy(there);
	na_ring_destroy(back);
	return p50;
}

int main(int argc, char **argv)
{
	double scale = argc > 1 ? atof(argv[1]) : 1, one[RUNS], burst[RUNS], rate[RUNS], hops[RUNS];
	for (int run = 0; run < RUNS; run++) {
		one[run] = publish((uint64_t)(4e6 * scale), 1);
		burst[run] = publish((uint64_t)(4e6 * scale), 32);
		rate[run] = lossless((uint64_t)(4e6 * scale));
		hops[run] = hop((uint64_t)(1e5 * scale));
	}
	printf("publish %.2f ns\n", median(one, RUNS));
	printf("publish_burst32 %.2f ns\n", median(burst, RUNS));
	printf("lossless %.2f Mmsg/s\n", median(rate, RUNS));
	printf("hop_p50 %.0f ns\n", median(hops, RUNS));
	return 0;
}
