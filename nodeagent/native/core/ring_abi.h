/* SPDX-License-Identifier: Apache-2.0
 * The contract between producers and readers of a ring, and the words of ring.sock.
 * Plain structs and integer #defines only: this file is also cffi's cdef. Little-endian, natural alignment, no padding.
 * Guards, asserts and inline functions: ring.h (producers) and ring_reader.h (readers). Explained in docs/ring.md. */
#ifndef NODEAGENT_RING_ABI_H
#define NODEAGENT_RING_ABI_H
#include <stddef.h>
#include <stdint.h>

#define NA_RING_MAGIC 0x31474e4952414e00 /* bytes "\0NARING1" */
#define NA_RING_ABI_MAJOR 1 /* differs: refuse */
#define NA_RING_ABI_MINOR 0 /* higher: only fields that were reserved have a meaning */

#define NA_RING_TICKS 1
#define NA_RING_FRAMES 2

#define NA_RING_HUGE_BYTES 0x200000 /* data offset, and what data_bytes is a multiple of */
#define NA_RING_HOT_OFFSET 4096
#define NA_RING_SYMBOLS_OFFSET 65536
#define NA_RING_SYMBOLS_MAX 65536
#define NA_RING_MAX_BYTES 0x10000000000 /* no segment is larger: 1 TiB */
#define NA_RING_MAX_READERS 256 /* attached to one ring at a time */
#define NA_RING_NAME_BYTES 32 /* feed and reader names, with the ending NUL */
#define NA_RING_CHUNK 16 /* slots reserved at a time */
#define NA_RING_HEARTBEAT_NS 100000000 /* the producer's data thread stores its heartbeat at least this often */
#define NA_RING_STALE_NS 500000000 /* a heartbeat older than this: the reader says STALE */
#define NA_RING_WAIT_NS 20000000 /* longest single futex wait of a reader */

/* FNV-1a 64 of the text in docs/ring.md, "Schema". */
#define NA_RING_SCHEMA_TICKS 0x83ab43a9b17cf5ff
#define NA_RING_SCHEMA_FRAMES 0xd588773a1129e33

/* Static part of a segment, at file offset 0; written before the segment is passed on, never again. */
struct na_ring_header {
	uint64_t magic;
	uint16_t abi_major;
	uint16_t abi_minor;
	uint32_t header_bytes; /* sizeof(struct na_ring_header) */
	uint32_t kind; /* NA_RING_TICKS or NA_RING_FRAMES */
	uint32_t slot_bytes; /* ticks: 64; frames: 16, what record lengths are rounded up to */
	uint64_t schema_hash;
	uint64_t capacity; /* 2^k; ticks: slots, frames: bytes */
	uint64_t data_offset; /* in the file */
	uint64_t data_bytes;
	uint64_t hot_offset;
	uint64_t symbols_offset;
	uint32_t symbols_capacity; /* entries; frames: 0 */
	uint32_t symbol_bytes;
	uint64_t lineage; /* random; positions of equal lineage are comparable, across incarnations */
	uint64_t incarnation; /* 1 for the first of a lineage */
	uint64_t start; /* position of this incarnation's first record */
	uint64_t start_number; /* frames: number of its first frame; ticks: equal to start */
	uint64_t producer_start_time; /* /proc/PID/stat field 22, clock ticks since boot */
	int32_t producer_pid; /* in the producer's own PID namespace */
	int32_t clock_id; /* of every *_ns that is not ts_exch_ns: CLOCK_MONOTONIC */
	int32_t price_exponent; /* price = mantissa * 10^exponent */
	uint32_t flags; /* 0 */
	uint64_t feed_id; /* FNV-1a 64 of the feed's name */
	uint64_t created_ns; /* CLOCK_REALTIME */
	char feed[32];
	uint8_t reserved[324];
	uint32_t crc32c; /* of all bytes before it */
};

#define NA_RING_OPEN 1
#define NA_RING_CLOSED 2 /* the producer ended in good order */

/* Words that change, 128 bytes apart (two cache lines: the adjacent-line prefetcher pairs them). */
struct na_ring_hot {
	uint64_t reserve; /* positions below may be being written; never decreases */
	uint8_t pad0[120];
	uint64_t commit; /* positions below are written */
	uint8_t pad1[120];
	uint64_t first; /* frames: oldest whole record */
	uint8_t pad2[120];
	uint32_t futex; /* +1 a burst */
	uint8_t pad3[124];
	uint64_t heartbeat_ns;
	uint64_t state; /* NA_RING_OPEN, NA_RING_CLOSED */
	uint8_t pad4[112];
	uint64_t symbols_seq; /* odd while an entry is being changed */
	uint8_t pad5[120];
};

/* One entry of the symbol table, indexed by na_tick.instrument. The last word is stored last: length 0 is no entry. */
struct na_symbol {
	char name[23]; /* not NUL-terminated when length is 23 */
	uint8_t length;
};

/* One slot of the ticks ring: 64 bytes, frozen. Position p lives in slot p & (capacity - 1), whose seq is then p + 1. */
struct na_tick {
	uint64_t seq; /* stored last, with release */
	uint64_t ts_exch_ns; /* the exchange's stamp as the feed defines it (ITCH: since midnight) */
	uint64_t ts_rx_ns; /* CLOCK_MONOTONIC at receipt of the packet or burst */
	int64_t price; /* mantissa */
	uint64_t size;
	uint64_t ref; /* order reference */
	uint64_t aux; /* new reference, match number, or position in the frames ring (NA_TICK_AUX_FRAME) */
	uint32_t instrument;
	uint8_t kind; /* NA_KIND_* */
	uint8_t side; /* 'B', 'S' or 0 */
	uint16_t flags; /* NA_TICK_* */
};

#define NA_KIND_ADD 1 /* order added: ref, side, size, price */
#define NA_KIND_EXECUTE 2 /* part of ref executed at its own price: size; aux match number */
#define NA_KIND_EXECUTE_PRICE 3 /* the same at another price */
#define NA_KIND_REDUCE 4 /* ref loses size */
#define NA_KIND_DELETE 5 /* ref is gone */
#define NA_KIND_REPLACE 6 /* ref becomes aux with new size and price */
#define NA_KIND_TRADE 7 /* against an order that was not displayed: price, size, side; aux match number */
#define NA_KIND_CROSS 8 /* cross trade: price, size; aux match number */
#define NA_KIND_BREAK 9 /* trade aux is broken */
#define NA_KIND_DIRECTORY 10 /* instrument described; its symbol stands in the table */
#define NA_KIND_STATUS 11 /* trading state of an instrument: ref holds the state's code */
#define NA_KIND_SYSTEM 12 /* session event: ref holds the event's code */
#define NA_KIND_IMBALANCE 13 /* auction imbalance: details in the frame */
#define NA_KIND_OTHER 14 /* a message that fits none of these: in the frame; ref holds its type */
#define NA_KIND_QUOTE 15 /* best price of one side: price, size, side */
#define NA_KIND_LEVEL 16 /* a price level's total: price, size, side */
#define NA_KIND_CLEAR 17 /* the book of the instrument is empty */
#define NA_KIND_RESTART 240 /* first record of an incarnation that continues another: ref incarnation, aux pid */
#define NA_KIND_WIRE_GAP 241 /* size messages never came; ref first missing sequence number of the feed */

#define NA_TICK_AUX_FRAME 1 /* aux is a position in the frames ring */
#define NA_TICK_NOT_PRINTABLE 2 /* not to be counted in volume (ITCH: printable N) */
#define NA_TICK_LAST_OF_PACKET 4

/* Record of the frames ring: this, then length bytes of UDP payload, rounded up to 16. A position is a byte count. */
struct na_frame {
	uint64_t seq; /* position + 1, stored last, with release; whole only below commit */
	uint64_t number; /* frames before it in this lineage */
	uint64_t ts_rx_ns; /* CLOCK_MONOTONIC */
	uint64_t ts_hw_ns; /* the device's own clock; 0: none */
	uint32_t length; /* payload bytes */
	uint16_t flags; /* NA_FRAME_* */
	uint16_t vlan; /* 802.1Q VLAN ID; NA_FRAME_NO_VLAN: untagged, or not seen by this back-end */
	uint16_t src_port;
	uint16_t dst_port;
	uint8_t family; /* 4, 6, or 0: not from a packet */
	uint8_t reserved[3];
	uint8_t src[16]; /* network order; IPv4 in the first 4 bytes, the rest 0 */
	uint8_t dst[16];
};
#define NA_FRAME_NO_VLAN 65535
#define NA_FRAME_TRUNCATED 1 /* the source kept fewer bytes than the packet had */
#define NA_FRAME_MAX_PAYLOAD 65535
#define NA_FRAME_ALIGN 16

/* A reader's own page: a sealed 4 KiB memfd, written by that reader alone, never believed by anybody else. */
struct na_ring_page {
	uint64_t cursor; /* position of the oldest record not yet read; stored with release after use */
	uint64_t lineage; /* of that position */
	uint64_t records; /* read */
	uint64_t lost; /* lapped */
	uint64_t age_ns; /* data age when last looked */
	uint64_t age_max_ns;
	uint64_t looked_ns; /* CLOCK_MONOTONIC */
	uint8_t pad0[72];
	uint32_t waiting; /* 1: about to wait on the futex word */
	uint8_t pad1[124];
	uint64_t age_counts[256]; /* data age, one sample a batch; buckets of nodeagent/model/histogram.py */
	uint8_t pad2[1792];
};

/* ---- ring.sock: SOCK_SEQPACKET, one struct na_ring_msg a packet, followed by text_bytes of UTF-8. ---- */

#define NA_MSG_MAGIC 0x53524e41
#define NA_MSG_VERSION 1
#define NA_MSG_MAX_TEXT 65536
#define NA_MSG_MAX_FDS 4

#define NA_MSG_CLAIM 1 /* feeder: I am about to produce feed. Answer: CLAIMED */
#define NA_MSG_CLAIMED 2 /* fds: the last dead segments to number on from (ring bits in rings), if any */
#define NA_MSG_OFFER 3 /* feeder: fds of the segments in rings, then the stats page if flags has NA_MSG_HAS_STATS. Answer: OK */
#define NA_MSG_OK 4
#define NA_MSG_ATTACH 5 /* reader: feed, name, ring, mode. Answer: ATTACHED */
#define NA_MSG_ATTACHED 6 /* fds: segments in rings, then the reader's page */
#define NA_MSG_SEGMENT 7 /* to a reader that asked with NEXT; fds: segments in rings */
#define NA_MSG_GONE 8 /* to a reader: the producer of incarnation ended */
#define NA_MSG_NEXT 9 /* reader: I am done with incarnation, hand me the next one when there is one. Answer: SEGMENT */
#define NA_MSG_ADD_READER 10 /* to a feeder: slot, ring, mode, name; fd: the page, read-only */
#define NA_MSG_REMOVE_READER 11 /* to a feeder: slot, ring */
#define NA_MSG_DROPPED 12 /* feeder, passed on to the reader: no longer gating */
#define NA_MSG_STAT 13 /* anyone: one STAT_ROW a feed, then OK */
#define NA_MSG_STAT_ROW 14 /* text: JSON */
#define NA_MSG_ERROR 15 /* status: NA_ERR_*; text: sentence, newline, remedy */

#define NA_MSG_HAS_STATS 1
#define NA_MSG_LIVE 2 /* ATTACHED, SEGMENT: the producer lives */

#define NA_MODE_LOSSY 0
#define NA_MODE_GATING 1

#define NA_ERR_PROTOCOL 1
#define NA_ERR_VERSION 2
#define NA_ERR_DENIED 3
#define NA_ERR_NO_FEED 4
#define NA_ERR_BUSY 5 /* the feed has a living producer */
#define NA_ERR_FULL 6 /* too many readers or connections */
#define NA_ERR_SEGMENT 7 /* the offered segment is not one */

struct na_ring_msg {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
	uint32_t status;
	uint32_t flags;
	uint16_t ring; /* the ring a reader reads */
	uint16_t rings; /* bits 1 << NA_RING_*: which segments' fds come, in that order */
	uint16_t mode;
	uint16_t slot; /* the reader's place in the feeder's table */
	uint32_t text_bytes;
	uint32_t reserved0;
	uint64_t lineage;
	uint64_t incarnation;
	uint64_t cursor;
	char feed[32]; /* NUL-terminated */
	char name[32];
	uint64_t reserved1;
};

#endif
