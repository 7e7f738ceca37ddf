/* SPDX-License-Identifier: Apache-2.0
 * Blocks of a two-byte big-endian length and a message, as MoldUDP64 packets and BinaryFILE days
 * carry them, into ticks. */
#include "feed.h"

#define SYMBOL_BYTES 8 /* ITCH 5.0: Alpha, 8 */

void na_messages_init(struct na_messages *ms, na_decode_fn decode, struct na_sink *sink,
		      struct na_feed_counts *counts)
{
	memset(ms, 0, sizeof(*ms));
	ms->decode = decode;
	ms->sink = sink;
	ms->counts = counts;
}

static inline void learn_symbol(struct na_messages *ms, const struct na_tick *t, const uint8_t *name)
{
	uint32_t i = t->instrument & 0xffff;
	uint64_t bit = 1ULL << (i & 63);
	int known = (ms->known[i >> 6] & bit) != 0;

	/* First seen counts; a directory message speaks with authority and may correct it. */
	if (NA_LIKELY(known) && t->kind != NA_KIND_DIRECTORY)
		return;
	if (na_sink_symbol(ms->sink, i, name, SYMBOL_BYTES) == 0)
		ms->counts->symbols += !known;
	else
		ms->counts->symbols_lost += !known;
	ms->known[i >> 6] |= bit;
}

/* A message that does not fit into its tick: the packet becomes a frame, once. */
static uint64_t keep_frame(struct na_messages *ms, const struct na_packet *packet, const uint8_t *m,
			   uint32_t len)
{
	struct na_packet alone = *packet;

	if (packet->data)
		return na_sink_frame(ms->sink, packet);
	alone.data = m;
	alone.len = len;
	return na_sink_frame(ms->sink, &alone);
}

uint32_t na_messages_blocks(struct na_messages *ms, const uint8_t **at, const uint8_t *end, uint32_t n,
			    const struct na_packet *packet, int *bad)
{
	const uint8_t *p = *at;
	/* The last tick of a packet carries a flag, and any message may turn out to be the last good
	 * one: each tick waits for the next. */
	struct na_tick t[2];
	uint32_t done = 0, good = 0;
	uint64_t position = 0;
	int have_frame = 0;

	*bad = 0;
	while (done < n) {
		if (NA_UNLIKELY(end - p < 2)) {
			*bad = 1;
			break;
		}
		uint32_t len = na_be16(p);
		if (NA_UNLIKELY((size_t)(end - p) - 2 < len)) {
			*bad = 1;
			break;
		}
		struct na_tick *now = &t[good & 1];
		int code = ms->decode(p + 2, len, now);

		if (NA_UNLIKELY(code < 0)) {
			ms->counts->bad[-1 - code]++;
			ms->counts->rejected++;
		} else {
			if (NA_UNLIKELY(code & NA_DECODED_FRAME)) {
				if (!have_frame)
					position = keep_frame(ms, packet, p + 2, len);
				have_frame = packet->data != NULL;
				now->aux = position;
				now->flags |= NA_TICK_AUX_FRAME;
			}
			if (NA_DECODED_OFFSET(code))
				learn_symbol(ms, now, p + 2 + NA_DECODED_OFFSET(code));
			now->ts_rx_ns = packet->rx_ns;
			if (good)
				na_sink_push(ms->sink, &t[(good - 1) & 1]);
			good++;
		}
		done++;
		p += 2 + len;
	}
	if (good) {
		struct na_tick *last = &t[(good - 1) & 1];

		if (packet->data)
			last->flags |= NA_TICK_LAST_OF_PACKET;
		na_sink_push(ms->sink, last);
		na_sink_commit(ms->sink);
	}
	ms->counts->published += good;
	*at = p;
	return done;
}

void na_messages_note(struct na_messages *ms, uint8_t kind, uint64_t ref, uint64_t size, uint64_t aux,
		      uint64_t rx_ns)
{
	struct na_tick t;

	memset(&t, 0, sizeof(t));
	t.ts_rx_ns = rx_ns;
	t.size = size;
	t.ref = ref;
	t.aux = aux;
	t.kind = kind;
	na_sink_push(ms->sink, &t);
	na_sink_commit(ms->sink);
}
