/* SPDX-License-Identifier: Apache-2.0 */
#include "bpf_abi.h"
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct na_bpf {
	struct bpf_object *object;
	struct bpf_link *links[NA_BPF_MAX_LINKS];
	size_t link_count;
};

/* The last text of libbpf. A verifier's log may be megabytes: its end is what tells. */
static char log_text[1 << 16];
static size_t log_used;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t log_once = PTHREAD_ONCE_INIT;

static int keep_log(enum libbpf_print_level level, const char *format, va_list args)
{
	char *line = NULL;
	int length;
	size_t drop, size;

	if (level == LIBBPF_DEBUG)
		return 0;
	length = vasprintf(&line, format, args);
	if (length < 0)
		return 0;
	size = (size_t)length;
	drop = size > sizeof(log_text) - 1 ? size - (sizeof(log_text) - 1) : 0;
	size -= drop;
	pthread_mutex_lock(&log_lock);
	if (log_used + size > sizeof(log_text) - 1) {
		size_t gone = log_used + size - (sizeof(log_text) - 1);

		memmove(log_text, log_text + gone, log_used - gone);
		log_used -= gone;
	}
	memcpy(log_text + log_used, line + drop, size);
	log_used += size;
	pthread_mutex_unlock(&log_lock);
	free(line);
	return 0;
}

static void catch_log(void)
{
	libbpf_set_print(keep_log);
}

size_t na_bpf_log(char *out, size_t size)
{
	size_t skip, used;

	if (!size)
		return 0;
	pthread_mutex_lock(&log_lock);
	skip = log_used > size - 1 ? log_used - (size - 1) : 0;
	used = log_used - skip;
	memcpy(out, log_text + skip, used);
	log_used = 0;
	pthread_mutex_unlock(&log_lock);
	out[used] = 0;
	return used;
}

int na_bpf_open(const void *object, size_t size, const char *name, struct na_bpf **out)
{
	LIBBPF_OPTS(bpf_object_open_opts, opts, .object_name = name);
	struct na_bpf *bpf;
	int rc;

	pthread_once(&log_once, catch_log);
	bpf = calloc(1, sizeof(*bpf));
	if (!bpf)
		return -ENOMEM;
	bpf->object = bpf_object__open_mem(object, size, &opts);
	if (!bpf->object) {
		rc = -errno;
		free(bpf);
		return rc;
	}
	*out = bpf;
	return 0;
}

void na_bpf_detach(struct na_bpf *bpf)
{
	while (bpf->link_count)
		bpf_link__destroy(bpf->links[--bpf->link_count]);
}

void na_bpf_close(struct na_bpf *bpf)
{
	if (!bpf)
		return;
	na_bpf_detach(bpf);
	bpf_object__close(bpf->object);
	free(bpf);
}

int na_bpf_set_entries(struct na_bpf *bpf, const char *name, uint32_t entries)
{
	struct bpf_map *map = bpf_object__find_map_by_name(bpf->object, name);

	return map ? bpf_map__set_max_entries(map, entries) : -ENOENT;
}

int na_bpf_set_rodata(struct na_bpf *bpf, const char *variable, const void *value, size_t size)
{
	struct bpf_map *map = bpf_object__find_map_by_name(bpf->object, ".rodata");
	const struct btf *btf = bpf_object__btf(bpf->object);
	const struct btf_type *section;
	const struct btf_var_secinfo *at;
	size_t length;
	char *bytes;
	int id;

	if (!map || !btf)
		return -ENOENT;
	bytes = (char *)bpf_map__initial_value(map, &length);
	id = btf__find_by_name_kind(btf, ".rodata", BTF_KIND_DATASEC);
	if (!bytes || id < 0)
		return -ENOENT;
	section = btf__type_by_id(btf, (uint32_t)id);
	at = btf_var_secinfos(section);
	for (int i = 0; i < btf_vlen(section); i++) {
		const struct btf_type *var = btf__type_by_id(btf, at[i].type);

		if (strcmp(btf__name_by_offset(btf, var->name_off), variable))
			continue;
		if (at[i].size != size || at[i].offset + size > length)
			return -EINVAL;
		memcpy(bytes + at[i].offset, value, size);
		return 0;
	}
	return -ENOENT;
}

int na_bpf_set_autoload(struct na_bpf *bpf, const char *name, int on)
{
	struct bpf_program *program = bpf_object__find_program_by_name(bpf->object, name);

	return program ? bpf_program__set_autoload(program, on) : -ENOENT;
}

int na_bpf_load(struct na_bpf *bpf)
{
	return bpf_object__load(bpf->object);
}

int na_bpf_attach(struct na_bpf *bpf, const char *name)
{
	struct bpf_program *program = bpf_object__find_program_by_name(bpf->object, name);
	struct bpf_link *link;

	if (!program)
		return -ENOENT;
	if (bpf->link_count == NA_BPF_MAX_LINKS)
		return -ENOSPC;
	link = bpf_program__attach(program);
	if (!link)
		return -errno;
	bpf->links[bpf->link_count++] = link;
	return 0;
}

int na_bpf_map_fd(struct na_bpf *bpf, const char *name)
{
	struct bpf_map *map = bpf_object__find_map_by_name(bpf->object, name);

	return map ? bpf_map__fd(map) : -ENOENT;
}

int na_bpf_program_fd(struct na_bpf *bpf, const char *name)
{
	struct bpf_program *program = bpf_object__find_program_by_name(bpf->object, name);

	return program ? bpf_program__fd(program) : -ENOENT;
}

int na_bpf_test_run(int program_fd, void *context, size_t size, int cpu, uint32_t *result)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts);
	int rc;

	opts.ctx_in = context;
	opts.ctx_size_in = (uint32_t)size;
	if (cpu >= 0) {
		opts.flags = BPF_F_TEST_RUN_ON_CPU;
		opts.cpu = (uint32_t)cpu;
	}
	rc = bpf_prog_test_run_opts(program_fd, &opts);
	if (rc)
		return -errno;
	if (result)
		*result = opts.retval;
	return 0;
}

int na_bpf_program_stats(int program_fd, uint64_t *run_ns, uint64_t *run_count)
{
	struct bpf_prog_info info = {0};
	uint32_t size = sizeof(info);

	if (bpf_obj_get_info_by_fd(program_fd, &info, &size))
		return -errno;
	*run_ns = info.run_time_ns;
	*run_count = info.run_cnt;
	return 0;
}

int na_bpf_enable_stats(void)
{
	int fd = bpf_enable_stats(BPF_STATS_RUN_TIME);

	return fd < 0 ? -errno : fd;
}

static void emit(void *file, const char *format, va_list args)
{
	vfprintf(file, format, args);
}

int na_bpf_write_types(const char *path)
{
	struct btf *types;
	struct btf_dump *dump;
	FILE *file;
	int rc = 0;

	pthread_once(&log_once, catch_log);
	types = btf__load_vmlinux_btf();
	if (!types)
		return -errno;
	file = fopen(path, "we");
	dump = file ? btf_dump__new(types, emit, file, NULL) : NULL;
	if (!dump)
		rc = -errno;
	for (uint32_t id = 1; !rc && id < btf__type_cnt(types); id++)
		rc = btf_dump__dump_type(dump, id);
	btf_dump__free(dump);
	if (file && fclose(file) && !rc)
		rc = -errno;
	btf__free(types);
	return rc;
}

struct na_records {
	struct ring_buffer *ring;
	char *out;
	size_t size, used, lost;
};

static int take(void *context, void *data, size_t size)
{
	struct na_records *records = context;
	size_t padded = (size + 7) & ~(size_t)7;
	uint64_t length = size;

	if (padded + 8 > records->size - records->used) {
		records->lost++;
		return 0;
	}
	memcpy(records->out + records->used, &length, 8);
	memcpy(records->out + records->used + 8, data, size);
	memset(records->out + records->used + 8 + size, 0, padded - size);
	records->used += padded + 8;
	return 0;
}

int na_records_open(int map_fd, struct na_records **out)
{
	struct na_records *records = calloc(1, sizeof(*records));
	int rc;

	pthread_once(&log_once, catch_log);
	if (!records)
		return -ENOMEM;
	records->ring = ring_buffer__new(map_fd, take, records, NULL);
	if (!records->ring) {
		rc = -errno;
		free(records);
		return rc;
	}
	*out = records;
	return 0;
}

int na_records_take(struct na_records *records, void *out, size_t size, size_t *used, size_t *lost)
{
	int rc;

	records->out = out;
	records->size = size;
	records->used = records->lost = 0;
	rc = ring_buffer__consume(records->ring);
	*used = records->used;
	*lost = records->lost;
	return rc < 0 ? rc : 0;
}

void na_records_close(struct na_records *records)
{
	if (!records)
		return;
	ring_buffer__free(records->ring);
	free(records);
}
