/* SPDX-License-Identifier: Apache-2.0
 * One producer and two readers as threads of one process, for ThreadSanitizer: no access of the protocol is a data race,
 * and no record that validates is torn, under lapping. The build's payload words are relaxed atomics and its fences
 * read-modify-writes (ring.h); with -DNA_PLAIN_PAYLOAD they are plain, and ThreadSanitizer must complain.
 *
 *   races RECORDS
 */
#include "ring_view.h"
#include <pthread.h>

static struct na_ring *ring;
static uint64_t total;
static int finished;

static uint64_t mixed(uint64_t position)
{
	return (position + 1) * 0x9e3779b97f4a7c15u;
}

static void *produce(void *unused)
{
	(void)unused;
	for (uint64_t i = 0; i < total; i++) {
		uint64_t h = mixed(ring->position);
		struct na_tick tick = {.ts_exch_ns = h, .ts_rx_ns = h, .price = (int64_t)h, .size = h, .ref = h, .aux = h,
		                       .instrument = (uint32_t)h};
		na_ring_push(ring, &tick);
		if (i % 7 == 6) {
			na_ring_commit(ring);
			na_ring_flush(ring);
		}
	}
	na_ring_commit(ring);
	na_ring_flush(ring);
	__atomic_store_n(&finished, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void *consume(void *slow)
{
	struct na_view view = {.fixed = *ring->header};
	nar_view_point(&view, (const uint8_t *)ring->header);
	uint64_t cursor = 0, good = 0, lost = 0;
	for (;;) {
		int done = __atomic_load_n(&finished, __ATOMIC_ACQUIRE);
		uint64_t n = nar_available(&view, cursor, 64);
		uint64_t words[64][7];
		for (uint64_t i = 0; i < n; i++)
			for (int w = 0; w < 7; w++)
				words[i][w] = ring_load((const na_word *)(const void *)nar_tick(&view, cursor + i) + 1 + w);
		uint64_t bad = nar_overwritten(&view, cursor, n);
		for (uint64_t i = bad; i < n; i++)
			for (int w = 0; w < 6; w++)
				if (words[i][w] != mixed(cursor + i)) {
					fprintf(stderr, "FAILED: torn record %llu\n", (unsigned long long)(cursor + i));
					exit(1);
				}
		good += n - bad;
		lost += bad;
		cursor += n;
		if (bad || (!n && nar_lapped(&view, cursor))) {
			uint64_t to = nar_resume(&view);
			if (to > cursor) {
				lost += to - cursor;
				cursor = to;
			}
		} else if (!n && done)
			break;
		if (slow && n)
			usleep(500);
	}
	if (good + lost != total) {
		fprintf(stderr, "FAILED: %llu read + %llu lost, %llu sent\n", (unsigned long long)good, (unsigned long long)lost,
		        (unsigned long long)total);
		exit(1);
	}
	printf("%s reader: %llu read, %llu lost\n", slow ? "slow" : "fast", (unsigned long long)good,
	       (unsigned long long)lost);
	return NULL;
}

int main(int argc, char **argv)
{
	total = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
	struct na_ring_config config = {.feed = "races", .kind = NA_RING_TICKS, .price_exponent = -4, .node = -1, .capacity = 1};
	char why[256];
	if (na_ring_create(&config, NULL, &ring, why, sizeof(why))) {
		fprintf(stderr, "FAILED: %s\n", why);
		return 1;
	}
	pthread_t threads[3];
	pthread_create(&threads[0], NULL, consume, NULL);
	pthread_create(&threads[1], NULL, consume, &total);
	pthread_create(&threads[2], NULL, produce, NULL);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	na_ring_destroy(ring);
	return 0;
}
