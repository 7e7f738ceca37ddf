/* SPDX-License-Identifier: Apache-2.0
 * The producer's side of the ring, inline: reserve, fill, commit, flush. One thread publishes; C11 and C++11.
 * Fences and orders: docs/ring.md, "Protocol". Source: H.-J. Boehm, Can seqlocks get along with programming language
 * memory models? (MSPC 2012), for the fence pair of a sequence-validated read. */
#ifndef NODEAGENT_RING_H
#define NODEAGENT_RING_H
#ifdef __cplusplus
extern "C" {
#define NA_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define NA_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif
#include "ring_abi.h"
#include "ring_api.h"
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the ring is little-endian"
#endif
NA_STATIC_ASSERT(sizeof(struct na_ring_header) == 512, "header");
NA_STATIC_ASSERT(offsetof(struct na_ring_header, crc32c) == 508, "header crc");
NA_STATIC_ASSERT(offsetof(struct na_ring_header, feed) == 152, "header feed");
NA_STATIC_ASSERT(sizeof(struct na_ring_hot) == 768, "hot words");
NA_STATIC_ASSERT(offsetof(struct na_ring_hot, commit) == 128, "commit");
NA_STATIC_ASSERT(offsetof(struct na_ring_hot, first) == 256, "first");
NA_STATIC_ASSERT(offsetof(struct na_ring_hot, futex) == 384, "futex");
NA_STATIC_ASSERT(offsetof(struct na_ring_hot, heartbeat_ns) == 512, "heartbeat");
NA_STATIC_ASSERT(offsetof(struct na_ring_hot, symbols_seq) == 640, "symbols");
NA_STATIC_ASSERT(sizeof(struct na_tick) == 64, "tick");
NA_STATIC_ASSERT(offsetof(struct na_tick, price) == 24 && offsetof(struct na_tick, instrument) == 56 &&
                 offsetof(struct na_tick, kind) == 60 && offsetof(struct na_tick, flags) == 62, "tick fields");
NA_STATIC_ASSERT(sizeof(struct na_symbol) == 24, "symbol");
NA_STATIC_ASSERT(sizeof(struct na_frame) == 80, "frame");
NA_STATIC_ASSERT(sizeof(struct na_ring_page) == 4096, "reader's page");
NA_STATIC_ASSERT(offsetof(struct na_ring_page, waiting) == 128 &&
                 offsetof(struct na_ring_page, age_counts) == 256, "reader's page fields");
NA_STATIC_ASSERT(sizeof(struct na_ring_msg) == 128, "message");
NA_STATIC_ASSERT(NA_RING_SYMBOLS_OFFSET + NA_RING_SYMBOLS_MAX * sizeof(struct na_symbol) <= NA_RING_HUGE_BYTES,
                 "the symbol table fits before the data");

/* NA_PLAIN_PAYLOAD: the proof that ThreadSanitizer would complain otherwise. */
#if defined(NA_PLAIN_PAYLOAD)
#elif defined(__SANITIZE_THREAD__)
#define NA_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NA_TSAN 1
#endif
#endif

/* A word of payload may be read while it is overwritten; the reader then throws it away. In the ThreadSanitizer build it
 * is a relaxed atomic, as the C memory model wants; otherwise a plain access, which the compiler may make wider. */
typedef uint64_t __attribute__((may_alias)) na_word;
#ifdef NA_TSAN
#define ring_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define ring_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)
/* ThreadSanitizer models no fences: each is an acq_rel read-modify-write on reserve as well. Readers of that build map
 * the segment writable, so it only runs inside one process. */
#define RING_FENCE(hot, order) \
	((void)__atomic_fetch_add((uint64_t *)&(hot)->reserve, (uint64_t)0, __ATOMIC_ACQ_REL), __atomic_thread_fence(order))
#else
#define ring_store(p, v) (*(p) = (v))
#define ring_load(p) (*(p))
#define RING_FENCE(hot, order) __atomic_thread_fence(order)
#endif

/* Stands between every two atomic steps of publishing and of restarting; a build with -DNODEAGENT_KILL_POINTS can end
 * the process at any of them (na_kill_at). */
#ifdef NODEAGENT_KILL_POINTS
void na_kill_point(const char *name);
#define RING_KILL_POINT(name) na_kill_point(name)
#else
#define RING_KILL_POINT(name) ((void)0)
#endif

#define na_likely(x) __builtin_expect(!!(x), 1)
#define na_unlikely(x) __builtin_expect(!!(x), 0)

/* A producer's handle. The data thread owns the first part. */
struct na_ring {
	struct na_ring_hot *hot;
	uint8_t *data; /* mapped twice */
	uint64_t mask; /* capacity - 1 */
	uint64_t position; /* of the next record */
	uint64_t reserved; /* what hot->reserve holds */
	uint64_t capacity;
	uint64_t first; /* frames */
	uint64_t number; /* frames: of the next one */
	uint64_t gate_limit; /* reserve may go so far before the gating readers' cursors are looked at again */
	uint32_t futex;
	uint32_t futile; /* wakes in a row that woke nobody */
	uint32_t skip; /* bursts left in which flags are not believed */
	uint8_t pad0[44];
	/* Shared with the thread that keeps the reader table. */
	uint64_t active[NA_RING_MAX_READERS / 64];
	uint64_t gating_changed; /* a counter: moved when a gating reader came or went */
	uint64_t gating_seen;
	struct {
		uint64_t cursor; /* believed: clamped, never moving back */
		uint32_t mode; /* NA_MODE_* */
		uint32_t dropped; /* 1: by deadline, not yet told */
	} readers[NA_RING_MAX_READERS];
	const struct na_ring_page *pages; /* NA_RING_MAX_READERS pages; those not in use are zero pages of ours */
	struct na_ring_header *header;
	void *region;
	size_t region_bytes;
	uint64_t gating_deadline_ns;
	struct na_ring_info info;
};

/* Slow paths, ring.c. */
void na_ring_gate(struct na_ring *ring, uint64_t reserve);
void na_ring_wake(struct na_ring *ring);

/* Moves reserve up so that count more records (bytes, for frames) may be written. */
static inline void na_ring_reserve(struct na_ring *ring, uint64_t count)
{
	uint64_t reserve = ring->position + count;
	if (reserve <= ring->reserved)
		return;
	if (na_unlikely(reserve > ring->gate_limit ||
	                __atomic_load_n(&ring->gating_changed, __ATOMIC_ACQUIRE) != ring->gating_seen))
		na_ring_gate(ring, reserve);
	RING_KILL_POINT("before reserve");
	ring->reserved = reserve;
	__atomic_store_n(&ring->hot->reserve, reserve, __ATOMIC_RELAXED);
	RING_KILL_POINT("reserve stored");
	/* Whoever sees a byte written after this sees that reserve, too. */
	RING_FENCE(ring->hot, __ATOMIC_RELEASE);
	RING_KILL_POINT("reserve fenced");
}

/* Writes one tick; seq of *tick is not read. Readers may see it at once; na_ring_commit and na_ring_flush must follow. */
static inline void na_ring_push(struct na_ring *ring, const struct na_tick *tick)
{
	if (na_unlikely(ring->position == ring->reserved))
		na_ring_reserve(ring, NA_RING_CHUNK);
	na_word *slot = (na_word *)(ring->data + (ring->position & ring->mask) * sizeof(struct na_tick));
	const na_word *from = (const na_word *)(const void *)tick;
	/* Unrolled, the copy of a tick that was just made goes from registers to the slot; a loop reads back what was
	 * stored in narrower pieces, and stalls (6 ns a tick). */
#pragma GCC unroll 7
	for (int word = 1; word < 8; word++) {
		ring_store(slot + word, from[word]);
		RING_KILL_POINT("payload word stored");
	}
	ring->position++;
	__atomic_store_n(slot, ring->position, __ATOMIC_RELEASE);
	RING_KILL_POINT("seq stored");
}

/* After the last record of a packet or burst. */
static inline void na_ring_commit(struct na_ring *ring)
{
	RING_KILL_POINT("before commit");
	__atomic_store_n(&ring->hot->commit, ring->position, __ATOMIC_RELEASE);
	RING_KILL_POINT("commit stored");
}

/* Once a burst, after na_ring_commit: wakes readers that wait. Costs a fence when there are readers, a system call when
 * one waits. */
static inline void na_ring_flush(struct na_ring *ring)
{
	uint64_t any = 0;
	for (int i = 0; i < NA_RING_MAX_READERS / 64; i++)
		any |= __atomic_load_n(&ring->active[i], __ATOMIC_RELAXED);
	if (any)
		na_ring_wake(ring);
}

/* At least every NA_RING_HEARTBEAT_NS, from the data thread, also when nothing comes. */
static inline void na_ring_heartbeat(struct na_ring *ring, uint64_t now_ns)
{
	__atomic_store_n(&ring->hot->heartbeat_ns, now_ns, __ATOMIC_RELAXED);
}

/* Bytes that a frame of that payload takes in the ring. */
static inline uint64_t na_frame_bytes(uint64_t length)
{
	return (sizeof(struct na_frame) + length + NA_FRAME_ALIGN - 1) & ~(uint64_t)(NA_FRAME_ALIGN - 1);
}

/* Writes and commits one frame; returns its position, or UINT64_MAX when it is too long. Of *meta, seq, number and
 * length are not read. Call it before the ticks that point to it. */
static inline uint64_t na_ring_push_frame(struct na_ring *ring, const struct na_frame *meta, const void *payload,
                                          size_t length)
{
	if (na_unlikely(length > NA_FRAME_MAX_PAYLOAD))
		return UINT64_MAX;
	uint64_t bytes = na_frame_bytes(length), position = ring->position, end = position + bytes;
	if (end > ring->reserved) {
		/* `first` leaves a record before reserve allows writing over it. */
		while (end - ring->first > ring->capacity) {
			const struct na_frame *old = (const struct na_frame *)(const void *)(ring->data + (ring->first & ring->mask));
			ring->first += na_frame_bytes(old->length);
		}
		__atomic_store_n(&ring->hot->first, ring->first, __ATOMIC_RELEASE);
		RING_KILL_POINT("first stored");
		na_ring_reserve(ring, bytes);
	}
	uint8_t *record = ring->data + (position & ring->mask);
	struct na_frame filled = *meta;
	filled.number = ring->number;
	filled.length = (uint32_t)length;
	const na_word *from = (const na_word *)(const void *)&filled;
	for (size_t word = 1; word < sizeof(struct na_frame) / 8; word++)
		ring_store((na_word *)(void *)record + word, from[word]);
	RING_KILL_POINT("frame header stored");
	uint8_t *to = record + sizeof(struct na_frame);
#ifdef NA_TSAN
	for (size_t i = 0; i < length; i++)
		ring_store(to + i, ((const uint8_t *)payload)[i]);
#else
	if (length)
		memcpy(to, payload, length);
#endif
	RING_KILL_POINT("frame payload stored");
	__atomic_store_n((na_word *)(void *)record, position + 1, __ATOMIC_RELEASE);
	RING_KILL_POINT("frame seq stored");
	ring->position = end;
	ring->number++;
	na_ring_commit(ring);
	return position;
}

#ifdef __cplusplus
}
#endif
#endif
