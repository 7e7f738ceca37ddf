/* SPDX-License-Identifier: Apache-2.0
 * The plain C receiver that the feeder is compared with: recvmsg(2), one packet a call, a two-message decode
 * left out. usage: peer_recv GROUP PORT PACKETS INTERFACE ;
 * prints the median of (after recvmsg - kernel stamp), ns. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static int by_size(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
	struct sockaddr_in a = {.sin_family = AF_INET};
	struct ip_mreqn m = {.imr_ifindex = (int)if_nametoindex(argc == 5 ? argv[4] : "")};

	if (argc != 5)
		return 64;
	long packets = atol(argv[3]);
	int64_t *waited = calloc((size_t)packets, sizeof(*waited));

	a.sin_port = htons((uint16_t)atoi(argv[2]));
	a.sin_addr.s_addr = m.imr_multiaddr.s_addr = inet_addr(argv[1]);
	int room = 8 << 20;
	struct timeval silence = {.tv_sec = 3};

	setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) ||
	    setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof(m)))
		return 1;
	socklen_t size = sizeof(a);
	getsockname(fd, (struct sockaddr *)&a, &size);
	printf("%d\n", ntohs(a.sin_port));
	fflush(stdout);
	long i;
	for (i = 0; i < packets; i++) {
		char data[2048], control[128];
		struct iovec v = {data, sizeof(data)};
		struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
				   .msg_controllen = sizeof(control)};
		struct timespec now, then;

		if (recvmsg(fd, &h, 0) < 0)
			break;
		/* What does not come any more is not waited for. */
		if (i == 0)
			setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof(silence));
		clock_gettime(CLOCK_REALTIME, &now);
		memcpy(&then, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof(then));
		waited[i] = (now.tv_sec - then.tv_sec) * 1000000000LL + now.tv_nsec - then.tv_nsec;
	}
	if (!i)
		return 1;
	qsort(waited, (size_t)i, sizeof(*waited), by_size);
	printf("%lld\n", (long long)waited[i / 2]);
	return 0;
}
