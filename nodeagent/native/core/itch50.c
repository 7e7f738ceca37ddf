/* SPDX-License-Identifier: Apache-2.0
 * Nasdaq TotalView-ITCH 5.0: one message into one tick, without a branch on its type.
 *
 * Source: "Nasdaq TotalView-ITCH 5.0", chapter 1 (message formats; older printings number the same
 * sections 4.x). Section numbers stand at each row. Every message begins with type (1 byte), stock
 * locate (2), tracking number (2) and time since midnight in ns (6); integers are big-endian; Price(4)
 * is an integer with four decimals; alpha fields are padded with spaces.
 *
 * Types come in no order that a branch predictor could learn: a switch cost 5 ns a message, as much as
 * all the rest. So each type is a row that says where its fields end; every field is the low bytes of an
 * eight-byte load that ends with it, masked to its width, and all rows do the same loads. No load leaves
 * the message: fields end within it and begin after byte 8. */
#include "messages.h"

struct rule {
	uint64_t ref_mask, size_mask, price_mask, aux_mask; /* 0: it has no such field */
	uint64_t rest;                 /* what the tick's last word has of it: the kind */
	uint64_t other;                /* what is or-ed to ref: the letter of a message of kind OTHER */
	uint8_t ref, size, price, aux; /* where the eight bytes begin that end with the field */
	uint8_t length;                /* 0: no such type */
	uint8_t code, code_mask, code_shift; /* where its side or printable letter stands; what becomes of it */
	uint8_t symbol;                /* 0: it names none */
	uint8_t special;               /* NA_DECODED_FRAME, NA_DECODED_NAMES */
} __attribute__((aligned(64)));        /* one cache line a type */

/* A letter's meaning, as bits that the rule's mask takes and its shift puts in place: of a side, the letter
 * itself; of printable, one bit that no side has. */
#define HIDDEN_BIT 0x04
static const uint8_t meaning[256] = {['B'] = 'B', ['S'] = 'S', ['N'] = HIDDEN_BIT};
_Static_assert((('B' | 'S') & HIDDEN_BIT) == 0 && NA_TICK_NOT_PRINTABLE == HIDDEN_BIT >> 1, "bits of letters");

#define FRAME NA_DECODED_FRAME
#define TYPE(letter, bytes, what) [letter] = {.length = (bytes), .rest = (uint64_t)(what) << W_KIND_SHIFT,
/* A message that fits none of the kinds: in the frame. */
#define OTHER(letter, bytes) TYPE(letter, bytes, NA_KIND_OTHER) .other = (letter), .special = FRAME,
#define END }

/* Fields by their first byte and width, as the specification has them. */
#define MASK(width) (~0ULL >> (64 - 8 * (width)))
#define REF(at, width) .ref = (at) + (width) - 8, .ref_mask = MASK(width),
#define SIZE(at, width) .size = (at) + (width) - 8, .size_mask = MASK(width),
#define AUX(at, width) .aux = (at) + (width) - 8, .aux_mask = MASK(width),
#define PRICE(at) .price = (at) - 4, .price_mask = MASK(4),
#define SIDE(at) .code = (at), .code_mask = 'B' | 'S', .code_shift = W_SIDE_SHIFT,
#define PRINTABLE(at) .code = (at), .code_mask = HIDDEN_BIT, .code_shift = W_FLAGS_SHIFT - 1,
#define SYMBOL(at) .symbol = (at),

/* clang-format off */
static const struct rule rules[256] = {
	/* 1.1 System Event: event code */
	TYPE('S', 12, NA_KIND_SYSTEM) REF(11, 1) END,
	/* 1.2.1 Stock Directory: round lot size */
	TYPE('R', 39, NA_KIND_DIRECTORY) SIZE(21, 4) SYMBOL(11) .special = FRAME | NA_DECODED_NAMES END,
	/* 1.2.2 Stock Trading Action: state, reason */
	TYPE('H', 25, NA_KIND_STATUS) REF(19, 1) AUX(21, 4) SYMBOL(11) END,
	/* 1.2.3 Reg SHO Short Sale Price Test Restricted Indicator */
	OTHER('Y', 20) SYMBOL(11) END,
	/* 1.2.4 Market Participant Position */
	OTHER('L', 26) SYMBOL(15) END,
	/* 1.2.5.1 MWCB Decline Level: Price(8), so not in price; 1.2.5.2 MWCB Status */
	OTHER('V', 35) END,
	OTHER('W', 12) END,
	/* 1.2.6 Quoting Period Update: IPO price */
	OTHER('K', 28) PRICE(24) SYMBOL(11) END,
	/* 1.2.7 Limit Up - Limit Down Auction Collar: reference price */
	OTHER('J', 35) PRICE(19) SYMBOL(11) END,
	/* 1.2.8 Operational Halt */
	OTHER('h', 21) SYMBOL(11) END,
	/* 1.3.1 Add Order; 1.3.2 with MPID, four letters */
	TYPE('A', 36, NA_KIND_ADD) REF(11, 8) SIDE(19) SIZE(20, 4) PRICE(32) SYMBOL(24) END,
	TYPE('F', 40, NA_KIND_ADD) REF(11, 8) SIDE(19) SIZE(20, 4) PRICE(32) SYMBOL(24) AUX(36, 4) END,
	/* 1.4.1 Order Executed: match number; 1.4.2 with price */
	TYPE('E', 31, NA_KIND_EXECUTE) REF(11, 8) SIZE(19, 4) AUX(23, 8) END,
	TYPE('C', 36, NA_KIND_EXECUTE_PRICE) REF(11, 8) SIZE(19, 4) AUX(23, 8) PRINTABLE(31) PRICE(32) END,
	/* 1.4.3 Order Cancel; 1.4.4 Order Delete */
	TYPE('X', 23, NA_KIND_REDUCE) REF(11, 8) SIZE(19, 4) END,
	TYPE('D', 19, NA_KIND_DELETE) REF(11, 8) END,
	/* 1.4.5 Order Replace: new reference */
	TYPE('U', 35, NA_KIND_REPLACE) REF(11, 8) AUX(19, 8) SIZE(27, 4) PRICE(31) END,
	/* 1.5.1 Trade: match number; 1.5.2 Cross Trade: cross type in ref; 1.5.3 Broken Trade */
	TYPE('P', 44, NA_KIND_TRADE) REF(11, 8) SIDE(19) SIZE(20, 4) PRICE(32) AUX(36, 8) SYMBOL(24) END,
	TYPE('Q', 40, NA_KIND_CROSS) SIZE(11, 8) PRICE(27) AUX(31, 8) REF(39, 1) SYMBOL(19) END,
	TYPE('B', 19, NA_KIND_BREAK) AUX(11, 8) END,
	/* 1.6 Net Order Imbalance Indicator: paired shares, imbalance, current reference price */
	TYPE('I', 50, NA_KIND_IMBALANCE) REF(11, 8) SIZE(19, 8) SIDE(27) PRICE(44) SYMBOL(28) .special = FRAME END,
	/* 1.7 Retail Price Improvement Indicator */
	OTHER('N', 20) SYMBOL(11) END,
	/* 1.8 Direct Listing with Capital Raise: near execution price */
	OTHER('O', 48) PRICE(28) SYMBOL(11) END,
};
/* clang-format on */

_Static_assert(sizeof(struct rule) == 64, "one cache line a type");

uint32_t na_itch50_length(uint8_t type) { return rules[type].length; }

static inline __attribute__((always_inline)) int decode(const uint8_t *m, uint32_t len, na_word *w)
{
	if (NA_UNLIKELY(len == 0))
		return -1 - NA_BAD_EMPTY;
	const struct rule *r = &rules[m[0]];

	if (NA_UNLIKELY(r->length != len))
		return r->length ? -1 - NA_BAD_LENGTH : -1 - NA_BAD_UNKNOWN_TYPE;
	/* Six bytes at 5; the two before them are the tracking number. */
	w[W_TS_EXCH] = na_be64(m + 3) & 0xffffffffffffULL;
	/* Without a field the mask is 0 and the load is at byte 0: no message is shorter than 12. */
	w[W_PRICE] = na_be64(m + r->price) & r->price_mask;
	w[W_SIZE] = na_be64(m + r->size) & r->size_mask;
	w[W_REF] = (na_be64(m + r->ref) & r->ref_mask) | r->other;
	w[W_AUX] = na_be64(m + r->aux) & r->aux_mask;
	w[W_REST] = na_be16(m + 1) | r->rest | (uint64_t)(meaning[m[r->code]] & r->code_mask) << r->code_shift;
	return r->special | (int)r->symbol << 8;
}

uint32_t na_itch50_blocks(struct na_messages *ms, const uint8_t **at, const uint8_t *end, uint32_t n,
			  const struct na_packet *packet, int *bad)
{
	return na_messages_blocks_with(ms, at, end, n, packet, bad, decode);
}
