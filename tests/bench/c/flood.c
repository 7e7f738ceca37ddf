/* SPDX-License-Identifier: Apache-2.0
 * Publishes into a ring from one C call until told to stop, as a feeder's data thread does: bursts, each stamped once,
 * flushed, with heartbeats. A library for tests/bench/ring_peers/flood.py. */
#include "ring_view.h"
#include <sched.h>

/* rate: ticks a second, paced burst by burst; 0: as fast as readers that gate allow. Returns ticks published. */
uint64_t flood(struct na_ring *ring, uint64_t rate, uint64_t burst, const uint32_t *stop)
{
	struct na_tick tick = {.kind = NA_KIND_ADD, .side = 'B', .size = 100};
	uint64_t began = nar_now_ns(), done = 0, beaten = began;
	double gap_ns = rate ? 1e9 * (double)burst / (double)rate : 0, due = (double)began;
	while (!__atomic_load_n(stop, __ATOMIC_RELAXED)) {
		uint64_t now = nar_now_ns();
		if (rate) {
			if ((double)now < due)
				continue;
			/* What is more than 10 ms late is let go: a lost core must not become a flood. */
			due = (double)now - due > 1e7 ? (double)now : due + gap_ns;
		}
		tick.ts_rx_ns = now;
		for (uint64_t i = 0; i < burst; i++) {
			tick.ref = done;
			tick.price = (int64_t)(done & 1023);
			na_ring_push(ring, &tick);
			done++;
		}
		na_ring_commit(ring);
		na_ring_flush(ring);
		if (now - beaten > 50000000) {
			beaten = now;
			na_ring_heartbeat(ring, now);
		}
	}
	return done;
}
