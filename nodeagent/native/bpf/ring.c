/* SPDX-License-Identifier: Apache-2.0
 * A BPF ring buffer, read from its mapped pages: one page of ours (how far we have read), one of the
 * kernel's (how far it has written), then the data twice in a row, so that no record is split.
 * Source: Documentation/bpf/ringbuf.rst; kernel/bpf/ringbuf.c, ringbuf_map_mmap_user(). */
#include "bpf_abi.h"
#include <errno.h>
#include <linux/bpf.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct na_ring {
	_Atomic unsigned long *consumer;
	const _Atomic unsigned long *producer;
	const char *data;
	size_t page, size;
};

int na_ring_open(int map_fd, size_t size, struct na_ring **out)
{
	struct na_ring *ring = calloc(1, sizeof(*ring));
	int rc;

	if (!ring)
		return -ENOMEM;
	ring->page = (size_t)sysconf(_SC_PAGESIZE);
	ring->size = size;
	ring->consumer = mmap(NULL, ring->page, PROT_READ | PROT_WRITE, MAP_SHARED, map_fd, 0);
	if (ring->consumer == MAP_FAILED) {
		rc = -errno;
		free(ring);
		return rc;
	}
	ring->producer = mmap(NULL, ring->page + 2 * size, PROT_READ, MAP_SHARED, map_fd, (off_t)ring->page);
	if (ring->producer == MAP_FAILED) {
		rc = -errno;
		munmap((void *)ring->consumer, ring->page);
		free(ring);
		return rc;
	}
	ring->data = (const char *)ring->producer + ring->page;
	*out = ring;
	return 0;
}

size_t na_ring_take(struct na_ring *ring, void *out, size_t size)
{
	unsigned long at = atomic_load_explicit(ring->consumer, memory_order_acquire);
	unsigned long end = atomic_load_explicit(ring->producer, memory_order_acquire);
	size_t used = 0;

	while (at < end) {
		const char *record = ring->data + (at & (ring->size - 1));
		uint32_t header = atomic_load_explicit((const _Atomic uint32_t *)record, memory_order_acquire);
		uint64_t length = header & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);
		size_t padded = (length + 7) & ~(size_t)7;

		if (header & BPF_RINGBUF_BUSY_BIT)
			break;
		if (!(header & BPF_RINGBUF_DISCARD_BIT)) {
			if (padded + 8 > size - used)
				break;
			memcpy((char *)out + used, &length, 8);
			memcpy((char *)out + used + 8, record + BPF_RINGBUF_HDR_SZ, padded);
			used += padded + 8;
		}
		at += padded + BPF_RINGBUF_HDR_SZ;
		atomic_store_explicit(ring->consumer, at, memory_order_release);
	}
	return used;
}

void na_ring_close(struct na_ring *ring)
{
	if (!ring)
		return;
	munmap((void *)ring->consumer, ring->page);
	munmap((void *)ring->producer, ring->page + 2 * ring->size);
	free(ring);
}
