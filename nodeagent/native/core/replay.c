/* SPDX-License-Identifier: Apache-2.0
 * Sends a recorded feed as MoldUDP64: sequence numbers are its own, so that going round again is no
 * duplicate. Paced against an absolute schedule: sleeping too long is made up by the next batch.
 *
 * Source: "MoldUDP64 Protocol Specification" V 1.00; sendmmsg(2), ip(7). */
#include "replay_abi.h"
#include "source_capture.h"
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64
#define HEADER 20
#define DEFAULT_PER_PACKET 16
#define SLIP_NS 100000000ULL   /* further behind than this, the schedule moves */
#define QUIET_NS 1000000000ULL /* then a heartbeat goes out */
#define END_GAP_NS 10000000L

struct packet {
	uint64_t offset;
	uint32_t bytes, messages;
};

struct na_replay {
	uint8_t *blocks; /* all messages, each with its two-byte length */
	uint64_t bytes, room, messages;
	struct packet *packets; /* as recorded */
	uint64_t packet_count, packet_room;
	int framed; /* the capture had packets */
	uint32_t stop;
};

/* ---- reading ---- */

static int append(struct na_replay *r, const uint8_t *p, uint64_t n, uint32_t messages)
{
	if (r->bytes + n > NA_REPLAY_MAX_BYTES)
		return -EFBIG;
	if (r->bytes + n > r->room) {
		uint64_t room = (r->room + n) * 2 + 4096;
		uint8_t *more = realloc(r->blocks, room);

		if (!more)
			return -ENOMEM;
		r->blocks = more;
		r->room = room;
	}
	if (r->packet_count == r->packet_room) {
		uint64_t room = r->packet_room * 2 + 64;
		struct packet *more = realloc(r->packets, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		r->packets = more;
		r->packet_room = room;
	}
	memcpy(r->blocks + r->bytes, p, n);
	r->packets[r->packet_count++] = (struct packet){.offset = r->bytes, .bytes = (uint32_t)n, .messages = messages};
	r->bytes += n;
	r->messages += messages;
	return 0;
}

static int read_packets(struct na_replay *r, struct na_capture *c)
{
	struct na_packet packet;
	uint8_t session[10] = {0};
	uint64_t next = 0;
	int rc;

	while ((rc = na_capture_packet(c, &packet)) == 1) {
		if (packet.len < HEADER)
			continue;
		uint64_t seq = na_be64(packet.data + 10);
		uint32_t count = na_be16(packet.data + 18), whole = 0;
		const uint8_t *p = packet.data + HEADER, *end = packet.data + packet.len;

		if (count == 0 || count == 0xffff)
			continue;
		/* The other line's copy is not sent twice. */
		if (memcmp(session, packet.data, 10) == 0 && seq < next)
			continue;
		while (whole < count && end - p >= 2 && end - p - 2 >= na_be16(p)) {
			p += 2 + na_be16(p);
			whole++;
		}
		if (!whole)
			continue;
		memcpy(session, packet.data, 10);
		next = seq + whole;
		rc = append(r, packet.data + HEADER, (uint64_t)(p - packet.data) - HEADER, whole);
		if (rc)
			return rc;
	}
	return rc;
}

static int read_blocks(struct na_replay *r, struct na_capture *c)
{
	const uint8_t *p, *end;
	uint32_t n;
	int rc;

	while ((rc = na_capture_blocks(c, &p, &end, &n)) == 1)
		for (; n; n--) {
			uint64_t size = 2u + na_be16(p);

			rc = append(r, p, size, 1);
			if (rc)
				return rc;
			p += size;
		}
	return rc;
}

int na_replay_new(int fd, uint32_t format, struct na_replay **out, struct na_capture_error *error)
{
	struct na_replay *r = calloc(1, sizeof(*r));
	struct na_feed_counts counts;
	struct na_capture c;

	*out = r;
	memset(error, 0, sizeof(*error));
	memset(&counts, 0, sizeof(counts));
	if (!r)
		return -ENOMEM;
	int rc = na_capture_init(&c, fd, format, &counts);

	if (rc == 0)
		rc = na_capture_begin(&c);

	if (rc == 0) {
		c.learn = 1;
		r->framed = c.format == NA_FORMAT_PCAP || c.format == NA_FORMAT_PCAPNG;
		rc = r->framed ? read_packets(r, &c) : read_blocks(r, &c);
	}
	*error = c.error;
	na_capture_deinit(&c);
	if (rc == 0 && r->messages == 0)
		rc = -ENODATA;
	return rc;
}

void na_replay_free(struct na_replay *r)
{
	if (!r)
		return;
	free(r->blocks);
	free(r->packets);
	free(r);
}

/* ---- cutting into packets ---- */

static uint32_t bytes_of(const struct na_replay *r, uint64_t offset, uint32_t messages)
{
	uint64_t at = offset;

	for (; messages; messages--)
		at += 2u + na_be16(r->blocks + at);
	return (uint32_t)(at - offset);
}

/* The packet that begins at message `at` bytes into the blocks. */
static struct packet cut(const struct na_replay *r, uint32_t per_packet, uint64_t offset)
{
	struct packet p = {.offset = offset};

	while (p.messages < per_packet && offset + p.bytes < r->bytes) {
		uint32_t size = 2u + na_be16(r->blocks + offset + p.bytes);

		if (p.messages && p.bytes + size > NA_REPLAY_MAX_PACKET - HEADER)
			break;
		p.bytes += size;
		p.messages++;
	}
	return p;
}

static uint32_t packing(const struct na_replay *r, uint32_t per_packet)
{
	return per_packet || r->framed ? per_packet : DEFAULT_PER_PACKET;
}

void na_replay_size(const struct na_replay *r, uint32_t per_packet, uint64_t *messages, uint64_t *packets)
{
	*messages = r->messages;
	*packets = 0;
	per_packet = packing(r, per_packet);
	if (!per_packet)
		*packets = r->packet_count;
	for (uint64_t at = 0; per_packet && at < r->bytes; (*packets)++)
		at += cut(r, per_packet, at).bytes;
}

/* ---- sending ---- */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void put16(uint8_t *p, uint16_t v)
{
	v = __builtin_bswap16(v);
	memcpy(p, &v, 2);
}

static void put64(uint8_t *p, uint64_t v)
{
	v = __builtin_bswap64(v);
	memcpy(p, &v, 8);
}

static void header(uint8_t *h, const struct na_replay_config *config, uint64_t seq, uint16_t count)
{
	memcpy(h, config->session, 10);
	put64(h + 10, seq);
	put16(h + 18, count);
}

static int stopped(struct na_replay *r) { return __atomic_load_n(&r->stop, __ATOMIC_ACQUIRE) != 0; }

void na_replay_stop(struct na_replay *r) { __atomic_store_n(&r->stop, 1, __ATOMIC_RELEASE); }

static int send_all(int fd, struct mmsghdr *m, unsigned n)
{
	while (n) {
		int rc = sendmmsg(fd, m, n, 0);

		if (rc < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
			struct pollfd p = {.fd = fd, .events = POLLOUT};

			poll(&p, 1, 1);
			continue;
		}
		/* Nobody listens on a unicast port: said once by ICMP, no reason to stop. */
		if (rc < 0 && (errno == EINTR || errno == ECONNREFUSED))
			continue;
		if (rc < 0)
			return -errno;
		m += rc;
		n -= (unsigned)rc;
	}
	return 0;
}

static int control(const struct na_replay_config *config, uint64_t seq, uint16_t count)
{
	uint8_t h[HEADER];
	struct iovec v = {.iov_base = h, .iov_len = HEADER};
	struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};

	header(h, config, seq, count);
	for (uint32_t line = 0; line < config->lines; line++) {
		int rc = send_all(config->fds[line], &m, 1);

		if (rc)
			return rc;
	}
	return 0;
}

struct cursor {
	uint64_t offset, packet; /* in the blocks; in the recorded packets */
};

static struct packet next_packet(struct na_replay *r, const struct na_replay_config *config, struct cursor *at,
				 uint64_t *loops)
{
	uint32_t per_packet = packing(r, config->per_packet);
	struct packet p = per_packet ? cut(r, per_packet, at->offset) : r->packets[at->packet];

	at->offset += p.bytes;
	at->packet++;
	if (at->offset >= r->bytes) {
		*at = (struct cursor){0};
		(*loops)++;
	}
	return p;
}

static void sleep_until(uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000ULL), .tv_nsec = (long)(ns % 1000000000ULL)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static int finished(const struct na_replay_config *config, const struct na_replay_counts *c)
{
	return config->count ? c->messages >= config->count : config->loops && c->loops >= config->loops;
}

int na_replay_run(struct na_replay *r, const struct na_replay_config *config, struct na_replay_counts *c)
{
	static __thread uint8_t headers[BATCH][HEADER];
	struct iovec vectors[BATCH][2];
	struct mmsghdr all[BATCH], some[BATCH];
	struct cursor at = {0};
	uint64_t start = now_ns(), schedule = start, quiet = start, index = 0;
	int rc = 0;

	memset(c, 0, sizeof(*c));
	memset(all, 0, sizeof(all));
	c->first_seq = config->first_seq;
	/* Wake when asked, not 50 us later. */
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	while (rc == 0 && !stopped(r) && !finished(config, c)) {
		uint64_t now = now_ns(), allowed = UINT64_MAX, before = c->messages;
		unsigned n = 0;

		if (config->rate) {
			uint64_t behind;

			allowed = (uint64_t)((double)(now - schedule) * (double)config->rate / 1e9) + 1;
			behind = allowed > before ? allowed - before : 0;
			if ((double)behind > (double)config->rate * (SLIP_NS / 1e9) + BATCH * 64.0) {
				schedule = now - (uint64_t)((double)before / (double)config->rate * 1e9);
				c->slipped++;
				continue;
			}
		}
		struct { int a, b; uint32_t messages; } out[BATCH];
		while (n < BATCH && c->messages < allowed && !finished(config, c)) {
			struct packet p = next_packet(r, config, &at, &c->loops);

			if (config->count && p.messages > config->count - c->messages) {
				p.messages = (uint32_t)(config->count - c->messages);
				p.bytes = bytes_of(r, p.offset, p.messages);
			}
			header(headers[n], config, config->first_seq + c->messages, (uint16_t)p.messages);
			vectors[n][0] = (struct iovec){.iov_base = headers[n], .iov_len = HEADER};
			vectors[n][1] = (struct iovec){.iov_base = r->blocks + p.offset, .iov_len = p.bytes};
			all[n].msg_hdr.msg_iov = vectors[n];
			all[n].msg_hdr.msg_iovlen = 2;
			index++;
			out[n].a = !config->drop_every[0] || index % config->drop_every[0];
			out[n].b = config->lines > 1 && (!config->drop_every[1] || index % config->drop_every[1]);
			out[n].messages = p.messages;
			if (!out[n].a && !out[n].b)
				c->withheld += p.messages;
			c->messages += p.messages;
			n++;
		}
		for (uint32_t line = 0; line < config->lines && rc == 0; line++) {
			unsigned k = 0;

			for (unsigned i = 0; i < n; i++)
				if (line ? out[i].b : out[i].a)
					some[k++] = all[i];
			rc = send_all(config->fds[line], some, k);
			c->packets += k;
		}
		if (n) {
			quiet = now;
			continue;
		}
		/* Ahead of the schedule: until the next message is due, or a heartbeat. */
		uint64_t due = schedule + (uint64_t)((double)c->messages / (double)config->rate * 1e9) + 1;
		if (due > now + QUIET_NS / 10)
			due = now + QUIET_NS / 10; /* look at `stop` */
		sleep_until(due);
		if (now - quiet >= QUIET_NS) {
			rc = control(config, config->first_seq + c->messages, 0);
			c->heartbeats++;
			quiet = now;
		}
	}
	c->elapsed_ns = now_ns() - start;
	c->last_seq = config->first_seq + c->messages - 1;
	/* Several: a receiver that lost the last packets must learn of it. */
	for (uint32_t i = 0; rc == 0 && i < config->end_packets; i++) {
		rc = control(config, config->first_seq + c->messages, 0xffff);
		if (i + 1 < config->end_packets)
			sleep_until(now_ns() + END_GAP_NS);
	}
	return rc;
}

int na_replay_open(const struct na_feed_line *l, int ttl, int *fd, char *why, size_t why_bytes)
{
	int v4 = l->family == 4, on = 1, index = (int)l->ifindex, size = 4 << 20, rc;
	struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons(l->port)};
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons(l->port),
				  .sin6_scope_id = l->ifindex};
	struct ip_mreqn m = {.imr_ifindex = index};

	memcpy(&a4.sin_addr, l->group, 4);
	memcpy(&a6.sin6_addr, l->group, 16);
	memcpy(&m.imr_address, l->interface_address, 4);
	*fd = socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (*fd < 0) {
		snprintf(why, why_bytes, "socket: %s", strerror(errno));
		return -errno;
	}
	setsockopt(*fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	rc = v4 ? setsockopt(*fd, IPPROTO_IP, IP_MULTICAST_IF, &m, sizeof(m))
		: setsockopt(*fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof(index));
	if (rc == 0)
		rc = v4 ? setsockopt(*fd, IPPROTO_IP, IP_MULTICAST_TTL, &ttl, sizeof(ttl))
			: setsockopt(*fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &ttl, sizeof(ttl));
	if (rc == 0)
		rc = v4 ? setsockopt(*fd, IPPROTO_IP, IP_MULTICAST_LOOP, &on, sizeof(on))
			: setsockopt(*fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, &on, sizeof(on));
	if (rc == 0)
		rc = connect(*fd, v4 ? (struct sockaddr *)&a4 : (struct sockaddr *)&a6, v4 ? sizeof(a4) : sizeof(a6));
	if (rc < 0) {
		rc = -errno;
		snprintf(why, why_bytes, "opening the line: %s", strerror(errno));
		close(*fd);
		*fd = -1;
		return rc;
	}
	return 0;
}
