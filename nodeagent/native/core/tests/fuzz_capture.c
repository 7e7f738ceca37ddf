/* SPDX-License-Identifier: Apache-2.0
 * libFuzzer: files into the capture source, all formats, and frames into the parser.
 * Input: mode (1 byte), then the file; or, in frame mode, link type (1), and the frame. */
#include "../replay_abi.h"
#include "fuzz.h"
#include <sys/mman.h>
#include <unistd.h>

static int file_of(const uint8_t *data, size_t size)
{
	static int fd = -1;

	if (fd < 0)
		fd = memfd_create("fuzz", MFD_CLOEXEC);
	MUST(fd >= 0 && ftruncate(fd, 0) == 0);
	MUST(pwrite(fd, data, size, 0) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0);
	return fd;
}

static void one_frame(const uint8_t *data, size_t size)
{
	static const uint32_t links[] = {1, 101, 113, 276, 0, 108, 228, 229};
	struct na_packet packet = {.drops = 0};

	if (size < 1)
		return;
	uint32_t link = links[data[0] & 7];
	uint8_t *frame = fuzz_exact(data + 1, size - 1);

	fuzz_begin(1, 0, UINT64_MAX);
	if (na_frame_parse(frame, (uint32_t)size - 1, (uint32_t)size - 1, link, data[0] >> 3 & 1, &fuzz.counts,
			   &packet)) {
		MUST(packet.data >= frame && packet.data + packet.len <= frame + size - 1);
		na_mold_packet(&fuzz.mold, &packet);
	}
	free(frame);
	fuzz_end();
}

static void one_file(int fd, uint32_t format)
{
	struct na_capture c;
	struct na_packet packet = {.drops = 0}, file = {.vlan = NA_FRAME_NO_VLAN};
	const uint8_t *p, *end;
	uint32_t n;
	int rc, cut;

	fuzz_begin(0, 0, UINT64_MAX);
	MUST(na_capture_init(&c, fd, format, &fuzz.counts) == 0);
	c.learn = 1;
	c.verify = format == 0;
	rc = na_capture_begin(&c);
	if (rc == 0 && (c.format == NA_FORMAT_PCAP || c.format == NA_FORMAT_PCAPNG)) {
		while ((rc = na_capture_packet(&c, &packet)) == 1) {
			struct na_packet exact = packet;
			uint8_t *bytes = fuzz_exact(packet.data, packet.len);

			exact.data = bytes;
			fuzz.mold.lines = c.lines;
			na_mold_packet(&fuzz.mold, &exact);
			free(bytes);
		}
	} else if (rc == 0) {
		while ((rc = na_capture_blocks(&c, &p, &end, &n)) == 1) {
			fuzz.counts.span += fuzz.messages.blocks(&fuzz.messages, &p, end, n, &file, &cut);
			MUST(!cut && p == end);
		}
	}
	MUST(rc <= 0 && (rc == 0) == (c.error.kind == 0));
	na_capture_deinit(&c);
	fuzz_end();
}

static void one_replay(int fd)
{
	struct na_replay *replay;
	struct na_capture_error error;
	uint64_t messages, packets;

	if (na_replay_new(fd, 0, &replay, &error) == 0) {
		for (uint32_t per_packet = 0; per_packet < 5; per_packet++) {
			na_replay_size(replay, per_packet, &messages, &packets);
			MUST(messages >= packets && packets > 0);
		}
	}
	na_replay_free(replay);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	switch (data[0] & 7) {
	case 0:
	case 1:
		one_frame(data + 1, size - 1);
		break;
	case 7:
		one_replay(file_of(data + 1, size - 1));
		break;
	case 6:
		one_file(file_of(data + 1, size - 1), NA_FORMAT_AUTO);
		break;
	default: /* 2 pcap, 3 pcapng, 4 BinaryFILE, 5 SoupBinTCP */
		one_file(file_of(data + 1, size - 1), (data[0] & 7u) - 1);
	}
	return 0;
}
