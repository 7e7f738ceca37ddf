/* SPDX-License-Identifier: Apache-2.0
 * The peer: DPDK's rte_ring, one producer, one consumer, elements of 64 bytes, in memory shared by two processes. The
 * library's functions need no EAL, so no huge pages and no rights.
 *   rte_ring_speed lossless WINDOWS COUNT SEND RECEIVE    "rate MMSG WHOLE WINDOWS"; SEND and RECEIVE elements a call
 *   rte_ring_speed hop COUNT                              "hop P50 P99" */
#include "pair.h"
#include <rte_ring.h>
#include <rte_ring_elem.h>

#define SLOTS 32768

struct element {
	uint64_t words[8];
};

struct peer {
	struct rte_ring *ring;
	unsigned send, receive;
};

static struct rte_ring *make(void)
{
	ssize_t bytes = rte_ring_get_memsize_elem(sizeof(struct element), SLOTS);
	struct rte_ring *ring = (struct rte_ring *)shared_bytes((size_t)bytes);
	/* rte_ring_init cannot be told the element's size; the layout beyond the header is the same. */
	if (bytes < 0 || rte_ring_init(ring, "bench", SLOTS, RING_F_SP_ENQ | RING_F_SC_DEQ))
		exit(3);
	return ring;
}

static uint64_t send_elements(void *context, struct pair *pair, uint64_t first, uint64_t count)
{
	struct peer *p = (struct peer *)context;
	struct element out[64];
	(void)pair;
	memset(out, 0, sizeof(out));
	for (uint64_t i = first; i < first + count; i += p->send) {
		for (unsigned k = 0; k < p->send; k++)
			out[k].words[5] = i + k;
		while (!rte_ring_sp_enqueue_bulk_elem(p->ring, out, sizeof(*out), p->send, NULL))
			;
	}
	return 0;
}

static uint64_t receive_elements(void *context, struct pair *pair, uint64_t first, uint64_t count)
{
	struct peer *p = (struct peer *)context;
	struct element in[64];
	uint64_t bad = 0;
	(void)pair;
	for (uint64_t i = first; i < first + count;) {
		unsigned n = rte_ring_sc_dequeue_burst_elem(p->ring, in, sizeof(*in), p->receive, NULL);
		for (unsigned k = 0; k < n; k++)
			bad += in[k].words[5] != i + k;
		i += n;
	}
	return bad;
}

static int hop(uint64_t count)
{
	struct rte_ring *there = make(), *back = make();
	double *times = (double *)calloc(count, sizeof(*times));
	struct element element = {{0}};
	pid_t child = fork();
	if (!times || child < 0)
		return 3;
	pin(child == 0);
	struct rte_ring *in = child ? back : there, *out = child ? there : back;
	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t began = now_ns();
		if (child)
			rte_ring_sp_enqueue_elem(out, &element, sizeof(element));
		while (rte_ring_sc_dequeue_elem(in, &element, sizeof(element)))
			;
		if (!child)
			rte_ring_sp_enqueue_elem(out, &element, sizeof(element));
		times[i] = (double)(now_ns() - began) / 2;
	}
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	printf("hop %.0f %.0f\n", quantile(times, (int)count, 0.5), quantile(times, (int)count, 0.99));
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "hop"))
		return hop(strtoull(argv[2], NULL, 10));
	if (argc != 6 || strcmp(argv[1], "lossless"))
		return 64;
	struct peer peer = {.ring = make(), .send = (unsigned)atoi(argv[4]), .receive = (unsigned)atoi(argv[5])};
	if (!peer.send || peer.send > 64 || !peer.receive || peer.receive > 64)
		return 64;
	return run_windows(&peer, send_elements, receive_elements, (uint32_t)atoi(argv[2]), strtoull(argv[3], NULL, 10));
}
