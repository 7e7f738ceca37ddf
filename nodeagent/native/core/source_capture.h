/* SPDX-License-Identifier: Apache-2.0
 * Recorded feeds, read as a stream: a file, a pipe or stdin. */
#ifndef NODEAGENT_SOURCE_CAPTURE_H
#define NODEAGENT_SOURCE_CAPTURE_H
#include "feed.h"

#ifndef NA_CAPTURE_BUFFER /* the fuzzers take a small one: more refills, less to clear */
#define NA_CAPTURE_BUFFER (1u << 20)
#define NA_CAPTURE_SNAP 262144u /* libpcap's largest snap length for Ethernet */
#endif
#define NA_CAPTURE_INTERFACES 64 /* of one pcapng section */
#define NA_CAPTURE_BLOCKS 256   /* length-framed messages handed on at once */

struct na_capture {
	int fd;
	int wake;        /* when this becomes readable, waiting for a pipe ends: -ECANCELED; -1: never */
	int begun;
	uint32_t format; /* NA_FORMAT_* */
	uint8_t *buffer;
	size_t at, have;
	uint64_t offset; /* of buffer[at] in the file */
	uint64_t records;
	int ended;
	/* pcap, pcapng */
	int swapped;
	uint32_t link_type;
	uint32_t interfaces;
	uint16_t interface_link[NA_CAPTURE_INTERFACES];
	uint32_t interface_snap[NA_CAPTURE_INTERFACES];
	/* which packets are ours */
	uint32_t lines;          /* of `line`; 0: the first two destinations that speak MoldUDP64 */
	struct na_feed_line line[2];
	int learn;
	int verify;              /* checksums */
	struct na_feed_counts *counts;
	/* SoupBinTCP: what Login Accepted said */
	uint64_t soup_seq;
	int soup_ended;
	struct na_capture_error error;
};

/* 0 or -ENOMEM. Reads nothing yet. */
int na_capture_init(struct na_capture *c, int fd, uint32_t format, struct na_feed_counts *counts);
/* Tells the format. 0; -EINVAL with c->error when the bytes are none we know. Again: 0. */
int na_capture_begin(struct na_capture *c);
void na_capture_deinit(struct na_capture *c);
/* pcap, pcapng: the next UDP payload that is ours. 1; 0 at the end; -errno with c->error.
 * The payload stands in c's buffer until the next call. */
int na_capture_packet(struct na_capture *c, struct na_packet *packet);
/* BinaryFILE, SoupBinTCP: whole blocks [*p, *end) with *n messages. 1; 0; -errno as above. */
int na_capture_blocks(struct na_capture *c, const uint8_t **p, const uint8_t **end, uint32_t *n);
/* One link-layer frame to a UDP payload. 1: ours; 0: counted as bad or filtered. */
int na_frame_parse(const uint8_t *frame, uint32_t captured, uint32_t original, uint32_t link_type,
		   int verify, struct na_feed_counts *counts, struct na_packet *packet);

#endif
