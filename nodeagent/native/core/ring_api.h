/* SPDX-License-Identifier: Apache-2.0
 * The ring as functions of one process: what Python calls, and what C calls off the hot path. Also cffi's cdef.
 * 0 or -errno unless said otherwise; why (why_bytes long) then holds one sentence without the full stop. */
#ifndef NODEAGENT_RING_API_H
#define NODEAGENT_RING_API_H
#include "ring_abi.h"
#include "ring_reader_abi.h"

/* ---- producer ---- */

struct na_ring_config {
	char feed[32];
	uint32_t kind; /* NA_RING_TICKS or NA_RING_FRAMES */
	int32_t price_exponent;
	uint64_t capacity; /* ticks: slots, frames: bytes; rounded up to 2^k and to 2 MiB of data */
	int32_t node; /* NUMA node its pages are bound to; -1: wherever */
	uint32_t hugetlb; /* 1: take 2 MiB pages from the hugetlb pool, or fail */
	uint64_t gating_deadline_ns; /* how long a gating reader may hold the producer; 0: 100 ms */
};

/* What was got, read back. */
struct na_ring_info {
	int32_t fd;
	int32_t node; /* node of all sampled pages; -1 unknown, -2 on several */
	int32_t policy_error; /* -errno of set_mempolicy, 0: bound or not asked for */
	int32_t lock_error; /* -errno of mlock */
	int32_t collapse_error; /* -errno of MADV_COLLAPSE; 0 for hugetlb */
	uint32_t hugetlb;
	uint64_t huge_bytes; /* of the data, mapped by huge pages (ShmemPmdMapped, or hugetlb) */
	uint64_t size_bytes; /* of the file */
	uint64_t capacity;
	uint64_t lineage;
	uint64_t incarnation;
	uint64_t start;
	uint64_t continued; /* 1: numbers on from a dead segment */
	uint64_t wakes; /* FUTEX_WAKE calls so far */
};

struct na_ring; /* a producer's handle, ring.h */
struct na_view; /* a read-only mapping, ring_reader.h */

/* Makes a segment and opens it for publishing. dead: the last segment of that feed and kind, or NULL; numbering goes on
 * from it, its symbols are taken over, and the first record is RESTART (ticks). Sealed before it returns. */
int na_ring_create(const struct na_ring_config *config, struct na_view *dead, struct na_ring **out, char *why,
                   size_t why_bytes);
/* Marks the segment closed, wakes the readers, unmaps. The descriptor is closed too. */
void na_ring_destroy(struct na_ring *ring);
void na_ring_info(const struct na_ring *ring, struct na_ring_info *out);

/* The reader table: another thread than the data thread may call these. page_fd stays the caller's. mode: NA_MODE_*.
 * -EEXIST: the slot is taken; -EBADF: not a sealed page. */
int na_ring_add_reader(struct na_ring *ring, uint32_t slot, int page_fd, int mode);
int na_ring_remove_reader(struct na_ring *ring, uint32_t slot);
/* Next slot >= from whose gating reader was dropped since last asked, or -1. */
int na_ring_next_dropped(struct na_ring *ring, uint32_t from);
/* Readers that have said where they begin: what is published from now on, these see. One that is only in the table may
 * still be on its way to a later record. */
uint32_t na_ring_ready_readers(const struct na_ring *ring);

/* The same as the inline functions of ring.h, for Python and tests. */
void na_ring_publish(struct na_ring *ring, const struct na_tick *ticks, size_t count);
/* Position of the frame, or UINT64_MAX: longer than NA_FRAME_MAX_PAYLOAD. meta: seq, number and length are not read. */
uint64_t na_ring_publish_frame(struct na_ring *ring, const struct na_frame *meta, const void *payload, size_t length);
void na_ring_beat(struct na_ring *ring, uint64_t now_ns);
uint64_t na_ring_position(const struct na_ring *ring);
/* Sets the symbol of an instrument (at most 23 bytes, more is cut). -ERANGE: no room for that number. */
int na_ring_set_symbol(struct na_ring *ring, uint32_t instrument, const char *name, size_t length);

/* ---- reader ---- */

/* Maps a segment read-only after checking seals, header and geometry. kind 0: either. populate: make the page tables now
 * (readers), not as pages are touched (those who only look). The descriptor stays the caller's. */
int na_view_open(int fd, uint32_t kind, int populate, struct na_view **out, char *why, size_t why_bytes);
void na_view_ref(struct na_view *view);
void na_view_unref(struct na_view *view);
const struct na_ring_header *na_view_header(const struct na_view *view);
/* Start of the data, mapped twice back to back: 2 * data_bytes may be read from here. */
const void *na_view_data(const struct na_view *view);
/* A copy of the hot words. */
void na_view_hot(const struct na_view *view, struct na_ring_hot *out);
/* NUMA node of its pages (at most 64 are looked at): -1 unknown, -2 several. */
int na_view_node(const struct na_view *view);
/* One past the last record readable from cursor on: what a reader that drains it will see. */
uint64_t na_view_end(const struct na_view *view, uint64_t cursor);
/* Age of the record at cursor (ticks), 0 when there is none; a lapped cursor counts as the oldest still there. */
uint64_t na_view_age(const struct na_view *view, uint64_t cursor, uint64_t now_ns);
/* 0 with out filled, or -ENOENT. */
int na_view_symbol(const struct na_view *view, uint32_t instrument, struct na_symbol *out);
/* Copies the whole table (symbols_capacity entries); returns its generation, 0: it kept changing. */
uint64_t na_view_symbols(const struct na_view *view, struct na_symbol *out);
/* Copies one frame. Payload bytes, or -ESTALE: overwritten; -ENOENT: not there yet; -EINVAL: no record starts there;
 * -EMSGSIZE: room is too small. */
int64_t na_view_frame(const struct na_view *view, uint64_t position, struct na_frame *meta, void *payload, size_t room);
/* Like na_view_frame, and moves the position to the next frame; a lapped or foreign position jumps to the oldest. */
int64_t na_view_next_frame(const struct na_view *view, uint64_t *position, struct na_frame *meta, void *payload,
                           size_t room);

/* ---- a reader attached by ring.sock: ring_reader.h as functions ---- */

int na_reader_attach(struct na_reader *reader, const char *path, const char *feed, const char *name, int mode, char *why,
                     size_t why_bytes);
void na_reader_detach(struct na_reader *reader);
/* Count; the records start at slot (cursor & (capacity - 1)) of the doubled data of reader->ticks. */
size_t na_reader_batch(struct na_reader *reader, size_t max);
size_t na_reader_validate(struct na_reader *reader);
void na_reader_advance(struct na_reader *reader, size_t count);
int na_reader_wait(struct na_reader *reader, uint64_t timeout_ns);

/* A thread that waits in an event loop's stead and then writes an eventfd. While armed, the reader belongs to it. */
struct na_waiter;
int na_waiter_start(struct na_reader *reader, struct na_waiter **out);
/* The eventfd; it is the waiter's. */
int na_waiter_fd(const struct na_waiter *waiter);
/* Waits in the background for at most timeout_ns. -EBUSY: it does already. */
int na_waiter_arm(struct na_waiter *waiter, uint64_t timeout_ns);
/* Takes the reader back (within NA_RING_WAIT_NS when nothing came): NA_WAIT_*. */
int na_waiter_take(struct na_waiter *waiter);
void na_waiter_stop(struct na_waiter *waiter);

/* CRC32C (Castagnoli). Source: RFC 3720, appendix B.4. */
uint32_t na_crc32c(const void *data, size_t length);

#endif
