// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The peer: run-queue latency as it is usually measured, times in a hash map by tid, a histogram of
 * powers of two for each process in another. */
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "histogram.h"

#define BPF_MAP_TYPE_HASH 1

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240);
	__type(key, __u32);
	__type(value, __u64);
} start SEC(".maps");

struct histogram {
	__u64 counts[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct histogram);
} histograms SEC(".maps");

static struct histogram none;

static __always_inline void queued(struct task_struct *task)
{
	__u32 tid = task->pid;
	__u64 now = bpf_ktime_get_ns();

	if (tid)
		bpf_map_update_elem(&start, &tid, &now, 0);
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(sched_wakeup, struct task_struct *task)
{
	queued(task);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 tid = next->pid, tgid = next->tgid;
	struct histogram *histogram;
	__u64 *since, wait;

	if (!prev->__state)
		queued(prev);
	since = bpf_map_lookup_elem(&start, &tid);
	if (!since)
		return 0;
	wait = bpf_ktime_get_ns() - *since;
	histogram = bpf_map_lookup_elem(&histograms, &tgid);
	if (!histogram) {
		bpf_map_update_elem(&histograms, &tgid, &none, 0);
		histogram = bpf_map_lookup_elem(&histograms, &tgid);
	}
	if (histogram)
		__sync_fetch_and_add(&histogram->counts[hist_log2(wait | 1) & 63], 1);
	bpf_map_delete_elem(&start, &tid);
	return 0;
}
