/* SPDX-License-Identifier: Apache-2.0
 * What the fuzzers share: a sink in memory that is emptied for each input, and what must always hold. */
#ifndef NODEAGENT_FUZZ_H
#define NODEAGENT_FUZZ_H
#include "../feed.h"
#include "../moldudp64.h"
#include "../source_capture.h"
#include <stdio.h>
#include <stdlib.h>

#define MUST(condition)                                                                  \
	do {                                                                             \
		if (!(condition)) {                                                      \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);  \
			abort();                                                         \
		}                                                                        \
	} while (0)

#define FUZZ_TICKS 8192
#define FUZZ_FRAMES (1u << 20)

struct fuzz {
	struct na_feed_counts counts;
	struct na_memory memory;
	struct na_sink sink;
	struct na_messages messages;
	struct na_mold mold;
};

static struct fuzz fuzz;

/* Ready for the next input. The held packets' memory is kept: it is 2 MiB. */
static void fuzz_begin(uint32_t lines, uint64_t first, uint64_t wait_ns)
{
	static struct na_tick ticks[FUZZ_TICKS];
	static uint8_t frames[FUZZ_FRAMES];
	static struct na_symbol symbols[NA_RING_SYMBOLS_MAX];
	struct na_held *held = fuzz.mold.held;

	memset(&fuzz.counts, 0, sizeof(fuzz.counts));
	fuzz.memory = (struct na_memory){.ticks = ticks, .tick_capacity = FUZZ_TICKS, .frames = frames,
					 .frame_capacity = FUZZ_FRAMES, .symbols = symbols};
	fuzz.sink = (struct na_sink){.memory = &fuzz.memory};
	na_messages_init(&fuzz.messages, na_itch50_blocks, &fuzz.sink, &fuzz.counts);
	if (!held) {
		MUST(na_mold_init(&fuzz.mold, &fuzz.messages, &fuzz.counts, lines, first, wait_ns) == 0);
		return;
	}
	memset(&fuzz.mold, 0, sizeof(fuzz.mold));
	fuzz.mold.held = held;
	fuzz.mold.messages = &fuzz.messages;
	fuzz.mold.counts = &fuzz.counts;
	fuzz.mold.lines = lines;
	fuzz.mold.first = first;
	fuzz.mold.wait_ns = wait_ns;
}

/* Every number in one counter; every tick a message or a note; frames and positions in step. */
static void fuzz_end(void)
{
	const struct na_feed_counts *c = &fuzz.counts;
	uint64_t messages = 0, missing = 0;

	na_mold_flush(&fuzz.mold);
	MUST(c->span == c->published + c->rejected + c->gap_wire + c->gap_kernel);
	MUST(c->rejected == c->bad[NA_BAD_UNKNOWN_TYPE] + c->bad[NA_BAD_LENGTH] + c->bad[NA_BAD_EMPTY]);
	MUST(fuzz.mold.held_count == 0);
	if (fuzz.memory.tick_count > FUZZ_TICKS)
		return;
	for (uint64_t i = 0; i < fuzz.memory.tick_count; i++) {
		const struct na_tick *t = &fuzz.memory.ticks[i];

		MUST(t->seq == i + 1);
		messages += t->kind < 240;
		if (t->kind == NA_KIND_WIRE_GAP)
			missing += t->size;
		if (t->flags & NA_TICK_AUX_FRAME)
			MUST(t->aux < fuzz.memory.frame_bytes);
	}
	MUST(messages == c->published);
	MUST(missing == c->gap_wire + c->gap_kernel);
}

/* The same bytes at the end of a block of just that size: a read past them is seen. */
static uint8_t *fuzz_exact(const uint8_t *p, size_t n)
{
	uint8_t *copy = malloc(n ? n : 1);

	MUST(copy);
	if (n)
		memcpy(copy, p, n);
	return copy;
}

#endif
