/* SPDX-License-Identifier: Apache-2.0
 * The feeder's data thread: one call that returns when it is told to, or when the capture has ended.
 *
 * Python calls it without the GIL and never in between: coming back to take the GIL costs 5 ms at the
 * median beside one busy Python thread. What the control thread wants stands in `stop`; what it may
 * see is copied out under a sequence counter, and into the statistics page. */
#include "moldudp64.h"
#include "source_capture.h"
#include "source_socket.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HOUSEKEEPING_NS 10000000ULL /* counters are copied out, holes aged, the heart beats */
#define POLL_MS 20                  /* longest sleep without a packet */
#define CAPTURE_BURST 64            /* packets between two looks at the clock */

struct na_feed {
	struct na_feed_config config;
	struct na_sink sink;
	struct na_feed_counts counts; /* the data thread's own */
	struct na_messages messages;
	struct na_mold mold;
	struct na_capture capture;
	struct na_socket socket[2];
	uint32_t sockets;
	int wake; /* eventfd: ends a sleep */
	uint32_t stop;
	uint64_t housekept_ns;
	int64_t to_monotonic;
	struct na_feed_stats *stats;
	uint64_t wire_max_ns;
	/* Copied out: odd while being written. */
	uint64_t copied;
	struct na_feed_counts shown;
};

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static int stopping(struct na_feed *f) { return __atomic_load_n(&f->stop, __ATOMIC_ACQUIRE) != 0; }

/* ---- what others may see ---- */

/* Index of a value: the same arithmetic as nodeagent/model/histogram.py. */
static unsigned bucket_of(uint64_t v)
{
	if (v < 4)
		return (unsigned)v;
	unsigned e = 63 - (unsigned)__builtin_clzll(v);

	return ((e - 1) << 2) + (unsigned)((v >> (e - 2)) & 3);
}

static void put(uint64_t *word, uint64_t v) { __atomic_store_n(word, v, __ATOMIC_RELAXED); }

static void wire_to_ring(struct na_feed *f, uint64_t ns)
{
	if (!f->stats)
		return;
	uint64_t *count = &f->stats->wire_to_ring_counts[bucket_of(ns)];

	put(count, *count + 1);
	put(&f->stats->wire_to_ring_total_ns, f->stats->wire_to_ring_total_ns + ns);
	if (ns > f->wire_max_ns) {
		f->wire_max_ns = ns;
		put(&f->stats->wire_to_ring_max_ns, ns);
	}
}

static void show(struct na_feed *f)
{
	const struct na_feed_counts *c = &f->counts;
	struct na_feed_stats *s = f->stats;

	__atomic_store_n(&f->copied, f->copied + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	const uint64_t *from = (const uint64_t *)c;
	uint64_t *to = (uint64_t *)&f->shown;
	for (size_t i = 0; i < sizeof(*c) / 8; i++)
		put(to + i, from[i]);
	__atomic_store_n(&f->copied, f->copied + 1, __ATOMIC_RELEASE);
	if (!s)
		return;
	uint64_t dropped = 0, packets;
	for (uint32_t i = 0; i < f->sockets; i++)
		if (na_socket_dropped(f->socket[i].fd, &packets) == 0)
			dropped += packets;
	put(&s->packets, c->packets);
	put(&s->bytes, c->bytes);
	put(&s->messages, c->published);
	put(&s->duplicates, c->duplicates);
	put(&s->rejected, c->rejected);
	put(&s->kernel_drops, c->gap_kernel);
	put(&s->kernel_drop_packets, dropped);
	put(&s->decoder_drops, c->rejected);
	put(&s->filtered, c->filtered);
	put(&s->wire_gap, c->gap_wire);
	put(&s->last_message_ns, c->last_rx_ns);
	put(&s->late, c->late);
	put(&s->gaps, c->gaps);
	put(&s->span, c->span);
	uint64_t bad_packets = 0;
	for (int i = NA_BAD_SHORT_HEADER; i < NA_BAD_KINDS; i++)
		bad_packets += c->bad[i];
	put(&s->bad_packets, bad_packets);
}

static void housekeeping(struct na_feed *f, uint64_t now)
{
	f->housekept_ns = now;
	if (f->sink.ticks)
		na_ring_heartbeat(f->sink.ticks, now);
	if (f->sink.frames)
		na_ring_heartbeat(f->sink.frames, now);
	/* Read between two reads of the other: an interrupt in between would shift every stamp. */
	uint64_t real = clock_ns(CLOCK_REALTIME), after = clock_ns(CLOCK_MONOTONIC);
	if (after - now < 50000 || !f->to_monotonic)
		f->to_monotonic = (int64_t)(now + (after - now) / 2) - (int64_t)real;
	show(f);
}

static void flush(struct na_feed *f)
{
	if (f->sink.frames)
		na_ring_flush(f->sink.frames);
	if (f->sink.ticks)
		na_ring_flush(f->sink.ticks);
}

void na_feed_read(struct na_feed *f, struct na_feed_counts *out)
{
	uint64_t before, after;

	do {
		before = __atomic_load_n(&f->copied, __ATOMIC_ACQUIRE);
		const uint64_t *from = (const uint64_t *)&f->shown;
		uint64_t *to = (uint64_t *)out;
		for (size_t i = 0; i < sizeof(*out) / 8; i++)
			to[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		after = __atomic_load_n(&f->copied, __ATOMIC_RELAXED);
	} while (before != after || (before & 1));
}

void na_feed_error(const struct na_feed *f, struct na_capture_error *out) { *out = f->capture.error; }

void na_feed_stop(struct na_feed *f)
{
	uint64_t one = 1;

	__atomic_store_n(&f->stop, 1, __ATOMIC_RELEASE);
	if (write(f->wake, &one, sizeof(one)) < 0)
		return; /* the counter is full: it is readable all the same */
}

/* ---- socket ---- */

static void sleep_on(struct na_feed *f, int with_sockets, int ms)
{
	struct pollfd p[3] = {{.fd = f->wake, .events = POLLIN}};
	nfds_t n = 1;

	for (uint32_t i = 0; with_sockets && i < f->sockets; i++)
		p[n++] = (struct pollfd){.fd = f->socket[i].fd, .events = POLLIN};
	poll(p, n, ms);
}

static int run_socket(struct na_feed *f)
{
	struct na_packet packet;
	/* One line waits inside recvmmsg: a poll before it costs 4 us a packet when packets are rare. */
	int inside = f->sockets == 1 && !f->config.busy && na_socket_wait_inside(&f->socket[0], POLL_MS) == 0;

	while (!stopping(f)) {
		int more = 0, any = 0;

		for (uint32_t line = 0; line < f->sockets; line++) {
			struct na_socket *s = &f->socket[line];
			int n = na_socket_receive(s, inside);

			if (n == -EAGAIN || n == -EINTR)
				continue;
			/* A queued ICMP error or a link that went down is said once, then receiving goes on. */
			if (n == -ECONNREFUSED || n == -ENETDOWN)
				continue;
			if (n < 0)
				return n;
			uint64_t now = clock_ns(CLOCK_MONOTONIC), first = now;

			if (!f->to_monotonic)
				housekeeping(f, now);
			for (int i = 0; i < n; i++)
				if (na_socket_packet(s, i, now, f->to_monotonic, &f->counts, &packet)) {
					if (i == 0)
						first = packet.rx_ns;
					na_mold_packet(&f->mold, &packet);
				}
			if (n) {
				flush(f);
				wire_to_ring(f, clock_ns(CLOCK_MONOTONIC) - first);
			}
			any |= n > 0;
			more |= n == NA_SOCKET_BATCH;
		}
		if (!inside && !more && !f->config.busy)
			sleep_on(f, 1, POLL_MS);
		else if (!inside && !any)
			relax();
		uint64_t now = clock_ns(CLOCK_MONOTONIC);
		if (now - f->housekept_ns >= HOUSEKEEPING_NS) {
			na_mold_idle(&f->mold, now);
			flush(f);
			housekeeping(f, now);
		}
	}
	return NA_FEED_STOPPED;
}

/* ---- capture ---- */

static void pace(struct na_feed *f, uint64_t start_ns)
{
	while (f->config.rate && !stopping(f)) {
		uint64_t now = clock_ns(CLOCK_MONOTONIC);
		double due = (double)f->counts.span / (double)f->config.rate * 1e9 - (double)(now - start_ns);

		if (now - f->housekept_ns >= HOUSEKEEPING_NS)
			housekeeping(f, now);
		if (due <= 0)
			return;
		struct timespec t = {.tv_nsec = due > 1e6 ? 1000000 : (long)due};

		nanosleep(&t, NULL);
	}
}

static int one_packet(struct na_feed *f, uint64_t now)
{
	struct na_packet packet = {.drops = 0};
	int rc = na_capture_packet(&f->capture, &packet);

	if (rc == 1) {
		packet.rx_ns = now;
		packet.drops = 0;
		f->mold.lines = f->capture.lines; /* one more may have been found */
		na_mold_packet(&f->mold, &packet);
	}
	return rc;
}

static int some_blocks(struct na_feed *f, uint64_t now)
{
	struct na_packet packet = {.rx_ns = now, .vlan = NA_FRAME_NO_VLAN};
	const uint8_t *p, *end;
	uint32_t n;
	int cut, rc = na_capture_blocks(&f->capture, &p, &end, &n);

	if (rc != 1)
		return rc;
	f->counts.packets += n;
	f->counts.bytes += (uint64_t)(end - p);
	f->counts.span += f->messages.blocks(&f->messages, &p, end, n, &packet, &cut);
	f->counts.next_seq = f->counts.first_seq + f->counts.span;
	f->counts.last_rx_ns = now;
	return rc;
}

static int run_capture(struct na_feed *f)
{
	int rc = na_capture_begin(&f->capture);
	int packets = f->capture.format == NA_FORMAT_PCAP || f->capture.format == NA_FORMAT_PCAPNG;
	uint64_t start = clock_ns(CLOCK_MONOTONIC);

	rc = rc ? rc : 1;
	if (!packets)
		f->counts.first_seq = f->counts.next_seq = f->config.first_seq ? f->config.first_seq : 1;
	while (rc == 1 && !stopping(f)) {
		uint64_t now = clock_ns(CLOCK_MONOTONIC);

		for (int i = 0; i < (packets ? CAPTURE_BURST : 1) && rc == 1; i++) {
			rc = packets ? one_packet(f, now) : some_blocks(f, now);
			if (f->config.rate)
				break;
		}
		flush(f);
		if (now - f->housekept_ns >= HOUSEKEEPING_NS)
			housekeeping(f, now);
		if (f->config.rate)
			pace(f, start);
	}
	na_mold_flush(&f->mold);
	flush(f);
	housekeeping(f, clock_ns(CLOCK_MONOTONIC));
	while (f->config.linger && !stopping(f)) {
		sleep_on(f, 0, POLL_MS);
		housekeeping(f, clock_ns(CLOCK_MONOTONIC));
	}
	if (rc == -ECANCELED)
		return NA_FEED_STOPPED;
	return rc < 0 ? rc : rc == 0 ? NA_FEED_ENDED : NA_FEED_STOPPED;
}

int na_feed_run(struct na_feed *f)
{
	housekeeping(f, clock_ns(CLOCK_MONOTONIC));
	int rc = f->config.source == NA_SOURCE_SOCKET ? run_socket(f) : run_capture(f);

	show(f);
	return rc;
}

/* ---- made and unmade ---- */

void na_feed_free(struct na_feed *f)
{
	if (!f)
		return;
	na_mold_deinit(&f->mold);
	na_capture_deinit(&f->capture);
	for (uint32_t i = 0; i < f->sockets; i++)
		na_socket_deinit(&f->socket[i]);
	if (f->wake >= 0)
		close(f->wake);
	free(f);
}

int na_feed_new(const struct na_feed_config *config, struct na_ring *ticks, struct na_ring *frames,
		struct na_memory *memory, struct na_feed_stats *stats, struct na_feed **out)
{
	struct na_feed *f = calloc(1, sizeof(*f));
	int capture = config->source == NA_SOURCE_CAPTURE, rc;

	*out = f;
	if (!f)
		return -ENOMEM;
	f->config = *config;
	f->sink = (struct na_sink){.ticks = ticks, .frames = frames, .memory = memory};
	f->stats = stats;
	f->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (f->wake < 0)
		return -errno;
	na_messages_init(&f->messages, na_itch50_blocks, &f->sink, &f->counts);
	/* The order in a capture is what was on the wire: only its end gives a silent line up. */
	rc = na_mold_init(&f->mold, &f->messages, &f->counts, config->lines, config->first_seq,
			  capture ? UINT64_MAX : config->wait_ns);
	if (rc)
		return rc;
	if (capture) {
		struct stat st;

		rc = na_capture_init(&f->capture, config->fds[0], config->format, &f->counts);
		if (rc)
			return rc;
		f->capture.wake = f->wake;
		f->capture.verify = config->verify_checksums;
		f->capture.learn = config->lines == 0;
		f->capture.lines = config->lines < 2 ? config->lines : 2;
		memcpy(f->capture.line, config->line, sizeof(f->capture.line));
		/* What is no capture is said at once where it can be: a pipe may have nothing to say yet. */
		return fstat(config->fds[0], &st) == 0 && S_ISREG(st.st_mode) ? na_capture_begin(&f->capture) : 0;
	}
	for (uint32_t i = 0; i < config->lines && i < 2; i++) {
		f->sockets = i + 1;
		rc = na_socket_init(&f->socket[i], config->fds[i], i, &config->line[i], config->kernel_stamps);
		if (rc)
			return rc;
	}
	return 0;
}

int na_feed_decode_blocks(const void *bytes, size_t size, struct na_memory *memory, struct na_ring *ring,
			  uint32_t per_packet, struct na_feed_counts *out)
{
	struct na_sink sink = {.ticks = ring, .memory = memory};
	struct na_messages messages;
	struct na_packet packet = {.vlan = NA_FRAME_NO_VLAN};
	const uint8_t *p = bytes, *end = p + size;
	int cut = 0;

	memset(out, 0, sizeof(*out));
	na_messages_init(&messages, na_itch50_blocks, &sink, out);
	while (p < end && !cut) {
		out->span += messages.blocks(&messages, &p, end, per_packet, &packet, &cut);
		if (end - p < 2)
			break;
	}
	return cut ? -ENODATA : 0;
}
