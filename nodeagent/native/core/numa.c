/* SPDX-License-Identifier: Apache-2.0
 * Memory policy by system call: libnuma would add a dependency for four calls.
 * Source: set_mempolicy(2), get_mempolicy(2), move_pages(2). */
#include "numa_abi.h"
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

int na_set_mempolicy(int mode, const uint64_t *mask, size_t words)
{
	/* The kernel reads maxnode - 1 bits. */
	long rc = syscall(SYS_set_mempolicy, mode, mask, words ? words * 64 + 1 : 0);
	return rc < 0 ? -errno : 0;
}

int na_get_mempolicy(int *mode, uint64_t *mask, size_t words)
{
	long rc = syscall(SYS_get_mempolicy, mode, mask, words * 64 + 1, NULL, 0);
	return rc < 0 ? -errno : 0;
}

int na_page_nodes(int pid, size_t count, void **pages, int *nodes)
{
	long rc = syscall(SYS_move_pages, pid, count, pages, NULL, nodes, 0);
	return rc < 0 ? -errno : 0;
}
