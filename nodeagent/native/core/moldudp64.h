/* SPDX-License-Identifier: Apache-2.0
 * MoldUDP64 sessions: one ordered stream out of one or two lines. */
#ifndef NODEAGENT_MOLDUDP64_H
#define NODEAGENT_MOLDUDP64_H
#include "feed.h"

#define NA_MOLD_LINES 2
#define NA_MOLD_HEADER 20
#define NA_MOLD_HOLD 256          /* packets held back while the other line may fill a hole */
#define NA_MOLD_GAPS 64           /* declared gaps remembered, to tell late from duplicate */
#define NA_MOLD_JUMP (1ULL << 20) /* further ahead than this needs a second packet that agrees */
#define NA_MOLD_END 0xffff        /* message count of an End of Session packet */
#define NA_MOLD_QUIET_NS 5000000000ULL /* a session silent this long may be followed by any other */

struct na_mold_line {
	uint64_t next;               /* everything below it has passed on this line */
	uint64_t last_rx_ns;         /* at first: when the session began */
	uint32_t drops;              /* kernel drops not yet tied to a range */
	uint64_t drop_from, drop_to; /* numbers this line missed while the kernel dropped packets */
};

struct na_held {
	uint64_t seq, end;
	struct na_packet packet; /* its data points to the bytes below */
	uint8_t bytes[NA_PACKET_MAX];
};

struct na_mold {
	struct na_messages *messages;
	struct na_feed_counts *counts;
	uint32_t lines;
	uint64_t first;   /* the number a session is expected to begin with; 0: the first one seen */
	uint64_t wait_ns; /* a line silent this long fills no hole */
	uint64_t now_ns;

	uint8_t session[10], before[10];
	int have_session, have_before, end_known, end_noted;
	uint64_t next, horizon, end_at;
	struct na_mold_line line[NA_MOLD_LINES];
	uint32_t held_count;
	struct na_held *held; /* NA_MOLD_HOLD of them, then one for a jump not yet confirmed */
	int have_jump;
	uint64_t gap_from[NA_MOLD_GAPS], gap_to[NA_MOLD_GAPS];
	uint32_t gap_count;
};

/* lines: 1 or 2. first, wait_ns: see above. 0 or -ENOMEM. */
int na_mold_init(struct na_mold *m, struct na_messages *messages, struct na_feed_counts *counts,
		 uint32_t lines, uint64_t first, uint64_t wait_ns);
void na_mold_deinit(struct na_mold *m);
/* One packet of a line. Everything it makes complete is published before this returns. */
void na_mold_packet(struct na_mold *m, const struct na_packet *packet);
/* Time passed without a packet: holes of silent lines are declared. */
void na_mold_idle(struct na_mold *m, uint64_t now_ns);
/* The source has ended: nothing fills a hole any more. */
void na_mold_flush(struct na_mold *m);

#endif
