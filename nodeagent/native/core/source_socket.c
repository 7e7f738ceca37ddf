/* SPDX-License-Identifier: Apache-2.0
 * recvmmsg(2) on a UDP socket that joined its group.
 *
 * Source: ip(7), ipv6(7), socket(7); SO_RXQ_OVFL: Linux 3b885787ea41 (v2.6.33), the count at the time
 * the packet was queued, so a difference is what was dropped between two packets; SO_MEMINFO:
 * Linux a2d133b1d465 (v4.12). */
#include "source_socket.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

static int refuse(int fd, const char *what, char *why, size_t why_bytes)
{
	int err = errno;

	snprintf(why, why_bytes, "%s: %s", what, strerror(err));
	if (fd >= 0)
		close(fd);
	return -err;
}

static int join4(int fd, const struct na_feed_line *l)
{
	struct ip_mreqn m = {.imr_ifindex = (int)l->ifindex};
	int none = 0;

	/* Only what this socket joined, not what others on the host did. */
	setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &none, sizeof(none));
	memcpy(&m.imr_multiaddr, l->group, 4);
	memcpy(&m.imr_address, l->interface_address, 4);
	return setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof(m));
}

static int join6(int fd, const struct na_feed_line *l)
{
	struct ipv6_mreq m = {.ipv6mr_interface = l->ifindex};
	int none = 0;

#ifdef IPV6_MULTICAST_ALL
	setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, &none, sizeof(none));
#endif
	(void)none;
	memcpy(&m.ipv6mr_multiaddr, l->group, 16);
	return setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &m, sizeof(m));
}

int na_socket_open(struct na_feed_line *l, uint64_t receive_bytes, int kernel_stamps,
		   struct na_socket_info *info, char *why, size_t why_bytes)
{
	int on = 1, v4 = l->family == 4, multicast = v4 ? l->group[0] >> 4 == 14 : l->group[0] == 0xff;
	struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons(l->port)};
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons(l->port),
				  .sin6_scope_id = l->ifindex};
	socklen_t size = sizeof(int);

	memset(info, 0, sizeof(*info));
	memcpy(&a4.sin_addr, l->group, 4);
	memcpy(&a6.sin6_addr, l->group, 16);
	int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return refuse(fd, "socket", why, why_bytes);
	/* Several receivers of one group on a host are normal; of a unicast port they are a mistake. */
	if (multicast && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
		return refuse(fd, "SO_REUSEADDR", why, why_bytes);
	/* Before bind: nothing may be queued, and dropped, in a small buffer. */
	int want = receive_bytes > INT32_MAX / 2 ? INT32_MAX / 2 : (int)receive_bytes;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &want, sizeof(want)) < 0)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &want, sizeof(want));
	getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &info->receive_bytes, &size);
	info->receive_bytes /= 2; /* the kernel doubles it for its own bookkeeping: socket(7) */
	info->drops_known = setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &on, sizeof(on)) == 0;
	info->kernel_stamps = kernel_stamps && setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on)) == 0;
	/* Bound to the group: other groups on that port do not come here. */
	if (bind(fd, v4 ? (struct sockaddr *)&a4 : (struct sockaddr *)&a6, v4 ? sizeof(a4) : sizeof(a6)) < 0)
		return refuse(fd, "bind", why, why_bytes);
	if (multicast && (v4 ? join4(fd, l) : join6(fd, l)) < 0)
		return refuse(fd, "join", why, why_bytes);
	if (l->port == 0) {
		size = sizeof(a6);
		struct sockaddr_storage got;

		if (getsockname(fd, (struct sockaddr *)&got, &size) < 0)
			return refuse(fd, "getsockname", why, why_bytes);
		l->port = ntohs(v4 ? ((struct sockaddr_in *)&got)->sin_port : ((struct sockaddr_in6 *)&got)->sin6_port);
	}
	info->fd = fd;
	return 0;
}

int na_socket_dropped(int fd, uint64_t *packets)
{
	uint32_t info[SK_MEMINFO_VARS];
	socklen_t size = sizeof(info);

	if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &size) < 0)
		return -errno;
	if (size < sizeof(info[0]) * (SK_MEMINFO_DROPS + 1))
		return -ENODATA;
	*packets = info[SK_MEMINFO_DROPS];
	return 0;
}

int na_socket_init(struct na_socket *s, int fd, uint32_t line, const struct na_feed_line *where,
		   int kernel_stamps)
{
	memset(s, 0, sizeof(*s));
	s->fd = fd;
	s->line = line;
	s->where = *where;
	s->kernel_stamps = kernel_stamps;
	s->buffers = malloc((size_t)NA_SOCKET_BATCH * NA_PACKET_MAX);
	if (!s->buffers)
		return -ENOMEM;
	for (int i = 0; i < NA_SOCKET_BATCH; i++) {
		s->vectors[i].iov_base = s->buffers + (size_t)i * NA_PACKET_MAX;
		s->vectors[i].iov_len = NA_PACKET_MAX;
		s->messages[i].msg_hdr.msg_iov = &s->vectors[i];
		s->messages[i].msg_hdr.msg_iovlen = 1;
		s->messages[i].msg_hdr.msg_name = &s->from[i];
		s->messages[i].msg_hdr.msg_control = s->control[i];
	}
	return 0;
}

int na_socket_wait_inside(struct na_socket *s, int ms)
{
	struct timeval t = {.tv_usec = ms * 1000};
	int flags = fcntl(s->fd, F_GETFL);

	if (flags < 0 || fcntl(s->fd, F_SETFL, flags & ~O_NONBLOCK) < 0 ||
	    setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) < 0)
		return -errno;
	return 0;
}

void na_socket_deinit(struct na_socket *s)
{
	free(s->buffers);
	s->buffers = NULL;
}

int na_socket_receive(struct na_socket *s, int wait)
{
	for (int i = 0; i < NA_SOCKET_BATCH; i++) {
		s->messages[i].msg_hdr.msg_controllen = NA_SOCKET_CONTROL;
		s->messages[i].msg_hdr.msg_namelen = sizeof(s->from[i]);
	}
	int n = recvmmsg(s->fd, s->messages, NA_SOCKET_BATCH, wait ? MSG_WAITFORONE : MSG_DONTWAIT, NULL);

	return n < 0 ? -errno : n;
}

int na_socket_packet(struct na_socket *s, int i, uint64_t now_ns, int64_t to_monotonic,
		     struct na_feed_counts *counts, struct na_packet *packet)
{
	struct msghdr *h = &s->messages[i].msg_hdr;

	packet->data = s->vectors[i].iov_base;
	packet->len = s->messages[i].msg_len;
	packet->line = s->line;
	packet->rx_ns = now_ns;
	packet->drops = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SO_RXQ_OVFL) {
			uint32_t drops;

			memcpy(&drops, CMSG_DATA(c), sizeof(drops));
			packet->drops = drops - s->drops;
			s->drops = drops;
		} else if (c->cmsg_type == SCM_TIMESTAMPNS) {
			struct timespec t;

			memcpy(&t, CMSG_DATA(c), sizeof(t));
			uint64_t stamp = (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec +
					 (uint64_t)to_monotonic;

			/* The clock may have been stepped since to_monotonic was taken. */
			if (stamp <= now_ns && now_ns - stamp < 10000000000ULL)
				packet->rx_ns = stamp;
		}
	}
	packet->vlan = NA_FRAME_NO_VLAN; /* the kernel took the tag off */
	packet->family = s->where.family;
	packet->dst_port = s->where.port;
	memcpy(packet->dst, s->where.group, 16);
	memset(packet->src, 0, 16);
	if (s->where.family == 4) {
		const struct sockaddr_in *a = (const struct sockaddr_in *)&s->from[i];

		packet->src_port = ntohs(a->sin_port);
		memcpy(packet->src, &a->sin_addr, 4);
	} else {
		const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)&s->from[i];

		packet->src_port = ntohs(a->sin6_port);
		memcpy(packet->src, &a->sin6_addr, 16);
	}
	if (NA_UNLIKELY(h->msg_flags & MSG_TRUNC)) {
		counts->packets++;
		counts->bytes += packet->len;
		counts->kernel_drops += packet->drops;
		counts->bad[NA_BAD_OVERSIZE]++;
		return 0;
	}
	return 1;
}
