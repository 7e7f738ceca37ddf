/* SPDX-License-Identifier: Apache-2.0
 * The state of one reader, in its own process. Plain structs and integer #defines only: also cffi's cdef. */
#ifndef NODEAGENT_RING_READER_ABI_H
#define NODEAGENT_RING_READER_ABI_H
#include "ring_abi.h"

#define NA_READER_LIVE 0
#define NA_READER_STALE 1 /* the producer is gone, or its heartbeat is older than NA_RING_STALE_NS */

#define NA_WAIT_TIMEOUT 0
#define NA_WAIT_READY 1
#define NA_WAIT_STALE 2

struct na_view;

struct na_reader {
	/* To be read. */
	struct na_view *ticks; /* of the current incarnation */
	struct na_view *frames; /* NULL: this feed keeps none */
	uint64_t cursor; /* position of the next record */
	uint64_t gap; /* records lost just before the current batch */
	uint64_t records; /* read and valid */
	uint64_t lost; /* lapped: skipped, or overwritten while in use */
	uint64_t renumbered; /* times numbers began anew: what was lost then is unknown */
	uint64_t switches; /* incarnations gone over to */
	uint64_t age_ns; /* data age at the last batch; 0: caught up */
	int32_t state; /* NA_READER_LIVE, NA_READER_STALE */
	int32_t mode; /* NA_MODE_* */
	int32_t dropped; /* 1: was gating, missed the deadline, is lossy now */
	int32_t attached; /* 1: the daemon knows us; 0: it is away, reading goes on */
	/* To be set. */
	uint64_t spin_ns; /* nar_wait looks so long before it sleeps; UINT64_MAX: never sleeps */
	/* Its own. */
	uint64_t batch;
	uint64_t overwritten;
	uint64_t serviced_ns;
	uint64_t retry_ns;
	uint64_t idle;
	struct na_view *next_ticks;
	struct na_view *next_frames;
	struct na_ring_page *page;
	int32_t validated;
	int32_t told_stale; /* this silence was told by nar_wait */
	int32_t asked;
	int32_t gone;
	int32_t sock;
	int32_t reserved;
	char path[108];
	char feed[32];
	char name[32];
};

#endif
