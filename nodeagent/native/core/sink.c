/* SPDX-License-Identifier: Apache-2.0
 * The sink's rarer calls: frames and symbols. */
#include "feed.h"
#include <errno.h>

uint64_t na_sink_frame(struct na_sink *s, const struct na_packet *packet)
{
	struct na_frame f;

	memset(&f, 0, sizeof(f));
	f.ts_rx_ns = packet->rx_ns;
	f.vlan = packet->vlan;
	f.src_port = packet->src_port;
	f.dst_port = packet->dst_port;
	f.family = packet->family;
	memcpy(f.src, packet->src, 16);
	memcpy(f.dst, packet->dst, 16);
	if (s->frames)
		return na_ring_push_frame(s->frames, &f, packet->data, packet->len);
	struct na_memory *m = s->memory;
	if (!m || !m->frames)
		return 0;
	uint64_t position = m->frame_bytes, bytes = na_frame_bytes(packet->len);

	m->frame_bytes += bytes;
	if (m->frame_bytes <= m->frame_capacity) {
		f.seq = position + 1;
		f.number = m->frame_count;
		f.length = packet->len;
		memset(m->frames + position, 0, bytes);
		memcpy(m->frames + position, &f, sizeof(f));
		memcpy(m->frames + position + sizeof(f), packet->data, packet->len);
	}
	m->frame_count++;
	return position;
}

int na_sink_symbol(struct na_sink *s, uint32_t instrument, const uint8_t *name, size_t length)
{
	/* Alpha fields are padded with spaces on the right. */
	while (length && (name[length - 1] == ' ' || name[length - 1] == 0))
		length--;
	if (s->ticks)
		return na_ring_set_symbol(s->ticks, instrument, (const char *)name, length);
	struct na_memory *m = s->memory;
	if (!m || !m->symbols)
		return 0;
	if (instrument >= NA_RING_SYMBOLS_MAX)
		return -ERANGE;
	memset(m->symbols[instrument].name, 0, sizeof(m->symbols[instrument].name));
	memcpy(m->symbols[instrument].name, name, length);
	m->symbols[instrument].length = (uint8_t)length;
	return 0;
}
