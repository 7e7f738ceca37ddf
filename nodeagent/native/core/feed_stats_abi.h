/* SPDX-License-Identifier: Apache-2.0
 * A feeder's counters: one page of a sealed memfd that the feeder's data thread writes (relaxed 64-bit stores) and the
 * daemon maps read-only. Plain structs and integer #defines only: also cffi's cdef. */
#ifndef NODEAGENT_FEED_STATS_ABI_H
#define NODEAGENT_FEED_STATS_ABI_H
#include <stdint.h>

#define NA_FEED_STATS_MAGIC 0x3153544144454546 /* "FEEDATS1" */
#define NA_FEED_STATS_BYTES 4096
#define NA_FEED_STATS_BUCKETS 256 /* nodeagent/model/histogram.py */

struct na_feed_stats {
	uint64_t magic;
	uint64_t started_ns; /* CLOCK_MONOTONIC */
	uint64_t packets; /* that reached the decoder */
	uint64_t bytes; /* their payload */
	uint64_t messages; /* published */
	uint64_t duplicates; /* from the other line; not lost */
	uint64_t rejected; /* messages that could not be decoded */
	uint64_t nic_drops; /* since started; valid if nic_known */
	uint64_t nic_known;
	uint64_t kernel_drops; /* messages of gaps in which the kernel dropped packets; valid if kernel_known */
	uint64_t kernel_known;
	uint64_t backend_drops;
	uint64_t decoder_drops; /* messages lost in the decoder: the same as rejected */
	uint64_t filtered; /* packets for someone else */
	uint64_t wire_gap; /* messages that never came, without a kernel drop in their place */
	uint64_t last_message_ns; /* CLOCK_MONOTONIC; 0: none yet */
	uint64_t wire_to_ring_max_ns;
	uint64_t wire_to_ring_total_ns;
	uint64_t wire_to_ring_counts[256]; /* receive stamp to commit, ns */
	uint64_t kernel_drop_packets; /* packets the kernel dropped on the feed's sockets */
	uint64_t bad_packets; /* that are no packet of this protocol, of all kinds */
	uint64_t span; /* sequence numbers consumed = messages + kernel_drops + backend_drops + decoder_drops + wire_gap */
	uint64_t gaps; /* times messages were missing */
	uint64_t late; /* messages that came after their gap had been declared */
	uint64_t reserved[25];
	char source[32]; /* socket, capture, packet, ...; NUL-terminated; written before the page is offered */
	char note[224]; /* which back-end was got and why, in words */
};

#endif
