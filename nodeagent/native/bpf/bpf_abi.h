/* SPDX-License-Identifier: Apache-2.0
 * libbpf for Python: open, load, attach, descriptors, trial loads, ring buffer. Every int is 0 (or a
 * descriptor) or -errno. Not thread-safe for one object; the log is. */
#ifndef NODEAGENT_BPF_ABI_H
#define NODEAGENT_BPF_ABI_H
#include <stddef.h>
#include <stdint.h>

#define NA_BPF_MAX_LINKS 16

struct na_bpf;

/* A CO-RE object in memory; the bytes may go after the call. */
int na_bpf_open(const void *object, size_t size, const char *name, struct na_bpf **out);
/* Detaches all and frees. */
void na_bpf_close(struct na_bpf *bpf);
/* Before load: entries of a map; value of one `const volatile` variable, of exactly its size. */
int na_bpf_set_entries(struct na_bpf *bpf, const char *map, uint32_t entries);
int na_bpf_set_rodata(struct na_bpf *bpf, const char *variable, const void *value, size_t size);
/* Before load: whether one program is loaded at all (those of a section `?...` are not). */
int na_bpf_set_autoload(struct na_bpf *bpf, const char *program, int on);
int na_bpf_load(struct na_bpf *bpf);
/* Attaches one program where its section says; the link lives as long as the object. */
int na_bpf_attach(struct na_bpf *bpf, const char *program);
void na_bpf_detach(struct na_bpf *bpf);
/* Descriptors stay the object's. */
int na_bpf_map_fd(struct na_bpf *bpf, const char *map);
int na_bpf_program_fd(struct na_bpf *bpf, const char *program);

/* BPF_PROG_TEST_RUN: cpu < 0 anywhere. context is written back (syscall programs); NULL: none. */
int na_bpf_test_run(int program_fd, void *context, size_t size, int cpu, uint32_t *result);
/* Run time and count, while somebody holds BPF_ENABLE_STATS. */
int na_bpf_program_stats(int program_fd, uint64_t *run_ns, uint64_t *run_count);
/* Statistics stay on as long as the descriptor; CAP_SYS_ADMIN. */
int na_bpf_enable_stats(void);

/* What libbpf and the verifier said since the last call, NUL-terminated, the end of it if too long. */
size_t na_bpf_log(char *out, size_t size);

/* One trial of one kind: map made, program loaded and, if attach, attached; all undone at once.
 * step: where it failed ("btf", "map", "load", "event", "attach"). -EOPNOTSUPP: no such kind. */
int na_trial(const char *kind, int attach, const char **step);
/* Frees what the trials keep between them (the kernel's BTF). */
void na_trial_end(void);

/* Writes the running kernel's types, from its BTF, as one C header. */
int na_bpf_write_types(const char *path);

struct na_records;

int na_records_open(int map_fd, struct na_records **out);
/* Takes what is in the ring: for each record its size in 8 bytes, then its bytes, padded to 8.
 * lost: records that did not fit into out. */
int na_records_take(struct na_records *records, void *out, size_t size, size_t *used, size_t *lost);
void na_records_close(struct na_records *records);

/* The same without bpf(2), for a reader without any right: the ring's pages mapped from its
 * descriptor, which stays the caller's. size: the map's max_entries. */
struct na_ring;

int na_ring_open(int map_fd, size_t size, struct na_ring **out);
/* Takes whole records, as na_records_take() writes them, until out is full; the rest stays. */
size_t na_ring_take(struct na_ring *ring, void *out, size_t size);
void na_ring_close(struct na_ring *ring);

#endif
