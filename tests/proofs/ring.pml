/* SPDX-License-Identifier: Apache-2.0
 * The ring's protocol under a memory model with store buffers that drain out of order.
 *
 * One producer, one lossy reader, CAP slots of WORDS payload words, N records. What the code orders is
 * ordered here, and nothing else:
 *   - a store goes into its process's buffer; any buffered store may reach memory next, except that
 *     stores to one address keep their order, a release store waits for all older ones, and a
 *     fence's older stores go before its younger ones;
 *   - a load may be performed early: without the acquire on seq the payload may be read before it, without the
 *     acquire fence `reserve` may be read before the payload;
 *   - a seq_cst fence empties the buffer before any later load.
 *
 * Proved: no torn or foreign record is ever accepted (assert in the reader), and no wake-up is
 * lost (assert at the end). tests/proofs/test_model.py verifies this file as it is, and that each of
 *   -DNO_RESERVE_FENCE -DNO_SEQ_RELEASE -DNO_SEQ_ACQUIRE -DNO_READ_FENCE -DNO_WAKE_FENCE -DNO_WAIT_FENCE
 *   -DNO_FUTEX_RELEASE
 * makes it fail. Names follow native/core/ring.h and ring_reader.h.
 */

#define CAP 2
#define WORDS 2
#define N 4
#define BUF 6

#define RESERVE 0
#define FUTEX 1
#define WAITING 2
#define SEQ(s) (3 + (s) * (WORDS + 1))
#define DATA(s, w) (SEQ(s) + 1 + (w))
#define CELLS (3 + CAP * (WORDS + 1))

byte mem[CELLS];

/* The producer's store buffer. epoch: how many release fences came before. */
byte b_at[BUF]; byte b_val[BUF]; byte b_epoch[BUF]; bool b_rel[BUF];
byte b_n; byte epoch;
/* The reader's: it stores one word only, its flag. */
bool r_pending; byte r_val;

bool producer_done; bool asleep;
bool early;

inline put(a, v, release) {
	atomic {
		b_n < BUF ->
		b_at[b_n] = a; b_val[b_n] = v; b_epoch[b_n] = epoch; b_rel[b_n] = release; b_n++
	}
}

inline may_drain(k, ok) {
	ok = (k < b_n);
	j = 0;
	do
	:: j < k && ok ->
		if
		:: b_at[j] == b_at[k] || b_epoch[j] < b_epoch[k] || b_rel[k] -> ok = false
		:: else
		fi;
		j++
	:: else -> break
	od
}

inline drain(k) {
	mem[b_at[k]] = b_val[k];
	j = k;
	do
	:: j + 1 < b_n ->
		b_at[j] = b_at[j+1]; b_val[j] = b_val[j+1]; b_epoch[j] = b_epoch[j+1]; b_rel[j] = b_rel[j+1];
		j++
	:: else -> break
	od;
	b_n--;
	b_at[b_n] = 0; b_val[b_n] = 0; b_epoch[b_n] = 0; b_rel[b_n] = false;
	if
	:: b_n == 0 -> epoch = 0
	:: else
	fi
}

/* Memory takes one buffered store of the producer, any that the model allows. */
active proctype producer_memory() {
	byte k, j; bool ok;
end:
	do
	:: atomic { b_n > 0 ->
		k = 0;
		do
		:: k + 1 < b_n -> k++
		:: break
		od;
		may_drain(k, ok);
		if
		:: ok -> drain(k)
		:: else
		fi;
		k = 0; j = 0; ok = false
	   }
	od
}

active proctype reader_memory() {
end:
	do
	:: atomic { r_pending -> mem[WAITING] = r_val; r_pending = false }
	od
}

active proctype producer() {
	byte n = 0, w = 0;
	bool flag;
	do
	:: n < N ->
		put(RESERVE, n + 1, false);
#ifndef NO_RESERVE_FENCE
		atomic { epoch++ }
#endif
		w = 0;
		do
		:: w < WORDS -> put(DATA(n % CAP, w), n + 1, false); w++
		:: else -> break
		od;
#ifndef NO_SEQ_RELEASE
		put(SEQ(n % CAP), n + 1, true);
#else
		put(SEQ(n % CAP), n + 1, false);
#endif
		n++;
		/* na_ring_flush: the futex word, the fence, the flag. */
#ifndef NO_FUTEX_RELEASE
		/* Without release the word may be seen before the seq: a reader then sleeps on the new word. */
		put(FUTEX, n, true);
#else
		put(FUTEX, n, false);
#endif
#ifndef NO_WAKE_FENCE
		b_n == 0;
#endif
		atomic { flag = mem[WAITING] == 1;
			if
			:: flag -> asleep = false
			:: else
			fi; flag = false }
	:: else -> break
	od;
	b_n == 0;
	producer_done = true
}

active proctype reader() {
	byte cursor = 0, s, res, word, tries, ahead;
	byte got[WORDS];
	bool torn;
	do
	:: cursor >= N -> break
	:: cursor < N ->
		/* Loads that the missing acquire or fence lets go early. */
		early = false; res = 255;
#ifdef NO_SEQ_ACQUIRE
		if
		:: true -> got[0] = mem[DATA(cursor % CAP, 0)]; early = true
		:: true
		fi;
#endif
		/* Galloping looks at a later slot's seq and takes all before it. */
		ahead = 0;
		if
		:: cursor + 1 < N -> ahead = 1
		:: true
		fi;
		s = mem[SEQ((cursor + ahead) % CAP)];
		if
		:: ahead == 1 && s < cursor + 2 -> ahead = 0; s = mem[SEQ(cursor % CAP)]
		:: else
		fi;
		if
		:: s >= cursor + 1 ->
			/* A whole record, this one or, where the producer has lapped, a later one. */
#ifdef NO_READ_FENCE
			if
			:: true -> res = mem[RESERVE]
			:: true
			fi;
#endif
			word = 0;
			do
			:: word < WORDS ->
				if
				:: early && word == 0
				:: else -> got[word] = mem[DATA(cursor % CAP, word)]
				fi;
				word++
			:: else -> break
			od;
			if
			:: res == 255 -> res = mem[RESERVE]
			:: else
			fi;
			atomic {
				if
				:: s == cursor + ahead + 1 && res - cursor <= CAP ->
					assert(got[0] == cursor + 1 && got[WORDS-1] == cursor + 1);
					cursor++
				:: else ->
					/* Lapped: the position is given up, and counted. */
					cursor++
				fi;
				got[0] = 0; got[1] = 0; res = 0; s = 0; word = 0; early = false; ahead = 0
			}
		:: else ->
			/* nar_wait: the word, the flag, the fence, the slot again, FUTEX_WAIT on the word. */
			tries = mem[FUTEX];
			atomic { !r_pending -> r_pending = true; r_val = 1 }
#ifndef NO_WAIT_FENCE
			!r_pending;
#endif
			s = mem[SEQ(cursor % CAP)];
			if
			:: s >= cursor + 1
			:: else ->
				atomic {
					if
					:: mem[FUTEX] == tries -> asleep = true
					:: else
					fi
				}
				/* Woken, or the end: then asleep with something to read is a lost wake-up. */
				(!asleep || (producer_done && b_n == 0 && !r_pending));
				assert(!asleep)
			fi;
			atomic { !r_pending -> r_pending = true; r_val = 0; tries = 0; s = 0 }
		fi
	od
}
