/* SPDX-License-Identifier: Apache-2.0
 * A segment mapped read-only, and what may be read from it: inline, no library needed. C11 and C++11.
 * Readers that attach by ring.sock include ring_reader.h, which includes this. */
#ifndef NODEAGENT_RING_VIEW_H
#define NODEAGENT_RING_VIEW_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "ring.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values of the kernel's interface that older C libraries do not name. Source: include/uapi/linux/fcntl.h, mman.h. */
#define NA_F_ADD_SEALS 1033
#define NA_F_GET_SEALS 1034
#define NA_F_SEAL_SEAL 0x0001
#define NA_F_SEAL_SHRINK 0x0002
#define NA_F_SEAL_GROW 0x0004
#define NA_F_SEAL_WRITE 0x0008
#define NA_F_SEAL_FUTURE_WRITE 0x0010
#define NA_MADV_POPULATE_READ 22
#define NA_MADV_POPULATE_WRITE 23
#define NA_MADV_COLLAPSE 25

struct na_view {
	struct na_ring_header fixed; /* a copy, checked */
	const struct na_ring_hot *hot;
	const uint8_t *data; /* mapped twice */
	const uint8_t *symbols;
	uint64_t capacity;
	uint64_t mask;
	void *region; /* NULL: the mapping is someone else's */
	size_t region_bytes;
	int refs;
};

static inline uint64_t nar_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((format(printf, 4, 5))) static inline int nar_fail(int error, char *why, size_t why_bytes,
                                                                 const char *format, ...)
{
	if (why && why_bytes) {
		va_list args;
		va_start(args, format);
		vsnprintf(why, why_bytes, format, args);
		va_end(args);
	}
	return -error;
}

/* CRC32C, reflected polynomial 0x82f63b78. Source: RFC 3720, appendix B.4. */
static inline uint32_t nar_crc32c(const void *data, size_t length)
{
	const uint8_t *byte = (const uint8_t *)data;
	uint32_t crc = 0xffffffffu;
	while (length--) {
		crc ^= *byte++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
	}
	return ~crc;
}

/* Everything a reader relies on; the producer wrote it before the segment was sealed and passed on. */
static inline int nar_check_header(const struct na_ring_header *h, uint64_t file_bytes, uint32_t kind, char *why,
                                   size_t why_bytes)
{
	if (h->magic != NA_RING_MAGIC)
		return nar_fail(EINVAL, why, why_bytes, "not a ring segment: magic %#llx", (unsigned long long)h->magic);
	if (h->abi_major != NA_RING_ABI_MAJOR)
		return nar_fail(EPROTO, why, why_bytes, "ring ABI %u.%u, this reader knows %u.x", h->abi_major, h->abi_minor,
		                NA_RING_ABI_MAJOR);
	if (h->header_bytes != sizeof(*h) || nar_crc32c(h, offsetof(struct na_ring_header, crc32c)) != h->crc32c)
		return nar_fail(EBADMSG, why, why_bytes, "the segment's header is damaged: CRC32C differs");
	if (kind && h->kind != kind)
		return nar_fail(EINVAL, why, why_bytes, "a ring of kind %u, expected %u", h->kind, kind);
	int ticks = h->kind == NA_RING_TICKS;
	uint64_t schema = ticks ? (uint64_t)NA_RING_SCHEMA_TICKS : (uint64_t)NA_RING_SCHEMA_FRAMES;
	if ((!ticks && h->kind != NA_RING_FRAMES) || h->schema_hash != schema ||
	    h->slot_bytes != (ticks ? sizeof(struct na_tick) : (size_t)NA_FRAME_ALIGN))
		return nar_fail(EPROTO, why, why_bytes, "records of another layout: schema %#llx, expected %#llx",
		                (unsigned long long)h->schema_hash, (unsigned long long)schema);
	uint64_t unit = ticks ? sizeof(struct na_tick) : 1;
	if (!h->capacity || (h->capacity & (h->capacity - 1)) || h->capacity > NA_RING_MAX_BYTES ||
	    h->data_bytes > NA_RING_MAX_BYTES || h->data_bytes != h->capacity * unit ||
	    h->data_bytes % NA_RING_HUGE_BYTES || h->data_offset != NA_RING_HUGE_BYTES ||
	    file_bytes != h->data_offset + h->data_bytes || h->hot_offset != NA_RING_HOT_OFFSET ||
	    h->symbols_offset != NA_RING_SYMBOLS_OFFSET || h->symbols_capacity > NA_RING_SYMBOLS_MAX ||
	    h->symbol_bytes != sizeof(struct na_symbol) || memchr(h->feed, 0, sizeof(h->feed)) == NULL)
		return nar_fail(EINVAL, why, why_bytes, "the segment's header contradicts its file of %llu bytes",
		                (unsigned long long)file_bytes);
	return 0;
}

/* Maps header and, twice back to back, data, each 2 MiB-aligned. *region is what to unmap. */
static inline int nar_map(int fd, uint64_t data_bytes, int prot, uint8_t **base, void **region, size_t *region_bytes)
{
	size_t bytes = (size_t)NA_RING_HUGE_BYTES + 2 * data_bytes, room = bytes + NA_RING_HUGE_BYTES;
	void *area = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (area == MAP_FAILED)
		return -errno;
	uint8_t *at = (uint8_t *)(((uintptr_t)area + NA_RING_HUGE_BYTES - 1) & ~(uintptr_t)(NA_RING_HUGE_BYTES - 1));
	/* The first mapping covers header and data, the second repeats the data. */
	if (mmap(at, NA_RING_HUGE_BYTES + data_bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
	    mmap(at + NA_RING_HUGE_BYTES + data_bytes, data_bytes, prot, MAP_SHARED | MAP_FIXED, fd, NA_RING_HUGE_BYTES) ==
	        MAP_FAILED) {
		int error = errno;
		munmap(area, room);
		return -error;
	}
	*base = at;
	*region = area;
	*region_bytes = room;
	return 0;
}

static inline void nar_view_point(struct na_view *view, const uint8_t *base)
{
	view->hot = (const struct na_ring_hot *)(const void *)(base + NA_RING_HOT_OFFSET);
	view->symbols = base + NA_RING_SYMBOLS_OFFSET;
	view->data = base + NA_RING_HUGE_BYTES;
	view->capacity = view->fixed.capacity;
	view->mask = view->capacity - 1;
	view->refs = 1;
}

/* See na_view_open. */
static inline int nar_view_open(int fd, uint32_t kind, int populate, struct na_view **out, char *why,
                                size_t why_bytes)
{
	struct stat st;
	int seals = fcntl(fd, NA_F_GET_SEALS), need = NA_F_SEAL_SHRINK | NA_F_SEAL_GROW | NA_F_SEAL_SEAL;
	if (fstat(fd, &st) < 0 || seals < 0)
		return nar_fail(errno, why, why_bytes, "not a sealed memory file: %s", strerror(errno));
	if ((seals & need) != need || !(seals & (NA_F_SEAL_FUTURE_WRITE | NA_F_SEAL_WRITE)))
		return nar_fail(EPERM, why, why_bytes, "the segment is not sealed: seals %#x, expected %#x", (unsigned)seals,
		                (unsigned)(need | NA_F_SEAL_FUTURE_WRITE));
	if ((uint64_t)st.st_size < 2 * (uint64_t)NA_RING_HUGE_BYTES ||
	    (uint64_t)st.st_size > NA_RING_MAX_BYTES + (uint64_t)NA_RING_HUGE_BYTES)
		return nar_fail(EINVAL, why, why_bytes, "a segment of %lld bytes", (long long)st.st_size);
	/* Its holes would be filled with the memory of whoever reads them first. */
	if ((uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size)
		return nar_fail(EINVAL, why, why_bytes, "a segment of %lld bytes with %lld bytes of memory behind it",
		                (long long)st.st_size, (long long)st.st_blocks * 512);
	struct na_view *view = (struct na_view *)calloc(1, sizeof(*view));
	if (!view)
		return nar_fail(ENOMEM, why, why_bytes, "out of memory");
	ssize_t got = pread(fd, &view->fixed, sizeof(view->fixed), 0);
	int rc = got == (ssize_t)sizeof(view->fixed) ? 0 : nar_fail(EIO, why, why_bytes, "the header cannot be read");
	if (!rc)
		rc = nar_check_header(&view->fixed, (uint64_t)st.st_size, kind, why, why_bytes);
	uint8_t *base = NULL;
	if (!rc) {
		rc = nar_map(fd, view->fixed.data_bytes, PROT_READ, &base, &view->region, &view->region_bytes);
		if (rc)
			nar_fail(-rc, why, why_bytes, "the segment cannot be mapped: %s", strerror(-rc));
	}
	if (rc) {
		free(view);
		return rc;
	}
	nar_view_point(view, base);
	/* Page tables now rather than in the first lap; not there before Linux 4ca9b3859dac (v5.14), then they fault in. */
	if (populate)
		(void)madvise(base, NA_RING_HUGE_BYTES + 2 * view->fixed.data_bytes, NA_MADV_POPULATE_READ);
	*out = view;
	return 0;
}

static inline void nar_view_ref(struct na_view *view)
{
	__atomic_fetch_add(&view->refs, 1, __ATOMIC_RELAXED);
}

static inline void nar_view_unref(struct na_view *view)
{
	if (!view || __atomic_fetch_sub(&view->refs, 1, __ATOMIC_ACQ_REL) != 1)
		return;
	if (view->region)
		munmap(view->region, view->region_bytes);
	free(view);
}

static inline uint64_t nar_reserve(const struct na_view *view)
{
	return __atomic_load_n(&view->hot->reserve, __ATOMIC_RELAXED);
}

static inline uint64_t nar_commit(const struct na_view *view)
{
	return __atomic_load_n(&view->hot->commit, __ATOMIC_ACQUIRE);
}

static inline const struct na_tick *nar_tick(const struct na_view *view, uint64_t position)
{
	return (const struct na_tick *)(const void *)(view->data + (position & view->mask) * sizeof(struct na_tick));
}

static inline uint64_t nar_seq(const struct na_view *view, uint64_t position)
{
	return __atomic_load_n(&nar_tick(view, position)->seq, __ATOMIC_ACQUIRE);
}

/* How many ticks from cursor on are published, at most max: gallops over the slots' seq, never touches commit. */
static inline uint64_t nar_available(const struct na_view *view, uint64_t cursor, uint64_t max)
{
	if (!max || nar_seq(view, cursor) != cursor + 1)
		return 0;
	if (max > view->capacity)
		max = view->capacity;
	uint64_t good = 1, step = 1; /* slots below cursor + good are published */
	while (good + step <= max && nar_seq(view, cursor + good + step - 1) == cursor + good + step) {
		good += step;
		step *= 2;
	}
	/* Records are published in order: halve the step down to the end. */
	for (; step; step /= 2)
		if (good + step <= max && nar_seq(view, cursor + good + step - 1) == cursor + good + step)
			good += step;
	return good;
}

/* Whether the slot at cursor already belongs to a later lap. */
static inline int nar_lapped(const struct na_view *view, uint64_t cursor)
{
	return (int64_t)(nar_seq(view, cursor) - (cursor + 1)) > 0;
}

/* After use of count records from cursor: how many leading ones may have been overwritten meanwhile. */
static inline uint64_t nar_overwritten(const struct na_view *view, uint64_t cursor, uint64_t count)
{
	RING_FENCE(view->hot, __ATOMIC_ACQUIRE);
	/* Unsigned difference: right before the first lap, too. */
	uint64_t ahead = nar_reserve(view) - cursor;
	if (ahead <= view->capacity)
		return 0;
	ahead -= view->capacity;
	return ahead < count ? ahead : count;
}

/* Where a lapped reader goes on. */
static inline uint64_t nar_resume(const struct na_view *view)
{
	uint64_t reserve = nar_reserve(view), back = view->capacity / 2;
	return reserve - view->fixed.start > back ? reserve - back : view->fixed.start;
}

/* ---- symbols ---- */

static inline void nar_symbol_words(const struct na_view *view, uint32_t instrument, struct na_symbol *out)
{
	const na_word *from = (const na_word *)(const void *)(view->symbols + instrument * sizeof(struct na_symbol));
	na_word words[3];
	for (int i = 0; i < 3; i++)
		words[i] = __atomic_load_n(from + i, __ATOMIC_ACQUIRE);
	memcpy(out, words, sizeof(*out));
}

static inline uint64_t nar_symbols_seq(const struct na_view *view)
{
	return __atomic_load_n(&view->hot->symbols_seq, __ATOMIC_ACQUIRE);
}

/* 0, or -ENOENT: no such entry; -EAGAIN: it kept changing. */
static inline int nar_symbol(const struct na_view *view, uint32_t instrument, struct na_symbol *out)
{
	if (instrument >= view->fixed.symbols_capacity)
		return -ENOENT;
	for (int attempt = 0; attempt < 100; attempt++) {
		uint64_t before = nar_symbols_seq(view);
		nar_symbol_words(view, instrument, out);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		/* A producer killed in mid-change leaves it odd: its entry then has length 0. */
		if (nar_symbols_seq(view) == before && (!(before & 1) || attempt > 50))
			return out->length && out->length <= sizeof(out->name) ? 0 : -ENOENT;
	}
	return -EAGAIN;
}

/* ---- frames ---- */

/* The frame at position if it is whole: see na_view_frame. */
static inline int64_t nar_frame(const struct na_view *view, uint64_t position, struct na_frame *meta, void *payload,
                                size_t room)
{
	uint64_t commit = nar_commit(view);
	if (position % NA_FRAME_ALIGN)
		return -EINVAL;
	if (position >= commit)
		return -ENOENT;
	if (commit - position > view->capacity)
		return -ESTALE;
	const uint8_t *record = view->data + (position & view->mask);
	const na_word *from = (const na_word *)(const void *)record;
	na_word words[sizeof(struct na_frame) / 8];
	for (size_t i = 0; i < sizeof(words) / 8; i++)
		words[i] = ring_load(from + i);
	memcpy(meta, words, sizeof(*meta));
	/* The length may be nonsense until validated; within bounds it may be copied all the same. */
	size_t length = meta->length;
	int sane = meta->seq == position + 1 && length <= NA_FRAME_MAX_PAYLOAD;
	if (sane && length <= room && payload) {
#ifdef NA_TSAN
		for (size_t i = 0; i < length; i++)
			((uint8_t *)payload)[i] = ring_load(record + sizeof(struct na_frame) + i);
#else
		memcpy(payload, record + sizeof(struct na_frame), length);
#endif
	}
	if (nar_overwritten(view, position, 1))
		return -ESTALE;
	if (!sane)
		return -EINVAL; /* not the start of a record */
	return length <= room || !payload ? (int64_t)length : -EMSGSIZE;
}

static inline int64_t nar_next_frame(const struct na_view *view, uint64_t *position, struct na_frame *meta,
                                     void *payload, size_t room)
{
	for (int attempt = 0; attempt < 1000; attempt++) {
		int64_t rc = nar_frame(view, *position, meta, payload, room);
		if (rc >= 0)
			*position += na_frame_bytes((uint64_t)rc);
		else if (rc == -ESTALE || rc == -EINVAL) {
			/* Lapped, or never a record's start: the oldest whole record is where frames begin again. */
			uint64_t first = __atomic_load_n(&view->hot->first, __ATOMIC_ACQUIRE);
			if (first == *position)
				continue;
			*position = first;
			continue;
		}
		return rc;
	}
	return -EAGAIN;
}

#ifdef __cplusplus
}
#endif
#endif
