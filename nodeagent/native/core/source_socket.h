/* SPDX-License-Identifier: Apache-2.0
 * A line received by an ordinary UDP socket, many packets a system call. */
#ifndef NODEAGENT_SOURCE_SOCKET_H
#define NODEAGENT_SOURCE_SOCKET_H
#include "feed.h"
#include <sys/socket.h>

#define NA_SOCKET_BATCH 64
#define NA_SOCKET_CONTROL 128 /* room for SO_RXQ_OVFL, SCM_TIMESTAMPNS and IP_PKTINFO */

struct na_socket {
	int fd;
	uint32_t line;
	int kernel_stamps;
	struct na_feed_line where;
	uint32_t drops; /* what the socket last said */
	struct mmsghdr messages[NA_SOCKET_BATCH];
	struct iovec vectors[NA_SOCKET_BATCH];
	struct sockaddr_storage from[NA_SOCKET_BATCH];
	uint8_t control[NA_SOCKET_BATCH][NA_SOCKET_CONTROL];
	uint8_t *buffers; /* NA_SOCKET_BATCH x NA_PACKET_MAX */
};

/* Takes over an open socket. 0 or -ENOMEM. */
int na_socket_init(struct na_socket *s, int fd, uint32_t line, const struct na_feed_line *where,
		   int kernel_stamps);
void na_socket_deinit(struct na_socket *s);
/* From now on receiving may wait in the kernel, at most that long. 0 or -errno. */
int na_socket_wait_inside(struct na_socket *s, int ms);
/* Packets that are there now, at most NA_SOCKET_BATCH; with `wait`, until one is. Count or -errno. */
int na_socket_receive(struct na_socket *s, int wait);
/* Packet i of the last receive. now_ns: the burst's stamp; to_monotonic: add to CLOCK_REALTIME.
 * 1; 0: larger than the buffer, counted. */
int na_socket_packet(struct na_socket *s, int i, uint64_t now_ns, int64_t to_monotonic,
		     struct na_feed_counts *counts, struct na_packet *packet);

#endif
