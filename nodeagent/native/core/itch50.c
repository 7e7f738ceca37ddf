/* SPDX-License-Identifier: Apache-2.0
 * Nasdaq TotalView-ITCH 5.0: one message into one tick.
 *
 * Source: "Nasdaq TotalView-ITCH 5.0", chapter 1 (message formats; older printings number the same
 * sections 4.x). Section numbers stand at each case. Every message begins with type (1 byte), stock
 * locate (2), tracking number (2) and time since midnight in ns (6); integers are big-endian; Price(4)
 * is an integer with four decimals, Price(8) with eight; alpha fields are padded with spaces. */
#include "feed.h"

static const uint8_t itch_length[256] = {
	['S'] = 12, ['R'] = 39, ['H'] = 25, ['Y'] = 20, ['L'] = 26, ['V'] = 35, ['W'] = 12, ['K'] = 28,
	['J'] = 35, ['h'] = 21, ['A'] = 36, ['F'] = 40, ['E'] = 31, ['C'] = 36, ['X'] = 23, ['D'] = 19,
	['U'] = 35, ['P'] = 44, ['Q'] = 40, ['B'] = 19, ['I'] = 50, ['N'] = 20, ['O'] = 48,
};

uint32_t na_itch50_length(uint8_t type) { return itch_length[type]; }

#define SYMBOL_AT(offset) ((offset) << 8)

static inline uint8_t side(uint8_t code) { return code == 'B' || code == 'S' ? code : 0; }

int na_itch50_decode(const uint8_t *m, uint32_t len, struct na_tick *t)
{
	if (NA_UNLIKELY(len == 0))
		return -1 - NA_BAD_EMPTY;
	if (NA_UNLIKELY(itch_length[m[0]] != len))
		return itch_length[m[0]] ? -1 - NA_BAD_LENGTH : -1 - NA_BAD_UNKNOWN_TYPE;

	t->instrument = na_be16(m + 1);
	/* Six bytes at 5; the two before them are the tracking number. len >= 12 here. */
	t->ts_exch_ns = na_be64(m + 3) & 0xffffffffffffULL;
	t->price = 0;
	t->size = 0;
	t->ref = 0;
	t->aux = 0;
	t->side = 0;
	t->flags = 0;

	switch (m[0]) {
	case 'A': /* 1.3.1 Add Order, no MPID */
		t->kind = NA_KIND_ADD;
		t->ref = na_be64(m + 11);
		t->side = side(m[19]);
		t->size = na_be32(m + 20);
		t->price = na_be32(m + 32);
		return SYMBOL_AT(24);
	case 'D': /* 1.4.4 Order Delete */
		t->kind = NA_KIND_DELETE;
		t->ref = na_be64(m + 11);
		return 0;
	case 'E': /* 1.4.1 Order Executed */
		t->kind = NA_KIND_EXECUTE;
		t->ref = na_be64(m + 11);
		t->size = na_be32(m + 19);
		t->aux = na_be64(m + 23);
		return 0;
	case 'U': /* 1.4.5 Order Replace */
		t->kind = NA_KIND_REPLACE;
		t->ref = na_be64(m + 11);
		t->aux = na_be64(m + 19);
		t->size = na_be32(m + 27);
		t->price = na_be32(m + 31);
		return 0;
	case 'X': /* 1.4.3 Order Cancel */
		t->kind = NA_KIND_REDUCE;
		t->ref = na_be64(m + 11);
		t->size = na_be32(m + 19);
		return 0;
	case 'F': /* 1.3.2 Add Order with MPID attribution */
		t->kind = NA_KIND_ADD;
		t->ref = na_be64(m + 11);
		t->side = side(m[19]);
		t->size = na_be32(m + 20);
		t->price = na_be32(m + 32);
		t->aux = na_be32(m + 36); /* MPID, four letters; 0 in A */
		return SYMBOL_AT(24);
	case 'P': /* 1.5.1 Trade, non-cross */
		t->kind = NA_KIND_TRADE;
		t->ref = na_be64(m + 11);
		t->side = side(m[19]);
		t->size = na_be32(m + 20);
		t->price = na_be32(m + 32);
		t->aux = na_be64(m + 36);
		return SYMBOL_AT(24);
	case 'C': /* 1.4.2 Order Executed with Price */
		t->kind = NA_KIND_EXECUTE_PRICE;
		t->ref = na_be64(m + 11);
		t->size = na_be32(m + 19);
		t->aux = na_be64(m + 23);
		t->flags = m[31] == 'N' ? NA_TICK_NOT_PRINTABLE : 0;
		t->price = na_be32(m + 32);
		return 0;
	case 'Q': /* 1.5.2 Cross Trade */
		t->kind = NA_KIND_CROSS;
		t->size = na_be64(m + 11);
		t->price = na_be32(m + 27);
		t->aux = na_be64(m + 31);
		t->ref = m[39]; /* cross type */
		return SYMBOL_AT(19);
	case 'B': /* 1.5.3 Broken Trade */
		t->kind = NA_KIND_BREAK;
		t->aux = na_be64(m + 11);
		return 0;
	case 'I': /* 1.6 Net Order Imbalance Indicator */
		t->kind = NA_KIND_IMBALANCE;
		t->ref = na_be64(m + 11);
		t->size = na_be64(m + 19);
		t->side = side(m[27]); /* N, O, P: neither; see the frame */
		t->price = na_be32(m + 44);
		return SYMBOL_AT(28) | NA_DECODED_FRAME;
	case 'S': /* 1.1 System Event */
		t->kind = NA_KIND_SYSTEM;
		t->ref = m[11];
		return 0;
	case 'R': /* 1.2.1 Stock Directory */
		t->kind = NA_KIND_DIRECTORY;
		t->size = na_be32(m + 21); /* round lot */
		return SYMBOL_AT(11) | NA_DECODED_FRAME;
	case 'H': /* 1.2.2 Stock Trading Action */
		t->kind = NA_KIND_STATUS;
		t->ref = m[19];
		t->aux = na_be32(m + 21); /* reason, four letters */
		return SYMBOL_AT(11);
	case 'Y': /* 1.2.3 Reg SHO Short Sale Price Test Restricted Indicator */
	case 'h': /* 1.2.8 Operational Halt */
	case 'N': /* 1.7 Retail Price Improvement Indicator */
		break;
	case 'L': /* 1.2.4 Market Participant Position */
		t->kind = NA_KIND_OTHER;
		t->ref = 'L';
		return SYMBOL_AT(15) | NA_DECODED_FRAME;
	case 'V': /* 1.2.5.1 MWCB Decline Level: Price(8), so not in price */
	case 'W': /* 1.2.5.2 MWCB Status */
		t->kind = NA_KIND_OTHER;
		t->ref = m[0];
		return NA_DECODED_FRAME;
	case 'K': /* 1.2.6 Quoting Period Update: IPO price */
		t->price = na_be32(m + 24);
		break;
	case 'J': /* 1.2.7 Limit Up - Limit Down Auction Collar: reference price */
		t->price = na_be32(m + 19);
		break;
	case 'O': /* 1.8 Direct Listing with Capital Raise: near execution price */
		t->price = na_be32(m + 28);
		break;
	}
	t->kind = NA_KIND_OTHER;
	t->ref = m[0];
	return SYMBOL_AT(11) | NA_DECODED_FRAME;
}
