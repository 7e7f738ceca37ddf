/* SPDX-License-Identifier: Apache-2.0
 * One producer and two readers as threads over one mapping, ticks and frames, with laps: every record that validates is
 * whole, every number is read or counted as lost, positions and counts add up. Built plainly and with ThreadSanitizer
 * (docs/ring.md, "ThreadSanitizer"). usage: ring_threads [TICKS [DAWDLE_US]] */
#include "ring_view.h"
#include <pthread.h>
#include <sched.h>

#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

static struct na_ring *ticks, *frames;
static uint64_t total = 3000000;
static unsigned dawdle_us = 1000;

static struct na_ring *make(uint32_t kind, uint64_t capacity)
{
	struct na_ring_config config = {.feed = "threads", .kind = kind, .capacity = capacity, .node = -1};
	struct na_ring *ring;
	char why[256] = "";
	if (na_ring_create(&config, NULL, &ring, why, sizeof(why)) < 0) {
		fprintf(stderr, "%s\n", why);
		exit(1);
	}
	return ring;
}

/* The producer's own mapping, seen as a reader would: ThreadSanitizer cannot relate two mappings of one page, and the
 * fences of its build write to reserve. */
static struct na_view share(struct na_ring *ring)
{
	struct na_view view;
	memset(&view, 0, sizeof(view));
	view.fixed = *ring->header;
	nar_view_point(&view, (const uint8_t *)ring->header);
	return view;
}

static struct na_tick made(uint64_t at)
{
	struct na_tick t = {.ts_exch_ns = at * 3, .ts_rx_ns = at, .price = (int64_t)at, .size = at ^ 0x55, .ref = ~at,
	                    .aux = at * 7, .instrument = (uint32_t)at, .kind = NA_KIND_ADD};
	return t;
}

static void *produce(void *unused)
{
	uint8_t payload[512];
	(void)unused;
	for (uint64_t i = 0; i < total; i++) {
		struct na_tick t = made(i);
		na_ring_push(ticks, &t);
		if (i % 37 == 0) {
			struct na_frame meta = {.ts_rx_ns = i, .vlan = NA_FRAME_NO_VLAN};
			memset(payload, (int)(i & 0xff), sizeof(payload));
			CHECK(na_ring_push_frame(frames, &meta, payload, i % sizeof(payload)) != UINT64_MAX);
		}
		if (i % 23 == 22) {
			na_ring_commit(ticks);
			na_ring_flush(ticks);
		}
	}
	na_ring_commit(ticks);
	return NULL;
}

static void *read_ticks(void *argument)
{
	struct na_view view = share(ticks);
	uint64_t at = 0, read = 0, lost = 0, step = (uint64_t)(uintptr_t)argument, rounds = 0;
	while (at < total) {
		uint64_t count = nar_available(&view, at, step);
		if (!count) {
			if (nar_lapped(&view, at)) {
				uint64_t to = nar_resume(&view);
				if (to > at) {
					lost += to - at;
					at = to;
				}
			} else
				sched_yield();
			continue;
		}
		/* Sometimes in mid-batch, so that it is lapped while it looks. */
		int dawdle = step < 100 && rounds++ % 512 == 511;
		uint64_t bad = 0; /* one past the last record that is not whole */
		for (uint64_t i = 0; i < count; i++) {
			struct na_tick want = made(at + i), got;
			const na_word *from = (const na_word *)(const void *)nar_tick(&view, at + i);
			na_word words[8];
			for (int w = 1; w < 8; w++)
				words[w] = ring_load(from + w);
			words[0] = 0;
			memcpy(&got, words, sizeof(got));
			if (dawdle && i == count / 2)
				usleep(dawdle_us);
			if (memcmp(&got, &want, sizeof(got)) != 0)
				bad = i + 1;
		}
		uint64_t over = nar_overwritten(&view, at, count);
		CHECK(bad <= over);
		read += count - over;
		lost += over;
		at += count;
	}
	CHECK(read + lost == at && at == total);
	printf("%llu read, %llu lost\n", (unsigned long long)read, (unsigned long long)lost);
	return NULL;
}

static void *read_frames(void *unused)
{
	struct na_view view = share(frames);
	struct na_frame meta;
	uint8_t payload[512];
	uint64_t at = 0, next = 0, read = 0, lost = 0, all = (total + 36) / 37;
	(void)unused;
	while (next < all) {
		int64_t length = nar_next_frame(&view, &at, &meta, payload, sizeof(payload));
		if (length < 0) {
			CHECK(length == -ENOENT || length == -EAGAIN);
			sched_yield();
			continue;
		}
		uint64_t i = meta.ts_rx_ns;
		CHECK(meta.number >= next && i == meta.number * 37 && length == (int64_t)(i % sizeof(payload)));
		for (int64_t b = 0; b < length; b++)
			CHECK(payload[b] == (i & 0xff));
		lost += meta.number - next;
		next = meta.number + 1;
		if (read++ % 4096 == 4095)
			usleep(5000);
	}
	CHECK(read + lost == all);
	printf("%llu frames read, %llu lost\n", (unsigned long long)read, (unsigned long long)lost);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[4];
	if (argc > 1)
		total = strtoull(argv[1], NULL, 10);
	if (argc > 2)
		dawdle_us = (unsigned)strtoul(argv[2], NULL, 10);
	ticks = make(NA_RING_TICKS, 1 << 15);
	frames = make(NA_RING_FRAMES, 1 << 21);
	CHECK(!pthread_create(&threads[0], NULL, read_ticks, (void *)1000));
	CHECK(!pthread_create(&threads[1], NULL, read_ticks, (void *)7));
	CHECK(!pthread_create(&threads[2], NULL, read_frames, NULL));
	CHECK(!pthread_create(&threads[3], NULL, produce, NULL));
	for (int i = 3; i >= 0; i--)
		pthread_join(threads[i], NULL);
	na_ring_destroy(ticks);
	na_ring_destroy(frames);
	return 0;
}
