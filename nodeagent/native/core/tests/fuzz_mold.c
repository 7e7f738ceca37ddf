/* SPDX-License-Identifier: Apache-2.0
 * libFuzzer: packets of two lines into MoldUDP64 and ITCH 5.0.
 * Input: lines and first number (1 byte), then packets: control (1: line, drops, a pause), length (2), bytes. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t now = 1000000000ULL;

	if (size < 1)
		return 0;
	fuzz_begin(1 + (data[0] & 1), data[0] >> 1 & 3, data[0] & 8 ? UINT64_MAX : 20000000ULL);
	data++;
	size--;
	while (size >= 3) {
		uint8_t control = data[0];
		uint32_t length = na_be16(data + 1);

		data += 3;
		size -= 3;
		if (length > size)
			length = (uint32_t)size;
		uint8_t *bytes = fuzz_exact(data, length);
		struct na_packet packet = {.data = bytes, .len = length, .line = control & 1 & (fuzz.mold.lines - 1),
					   .drops = control >> 1 & 3, .vlan = NA_FRAME_NO_VLAN};

		now += control & 8 ? 30000000ULL : 1000;
		if (control & 16)
			na_mold_idle(&fuzz.mold, now);
		packet.rx_ns = now;
		na_mold_packet(&fuzz.mold, &packet);
		free(bytes);
		data += length;
		size -= length;
	}
	fuzz_end();
	return 0;
}
