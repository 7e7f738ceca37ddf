/* Preloaded into the actor: the N-th write(2) to a path, or sched_setaffinity(2), fails as told.
 *
 * The file named by NODEAGENT_FAULT holds "ROUND N ERRNO PREFIX"; another ROUND counts anew. A
 * PREFIX of "affinity" is sched_setaffinity. What was made to fail is told by a file beside it,
 * named .hit. Calls that are let through go straight to the kernel.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long fails(const char *what)
{
	static int counted, round_before = -1;
	char text[4400], prefix[4096], hit[4096];
	const char *file = getenv("NODEAGENT_FAULT");
	int round, nth, number;
	long fd, got;

	if (!file)
		return 0;
	fd = syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	got = syscall(SYS_read, fd, text, sizeof(text) - 1);
	syscall(SYS_close, fd);
	if (got <= 0)
		return 0;
	text[got] = 0;
	if (sscanf(text, "%d %d %d %4095s", &round, &nth, &number, prefix) != 4)
		return 0;
	if (strncmp(what, prefix, strlen(prefix)))
		return 0;
	if (round != round_before) {
		round_before = round;
		counted = 0;
	}
	if (++counted != nth)
		return 0;
	snprintf(hit, sizeof(hit), "%s.hit", file);
	fd = syscall(SYS_openat, AT_FDCWD, hit, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		syscall(SYS_close, fd);
	return number;
}

ssize_t write(int fd, const void *data, size_t size)
{
	char link[64], path[4096];
	ssize_t length;
	long number;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length > 0) {
		path[length] = 0;
		number = fails(path);
		if (number) {
			errno = number;
			return -1;
		}
	}
	length = syscall(SYS_write, fd, data, size);
	return length;
}

int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *mask)
{
	long number = fails("affinity");

	if (number) {
		errno = number;
		return -1;
	}
	return syscall(SYS_sched_setaffinity, pid, size, mask);
}
