/* SPDX-License-Identifier: Apache-2.0
 * What decoders, framings, sources and the feeder's loop share. Not seen by Python. */
#ifndef NODEAGENT_FEED_H
#define NODEAGENT_FEED_H
#include "feed_abi.h"
#include "ring.h"
#include <string.h>

#define NA_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define NA_LIKELY(x) __builtin_expect(!!(x), 1)

/* Largest packet a source takes: an Ethernet jumbo frame's UDP payload fits. */
#define NA_PACKET_MAX 9216

static inline uint16_t na_be16(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, 2);
	return __builtin_bswap16(v);
}

static inline uint32_t na_be32(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, 4);
	return __builtin_bswap32(v);
}

static inline uint64_t na_be64(const uint8_t *p)
{
	uint64_t v;
	memcpy(&v, p, 8);
	return __builtin_bswap64(v);
}

/* One packet as a source hands it on: the UDP payload and where it came from. */
struct na_packet {
	const uint8_t *data;
	uint32_t len;
	uint32_t line;      /* 0: A, 1: B */
	uint64_t rx_ns;     /* CLOCK_MONOTONIC */
	uint32_t drops;     /* packets the kernel dropped on this line since the one before */
	uint16_t src_port, dst_port;
	uint16_t vlan;      /* NA_FRAME_NO_VLAN: none */
	uint8_t family;     /* 4, 6, or 0: not from a packet */
	uint8_t src[16], dst[16]; /* as in struct na_frame */
};

/* What the decoders write into: a ring and the frames beside it, or memory (tests, oracles, fuzzers).
 * Both are known here, so that a message costs a branch and no indirect call. */
struct na_sink {
	struct na_ring *ticks;  /* NULL: memory */
	struct na_ring *frames; /* NULL: frames are not kept, their position is 0 */
	struct na_memory *memory;
};

/* ring: s->ticks, in a register of the caller's. */
static inline void na_sink_push(struct na_sink *s, struct na_ring *ring, const struct na_tick *t)
{
	if (NA_LIKELY(ring != NULL)) {
		na_ring_push(ring, t);
		return;
	}
	struct na_memory *m = s->memory;
	if (m->tick_count < m->tick_capacity) {
		memcpy(&m->ticks[m->tick_count], t, sizeof(*t));
		m->ticks[m->tick_count].seq = m->tick_count + 1;
	}
	m->tick_count++;
}

static inline void na_sink_commit(struct na_sink *s)
{
	if (NA_LIKELY(s->ticks != NULL))
		na_ring_commit(s->ticks);
}

/* Position of the frame; stored before the ticks that point to it. */
uint64_t na_sink_frame(struct na_sink *s, const struct na_packet *packet);
/* 0, or -ERANGE: the table has no room for that number. */
int na_sink_symbol(struct na_sink *s, uint32_t instrument, const uint8_t *name, size_t length);

/* A tick as its eight words. Made as such, it stays in registers until it is in its slot; a struct whose
 * last word is written in four pieces and read as one stalls on the way (store forwarding). */
enum { W_SEQ, W_TS_EXCH, W_TS_RX, W_PRICE, W_SIZE, W_REF, W_AUX, W_REST, W_COUNT };
_Static_assert(offsetof(struct na_tick, ts_exch_ns) == 8 * W_TS_EXCH && offsetof(struct na_tick, ts_rx_ns) == 8 * W_TS_RX &&
	       offsetof(struct na_tick, price) == 8 * W_PRICE && offsetof(struct na_tick, size) == 8 * W_SIZE &&
	       offsetof(struct na_tick, ref) == 8 * W_REF && offsetof(struct na_tick, aux) == 8 * W_AUX &&
	       offsetof(struct na_tick, instrument) == 8 * W_REST, "words of a tick");
#define W_KIND_SHIFT 32 /* instrument below it */
#define W_SIDE_SHIFT 40
#define W_FLAGS_SHIFT 48

/* A message decoder: fills all words but W_SEQ and W_TS_RX. >= 0: NA_DECODED_* bits with the symbol's
 * offset in the message above them; < 0: -1 - NA_BAD_*. */
#define NA_DECODED_FRAME 1 /* does not fit: the frame's position goes into aux */
#define NA_DECODED_NAMES 2 /* its symbol is the authoritative one */
#define NA_DECODED_OFFSET(code) ((code) >> 8)
typedef int (*na_decode_fn)(const uint8_t *m, uint32_t len, na_word *w);

/* Messages of one packet or file record into ticks: blocks of a two-byte length and the message. */
struct na_messages;
/* Up to n blocks between *at and end. Returns how many were consumed: fewer than n when a block ends
 * past `end` (*bad is then 1). packet->data NULL: no packet but records of a file, each a frame of its
 * own when it needs one. */
typedef uint32_t (*na_blocks_fn)(struct na_messages *ms, const uint8_t **at, const uint8_t *end, uint32_t n,
				 const struct na_packet *packet, int *bad);
struct na_messages {
	na_blocks_fn blocks; /* the decoder, one call a packet */
	struct na_sink *sink;
	struct na_feed_counts *counts;
	uint8_t known[65536]; /* 1: the instrument's symbol was written; a byte each: one instruction to look */
};

void na_messages_init(struct na_messages *ms, na_blocks_fn blocks, struct na_sink *sink,
		      struct na_feed_counts *counts);
/* One tick of the feed's own. */
void na_messages_note(struct na_messages *ms, uint8_t kind, uint64_t ref, uint64_t size, uint64_t aux,
		      uint64_t rx_ns);

uint32_t na_itch50_blocks(struct na_messages *ms, const uint8_t **at, const uint8_t *end, uint32_t n,
			  const struct na_packet *packet, int *bad);
/* Length of an ITCH 5.0 message by its type; 0: no such type. */
uint32_t na_itch50_length(uint8_t type);

#endif
