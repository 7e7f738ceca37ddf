/* SPDX-License-Identifier: Apache-2.0
 * MoldUDP64: sessions, sequence numbers, two lines, exact gaps.
 *
 * Source: "MoldUDP64 Protocol Specification" V 1.00: Downstream Packet (session 10 bytes, sequence
 * number of the first message 8, message count 2, then blocks of length and message), Heartbeat
 * (count 0, the number is that of the next message), End of Session (count 0xFFFF, likewise).
 *
 * A hole is declared a gap as soon as no line can fill it: every line that lives has passed it
 * (packets of one line keep their order). With one line that is at once. Until then later packets
 * are held, at most NA_MOLD_HOLD. A gap is attributed to the kernel when a line missed numbers of it
 * in a stretch where its socket reported drops (SO_RXQ_OVFL); to the wire otherwise. */
#include "moldudp64.h"
#include <errno.h>
#include <stdlib.h>

int na_mold_init(struct na_mold *m, struct na_messages *messages, struct na_feed_counts *counts,
		 uint32_t lines, uint64_t first, uint64_t wait_ns)
{
	memset(m, 0, sizeof(*m));
	m->messages = messages;
	m->counts = counts;
	m->lines = lines < 1 ? 1 : lines > NA_MOLD_LINES ? NA_MOLD_LINES : lines;
	m->first = first;
	m->wait_ns = wait_ns;
	m->held = malloc((NA_MOLD_HOLD + 1) * sizeof(*m->held));
	return m->held ? 0 : -ENOMEM;
}

void na_mold_deinit(struct na_mold *m)
{
	free(m->held);
	m->held = NULL;
}

/* Whether some line that lives has not yet passed the first missing number. */
static int can_fill(const struct na_mold *m)
{
	for (uint32_t i = 0; i < m->lines; i++) {
		const struct na_mold_line *l = &m->line[i];

		if (l->next <= m->next && m->now_ns - l->last_rx_ns < m->wait_ns)
			return 1;
	}
	return 0;
}

static void declare_gap(struct na_mold *m, uint64_t upto)
{
	uint64_t missing = upto - m->next;
	int kernel = 0;

	for (uint32_t i = 0; i < m->lines; i++)
		kernel |= m->line[i].drop_to > m->next && m->line[i].drop_from < upto;
	if (kernel)
		m->counts->gap_kernel += missing;
	else
		m->counts->gap_wire += missing;
	m->counts->gaps++;
	m->counts->span += missing;
	m->gap_from[m->gap_count % NA_MOLD_GAPS] = m->next;
	m->gap_to[m->gap_count % NA_MOLD_GAPS] = upto;
	m->gap_count++;
	na_messages_note(m->messages, NA_KIND_WIRE_GAP, m->next, missing, (uint64_t)kernel, m->now_ns);
	m->next = upto;
}

/* Numbers below m->next came again: the other line's copy, or too late for a declared gap. */
static void count_again(struct na_mold *m, uint64_t from, uint64_t to)
{
	uint32_t known = m->gap_count < NA_MOLD_GAPS ? m->gap_count : NA_MOLD_GAPS;
	uint64_t late = 0;

	for (uint32_t i = 0; i < known; i++) {
		uint64_t a = m->gap_from[i] > from ? m->gap_from[i] : from;
		uint64_t b = m->gap_to[i] < to ? m->gap_to[i] : to;

		if (b > a)
			late += b - a;
	}
	m->counts->late += late;
	m->counts->duplicates += to - from - late;
}

/* Numbers of a packet that begins at or before the next one wanted. */
static void deliver(struct na_mold *m, const struct na_packet *packet, uint64_t seq, uint64_t end)
{
	const uint8_t *p = packet->data + NA_MOLD_HEADER, *stop = packet->data + packet->len;
	int bad = 0;

	if (NA_UNLIKELY(seq < m->next)) {
		count_again(m, seq, m->next);
		for (uint64_t skip = m->next - seq; skip; skip--) {
			if (stop - p < 2 || stop - p - 2 < na_be16(p)) {
				m->counts->bad[NA_BAD_TRUNCATED]++;
				return;
			}
			p += 2 + na_be16(p);
		}
	}
	uint32_t done = m->messages->blocks(m->messages, &p, stop, (uint32_t)(end - m->next), packet, &bad);

	m->next += done;
	m->counts->span += done;
	m->counts->last_rx_ns = packet->rx_ns;
	if (NA_UNLIKELY(bad))
		m->counts->bad[NA_BAD_TRUNCATED]++;
	else if (NA_UNLIKELY(p != stop))
		m->counts->bad[NA_BAD_TRAILING]++;
}

/* Delivers what is held and fits, declares what nobody can fill. */
static void settle(struct na_mold *m, int force)
{
	for (;;) {
		struct na_held *lowest = NULL;

		for (uint32_t i = 0; i < m->held_count; i++)
			if (!lowest || m->held[i].seq < lowest->seq)
				lowest = &m->held[i];
		uint64_t upto = lowest ? lowest->seq : m->horizon;

		if (upto > m->next) {
			if (!force && m->held_count < NA_MOLD_HOLD && can_fill(m))
				break;
			declare_gap(m, upto);
		}
		if (!lowest)
			break;
		if (lowest->end > m->next)
			deliver(m, &lowest->packet, lowest->seq, lowest->end);
		else
			count_again(m, lowest->seq, lowest->end);
		*lowest = m->held[--m->held_count];
		lowest->packet.data = lowest->bytes;
	}
	if (m->end_known && !m->end_noted && m->next >= m->end_at) {
		m->end_noted = 1;
		m->counts->session_ends++;
		na_messages_note(m->messages, NA_KIND_SESSION_END, m->end_at, 0, 0, m->now_ns);
	}
	m->counts->next_seq = m->next;
}

void na_mold_idle(struct na_mold *m, uint64_t now_ns)
{
	m->now_ns = now_ns;
	if (m->held_count || m->horizon > m->next)
		settle(m, 0);
}

void na_mold_flush(struct na_mold *m)
{
	if (m->have_session)
		settle(m, 1);
}

static void hold(struct na_held *h, const struct na_packet *packet, uint64_t seq, uint64_t end)
{
	h->seq = seq;
	h->end = end;
	h->packet = *packet;
	h->packet.data = h->bytes;
	memcpy(h->bytes, packet->data, packet->len);
}

/* The numbers of a packet whose blocks are whole: a count that lies moves nothing. */
static uint64_t whole_end(struct na_mold *m, const struct na_packet *packet, uint64_t seq, uint64_t end)
{
	const uint8_t *p = packet->data + NA_MOLD_HEADER, *stop = packet->data + packet->len;
	uint64_t at = seq;

	while (at < end && stop - p >= 2 && stop - p - 2 >= na_be16(p)) {
		p += 2 + na_be16(p);
		at++;
	}
	if (at < end)
		m->counts->bad[NA_BAD_TRUNCATED]++;
	return at;
}

static void begin_session(struct na_mold *m, const uint8_t *session, uint64_t seq)
{
	if (m->have_session) {
		na_mold_flush(m);
		memcpy(m->before, m->session, sizeof(m->before));
		m->have_before = 1;
	}
	memcpy(m->session, session, sizeof(m->session));
	memset(m->line, 0, sizeof(m->line));
	m->have_session = 1;
	m->have_jump = 0;
	m->end_known = m->end_noted = 0;
	m->gap_count = 0;
	m->next = m->first && m->first <= seq ? m->first : seq;
	m->horizon = m->next;
	/* A line not heard yet may be a packet behind: it has as long as any other. */
	for (uint32_t i = 0; i < NA_MOLD_LINES; i++) {
		m->line[i].next = m->next;
		m->line[i].last_rx_ns = m->now_ns;
	}
	m->counts->sessions++;
	m->counts->first_seq = m->counts->next_seq = m->next;
	na_messages_note(m->messages, NA_KIND_SESSION, m->next, na_be16(session + 8), na_be64(session),
			 m->now_ns);
}

/* 1: the packet belongs to the present session (which it may have begun). */
static int session_of(struct na_mold *m, const uint8_t *session, uint64_t seq)
{
	if (NA_LIKELY(m->have_session && memcmp(m->session, session, 10) == 0))
		return 1;
	if (m->have_before && memcmp(m->before, session, 10) == 0 && !m->end_noted) {
		/* The slower line still sends yesterday's: not a new session. */
		uint64_t heard = 0;

		for (uint32_t i = 0; i < m->lines; i++)
			if (m->line[i].last_rx_ns > heard)
				heard = m->line[i].last_rx_ns;
		if (m->now_ns - heard < NA_MOLD_QUIET_NS) {
			m->counts->stale_session++;
			return 0;
		}
	}
	begin_session(m, session, seq);
	return 1;
}

/* The line has seen everything up to `end`; what it jumped over while packets were dropped is noted. */
static void advance_line(struct na_mold_line *l, const struct na_packet *packet, uint64_t seq,
			 uint64_t end)
{
	l->last_rx_ns = packet->rx_ns;
	if (NA_UNLIKELY(l->drops)) {
		if (seq > l->next) {
			/* Ranges that touch are one; a later one replaces an older one. */
			if (l->drop_to != l->next)
				l->drop_from = l->next;
			l->drop_to = seq;
		}
		l->drops = 0;
	}
	if (end > l->next)
		l->next = end;
}

static void data_packet(struct na_mold *m, const struct na_packet *packet, uint64_t seq, uint64_t end)
{
	struct na_mold_line *l = &m->line[packet->line];

	if (NA_LIKELY(seq <= m->next)) {
		if (NA_UNLIKELY(end <= m->next)) {
			advance_line(l, packet, seq, end);
			count_again(m, seq, end);
		} else {
			deliver(m, packet, seq, end);
			advance_line(l, packet, seq, m->next < end ? m->next : end);
		}
		if (m->horizon < m->next)
			m->horizon = m->next;
		if (NA_UNLIKELY(m->held_count || m->horizon > m->next || m->end_known))
			settle(m, 0);
		return;
	}
	end = whole_end(m, packet, seq, end);
	if (end == seq)
		return;
	advance_line(l, packet, seq, end);
	if (m->horizon < end)
		m->horizon = end;
	if (m->held_count == 0 && !can_fill(m)) {
		declare_gap(m, seq);
		deliver(m, packet, seq, end);
		return;
	}
	m->counts->held++;
	hold(&m->held[m->held_count++], packet, seq, end);
	settle(m, 0);
}

/* Far ahead: damage, or a long outage. A second packet that agrees decides. 1: go on. */
static int far_ahead(struct na_mold *m, const struct na_packet *packet, uint64_t seq, uint64_t end)
{
	struct na_held *jump = &m->held[NA_MOLD_HOLD];

	if (m->have_jump && (seq == jump->end || (seq == jump->seq && end == jump->end &&
						  packet->line != jump->packet.line))) {
		m->have_jump = 0;
		m->counts->bad[NA_BAD_JUMP]--;
		if (jump->end > jump->seq)
			data_packet(m, &jump->packet, jump->seq, jump->end);
		return 1;
	}
	m->counts->bad[NA_BAD_JUMP]++;
	m->have_jump = 1;
	hold(jump, packet, seq, end);
	return 0;
}

void na_mold_packet(struct na_mold *m, const struct na_packet *packet)
{
	struct na_feed_counts *counts = m->counts;
	const uint8_t *p = packet->data;
	struct na_mold_line *l = &m->line[packet->line];

	counts->packets++;
	counts->bytes += packet->len;
	counts->kernel_drops += packet->drops;
	m->now_ns = packet->rx_ns;
	if (NA_UNLIKELY(packet->len < NA_MOLD_HEADER || packet->len > NA_PACKET_MAX)) {
		counts->bad[packet->len > NA_PACKET_MAX ? NA_BAD_OVERSIZE : NA_BAD_SHORT_HEADER]++;
		l->drops += packet->drops;
		return;
	}
	uint64_t seq = na_be64(p + 10), end;
	uint16_t count = na_be16(p + 18);
	int silent = count == 0 || count == NA_MOLD_END;

	if (NA_UNLIKELY(__builtin_add_overflow(seq, silent ? 0 : (uint64_t)count, &end))) {
		counts->bad[NA_BAD_SEQUENCE]++;
		l->drops += packet->drops;
		return;
	}
	if (NA_UNLIKELY(!session_of(m, p, seq))) {
		l->drops += packet->drops;
		return;
	}
	l->drops += packet->drops;
	if (NA_UNLIKELY(seq > m->next && seq - m->next > NA_MOLD_JUMP) && !far_ahead(m, packet, seq, end))
		return;
	if (NA_LIKELY(!silent)) {
		data_packet(m, packet, seq, end);
		counts->next_seq = m->next;
		return;
	}
	counts->heartbeats += count == 0;
	advance_line(l, packet, seq, seq);
	if (seq > m->horizon)
		m->horizon = seq;
	if (count == NA_MOLD_END && !m->end_known) {
		m->end_known = 1;
		m->end_at = seq;
	}
	settle(m, 0);
}
