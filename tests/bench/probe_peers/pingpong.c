/* SPDX-License-Identifier: Apache-2.0
 * usage: pingpong CPU ROUNDS: two processes on one CPU hand a byte to and fro; prints nanoseconds of
 * CPU time (both, user and system) for each context switch. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static double spent(int who)
{
	struct rusage use;

	getrusage(who, &use);
	return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e9 +
	       (use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e3;
}

int main(int argc, char **argv)
{
	int there[2], back[2];
	long rounds;
	cpu_set_t set;
	char byte = 0;
	double before;

	if (argc != 3)
		return 64;
	rounds = atol(argv[2]);
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[1]), &set);
	if (sched_setaffinity(0, sizeof(set), &set) || pipe(there) || pipe(back))
		return 70;
	/* Stops until told, so that the probe can be set on both processes first. */
	pid_t child = fork();

	if (!child) {
		for (long i = 0; i < rounds; i++)
			if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
				_exit(1);
		_exit(0);
	}
	printf("%d %d\n", (int)getpid(), (int)child);
	fflush(stdout);
	if (read(0, &byte, 1) != 1)
		return 70;
	before = spent(RUSAGE_SELF);
	for (long i = 0; i < rounds; i++)
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			return 70;
	before = spent(RUSAGE_SELF) - before;
	wait(NULL);
	printf("%.1f\n", (before + spent(RUSAGE_CHILDREN)) / (2.0 * rounds));
	return 0;
}
