// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Our arithmetic, callable: `value` in, `bucket` out, and one record in a ring buffer. Attached
 * nowhere; run by BPF_PROG_TEST_RUN. */
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include "gate.h"
#include "histogram.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct na_question {
	__u64 value;
	__u64 bucket;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

SEC("syscall")
int bucket(struct na_question *question)
{
	question->bucket = hist_bucket(question->value);
	return 0;
}

/* 0: written, 1: the ring is full. */
SEC("syscall")
int record(struct na_question *question)
{
	struct na_question copy = *question;

	return bpf_ringbuf_output(&records, &copy, sizeof(copy), BPF_RB_NO_WAKEUP) ? 1 : 0;
}
