/* SPDX-License-Identifier: Apache-2.0
 * Peers of the kernel: 64 bytes there and back through a pipe or UNIX datagram sockets, blocking, between two processes.
 *   ipc_speed pipe|unix COUNT     "hop P50 P99": one way, ns */
#include "pair.h"
#include <sys/socket.h>

int main(int argc, char **argv)
{
	int to[2], from[2]; /* [0] is read, [1] written */
	char bytes[64] = {0};
	if (argc != 3)
		return 64;
	uint64_t count = strtoull(argv[2], NULL, 10);
	double *times = (double *)calloc(count, sizeof(*times));
	if (!strcmp(argv[1], "pipe") ? pipe(to) || pipe(from)
	                             : socketpair(AF_UNIX, SOCK_DGRAM, 0, to) || socketpair(AF_UNIX, SOCK_DGRAM, 0, from))
		return 3;
	pid_t child = fork();
	if (!times || child < 0)
		return 3;
	pin(child == 0);
	int in = child ? from[0] : to[0], out = child ? to[1] : from[1];
	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t began = now_ns();
		if (child && write(out, bytes, sizeof(bytes)) != (ssize_t)sizeof(bytes))
			return 3;
		if (read(in, bytes, sizeof(bytes)) != (ssize_t)sizeof(bytes))
			return 3;
		if (!child && write(out, bytes, sizeof(bytes)) != (ssize_t)sizeof(bytes))
			return 3;
		times[i] = (double)(now_ns() - began) / 2;
	}
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	printf("hop %.0f %.0f\n", quantile(times, (int)count, 0.5), quantile(times, (int)count, 0.99));
	return 0;
}
