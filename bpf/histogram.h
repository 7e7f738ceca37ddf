/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
 * Histograms with the buckets of nodeagent/model/histogram.py: powers of two split in four. */
#ifndef NODEAGENT_HISTOGRAM_H
#define NODEAGENT_HISTOGRAM_H
#include "runq_abi.h"

#define NA_SUB_BITS 2

/* Position of the highest bit of a value > 0; BPF has no instruction for it. */
static __always_inline __u32 hist_log2(__u64 value)
{
	__u32 bit, exponent = 0;

#define NA_STEP(width)                                                                             \
	bit = (value >= 1ULL << (width)) * (width);                                                \
	value >>= bit;                                                                             \
	exponent += bit;
	NA_STEP(32)
	NA_STEP(16)
	NA_STEP(8)
	NA_STEP(4)
	NA_STEP(2)
	NA_STEP(1)
#undef NA_STEP
	return exponent;
}

static __always_inline __u32 hist_bucket(__u64 value)
{
	__u32 exponent;

	if (value < 1 << NA_SUB_BITS)
		return value;
	exponent = hist_log2(value);
	return ((exponent - NA_SUB_BITS + 1) << NA_SUB_BITS) +
	       (value >> (exponent - NA_SUB_BITS) & ((1 << NA_SUB_BITS) - 1));
}

/* atomic: where two CPUs may share the histogram. The maximum is not: a race loses the smaller of
 * two new maxima at worst, if they come within nanoseconds. */
static __always_inline void hist_add(struct na_hist *hist, __u64 value, bool atomic)
{
	__u64 *count = &hist->counts[NA_CLAMP(hist_bucket(value), NA_BUCKETS)];

	if (atomic) {
		__sync_fetch_and_add(count, 1);
		__sync_fetch_and_add(&hist->samples, 1);
		__sync_fetch_and_add(&hist->total, value);
	} else {
		*count += 1;
		hist->samples += 1;
		hist->total += value;
	}
	if (value > hist->maximum)
		hist->maximum = value;
}

#endif
