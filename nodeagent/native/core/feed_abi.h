/* SPDX-License-Identifier: Apache-2.0
 * Decoders, sources and the feeder's loop as Python sees them. Plain structs, integer #defines and
 * prototypes only: this file is the cdef. What a tick means by kind stands in docs/feeds.md. */
#ifndef NODEAGENT_FEED_ABI_H
#define NODEAGENT_FEED_ABI_H
#include <stddef.h>
#include <stdint.h>
#include "feed_stats_abi.h"
#include "ring_api.h"

/* Ticks that only feeds with sessions publish, beside NA_KIND_WIRE_GAP; not messages of the exchange. */
#define NA_KIND_SESSION 242     /* ref: its first number; aux, size: its name, 8 and 2 bytes big-endian */
#define NA_KIND_SESSION_END 243 /* ref: the number that would have come next */

/* Why a message or packet was not decoded. Index into na_feed_counts.bad. */
#define NA_BAD_UNKNOWN_TYPE 0    /* message: type not of this protocol */
#define NA_BAD_LENGTH 1          /* message: wrong length for its type */
#define NA_BAD_EMPTY 2           /* message: no bytes */
#define NA_BAD_SHORT_HEADER 3    /* packet: shorter than its header */
#define NA_BAD_TRUNCATED 4       /* packet: a block ends past the packet */
#define NA_BAD_TRAILING 5        /* packet: bytes after the last block (what came before counts) */
#define NA_BAD_SEQUENCE 6        /* packet: its numbers run past 2^64 */
#define NA_BAD_JUMP 7            /* packet: far ahead of the feed and not confirmed by a second one */
#define NA_BAD_OVERSIZE 8        /* packet: larger than the receive buffer */
#define NA_BAD_NOT_IP 9          /* frame: neither IPv4 nor IPv6 */
#define NA_BAD_IP_HEADER 10      /* frame: IP or UDP header damaged or cut */
#define NA_BAD_FRAGMENT 11       /* frame: an IP fragment */
#define NA_BAD_CHECKSUM 12       /* frame: IP or UDP checksum wrong (verified only when asked) */
#define NA_BAD_SNAPPED 13        /* frame: cut by the capture's snap length */
#define NA_BAD_SOUP 14           /* file: a SoupBinTCP packet type that no server sends */
#define NA_BAD_KINDS 15

#define NA_FORMAT_AUTO 0
#define NA_FORMAT_PCAP 1
#define NA_FORMAT_PCAPNG 2
#define NA_FORMAT_BINARYFILE 3 /* two-byte length, message; length 0 ends the session */
#define NA_FORMAT_SOUP 4       /* SoupBinTCP packets as they came over TCP */

#define NA_CAPTURE_CUT 1      /* ends within a record */
#define NA_CAPTURE_CORRUPT 2  /* a length that cannot be */
#define NA_CAPTURE_UNKNOWN 3  /* no format we know */
#define NA_CAPTURE_IO 4       /* read(2) failed */
#define NA_CAPTURE_LINK 5     /* a link type we do not read */

/* Where and why reading a capture ended early. Everything before it was delivered. */
struct na_capture_error {
	uint32_t kind;     /* NA_CAPTURE_*; 0: none */
	int32_t err;       /* errno of NA_CAPTURE_IO */
	uint64_t record;   /* records read whole */
	uint64_t offset;   /* of the record that is not */
	uint64_t said;     /* bytes it should have (CORRUPT, LINK: the value seen) */
	uint64_t found;    /* bytes that were there */
	uint8_t head[16];  /* UNKNOWN: the first bytes */
};

/* A line: destination group (or unicast address) and port. IPv4 in the first 4 bytes. */
struct na_feed_line {
	uint8_t family; /* 4 or 6 */
	uint8_t reserved;
	uint16_t port;
	uint32_t ifindex; /* 0: the kernel chooses by route */
	uint8_t group[16];
	uint8_t interface_address[16]; /* IPv4 address of that interface; 0: by index alone */
};

/* Counters of one feed since it started. A message is counted in exactly one of published,
 * rejected, gap_wire, gap_kernel: last - first + 1 of every session = their sum. */
struct na_feed_counts {
	uint64_t packets, bytes;     /* decoder input, all lines */
	uint64_t filtered;           /* packets for other groups or ports, or not UDP */
	uint64_t published;          /* messages that became a tick */
	uint64_t rejected;           /* messages that did not: bad[0..2] */
	uint64_t gap_wire;           /* sequence numbers never seen, no kernel drop in that range */
	uint64_t gap_kernel;         /* the same, with kernel drops in that range */
	uint64_t span;               /* sequence numbers consumed; = the four above */
	uint64_t duplicates;         /* messages seen before, mostly the other line's */
	uint64_t late;               /* messages whose gap had been declared: discarded */
	uint64_t gaps;               /* times a gap was declared */
	uint64_t heartbeats, sessions, session_ends;
	uint64_t stale_session;      /* packets of the session before this one */
	uint64_t held;               /* packets held back until a gap was filled */
	uint64_t kernel_drops;       /* packets, SO_RXQ_OVFL */
	uint64_t symbols;            /* entries written into the symbol table */
	uint64_t symbols_lost;       /* instruments beyond the table */
	uint64_t bad[NA_BAD_KINDS];
	uint64_t last_rx_ns;         /* receive stamp of the last packet with a message */
	uint64_t first_seq, next_seq; /* of the present session */
};

/* Ticks, frames and symbols in plain memory. Counts may exceed capacities: what did not fit was
 * counted and left out. Frames are records as in a frames ring that never wraps. */
struct na_memory {
	struct na_tick *ticks;
	uint64_t tick_capacity, tick_count;
	uint8_t *frames;
	uint64_t frame_capacity, frame_bytes, frame_count;
	struct na_symbol *symbols; /* 65536, or NULL */
};

/* What was got when a socket was opened. */
struct na_socket_info {
	int32_t fd;
	int32_t receive_bytes; /* of the receive buffer, read back */
	int32_t drops_known;   /* SO_RXQ_OVFL is on */
	int32_t kernel_stamps; /* SO_TIMESTAMPNS is on */
};

/* A non-blocking UDP socket bound to the line's group and port (0: any, written back) and joined.
 * receive_bytes: wanted receive buffer. 0 or -errno with a sentence in why. */
int na_socket_open(struct na_feed_line *line, uint64_t receive_bytes, int kernel_stamps,
		   struct na_socket_info *info, char *why, size_t why_bytes);
/* Packets the kernel dropped on this socket since it was opened. 0 or -errno. */
int na_socket_dropped(int fd, uint64_t *packets);

#define NA_SOURCE_SOCKET 1
#define NA_SOURCE_CAPTURE 2

#define NA_FEED_STOPPED 0 /* na_feed_run's result: told to stop */
#define NA_FEED_ENDED 1   /* the capture is at its end */

struct na_feed_config {
	uint32_t source;          /* NA_SOURCE_* */
	uint32_t format;          /* capture: NA_FORMAT_* */
	uint32_t lines;           /* of `line`; capture: 0 takes the first two that speak MoldUDP64 */
	struct na_feed_line line[2];
	int32_t fds[2];           /* socket: one a line; capture: the first. Closed by nobody here. */
	int32_t kernel_stamps;    /* socket */
	int32_t busy;             /* socket: spin instead of poll(2) */
	int32_t verify_checksums; /* capture */
	int32_t linger;           /* capture: after its end, go on with heartbeats until told to stop */
	uint64_t first_seq;       /* number a session begins with; 0: the first one seen */
	uint64_t wait_ns;         /* a line silent that long fills no hole of the other */
	uint64_t rate;            /* capture: messages a second; 0: as fast as it goes */
};

struct na_feed; /* one feed: source, decoder, where the ticks go */

/* Ticks go to the ring (frames NULL: frames are not kept) or to memory, one of the two. stats may be
 * NULL. 0; -ENOMEM; -EINVAL: a capture of no format we know (na_feed_error says more). */
int na_feed_new(const struct na_feed_config *config, struct na_ring *ticks, struct na_ring *frames,
		struct na_memory *memory, struct na_feed_stats *stats, struct na_feed **out);
void na_feed_free(struct na_feed *feed);
/* The loop. NA_FEED_*, or -errno: recvmmsg failed, or the capture ended early (na_feed_error). */
int na_feed_run(struct na_feed *feed);
/* From any thread: na_feed_run returns soon. */
void na_feed_stop(struct na_feed *feed);
/* From any thread: a consistent copy of the counters, at most 20 ms old while the loop runs. */
void na_feed_read(struct na_feed *feed, struct na_feed_counts *out);
void na_feed_error(const struct na_feed *feed, struct na_capture_error *out);
/* Digest helpers and peers: decode blocks of length and message without a source; see tests/bench. */
int na_feed_decode_blocks(const void *bytes, size_t size, struct na_memory *memory, struct na_ring *ring,
			  uint32_t per_packet, struct na_feed_counts *out);

#endif
