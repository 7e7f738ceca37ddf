/* SPDX-License-Identifier: Apache-2.0
 * The loop over the blocks of a packet, to be compiled together with each decoder: a call through a
 * pointer a message would cost as much as decoding it. */
#ifndef NODEAGENT_MESSAGES_H
#define NODEAGENT_MESSAGES_H
#include "feed.h"

/* What is rare of a message: its frame, its symbol. Returns the frame's position, UINT64_MAX: none needed.
 * frame: that of the packet, once it has one. */
uint64_t na_messages_rare(struct na_messages *ms, int code, uint32_t instrument, const uint8_t *m,
			  uint32_t len, const struct na_packet *packet, uint64_t frame);

static inline __attribute__((always_inline)) uint32_t
na_messages_blocks_with(struct na_messages *ms, const uint8_t **at, const uint8_t *end, uint32_t n,
			const struct na_packet *packet, int *bad, na_decode_fn decode)
{
	const uint8_t *p = *at;
	/* Loaded once: to the compiler, each store into a slot could have changed them. */
	struct na_ring *const ring = ms->sink->ticks;
	uint64_t frame = UINT64_MAX, rx_ns = packet->rx_ns;
	uint32_t done = 0, good = 0, last = packet->data ? n : 0;

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
		na_word w[W_COUNT];
		int code = decode(p + 2, len, w);

		done++;
		if (NA_LIKELY(code >= 0)) {
			w[W_TS_RX] = rx_ns;
			w[W_REST] |= (uint64_t)(done == last) * NA_TICK_LAST_OF_PACKET << W_FLAGS_SHIFT;
			/* Looked at by instrument first: whether a type names its symbol is not to be
			 * predicted, whether the instrument is known is. */
			uint32_t i = w[W_REST] & 0xffff;
			if (NA_UNLIKELY((code & 0xff) || !ms->known[i])) {
				uint64_t at_frame = na_messages_rare(ms, code, i, p + 2, len, packet, frame);

				if (at_frame != UINT64_MAX) {
					if (packet->data)
						frame = at_frame;
					w[W_AUX] = at_frame;
					w[W_REST] |= (uint64_t)NA_TICK_AUX_FRAME << W_FLAGS_SHIFT;
				}
			}
			na_sink_push(ms->sink, ring, (const struct na_tick *)(const void *)w);
			good++;
		} else {
			ms->counts->bad[-1 - code]++;
			ms->counts->rejected++;
		}
		p += 2 + len;
	}
	if (NA_LIKELY(good))
		na_sink_commit(ms->sink);
	ms->counts->published += good;
	*at = p;
	return done;
}

#endif
