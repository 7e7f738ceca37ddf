/* SPDX-License-Identifier: Apache-2.0
 * Blocks of a two-byte big-endian length and a message, as MoldUDP64 packets and BinaryFILE days
 * carry them: what is not in the loop itself (messages.h). */
#include "messages.h"

#define SYMBOL_BYTES 8 /* ITCH 5.0: Alpha, 8 */

void na_messages_init(struct na_messages *ms, na_blocks_fn blocks, struct na_sink *sink,
		      struct na_feed_counts *counts)
{
	memset(ms, 0, sizeof(*ms));
	ms->blocks = blocks;
	ms->sink = sink;
	ms->counts = counts;
}

static void learn_symbol(struct na_messages *ms, uint32_t i, const uint8_t *name)
{
	int known = ms->known[i];

	if (na_sink_symbol(ms->sink, i, name, SYMBOL_BYTES) == 0)
		ms->counts->symbols += !known;
	else
		ms->counts->symbols_lost += !known;
	ms->known[i] = 1;
}

uint64_t na_messages_rare(struct na_messages *ms, int code, uint32_t i, const uint8_t *m, uint32_t len,
			  const struct na_packet *packet, uint64_t frame)
{
	/* First seen counts; a directory message speaks with authority and may correct it. */
	if (NA_DECODED_OFFSET(code) &&
	    ((code & NA_DECODED_NAMES) || !ms->known[i]))
		learn_symbol(ms, i, m + NA_DECODED_OFFSET(code));
	if (!(code & NA_DECODED_FRAME))
		return UINT64_MAX;
	if (!packet->data) {
		struct na_packet alone = *packet;

		alone.data = m;
		alone.len = len;
		return na_sink_frame(ms->sink, &alone);
	}
	/* The packet becomes a frame once. */
	return frame == UINT64_MAX ? na_sink_frame(ms->sink, packet) : frame;
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
	na_sink_push(ms->sink, ms->sink->ticks, &t);
	na_sink_commit(ms->sink);
}
