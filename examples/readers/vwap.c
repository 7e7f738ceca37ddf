/* SPDX-License-Identifier: Apache-2.0
 * Volume-weighted average price of each symbol, from the ring of a feed. A reader in C11, no library to link:
 *
 *     cc -std=c11 -O2 -I "$(nodeagentctl ring include)" vwap.c -o vwap
 *     ./vwap /run/nodeagent/ring.sock itch 1000000
 *
 * Counts ticks that carry price and size (executions at a price, trades); stops after so many records. */
#include <ring_reader.h>
#include <inttypes.h>
#include <signal.h>

static volatile sig_atomic_t stopped;

static void stop(int number)
{
	(void)number;
	stopped = 1;
}

struct sum {
	double notional;
	uint64_t shares;
};

static struct sum sums[NA_RING_SYMBOLS_MAX], batch_sums[NA_RING_SYMBOLS_MAX];

static int counts(const struct na_tick *t)
{
	return (t->kind == NA_KIND_TRADE || t->kind == NA_KIND_EXECUTE_PRICE || t->kind == NA_KIND_ADD) &&
	       t->instrument < NA_RING_SYMBOLS_MAX && !(t->flags & NA_TICK_NOT_PRINTABLE);
}

/* Adds a batch up aside; a reader that was lapped in mid-use must be able to leave records out again. */
static void add(struct sum *to, const struct na_tick *ticks, size_t count, int sign)
{
	for (size_t i = 0; i < count; i++)
		if (counts(&ticks[i])) {
			struct sum *sum = &to[ticks[i].instrument];
			sum->notional += sign * (double)ticks[i].price * (double)ticks[i].size;
			sum->shares += (uint64_t)sign * ticks[i].size;
		}
}

int main(int argc, char **argv)
{
	struct na_reader reader;
	const struct na_tick *ticks;
	char why[1024];
	if (argc != 4) {
		fprintf(stderr, "usage: %s RING.SOCK FEED RECORDS\n", argv[0]);
		return 64;
	}
	uint64_t wanted = strtoull(argv[3], NULL, 10);
	signal(SIGINT, stop);
	signal(SIGTERM, stop);
	int rc = nar_attach(&reader, argv[1], argv[2], "vwap-c", NA_MODE_LOSSY, why, sizeof(why));
	if (rc < 0) {
		fprintf(stderr, "error: %s\n", why);
		return 3;
	}
	printf("attached at %" PRIu64 "\n", reader.cursor);
	fflush(stdout);
	while (!stopped && reader.records < wanted) {
		size_t count = nar_batch(&reader, 1024, &ticks);
		if (!count) {
			if (nar_wait(&reader, 1000000000) == NA_WAIT_STALE)
				fprintf(stderr, "STALE: the producer is silent\n");
			continue;
		}
		/* Copying would do as well; this shows use in place. Only what is still whole afterwards counts: the sums
		 * of a batch in doubt are thrown away and made again from what stands. */
		memset(batch_sums, 0, sizeof(batch_sums));
		add(batch_sums, ticks, count, 1);
		size_t over = nar_validate(&reader);
		while (over) {
			memset(batch_sums, 0, sizeof(batch_sums));
			add(batch_sums, ticks + over, count - over, 1);
			size_t now = nar_validate(&reader);
			if (now == over)
				break;
			over = now;
		}
		for (size_t i = 0; i < NA_RING_SYMBOLS_MAX; i++) {
			sums[i].notional += batch_sums[i].notional;
			sums[i].shares += batch_sums[i].shares;
		}
		nar_advance(&reader, count);
	}
	double scale = 1;
	for (int e = reader.ticks->fixed.price_exponent; e < 0; e++)
		scale /= 10;
	for (uint32_t i = 0; i < NA_RING_SYMBOLS_MAX; i++) {
		struct na_symbol symbol;
		if (sums[i].shares && nar_symbol(reader.ticks, i, &symbol) == 0)
			printf("%.*s %.4f\n", symbol.length, symbol.name, sums[i].notional / (double)sums[i].shares * scale);
	}
	printf("%" PRIu64 " records, %" PRIu64 " lost, %" PRIu64 " restarts\n", reader.records, reader.lost,
	       reader.switches);
	nar_detach(&reader);
	return 0;
}
