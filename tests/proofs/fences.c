/* SPDX-License-Identifier: Apache-2.0
 * Each ordered step of the protocol as a function of its own, to be compiled for arm64 and looked at: test_fences.py.
 * ring.c and reader code use the same inline functions. */
#include "ring_reader.h"

void step_reserve(struct na_ring *ring, uint64_t count);
void step_push(struct na_ring *ring, const struct na_tick *tick);
void step_commit(struct na_ring *ring);
uint64_t step_seq(const struct na_view *view, uint64_t position);
uint64_t step_read(const struct na_view *view, uint64_t cursor, uint64_t *out);
int step_wait(struct na_reader *reader, uint64_t timeout_ns);
uint64_t step_frame(struct na_ring *ring, const struct na_frame *meta, const void *payload, size_t length);
uint64_t step_commit_read(const struct na_view *view);
void step_cursor(struct na_reader *reader);

void step_reserve(struct na_ring *ring, uint64_t count)
{
	na_ring_reserve(ring, count);
	/* What follows in a publish: a word of the slot. */
	ring_store((na_word *)(void *)ring->data + 1, count);
}

void step_push(struct na_ring *ring, const struct na_tick *tick)
{
	na_ring_push(ring, tick);
}

void step_commit(struct na_ring *ring)
{
	na_ring_commit(ring);
}

uint64_t step_seq(const struct na_view *view, uint64_t position)
{
	return nar_seq(view, position);
}

/* Look at seq, use a word, validate. */
uint64_t step_read(const struct na_view *view, uint64_t cursor, uint64_t *out)
{
	if (nar_seq(view, cursor) != cursor + 1)
		return 1;
	*out = ring_load((const na_word *)&nar_tick(view, cursor)->ref);
	return nar_overwritten(view, cursor, 1);
}

int step_wait(struct na_reader *reader, uint64_t timeout_ns)
{
	return nar_wait(reader, timeout_ns);
}

uint64_t step_frame(struct na_ring *ring, const struct na_frame *meta, const void *payload, size_t length)
{
	return na_ring_push_frame(ring, meta, payload, length);
}

uint64_t step_commit_read(const struct na_view *view)
{
	return nar_commit(view);
}

void step_cursor(struct na_reader *reader)
{
	nar_publish_page(reader);
}
