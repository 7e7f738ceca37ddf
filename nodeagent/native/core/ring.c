/* SPDX-License-Identifier: Apache-2.0
 * The producer's slow paths: making and restarting a segment, readers' pages, waking, gating, symbols.
 * Order of creation and why: docs/ring.md, "Segment". */
#include "ring_view.h"
#include "numa_abi.h"
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/syscall.h>

#define NA_MFD_CLOEXEC 0x0001U
#define NA_MFD_ALLOW_SEALING 0x0002U
#define NA_MFD_HUGETLB 0x0004U
#define NA_MFD_NOEXEC_SEAL 0x0008U /* Linux 105ff5339f49 (v6.3) */
#define NA_MFD_HUGE_2MB (21U << 26)
#define NA_GATING_DEADLINE_NS 100000000u
#define NA_FUTILE_WAKES 8 /* wakes in a row without a sleeper after which flags are not believed for a while */
#define NA_MAX_SKIP 1024 /* bursts */
#define NA_SAMPLED_PAGES 64

#ifdef NODEAGENT_KILL_POINTS
/* "NAME" or "NAME:N": the process ends at the N-th time (from 1) it passes that point; "*:N" counts every point. Set by
 * the test's program. */
const char *na_kill_at;
static uint64_t na_kill_passed;

void na_kill_point(const char *name)
{
	const char *at = na_kill_at;
	if (!at)
		return;
	size_t length = *at == '*' ? 1 : strlen(name);
	if ((*at != '*' && strncmp(at, name, length) != 0) || (at[length] && at[length] != ':'))
		return;
	uint64_t n = at[length] ? strtoull(at + length + 1, NULL, 10) : 1;
	if (++na_kill_passed == n)
		kill(getpid(), SIGKILL);
}
#endif

/* ---- creation ---- */

static uint64_t fnv1a(const char *text)
{
	uint64_t hash = 0xcbf29ce484222325u;
	for (; *text; text++)
		hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
	return hash;
}

/* Field 22 of /proc/self/stat; the command in field 2 may hold anything, so count from its closing parenthesis. */
static uint64_t own_start_time(void)
{
	char text[1024];
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t got = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (got <= 0)
		return 0;
	text[got] = 0;
	char *at = strrchr(text, ')');
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* A number from a small file of the kernel; UINT64_MAX when absent or "max". */
static uint64_t file_number(const char *path, const char *key)
{
	char text[8192];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return UINT64_MAX;
	ssize_t got = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (got <= 0)
		return UINT64_MAX;
	text[got] = 0;
	const char *at = key ? strstr(text, key) : text;
	if (!at)
		return UINT64_MAX;
	at += key ? strlen(key) : 0;
	while (*at == ' ' || *at == ':')
		at++;
	return *at >= '0' && *at <= '9' ? strtoull(at, NULL, 10) : UINT64_MAX;
}

/* Bytes that may still be charged to our cgroup (v2), the tightest level up to the root; UINT64_MAX: no limit seen. */
static uint64_t cgroup_room(void)
{
	char text[4096], path[4096 + 64];
	uint64_t room = UINT64_MAX;
	int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return room;
	ssize_t got = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[got > 0 ? got : 0] = 0;
	char *at = strstr(text, "0::/");
	if (!at)
		return room;
	at += 3;
	at[strcspn(at, "\n")] = 0;
	for (int level = 0; level < 32 && *at; level++) {
		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", at);
		uint64_t max = file_number(path, NULL);
		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", at);
		uint64_t current = file_number(path, NULL);
		if (max != UINT64_MAX && current != UINT64_MAX) {
			uint64_t left = max > current ? max - current : 0;
			room = left < room ? left : room;
		}
		char *slash = strrchr(at, '/');
		if (!slash)
			break;
		*slash = 0;
	}
	return room;
}

/* fallocate of a memory file takes page after page until the OOM killer comes: ask first. */
static int check_room(const struct na_ring_config *config, uint64_t bytes, char *why, size_t why_bytes)
{
	if (config->hugetlb)
		return 0; /* the pool says so itself */
	uint64_t free_kb = file_number("/proc/meminfo", "MemAvailable");
	if (free_kb != UINT64_MAX && bytes / 1024 >= free_kb)
		return nar_fail(ENOSPC, why, why_bytes, "a segment of %llu MiB does not fit into the %llu MiB of free memory",
		                (unsigned long long)(bytes >> 20), (unsigned long long)(free_kb >> 10));
	uint64_t room = cgroup_room();
	if (bytes >= room)
		return nar_fail(ENOSPC, why, why_bytes, "a segment of %llu MiB does not fit into the %llu MiB left by memory.max",
		                (unsigned long long)(bytes >> 20), (unsigned long long)(room >> 20));
	return 0;
}

/* Takes all pages, on the wanted node: the policy of the thread that allocates counts for a memory file. */
static int allocate(int fd, const struct na_ring_config *config, uint64_t bytes, struct na_ring_info *info, char *why,
                    size_t why_bytes)
{
	uint64_t saved[NA_MAX_NODES / 64] = {0}, wanted[NA_MAX_NODES / 64] = {0};
	int mode = NA_MPOL_DEFAULT, restore = 0;
	if (config->node >= 0) {
		wanted[config->node / 64] |= (uint64_t)1 << config->node % 64;
		info->policy_error = na_get_mempolicy(&mode, saved, NA_MAX_NODES / 64);
		if (!info->policy_error)
			info->policy_error = na_set_mempolicy(NA_MPOL_BIND, wanted, NA_MAX_NODES / 64);
		restore = !info->policy_error;
	}
	RING_KILL_POINT("policy set");
	/* Never a bare ftruncate: a memory file that cannot grow turns a later write into SIGBUS. */
	int error = 0;
	while (fallocate(fd, 0, 0, (off_t)bytes) < 0) {
		error = errno;
		if (error != EINTR)
			break;
		error = 0;
	}
	if (restore)
		na_set_mempolicy(mode, mode == NA_MPOL_DEFAULT ? NULL : saved, mode == NA_MPOL_DEFAULT ? 0 : NA_MAX_NODES / 64);
	if (!error)
		return 0;
	if (config->hugetlb && error == ENOSPC)
		return nar_fail(error, why, why_bytes, "the pool of 2 MiB huge pages has no %llu pages free",
		                (unsigned long long)(bytes / NA_RING_HUGE_BYTES));
	return nar_fail(error, why, why_bytes, "fallocate of %llu MiB: %s", (unsigned long long)(bytes >> 20),
	                strerror(error));
}

/* NUMA node that all sampled pages of a mapping share; -1 unknown, -2 several. */
static int node_of(const uint8_t *at, uint64_t bytes)
{
	void *pages[NA_SAMPLED_PAGES];
	int nodes[NA_SAMPLED_PAGES], seen = -1;
	uint64_t step = bytes / NA_SAMPLED_PAGES & ~(uint64_t)4095;
	for (int i = 0; i < NA_SAMPLED_PAGES; i++) {
		pages[i] = (void *)(uintptr_t)(at + (uint64_t)i * step);
		(void)__atomic_load_n((const uint8_t *)pages[i], __ATOMIC_RELAXED); /* only what is mapped has a node */
	}
	if (na_page_nodes(0, NA_SAMPLED_PAGES, pages, nodes) < 0)
		return -1;
	for (int i = 0; i < NA_SAMPLED_PAGES; i++) {
		if (nodes[i] < 0)
			continue; /* not mapped here (yet) */
		if (seen >= 0 && nodes[i] != seen)
			return -2;
		seen = nodes[i];
	}
	return seen;
}

/* ShmemPmdMapped of the mapping at that address, bytes. Source: Documentation/filesystems/proc.rst, smaps. */
static uint64_t pmd_mapped(const void *at)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	if (!file)
		return 0;
	char line[512];
	uint64_t bytes = 0;
	int here = 0;
	while (fgets(line, sizeof(line), file)) {
		unsigned long low, high;
		char dash;
		unsigned long long kb;
		if (sscanf(line, "%lx%c%lx ", &low, &dash, &high) == 3 && dash == '-')
			here = low <= (unsigned long)(uintptr_t)at && (unsigned long)(uintptr_t)at < high;
		else if (here && sscanf(line, "ShmemPmdMapped: %llu kB", &kb) == 1)
			bytes = kb * 1024;
	}
	fclose(file);
	return bytes;
}

static void populate(uint8_t *at, uint64_t bytes)
{
	if (madvise(at, bytes, NA_MADV_POPULATE_WRITE) == 0)
		return;
	/* Before Linux 4ca9b3859dac (v5.14): fault each page in. The file is allocated, so this cannot fail. */
	for (uint64_t i = 0; i < bytes; i += 4096)
		__atomic_fetch_add(at + i, 0, __ATOMIC_RELAXED);
}

static int make_file(const struct na_ring_config *config, uint64_t bytes, struct na_ring_info *info, char *why,
                     size_t why_bytes)
{
	char name[64];
	snprintf(name, sizeof(name), "nodeagent-%s-%s", config->kind == NA_RING_TICKS ? "ticks" : "frames", config->feed);
	unsigned flags = NA_MFD_CLOEXEC | NA_MFD_ALLOW_SEALING | (config->hugetlb ? NA_MFD_HUGETLB | NA_MFD_HUGE_2MB : 0);
	int fd = (int)syscall(SYS_memfd_create, name, flags | NA_MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = (int)syscall(SYS_memfd_create, name, flags);
	if (fd < 0)
		return nar_fail(errno, why, why_bytes, "memfd_create: %s", strerror(errno));
	RING_KILL_POINT("file made");
	int rc = allocate(fd, config, bytes, info, why, why_bytes);
	if (rc) {
		close(fd);
		return rc;
	}
	RING_KILL_POINT("file allocated");
	return fd;
}

static uint64_t round_capacity(const struct na_ring_config *config)
{
	uint64_t unit = config->kind == NA_RING_TICKS ? sizeof(struct na_tick) : 1;
	uint64_t least = NA_RING_HUGE_BYTES / unit, capacity = least;
	while (capacity < config->capacity && capacity * unit < NA_RING_MAX_BYTES)
		capacity *= 2;
	return capacity < config->capacity ? 0 : capacity;
}

/* Where a dead segment really ended. Its producer may have died between a slot's seq and commit: those slots are whole
 * and readers saw them. `reserve` says nothing: slots below it may be half written. */
static uint64_t end_of(const struct na_view *dead)
{
	uint64_t end = nar_commit(dead);
	if (dead->fixed.kind == NA_RING_TICKS)
		for (uint64_t more = dead->capacity; more && nar_seq(dead, end) == end + 1; more--)
			end++;
	return end;
}

static uint64_t next_number(const struct na_view *dead)
{
	uint64_t at = __atomic_load_n(&dead->hot->first, __ATOMIC_ACQUIRE), end = nar_commit(dead);
	uint64_t number = dead->fixed.start_number;
	/* A damaged segment's words may say anything: no more than one lap is walked, and no lengths that cannot be. */
	while (at < end && end - at <= dead->capacity) {
		const struct na_frame *frame = (const struct na_frame *)(const void *)(dead->data + (at & dead->mask));
		if (frame->seq != at + 1 || frame->length > NA_FRAME_MAX_PAYLOAD)
			break;
		number = frame->number + 1;
		at += na_frame_bytes(frame->length);
	}
	return number;
}

static void take_symbols(struct na_ring *ring, const struct na_view *dead)
{
	uint32_t count = dead->fixed.symbols_capacity;
	for (uint32_t i = 0; i < count; i++) {
		struct na_symbol symbol;
		nar_symbol_words(dead, i, &symbol);
		if (symbol.length)
			na_ring_set_symbol(ring, i, symbol.name, symbol.length);
	}
}

static void fill_header(struct na_ring_header *h, const struct na_ring_config *config, const struct na_view *dead,
                        uint64_t capacity, uint64_t data_bytes)
{
	int ticks = config->kind == NA_RING_TICKS;
	memset(h, 0, sizeof(*h));
	h->magic = NA_RING_MAGIC;
	h->abi_major = NA_RING_ABI_MAJOR;
	h->abi_minor = NA_RING_ABI_MINOR;
	h->header_bytes = sizeof(*h);
	h->kind = config->kind;
	h->slot_bytes = ticks ? sizeof(struct na_tick) : NA_FRAME_ALIGN;
	h->schema_hash = ticks ? (uint64_t)NA_RING_SCHEMA_TICKS : (uint64_t)NA_RING_SCHEMA_FRAMES;
	h->capacity = capacity;
	h->data_offset = NA_RING_HUGE_BYTES;
	h->data_bytes = data_bytes;
	h->hot_offset = NA_RING_HOT_OFFSET;
	h->symbols_offset = NA_RING_SYMBOLS_OFFSET;
	h->symbols_capacity = ticks ? NA_RING_SYMBOLS_MAX : 0;
	h->symbol_bytes = sizeof(struct na_symbol);
	h->incarnation = 1;
	if (dead) {
		h->lineage = dead->fixed.lineage;
		h->incarnation = dead->fixed.incarnation + 1;
		h->start = end_of(dead);
		h->start_number = ticks ? h->start : next_number(dead);
	} else {
		while (getrandom(&h->lineage, sizeof(h->lineage), 0) != (ssize_t)sizeof(h->lineage) || !h->lineage)
			;
	}
	RING_KILL_POINT("start found");
	h->producer_pid = getpid();
	h->producer_start_time = own_start_time();
	h->clock_id = CLOCK_MONOTONIC;
	h->price_exponent = config->price_exponent;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	h->created_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	memcpy(h->feed, config->feed, sizeof(h->feed));
	h->feed_id = fnv1a(h->feed);
	h->crc32c = nar_crc32c(h, offsetof(struct na_ring_header, crc32c));
}

/* The table of readers' pages: an address range in which each reader's page is put over a zero page, so that the data
 * thread may look at any slot at any time and nothing ever has to be waited for. */
static int make_pages(struct na_ring *ring)
{
	void *pages = mmap(NULL, NA_RING_MAX_READERS * 4096ul, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return -errno;
	ring->pages = (const struct na_ring_page *)pages;
	return 0;
}

static int open_segment(struct na_ring *ring, const struct na_ring_config *config, struct na_view *dead, char *why,
                        size_t why_bytes)
{
	uint64_t capacity = round_capacity(config);
	uint64_t data_bytes = capacity * (config->kind == NA_RING_TICKS ? sizeof(struct na_tick) : 1);
	uint64_t bytes = NA_RING_HUGE_BYTES + data_bytes;
	int rc = check_room(config, bytes, why, why_bytes);
	if (rc)
		return rc;
	int fd = make_file(config, bytes, &ring->info, why, why_bytes);
	if (fd < 0)
		return fd;
	ring->info.fd = fd;
	uint8_t *base = NULL;
	rc = nar_map(fd, data_bytes, PROT_READ | PROT_WRITE, &base, &ring->region, &ring->region_bytes);
	if (rc)
		return nar_fail(-rc, why, why_bytes, "the segment cannot be mapped: %s", strerror(-rc));
	RING_KILL_POINT("file mapped");
	uint8_t *data = base + NA_RING_HUGE_BYTES;
	populate(base, NA_RING_HUGE_BYTES + 2 * data_bytes);
	if (!config->hugetlb) {
		/* Linux 7d8faaf15545 (v6.1). Readers' populate then maps the huge pages. */
		if (madvise(data, data_bytes, NA_MADV_COLLAPSE) < 0)
			ring->info.collapse_error = -errno;
		else
			(void)madvise(data + data_bytes, data_bytes, NA_MADV_COLLAPSE);
	}
	if (mlock(base, bytes) < 0)
		ring->info.lock_error = -errno;
	ring->header = (struct na_ring_header *)(void *)base;
	ring->hot = (struct na_ring_hot *)(void *)(base + NA_RING_HOT_OFFSET);
	ring->data = data;
	ring->capacity = capacity;
	ring->mask = capacity - 1;
	RING_KILL_POINT("file populated");
	fill_header(ring->header, config, dead, capacity, data_bytes);
	uint64_t start = ring->header->start;
	ring->position = ring->reserved = ring->first = start;
	ring->number = ring->header->start_number;
	ring->gate_limit = UINT64_MAX;
	ring->gating_deadline_ns = config->gating_deadline_ns ? config->gating_deadline_ns : NA_GATING_DEADLINE_NS;
	__atomic_store_n(&ring->hot->reserve, start, __ATOMIC_RELAXED);
	__atomic_store_n(&ring->hot->commit, start, __ATOMIC_RELAXED);
	__atomic_store_n(&ring->hot->first, start, __ATOMIC_RELAXED);
	__atomic_store_n(&ring->hot->state, (uint64_t)NA_RING_OPEN, __ATOMIC_RELAXED);
	na_ring_heartbeat(ring, nar_now_ns());
	if (dead && config->kind == NA_RING_TICKS)
		take_symbols(ring, dead);
	RING_KILL_POINT("header filled");
	if (fcntl(fd, NA_F_ADD_SEALS, NA_F_SEAL_SHRINK | NA_F_SEAL_GROW | NA_F_SEAL_FUTURE_WRITE | NA_F_SEAL_SEAL) < 0)
		return nar_fail(errno, why, why_bytes, "the segment cannot be sealed: %s", strerror(errno));
	RING_KILL_POINT("file sealed");
	ring->info.node = node_of(data, data_bytes);
	ring->info.hugetlb = config->hugetlb;
	ring->info.huge_bytes = config->hugetlb ? data_bytes : pmd_mapped(data);
	ring->info.size_bytes = bytes;
	ring->info.capacity = capacity;
	ring->info.lineage = ring->header->lineage;
	ring->info.incarnation = ring->header->incarnation;
	ring->info.start = start;
	ring->info.continued = dead != NULL;
	return 0;
}

static void release(struct na_ring *ring)
{
	if (ring->pages)
		munmap((void *)(uintptr_t)ring->pages, NA_RING_MAX_READERS * 4096ul);
	if (ring->region)
		munmap(ring->region, ring->region_bytes);
	if (ring->info.fd >= 0)
		close(ring->info.fd);
	free(ring);
}

int na_ring_create(const struct na_ring_config *config, struct na_view *dead, struct na_ring **out, char *why,
                   size_t why_bytes)
{
	if (config->kind != NA_RING_TICKS && config->kind != NA_RING_FRAMES)
		return nar_fail(EINVAL, why, why_bytes, "a ring of kind %u, expected ticks or frames", config->kind);
	if (!config->feed[0] || !memchr(config->feed, 0, sizeof(config->feed)))
		return nar_fail(EINVAL, why, why_bytes, "a feed's name has 1 to %d bytes", NA_RING_NAME_BYTES - 1);
	if (!round_capacity(config))
		return nar_fail(EINVAL, why, why_bytes, "a capacity of %llu is more than a segment may hold",
		                (unsigned long long)config->capacity);
	if (config->node >= NA_MAX_NODES)
		return nar_fail(EINVAL, why, why_bytes, "NUMA node %d, expected less than %d", config->node, NA_MAX_NODES);
	if (dead && (dead->fixed.kind != config->kind || strcmp(dead->fixed.feed, config->feed) != 0))
		return nar_fail(EINVAL, why, why_bytes, "the dead segment belongs to feed %s", dead->fixed.feed);
	struct na_ring *ring = NULL;
	if (posix_memalign((void **)&ring, 128, sizeof(*ring)))
		return nar_fail(ENOMEM, why, why_bytes, "out of memory");
	memset(ring, 0, sizeof(*ring));
	ring->info.fd = -1;
	int rc = make_pages(ring);
	if (rc)
		nar_fail(-rc, why, why_bytes, "the table of readers' pages: %s", strerror(-rc));
	else
		rc = open_segment(ring, config, dead, why, why_bytes);
	if (rc) {
		release(ring);
		return rc;
	}
	if (dead && config->kind == NA_RING_TICKS) {
		struct na_tick restart = {.ts_rx_ns = nar_now_ns(), .ref = ring->info.incarnation, .aux = (uint64_t)getpid(),
		                          .kind = NA_KIND_RESTART};
		na_ring_push(ring, &restart);
		na_ring_commit(ring);
		RING_KILL_POINT("restart recorded");
	}
	*out = ring;
	return 0;
}

static void wake_all(struct na_ring *ring)
{
	__atomic_store_n(&ring->hot->futex, ++ring->futex, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &ring->hot->futex, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void na_ring_destroy(struct na_ring *ring)
{
	if (!ring)
		return;
	if (ring->header->producer_pid != getpid()) {
		/* A forked child that ends: the ring goes on. */
		release(ring);
		return;
	}
	__atomic_store_n(&ring->hot->state, (uint64_t)NA_RING_CLOSED, __ATOMIC_RELEASE);
	wake_all(ring);
	release(ring);
}

void na_ring_info(const struct na_ring *ring, struct na_ring_info *out)
{
	*out = ring->info;
}

/* ---- readers ---- */

static uint64_t clamp_cursor(const struct na_ring *ring, uint64_t cursor, uint64_t believed)
{
	uint64_t commit = ring->position, oldest = ring->reserved - ring->header->start > ring->capacity
	                                               ? ring->reserved - ring->capacity
	                                               : ring->header->start;
	if (cursor > commit)
		cursor = commit;
	if (cursor < oldest)
		cursor = oldest;
	return cursor < believed ? believed : cursor;
}

/* How far reserve may go for the sake of gating readers; UINT64_MAX: there are none. *who: the one that allows least.
 * Pages are read, never believed: see clamp_cursor. */
static uint64_t allowed(struct na_ring *ring, uint32_t *who)
{
	uint64_t least = UINT64_MAX, limit;
	for (uint32_t word = 0; word < NA_RING_MAX_READERS / 64; word++) {
		uint64_t bits = __atomic_load_n(&ring->active[word], __ATOMIC_ACQUIRE);
		for (; bits; bits &= bits - 1) {
			uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
			const struct na_ring_page *page = &ring->pages[slot];
			if (__atomic_load_n(&ring->readers[slot].mode, __ATOMIC_RELAXED) != NA_MODE_GATING)
				continue;
			if (__atomic_load_n(&page->lineage, __ATOMIC_RELAXED) != ring->header->lineage)
				/* It has not begun to read here: nothing to wait for, but look again soon. */
				limit = ring->position + ring->capacity / 4;
			else {
				uint64_t cursor = __atomic_load_n(&page->cursor, __ATOMIC_ACQUIRE);
				cursor = clamp_cursor(ring, cursor, ring->readers[slot].cursor);
				ring->readers[slot].cursor = cursor;
				limit = cursor + ring->capacity;
			}
			if (limit < least) {
				least = limit;
				*who = slot;
			}
		}
	}
	return least;
}

/* Waits until every gating reader left room up to reserve, or drops the one that does not. */
void na_ring_gate(struct na_ring *ring, uint64_t reserve)
{
	uint64_t deadline = 0;
	for (uint32_t turn = 0;; turn++) {
		uint32_t who = 0;
		ring->gating_seen = __atomic_load_n(&ring->gating_changed, __ATOMIC_ACQUIRE);
		ring->gate_limit = allowed(ring, &who);
		if (reserve <= ring->gate_limit)
			return;
		uint64_t now = nar_now_ns();
		if (!deadline) {
			/* What is written must be readable, or the reader could never make room. */
			na_ring_commit(ring);
			na_ring_flush(ring);
			deadline = now + ring->gating_deadline_ns;
		}
		if (now >= deadline) {
			__atomic_store_n(&ring->readers[who].mode, (uint32_t)NA_MODE_LOSSY, __ATOMIC_RELAXED);
			__atomic_store_n(&ring->readers[who].dropped, 1u, __ATOMIC_RELEASE);
			deadline = 0;
			continue;
		}
		na_ring_heartbeat(ring, now);
		if (turn % 64 == 63)
			sched_yield();
	}
}

/* Tells waiting readers of a burst. The fence orders the burst's slots before the look at the flags; a reader orders
 * its flag before its look at the slot: one of the two sees the other. */
void na_ring_wake(struct na_ring *ring)
{
	RING_KILL_POINT("before futex word");
	/* Release: who sees this word sees the slots before it, too, and does not sleep on it (tests/proofs/ring.pml). */
	__atomic_store_n(&ring->hot->futex, ++ring->futex, __ATOMIC_RELEASE);
	RING_KILL_POINT("futex word stored");
	RING_FENCE(ring->hot, __ATOMIC_SEQ_CST);
	if (ring->skip) {
		ring->skip--;
		return;
	}
	uint32_t waiting = 0;
	for (uint32_t word = 0; word < NA_RING_MAX_READERS / 64 && !waiting; word++) {
		uint64_t bits = __atomic_load_n(&ring->active[word], __ATOMIC_ACQUIRE);
		for (; bits && !waiting; bits &= bits - 1)
			waiting = __atomic_load_n(&ring->pages[word * 64 + (uint32_t)__builtin_ctzll(bits)].waiting, __ATOMIC_RELAXED);
	}
	if (!waiting)
		return;
	RING_KILL_POINT("before wake");
	__atomic_store_n(&ring->info.wakes, ring->info.wakes + 1, __ATOMIC_RELAXED);
	long woken = syscall(SYS_futex, &ring->hot->futex, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	/* A flag that never has a sleeper behind it (a hostile page) must not cost a system call a burst. Sleepers that are
	 * overlooked meanwhile look again by themselves after NA_RING_WAIT_NS. */
	if (woken > 0)
		ring->futile = 0;
	else if (++ring->futile >= NA_FUTILE_WAKES) {
		uint32_t doubled = 1u << (ring->futile - NA_FUTILE_WAKES > 10 ? 10 : ring->futile - NA_FUTILE_WAKES);
		ring->skip = doubled < NA_MAX_SKIP ? doubled : NA_MAX_SKIP;
	}
}

static void *page_at(const struct na_ring *ring, uint32_t slot)
{
	return (void *)(uintptr_t)(ring->pages + slot);
}

int na_ring_add_reader(struct na_ring *ring, uint32_t slot, int page_fd, int mode)
{
	struct stat st;
	int seals = fcntl(page_fd, NA_F_GET_SEALS);
	if (slot >= NA_RING_MAX_READERS || (mode != NA_MODE_LOSSY && mode != NA_MODE_GATING))
		return -EINVAL;
	/* Unsealed, its owner could cut it short under us: SIGBUS. */
	if (seals < 0 || (seals & (NA_F_SEAL_SHRINK | NA_F_SEAL_SEAL)) != (NA_F_SEAL_SHRINK | NA_F_SEAL_SEAL) ||
	    fstat(page_fd, &st) < 0 || st.st_size != (off_t)sizeof(struct na_ring_page))
		return -EBADF;
	if (__atomic_load_n(&ring->active[slot / 64], __ATOMIC_ACQUIRE) >> slot % 64 & 1)
		return -EEXIST;
	if (mmap(page_at(ring, slot), 4096, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE, page_fd, 0) == MAP_FAILED)
		return -errno;
	ring->readers[slot].cursor = 0; /* what it says first is clamped to what is still there */
	__atomic_store_n(&ring->readers[slot].mode, (uint32_t)mode, __ATOMIC_RELAXED);
	__atomic_store_n(&ring->readers[slot].dropped, 0u, __ATOMIC_RELAXED);
	__atomic_fetch_or(&ring->active[slot / 64], (uint64_t)1 << slot % 64, __ATOMIC_RELEASE);
	if (mode == NA_MODE_GATING)
		__atomic_fetch_add(&ring->gating_changed, 1, __ATOMIC_RELEASE);
	return 0;
}

int na_ring_remove_reader(struct na_ring *ring, uint32_t slot)
{
	if (slot >= NA_RING_MAX_READERS)
		return -EINVAL;
	uint64_t bit = (uint64_t)1 << slot % 64;
	if (!(__atomic_fetch_and(&ring->active[slot / 64], ~bit, __ATOMIC_ACQ_REL) & bit))
		return -ENOENT;
	__atomic_store_n(&ring->readers[slot].mode, (uint32_t)NA_MODE_LOSSY, __ATOMIC_RELAXED);
	__atomic_fetch_add(&ring->gating_changed, 1, __ATOMIC_RELEASE);
	/* The data thread may be looking at it now: the kernel swaps the page under its eyes, there is no hole. */
	if (mmap(page_at(ring, slot), 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return -errno;
	return 0;
}

int na_ring_next_dropped(struct na_ring *ring, uint32_t from)
{
	for (uint32_t slot = from; slot < NA_RING_MAX_READERS; slot++)
		if (__atomic_exchange_n(&ring->readers[slot].dropped, 0u, __ATOMIC_ACQUIRE))
			return (int)slot;
	return -1;
}

uint32_t na_ring_ready_readers(const struct na_ring *ring)
{
	uint32_t ready = 0;
	for (uint32_t slot = 0; slot < NA_RING_MAX_READERS; slot++)
		if (__atomic_load_n(&ring->active[slot / 64], __ATOMIC_ACQUIRE) >> slot % 64 & 1)
			ready += __atomic_load_n(&ring->pages[slot].lineage, __ATOMIC_RELAXED) == ring->info.lineage;
	return ready;
}

/* ---- the inline functions as symbols ---- */

void na_ring_publish(struct na_ring *ring, const struct na_tick *ticks, size_t count)
{
	for (size_t i = 0; i < count; i++)
		na_ring_push(ring, ticks + i);
	na_ring_commit(ring);
	na_ring_flush(ring);
}

uint64_t na_ring_publish_frame(struct na_ring *ring, const struct na_frame *meta, const void *payload, size_t length)
{
	uint64_t position = na_ring_push_frame(ring, meta, payload, length);
	if (position != UINT64_MAX)
		na_ring_flush(ring);
	return position;
}

void na_ring_beat(struct na_ring *ring, uint64_t now_ns)
{
	na_ring_heartbeat(ring, now_ns);
}

uint64_t na_ring_position(const struct na_ring *ring)
{
	return __atomic_load_n(&ring->hot->commit, __ATOMIC_RELAXED);
}

int na_ring_set_symbol(struct na_ring *ring, uint32_t instrument, const char *name, size_t length)
{
	if (instrument >= ring->header->symbols_capacity)
		return -ERANGE;
	struct na_symbol symbol;
	memset(&symbol, 0, sizeof(symbol));
	length = length < sizeof(symbol.name) ? length : sizeof(symbol.name);
	memcpy(symbol.name, name, length);
	symbol.length = (uint8_t)length;
	na_word words[3], *at = (na_word *)(void *)((uint8_t *)ring->header + NA_RING_SYMBOLS_OFFSET +
	                                            instrument * sizeof(symbol));
	memcpy(words, &symbol, sizeof(words));
	if (at[0] == words[0] && at[1] == words[1] && at[2] == words[2])
		return 0;
	uint64_t seq = ring->hot->symbols_seq;
	__atomic_store_n(&ring->hot->symbols_seq, seq + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	RING_KILL_POINT("symbol seq odd");
	/* Length 0 first and last word last: one who comes after our death finds no entry rather than half of one. */
	__atomic_store_n(at + 2, (uint64_t)0, __ATOMIC_RELAXED);
	RING_KILL_POINT("symbol cleared");
	__atomic_thread_fence(__ATOMIC_RELEASE);
	__atomic_store_n(at, words[0], __ATOMIC_RELAXED);
	__atomic_store_n(at + 1, words[1], __ATOMIC_RELAXED);
	RING_KILL_POINT("symbol words stored");
	__atomic_store_n(at + 2, words[2], __ATOMIC_RELEASE);
	RING_KILL_POINT("symbol stored");
	__atomic_store_n(&ring->hot->symbols_seq, seq + 2, __ATOMIC_RELEASE);
	return 0;
}

int na_view_open(int fd, uint32_t kind, int populate, struct na_view **out, char *why, size_t why_bytes)
{
	return nar_view_open(fd, kind, populate, out, why, why_bytes);
}

void na_view_ref(struct na_view *view)
{
	nar_view_ref(view);
}

void na_view_unref(struct na_view *view)
{
	nar_view_unref(view);
}

const struct na_ring_header *na_view_header(const struct na_view *view)
{
	return &view->fixed;
}

const void *na_view_data(const struct na_view *view)
{
	return view->data;
}

void na_view_hot(const struct na_view *view, struct na_ring_hot *out)
{
	memset(out, 0, sizeof(*out));
	/* reserve last: what is below commit and within capacity of reserve is readable. */
	out->first = __atomic_load_n(&view->hot->first, __ATOMIC_ACQUIRE);
	out->commit = nar_commit(view);
	out->reserve = nar_reserve(view);
	out->futex = __atomic_load_n(&view->hot->futex, __ATOMIC_RELAXED);
	out->heartbeat_ns = __atomic_load_n(&view->hot->heartbeat_ns, __ATOMIC_RELAXED);
	out->state = __atomic_load_n(&view->hot->state, __ATOMIC_ACQUIRE);
	out->symbols_seq = nar_symbols_seq(view);
}

int na_view_node(const struct na_view *view)
{
	return node_of(view->data, view->fixed.data_bytes);
}

uint64_t na_view_end(const struct na_view *view, uint64_t cursor)
{
	uint64_t commit = nar_commit(view);
	if (view->fixed.kind != NA_RING_TICKS)
		return commit;
	return cursor < commit ? commit : cursor + nar_available(view, cursor, view->capacity);
}

uint64_t na_view_age(const struct na_view *view, uint64_t cursor, uint64_t now_ns)
{
	for (int attempt = 0; attempt < 3; attempt++) {
		uint64_t commit = nar_commit(view), reserve = nar_reserve(view);
		if (cursor >= commit)
			return 0;
		if (reserve - cursor > view->capacity)
			cursor = nar_resume(view); /* lapped: at least as old as what it will be given */
		uint64_t stamp = ring_load(&nar_tick(view, cursor)->ts_rx_ns);
		if (!nar_overwritten(view, cursor, 1))
			return now_ns > stamp ? now_ns - stamp : 0;
	}
	return 0;
}

int na_view_symbol(const struct na_view *view, uint32_t instrument, struct na_symbol *out)
{
	return nar_symbol(view, instrument, out);
}

uint64_t na_view_symbols(const struct na_view *view, struct na_symbol *out)
{
	for (int attempt = 0; attempt < 100; attempt++) {
		uint64_t before = nar_symbols_seq(view);
		for (uint32_t i = 0; i < view->fixed.symbols_capacity; i++)
			nar_symbol_words(view, i, out + i);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (nar_symbols_seq(view) == before && (!(before & 1) || attempt > 50))
			return before + 1;
	}
	return 0;
}

int64_t na_view_frame(const struct na_view *view, uint64_t position, struct na_frame *meta, void *payload, size_t room)
{
	return nar_frame(view, position, meta, payload, room);
}

int64_t na_view_next_frame(const struct na_view *view, uint64_t *position, struct na_frame *meta, void *payload,
                           size_t room)
{
	return nar_next_frame(view, position, meta, payload, room);
}

uint32_t na_crc32c(const void *data, size_t length)
{
	return nar_crc32c(data, length);
}
