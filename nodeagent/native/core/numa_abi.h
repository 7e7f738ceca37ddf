/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NODEAGENT_NUMA_ABI_H
#define NODEAGENT_NUMA_ABI_H
#include <stdint.h>
#include <stddef.h>

#define NA_MPOL_DEFAULT 0
#define NA_MPOL_PREFERRED 1
#define NA_MPOL_BIND 2
#define NA_MPOL_INTERLEAVE 3
#define NA_MAX_NODES 1024

/* set_mempolicy(2) of the calling thread. mask: words of 64 nodes, lowest first. 0 or -errno. */
int na_set_mempolicy(int mode, const uint64_t *mask, size_t words);
/* get_mempolicy(2) of the calling thread. 0 or -errno. */
int na_get_mempolicy(int *mode, uint64_t *mask, size_t words);
/* NUMA node of each page (or -errno for that page) of process pid (0: this one); move_pages(2) without targets. */
int na_page_nodes(int pid, size_t count, void **pages, int *nodes);

#endif
