/* SPDX-License-Identifier: Apache-2.0
 * What this kernel lets us do, found by doing it: two instructions of each kind, attached where
 * nothing of weight happens, and gone again. The configuration is not asked: kernels were met that
 * promise fentry and LSM and refuse both. */
#include "bpf_abi.h"
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char license[] = "Dual BSD/GPL";
static struct btf *vmlinux;

enum how { RAW, RAW_NAMED, LINK, TRACEPOINT, KPROBE, UPROBE, CLOCK, NOWHERE };

struct kind {
	const char *name;
	enum bpf_prog_type type;
	enum bpf_attach_type attach_type;
	const char *btf_name;
	int btf_kind;
	enum how how;
	int result;
};

/* Targets that are rarely or never called: bpf_fentry_test1() and bpf_modify_return_test() are the
 * kernel's own for this purpose (net/bpf/test_run.c). */
static const struct kind kinds[] = {
	{"tp_btf", BPF_PROG_TYPE_TRACING, BPF_TRACE_RAW_TP, "btf_trace_sched_switch", BTF_KIND_TYPEDEF, RAW, 0},
	{"raw_tp", BPF_PROG_TYPE_RAW_TRACEPOINT, 0, NULL, 0, RAW_NAMED, 0},
	{"tp", BPF_PROG_TYPE_TRACEPOINT, 0, NULL, 0, TRACEPOINT, 0},
	{"fentry", BPF_PROG_TYPE_TRACING, BPF_TRACE_FENTRY, "bpf_fentry_test1", BTF_KIND_FUNC, RAW, 0},
	{"fexit", BPF_PROG_TYPE_TRACING, BPF_TRACE_FEXIT, "bpf_fentry_test1", BTF_KIND_FUNC, RAW, 0},
	{"fmod_ret", BPF_PROG_TYPE_TRACING, BPF_MODIFY_RETURN, "bpf_modify_return_test", BTF_KIND_FUNC, RAW, 0},
	{"kprobe", BPF_PROG_TYPE_KPROBE, 0, NULL, 0, KPROBE, 0},
	{"lsm", BPF_PROG_TYPE_LSM, BPF_LSM_MAC, "bpf_lsm_sb_umount", BTF_KIND_FUNC, RAW, 0},
	{"uprobe", BPF_PROG_TYPE_KPROBE, 0, NULL, 0, UPROBE, 0},
	{"perf", BPF_PROG_TYPE_PERF_EVENT, 0, NULL, 0, CLOCK, 0},
	{"iter", BPF_PROG_TYPE_TRACING, BPF_TRACE_ITER, "bpf_iter_task", BTF_KIND_FUNC, LINK, 0},
	{"xdp", BPF_PROG_TYPE_XDP, BPF_XDP, NULL, 0, NOWHERE, 2 /* XDP_PASS */},
};

static int read_number(const char *path)
{
	FILE *file = fopen(path, "re");
	int number = -1;

	if (!file)
		return -errno;
	if (fscanf(file, "%d", &number) != 1)
		number = -EINVAL;
	fclose(file);
	return number;
}

static int perf_open(struct perf_event_attr *attr, int pid, int cpu)
{
	long fd;

	attr->size = sizeof(*attr);
	attr->disabled = 1;
	fd = syscall(SYS_perf_event_open, attr, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC);
	return fd < 0 ? -errno : (int)fd;
}

static int perf_event(enum how how)
{
	struct perf_event_attr attr = {0};
	Dl_info own;
	int number;

	switch (how) {
	case TRACEPOINT:
		number = read_number("/sys/kernel/tracing/events/sched/sched_switch/id");
		if (number < 0)
			number = read_number("/sys/kernel/debug/tracing/events/sched/sched_switch/id");
		if (number < 0)
			return number;
		attr.type = PERF_TYPE_TRACEPOINT;
		attr.config = (uint64_t)number;
		return perf_open(&attr, -1, 0);
	case KPROBE:
		number = read_number("/sys/bus/event_source/devices/kprobe/type");
		if (number < 0)
			return number;
		attr.type = (uint32_t)number;
		attr.config1 = (uint64_t)(uintptr_t) "bpf_fentry_test1";
		return perf_open(&attr, -1, 0);
	case UPROBE:
		number = read_number("/sys/bus/event_source/devices/uprobe/type");
		if (number < 0)
			return number;
		if (!dladdr((void *)(uintptr_t)na_trial_end, &own))
			return -ENOENT;
		attr.type = (uint32_t)number;
		attr.config1 = (uint64_t)(uintptr_t)own.dli_fname;
		attr.config2 = (uint64_t)((char *)(uintptr_t)na_trial_end - (char *)own.dli_fbase);
		return perf_open(&attr, 0, -1);
	case CLOCK:
		attr.type = PERF_TYPE_SOFTWARE;
		attr.config = PERF_COUNT_SW_CPU_CLOCK;
		attr.sample_period = 1000000000;
		return perf_open(&attr, 0, -1);
	default:
		return -EINVAL;
	}
}

static int trial_attach(const struct kind *kind, int program, const char **step)
{
	int fd, rc = 0;

	switch (kind->how) {
	case NOWHERE:
		return 0;
	case RAW:
		fd = bpf_raw_tracepoint_open(NULL, program);
		break;
	case RAW_NAMED:
		fd = bpf_raw_tracepoint_open("sched_switch", program);
		break;
	case LINK:
		fd = bpf_link_create(program, 0, kind->attach_type, NULL);
		break;
	default:
		*step = "event";
		fd = perf_event(kind->how);
		if (fd < 0)
			return fd;
		*step = "attach";
		if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, program))
			rc = -errno;
		close(fd);
		return rc;
	}
	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

static int trial_program(const struct kind *kind, int attach, const char **step)
{
	const struct bpf_insn body[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = kind->result},
		{.code = BPF_JMP | BPF_EXIT},
	};
	LIBBPF_OPTS(bpf_prog_load_opts, opts, .expected_attach_type = kind->attach_type);
	int fd, id, rc;

	if (kind->btf_name) {
		*step = "btf";
		if (!vmlinux)
			vmlinux = btf__load_vmlinux_btf();
		if (!vmlinux)
			return -errno;
		id = btf__find_by_name_kind(vmlinux, kind->btf_name, (uint32_t)kind->btf_kind);
		if (id < 0)
			return id;
		opts.attach_btf_id = (uint32_t)id;
	}
	*step = "load";
	fd = bpf_prog_load(kind->type, "na_trial", license, body, 2, &opts);
	if (fd < 0)
		return -errno;
	*step = "attach";
	rc = attach ? trial_attach(kind, fd, step) : 0;
	close(fd);
	return rc;
}

/* Task storage is the one map that must describe its types. */
static int storage_map(void)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_NO_PREALLOC);
	struct btf *types = btf__new_empty();
	int id, fd, rc;

	if (!types)
		return -errno;
	id = btf__add_int(types, "int", 4, BTF_INT_SIGNED);
	if (id < 0 || btf__load_into_kernel(types)) {
		rc = id < 0 ? id : -errno;
		btf__free(types);
		return rc;
	}
	opts.btf_fd = (uint32_t)btf__fd(types);
	opts.btf_key_type_id = opts.btf_value_type_id = (uint32_t)id;
	fd = bpf_map_create(BPF_MAP_TYPE_TASK_STORAGE, "na_trial", 4, 4, 0, &opts);
	rc = fd < 0 ? -errno : fd;
	btf__free(types);
	return rc;
}

static int trial_map(const char *kind, const char **step)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE);
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
	int fd, rc = 0;
	void *at;

	*step = "map";
	if (!strcmp(kind, "ringbuf")) {
		fd = bpf_map_create(BPF_MAP_TYPE_RINGBUF, "na_trial", 0, 0, page, NULL);
	} else if (!strcmp(kind, "task_storage")) {
		fd = storage_map();
		if (fd < 0)
			errno = -fd;
	} else if (!strcmp(kind, "mmap_array")) {
		fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "na_trial", 4, 8, 1, &opts);
	} else {
		return -EOPNOTSUPP;
	}
	if (fd < 0)
		return -errno;
	if (!strcmp(kind, "mmap_array")) {
		at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (at == MAP_FAILED)
			rc = -errno;
		else
			munmap(at, page);
	}
	close(fd);
	return rc;
}

static int keep_quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	(void)level, (void)format, (void)args;
	return 0;
}

int na_trial(const char *kind, int attach, const char **step)
{
	libbpf_print_fn_t former = libbpf_set_print(keep_quiet);
	int rc = -EOPNOTSUPP;
	size_t i;

	for (i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(kinds[i].name, kind))
			break;
	if (i < sizeof(kinds) / sizeof(*kinds))
		rc = trial_program(&kinds[i], attach, step);
	else
		rc = trial_map(kind, step);
	libbpf_set_print(former);
	return rc;
}

void na_trial_end(void)
{
	btf__free(vmlinux);
	vmlinux = NULL;
}
