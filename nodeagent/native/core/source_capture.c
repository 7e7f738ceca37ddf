/* SPDX-License-Identifier: Apache-2.0
 * pcap, pcapng, BinaryFILE and SoupBinTCP, read as a stream with one bounded buffer.
 *
 * Source: draft-ietf-opsawg-pcap (pcap), draft-ietf-opsawg-pcapng (sections 3.1, 4.1 to 4.4),
 * "BinaryFILE" 1.00 and "SoupBinTCP" 4.1 (sections 2.2, 2.3) of Nasdaq. RFC 791, 8200, 768. */
#include "source_capture.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

_Static_assert(NA_CAPTURE_BUFFER >= NA_CAPTURE_SNAP + 4096 + 16, "a packet's block fits");
_Static_assert(NA_CAPTURE_BUFFER >= 2 + 65535, "a length-framed record fits");

enum {
	LINK_NULL = 0, LINK_ETHERNET = 1, LINK_RAW = 101, LINK_LOOP = 108, LINK_SLL = 113, LINK_IPV4 = 228,
	LINK_IPV6 = 229, LINK_SLL2 = 276,
};

/* ---- bytes ---- */

static int fail(struct na_capture *c, uint32_t kind, uint64_t said, uint64_t found)
{
	c->error.kind = kind;
	c->error.record = c->records;
	c->error.offset = c->offset;
	c->error.said = said;
	c->error.found = found;
	return kind == NA_CAPTURE_IO ? -EIO : kind == NA_CAPTURE_CUT ? -ENODATA : -EINVAL;
}

/* At least n bytes at c->at. 1: there; 0: the file ended before (c->have - c->at are left); -EIO;
 * -ECANCELED. */
static int fill(struct na_capture *c, size_t n)
{
	while (c->have - c->at < n) {
		if (c->ended)
			return 0;
		if (c->at) {
			memmove(c->buffer, c->buffer + c->at, c->have - c->at);
			c->have -= c->at;
			c->at = 0;
		}
		/* A regular file is always readable; a pipe may keep us waiting, but not for ever. */
		struct pollfd p[2] = {{.fd = c->fd, .events = POLLIN}, {.fd = c->wake, .events = POLLIN}};

		if (poll(p, 2, -1) > 0 && (p[1].revents & POLLIN))
			return -ECANCELED;
		ssize_t got = read(c->fd, c->buffer + c->have, NA_CAPTURE_BUFFER - c->have);

		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got < 0) {
			c->error.err = errno;
			return fail(c, NA_CAPTURE_IO, n, c->have - c->at);
		}
		if (got == 0)
			c->ended = 1;
		c->have += (size_t)got;
	}
	return 1;
}

static void take(struct na_capture *c, size_t n)
{
	c->at += n;
	c->offset += n;
}

/* Passes over n bytes that need not fit into the buffer. 1, 0, -EIO as fill(). */
static int pass(struct na_capture *c, uint64_t n)
{
	while (n) {
		size_t here = c->have - c->at;
		int rc;

		if (here > n)
			here = (size_t)n;
		take(c, here);
		n -= here;
		if (n && (rc = fill(c, 1)) <= 0)
			return rc;
	}
	return 1;
}

static uint32_t u32(const struct na_capture *c, const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, 4);
	return c->swapped ? __builtin_bswap32(v) : v;
}

static uint16_t u16(const struct na_capture *c, const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, 2);
	return c->swapped ? __builtin_bswap16(v) : v;
}

/* ---- which format ---- */

static int link_known(uint32_t link)
{
	switch (link) {
	case LINK_NULL: case LINK_ETHERNET: case LINK_RAW: case LINK_LOOP: case LINK_SLL:
	case LINK_IPV4: case LINK_IPV6: case LINK_SLL2:
		return 1;
	}
	return 0;
}

/* SoupBinTCP 4.1, 2.2.1 to 2.2.3: packets a server sends. */
static int soup_type(uint8_t type)
{
	return type == 'S' || type == 'U' || type == '+' || type == 'H' || type == 'A' || type == 'J' ||
	       type == 'Z';
}

static uint32_t guess(const uint8_t *p, size_t n)
{
	static const uint8_t pcap[4][4] = {
		{0xa1, 0xb2, 0xc3, 0xd4}, {0xd4, 0xc3, 0xb2, 0xa1}, {0xa1, 0xb2, 0x3c, 0x4d}, {0x4d, 0x3c, 0xb2, 0xa1},
	};

	if (n >= 4) {
		for (int i = 0; i < 4; i++)
			if (memcmp(p, pcap[i], 4) == 0)
				return NA_FORMAT_PCAP;
		if (na_be32(p) == 0x0a0d0d0a)
			return NA_FORMAT_PCAPNG;
	}
	if (n >= 3 && na_itch50_length(p[2]) == na_be16(p))
		return NA_FORMAT_BINARYFILE;
	if (n >= 3 && soup_type(p[2]) && na_be16(p) >= 1) {
		if (p[2] != 'S' && p[2] != 'U')
			return NA_FORMAT_SOUP;
		if (n >= 4 && na_itch50_length(p[3]) + 1 == na_be16(p))
			return NA_FORMAT_SOUP;
	}
	return NA_FORMAT_AUTO;
}

int na_capture_init(struct na_capture *c, int fd, uint32_t format, struct na_feed_counts *counts)
{
	memset(c, 0, sizeof(*c));
	c->fd = fd;
	c->wake = -1;
	c->format = format;
	c->counts = counts;
	c->soup_seq = 1;
	c->buffer = malloc(NA_CAPTURE_BUFFER);
	return c->buffer ? 0 : -ENOMEM;
}

int na_capture_begin(struct na_capture *c)
{
	if (c->begun)
		return 0;
	int rc = fill(c, 24);

	if (rc < 0)
		return rc;
	size_t n = c->have - c->at;
	uint32_t seen = guess(c->buffer, n);

	c->begun = 1;
	c->format = c->format ? c->format : seen;
	if (n == 0 && (c->format == NA_FORMAT_BINARYFILE || c->format == NA_FORMAT_SOUP))
		return 0;
	memcpy(c->error.head, c->buffer, n < 16 ? n : 16);
	if (!c->format || ((c->format == NA_FORMAT_PCAP || c->format == NA_FORMAT_PCAPNG) && c->format != seen))
		return fail(c, NA_CAPTURE_UNKNOWN, 0, n);
	if (c->format == NA_FORMAT_PCAP) {
		if (n < 24)
			return fail(c, NA_CAPTURE_CUT, 24, n);
		c->swapped = c->buffer[0] == 0xa1; /* this machine is little-endian: asserted below */
		/* The upper bits hold the FCS length (draft-ietf-opsawg-pcap, section 4). */
		c->link_type = u32(c, c->buffer + 20) & 0xffff;
		if (!link_known(c->link_type))
			return fail(c, NA_CAPTURE_LINK, c->link_type, 0);
		take(c, 24);
	}
	return 0;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "captures are told apart by their first byte");

void na_capture_deinit(struct na_capture *c)
{
	free(c->buffer);
	c->buffer = NULL;
}

/* ---- link, network and transport layer ---- */

static uint32_t sum16(const uint8_t *p, uint32_t n, uint32_t sum)
{
	for (; n > 1; p += 2, n -= 2)
		sum += na_be16(p);
	return n ? sum + ((uint32_t)*p << 8) : sum;
}

static int sum_ok(uint32_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

static int bad(struct na_feed_counts *counts, int kind)
{
	counts->bad[kind]++;
	return 0;
}

static int udp(const uint8_t *p, uint32_t n, uint32_t pseudo, int verify, struct na_feed_counts *counts,
	       struct na_packet *packet)
{
	if (n < 8)
		return bad(counts, NA_BAD_IP_HEADER);
	uint32_t length = na_be16(p + 4);

	if (length < 8 || length > n)
		return bad(counts, NA_BAD_IP_HEADER);
	/* 0 is no checksum over IPv4; over IPv6 it is not allowed (RFC 8200, 8.1) but tunnels send it. */
	if (verify && na_be16(p + 6) && !sum_ok(sum16(p, length, pseudo + 17 + length)))
		return bad(counts, NA_BAD_CHECKSUM);
	packet->src_port = na_be16(p);
	packet->dst_port = na_be16(p + 2);
	packet->data = p + 8;
	packet->len = length - 8;
	return 1;
}

static int ipv4(const uint8_t *p, uint32_t n, int verify, struct na_feed_counts *counts,
		struct na_packet *packet)
{
	if (n < 20 || p[0] >> 4 != 4)
		return bad(counts, NA_BAD_IP_HEADER);
	uint32_t header = (p[0] & 15u) * 4, total = na_be16(p + 2);

	/* Total length 0: segmentation offload; then the frame's own length stands. */
	if (total == 0)
		total = n;
	if (header < 20 || total < header || total > n)
		return bad(counts, NA_BAD_IP_HEADER);
	if (verify && !sum_ok(sum16(p, header, 0)))
		return bad(counts, NA_BAD_CHECKSUM);
	if (na_be16(p + 6) & 0x3fff) /* more fragments, or an offset */
		return bad(counts, NA_BAD_FRAGMENT);
	if (p[9] != 17) {
		counts->filtered++;
		return 0;
	}
	packet->family = 4;
	memset(packet->src, 0, sizeof(packet->src));
	memset(packet->dst, 0, sizeof(packet->dst));
	memcpy(packet->src, p + 12, 4);
	memcpy(packet->dst, p + 16, 4);
	return udp(p + header, total - header, sum16(p + 12, 8, 0), verify, counts, packet);
}

static int ipv6(const uint8_t *p, uint32_t n, int verify, struct na_feed_counts *counts,
		struct na_packet *packet)
{
	if (n < 40 || p[0] >> 4 != 6)
		return bad(counts, NA_BAD_IP_HEADER);
	uint32_t total = 40u + na_be16(p + 4), at = 40;
	uint8_t next = p[6];

	if (total > n)
		return bad(counts, NA_BAD_IP_HEADER);
	/* Hop-by-hop, routing and destination options may stand before UDP; at most eight of them. */
	for (int i = 0; i < 8 && (next == 0 || next == 43 || next == 60); i++) {
		if (total - at < 8)
			return bad(counts, NA_BAD_IP_HEADER);
		uint32_t size = (p[at + 1] + 1u) * 8;

		if (total - at < size)
			return bad(counts, NA_BAD_IP_HEADER);
		next = p[at];
		at += size;
	}
	if (next == 44)
		return bad(counts, NA_BAD_FRAGMENT);
	if (next != 17) {
		counts->filtered++;
		return 0;
	}
	packet->family = 6;
	memcpy(packet->src, p + 8, 16);
	memcpy(packet->dst, p + 24, 16);
	return udp(p + at, total - at, sum16(p + 8, 32, 0), verify, counts, packet);
}

int na_frame_parse(const uint8_t *frame, uint32_t captured, uint32_t original, uint32_t link_type,
		   int verify, struct na_feed_counts *counts, struct na_packet *packet)
{
	const uint8_t *p = frame, *end = frame + captured;
	uint32_t type = 0;

	packet->vlan = NA_FRAME_NO_VLAN;
	if (captured < original)
		return bad(counts, NA_BAD_SNAPPED);
	switch (link_type) {
	case LINK_ETHERNET:
		if (captured < 14)
			return bad(counts, NA_BAD_NOT_IP);
		type = na_be16(p + 12);
		p += 14;
		/* 802.1Q and 802.1ad, at most two; the inner one is the frame's VLAN. */
		for (int i = 0; i < 2 && (type == 0x8100 || type == 0x88a8 || type == 0x9100); i++) {
			if (end - p < 4)
				return bad(counts, NA_BAD_NOT_IP);
			packet->vlan = na_be16(p) & 0xfff;
			type = na_be16(p + 2);
			p += 4;
		}
		break;
	case LINK_SLL:
		if (captured < 16)
			return bad(counts, NA_BAD_NOT_IP);
		type = na_be16(p + 14);
		p += 16;
		break;
	case LINK_SLL2:
		if (captured < 20)
			return bad(counts, NA_BAD_NOT_IP);
		type = na_be16(p);
		p += 20;
		break;
	case LINK_NULL: /* the family in the byte order of whoever captured: the version says it too */
	case LINK_LOOP:
		if (captured < 4)
			return bad(counts, NA_BAD_NOT_IP);
		p += 4;
		break;
	}
	if (!type && end - p >= 1)
		type = *p >> 4 == 4 ? 0x0800 : *p >> 4 == 6 ? 0x86dd : 0;
	if (type == 0x0800)
		return ipv4(p, (uint32_t)(end - p), verify, counts, packet);
	if (type == 0x86dd)
		return ipv6(p, (uint32_t)(end - p), verify, counts, packet);
	return bad(counts, NA_BAD_NOT_IP);
}

/* ---- whose packet ---- */

static int same_line(const struct na_feed_line *l, const struct na_packet *packet)
{
	return l->family == packet->family && l->port == packet->dst_port &&
	       memcmp(l->group, packet->dst, 16) == 0;
}

/* Without a filter: the first two destinations whose payload has the shape of MoldUDP64. */
static int speaks_mold(const struct na_packet *packet)
{
	const uint8_t *p = packet->data + 20, *end = packet->data + packet->len;

	if (packet->len < 20)
		return 0;
	uint32_t n = na_be16(packet->data + 18);

	if (n == 0 || n == 0xffff)
		return p == end;
	for (; n; n--) {
		if (end - p < 2 || end - p - 2 < na_be16(p))
			return 0;
		p += 2 + na_be16(p);
	}
	return p == end;
}

static int line_of(struct na_capture *c, struct na_packet *packet)
{
	for (uint32_t i = 0; i < c->lines; i++)
		if (same_line(&c->line[i], packet)) {
			packet->line = i;
			return 1;
		}
	if (c->learn && c->lines < 2 && speaks_mold(packet)) {
		struct na_feed_line *l = &c->line[c->lines];

		l->family = packet->family;
		l->port = packet->dst_port;
		memcpy(l->group, packet->dst, 16);
		packet->line = c->lines++;
		return 1;
	}
	c->counts->filtered++;
	return 0;
}

/* ---- pcap ---- */

static int pcap_record(struct na_capture *c, struct na_packet *packet)
{
	int rc = fill(c, 16);

	if (rc < 0)
		return rc;
	if (rc == 0)
		return c->have == c->at ? 0 : fail(c, NA_CAPTURE_CUT, 16, c->have - c->at);
	uint32_t captured = u32(c, c->buffer + c->at + 8), original = u32(c, c->buffer + c->at + 12);

	if (captured > NA_CAPTURE_SNAP)
		return fail(c, NA_CAPTURE_CORRUPT, captured, NA_CAPTURE_SNAP);
	rc = fill(c, 16 + (size_t)captured);
	if (rc < 0)
		return rc;
	if (rc == 0)
		return fail(c, NA_CAPTURE_CUT, 16 + (uint64_t)captured, c->have - c->at);
	const uint8_t *frame = c->buffer + c->at + 16;

	take(c, 16 + (size_t)captured);
	c->records++;
	if (!na_frame_parse(frame, captured, original, c->link_type, c->verify, c->counts, packet))
		return 2;
	return line_of(c, packet) ? 1 : 2;
}

/* ---- pcapng ---- */

static int pcapng_section(struct na_capture *c, uint32_t *total)
{
	int rc = fill(c, 28);

	if (rc < 0)
		return rc;
	if (rc == 0)
		return fail(c, NA_CAPTURE_CUT, 28, c->have - c->at);
	uint32_t order = na_be32(c->buffer + c->at + 8);

	if (order != 0x1a2b3c4d && order != 0x4d3c2b1a)
		return fail(c, NA_CAPTURE_CORRUPT, order, 0x1a2b3c4d);
	c->swapped = order == 0x1a2b3c4d;
	c->interfaces = 0;
	*total = u32(c, c->buffer + c->at + 4);
	return 1;
}

static int pcapng_block(struct na_capture *c, struct na_packet *packet)
{
	int rc = fill(c, 12);

	if (rc < 0)
		return rc;
	if (rc == 0)
		return c->have == c->at ? 0 : fail(c, NA_CAPTURE_CUT, 12, c->have - c->at);
	uint32_t type = u32(c, c->buffer + c->at), total = u32(c, c->buffer + c->at + 4);

	if (na_be32(c->buffer + c->at) == 0x0a0d0d0a && (rc = pcapng_section(c, &total)) <= 0)
		return rc;
	if (total < 12 || total % 4)
		return fail(c, NA_CAPTURE_CORRUPT, total, 12);
	/* 1: interface, 2: packet (obsolete), 3: simple packet, 6: enhanced packet. */
	if (type != 1 && type != 2 && type != 3 && type != 6) {
		uint64_t before = c->offset, left;

		rc = pass(c, total);
		left = c->offset - before;
		if (rc == 0) {
			c->offset = before;
			return fail(c, NA_CAPTURE_CUT, total, left);
		}
		c->records++;
		return rc < 0 ? rc : 2;
	}
	if (total > NA_CAPTURE_SNAP + 4096)
		return fail(c, NA_CAPTURE_CORRUPT, total, NA_CAPTURE_SNAP + 4096);
	rc = fill(c, total);
	if (rc < 0)
		return rc;
	if (rc == 0)
		return fail(c, NA_CAPTURE_CUT, total, c->have - c->at);
	const uint8_t *b = c->buffer + c->at;

	if (u32(c, b + total - 4) != total)
		return fail(c, NA_CAPTURE_CORRUPT, u32(c, b + total - 4), total);
	if (type == 1) {
		if (total < 20)
			return fail(c, NA_CAPTURE_CORRUPT, total, 20);
		if (c->interfaces == NA_CAPTURE_INTERFACES)
			return fail(c, NA_CAPTURE_CORRUPT, c->interfaces, NA_CAPTURE_INTERFACES);
		c->interface_link[c->interfaces] = u16(c, b + 8);
		c->interface_snap[c->interfaces++] = u32(c, b + 12);
		take(c, total);
		c->records++;
		return 2;
	}
	uint32_t head = type == 3 ? 12 : 28, id, captured, original;

	if (total < head + 4)
		return fail(c, NA_CAPTURE_CORRUPT, total, head + 4);
	if (type == 3) {
		id = 0;
		original = u32(c, b + 8);
		captured = original;
		if (c->interfaces && c->interface_snap[0] && captured > c->interface_snap[0])
			captured = c->interface_snap[0];
	} else {
		id = type == 2 ? u16(c, b + 8) : u32(c, b + 8);
		captured = u32(c, b + 20);
		original = u32(c, b + 24);
	}
	if (id >= c->interfaces)
		return fail(c, NA_CAPTURE_CORRUPT, id, c->interfaces);
	if (captured > total - head - 4)
		return fail(c, NA_CAPTURE_CORRUPT, captured, total - head - 4);
	if (!link_known(c->interface_link[id]))
		return fail(c, NA_CAPTURE_LINK, c->interface_link[id], 0);
	take(c, total);
	c->records++;
	if (!na_frame_parse(b + head, captured, original, c->interface_link[id], c->verify, c->counts, packet))
		return 2;
	return line_of(c, packet) ? 1 : 2;
}

int na_capture_packet(struct na_capture *c, struct na_packet *packet)
{
	int rc;

	do
		rc = c->format == NA_FORMAT_PCAP ? pcap_record(c, packet) : pcapng_block(c, packet);
	while (rc == 2);
	return rc;
}

/* ---- length-framed ---- */

static uint64_t digits(const uint8_t *p, int n)
{
	uint64_t v = 0;

	for (; n; n--, p++)
		if (*p >= '0' && *p <= '9')
			v = v * 10 + (*p - '0');
	return v;
}

int na_capture_blocks(struct na_capture *c, const uint8_t **p, const uint8_t **end, uint32_t *n)
{
	for (;;) {
		int rc = fill(c, 2);

		if (rc < 0)
			return rc;
		if (rc == 0)
			return c->have == c->at ? 0 : fail(c, NA_CAPTURE_CUT, 2, c->have - c->at);
		uint8_t *b = c->buffer + c->at;
		size_t size = 2 + (size_t)na_be16(b);

		/* BinaryFILE: a length of 0 ends the session; bytes after it are none of it. */
		if (size == 2 && c->format == NA_FORMAT_BINARYFILE)
			return 0;
		rc = fill(c, size);
		if (rc < 0)
			return rc;
		if (rc == 0)
			return fail(c, NA_CAPTURE_CUT, size, c->have - c->at);
		b = c->buffer + c->at;
		if (c->format == NA_FORMAT_BINARYFILE) {
			/* As many whole ones as are here. */
			uint32_t k = 0;
			size_t at = 0, here = c->have - c->at;

			while (k < NA_CAPTURE_BLOCKS && here - at >= 2 && na_be16(b + at) &&
			       here - at - 2 >= na_be16(b + at)) {
				at += 2 + (size_t)na_be16(b + at);
				k++;
			}
			*p = b;
			*end = b + at;
			*n = k;
			take(c, at);
			c->records += k;
			return 1;
		}
		take(c, size);
		c->records++;
		uint8_t type = size > 2 ? b[2] : 0;

		if (type == 'S' && size > 3) {
			/* The type byte goes: the block's length moves up against the message. */
			b[1] = (uint8_t)((size - 3) >> 8);
			b[2] = (uint8_t)(size - 3);
			*p = b + 1;
			*end = b + size;
			*n = 1;
			return 1;
		}
		if (type == 'A' && size >= 33)
			c->soup_seq = digits(b + 13, 20);
		else if (type == 'Z')
			c->soup_ended = 1;
		else if (!soup_type(type) || type == 'S')
			c->counts->bad[NA_BAD_SOUP]++;
	}
}
