/* SPDX-License-Identifier: Apache-2.0
 * Speed of the ring, through the functions that feeders and readers call. tests/bench/ring.py runs it.
 *   ring_speed publish COUNT BURST              "publish NS": CPU time a tick, no reader
 *   ring_speed lossless WINDOWS COUNT BURST     "rate MMSG WHOLE WINDOWS": to one busy reader that holds the producer
 *   ring_speed hop COUNT                        "hop P50 P99": one way between two processes, ns
 *   ring_speed stopped PAIRS BURSTS SIZE        a line "pair NONE STOPPED" each: p99 ns of a burst
 *   ring_speed bursts ARM BURSTS SIZE           just works (its instructions are counted); ARM 0 none, 1 stopped */
#include "pair.h"
#include "ring_reader.h"

#define SEALS (NA_F_SEAL_SHRINK | NA_F_SEAL_GROW | NA_F_SEAL_SEAL)

static struct na_ring *make(uint64_t capacity)
{
	struct na_ring_config config = {.feed = "bench", .kind = NA_RING_TICKS, .capacity = capacity, .node = -1,
	                                .gating_deadline_ns = 60000000000u};
	struct na_ring *ring;
	char why[256] = "";
	if (na_ring_create(&config, NULL, &ring, why, sizeof(why)) < 0) {
		fprintf(stderr, "%s\n", why);
		exit(3);
	}
	return ring;
}

static struct na_view *view_of(struct na_ring *ring)
{
	struct na_view *view;
	char why[256];
	if (nar_view_open(ring->info.fd, NA_RING_TICKS, 1, &view, why, sizeof(why)) < 0) {
		fprintf(stderr, "%s\n", why);
		exit(3);
	}
	return view;
}

/* A reader's page, as the daemon makes it. */
static int make_page(void)
{
	int fd = memfd_create("bench-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || posix_fallocate(fd, 0, sizeof(struct na_ring_page)) || fcntl(fd, NA_F_ADD_SEALS, SEALS)) {
		perror("page");
		exit(3);
	}
	return fd;
}

/* A reader as nar_attach leaves it, but for the socket: there is no daemon here, and it never looks for one. */
static void attach(struct na_reader *reader, struct na_ring *ring, int page_fd)
{
	memset(reader, 0, sizeof(*reader));
	reader->sock = -1;
	reader->retry_ns = UINT64_MAX;
	reader->ticks = view_of(ring);
	reader->page = (struct na_ring_page *)mmap(NULL, sizeof(struct na_ring_page), PROT_READ | PROT_WRITE, MAP_SHARED,
	                                           page_fd, 0);
	if (reader->page == MAP_FAILED)
		exit(3);
	reader->cursor = nar_commit(reader->ticks);
	nar_publish_page(reader);
}

static int publish(uint64_t count, unsigned burst)
{
	struct na_ring *ring = make(1 << 16);
	struct na_tick tick = {.kind = NA_KIND_ADD};
	uint64_t began = cpu_ns();
	for (uint64_t i = 0; i < count; i += burst) {
		for (uint64_t k = i; k < i + burst; k++) {
			tick.price = (int64_t)k;
			tick.ref = k;
			na_ring_push(ring, &tick);
		}
		na_ring_commit(ring);
		na_ring_flush(ring);
	}
	printf("publish %.3f\n", (double)(cpu_ns() - began) / (double)count);
	na_ring_destroy(ring);
	return 0;
}

struct lossless {
	struct na_ring *ring;
	struct na_reader reader;
	int page_fd, begun;
	unsigned burst;
};

static uint64_t send_ticks(void *context, struct pair *pair, uint64_t first, uint64_t count)
{
	struct lossless *l = (struct lossless *)context;
	struct na_tick tick = {.kind = NA_KIND_ADD};
	(void)pair;
	unsigned in_burst = 0;
	for (uint64_t i = first; i < first + count; i++) {
		tick.ref = i;
		na_ring_push(l->ring, &tick);
		if (l->burst == 1)
			na_ring_commit(l->ring);
		if (++in_burst == 32) {
			in_burst = 0;
			if (l->burst != 1)
				na_ring_commit(l->ring);
			na_ring_flush(l->ring);
		}
	}
	na_ring_commit(l->ring);
	na_ring_flush(l->ring);
	return 0;
}

static uint64_t receive_ticks(void *context, struct pair *pair, uint64_t first, uint64_t count)
{
	struct lossless *l = (struct lossless *)context;
	const struct na_tick *ticks;
	uint64_t bad = 0, end = first + count;
	(void)pair;
	if (!l->begun++)
		attach(&l->reader, l->ring, l->page_fd);
	while (l->reader.cursor < end) {
		size_t n = nar_batch(&l->reader, 1024, &ticks);
		if (!n)
			continue;
		uint64_t at = l->reader.cursor;
		for (size_t i = 0; i < n; i++)
			bad += ticks[i].ref != at + i;
		bad += nar_validate(&l->reader);
		nar_advance(&l->reader, n);
	}
	return bad + l->reader.lost;
}

static int lossless(uint32_t windows, uint64_t count, unsigned burst)
{
	struct lossless l = {.ring = make(1 << 15), .page_fd = make_page(), .burst = burst};
	if (na_ring_add_reader(l.ring, 0, l.page_fd, NA_MODE_GATING))
		return 3;
	int rc = run_windows(&l, send_ticks, receive_ticks, windows, count);
	na_ring_destroy(l.ring);
	return rc;
}

static int hop(uint64_t count)
{
	struct na_ring *there = make(1 << 15), *back = make(1 << 15);
	double *times = (double *)calloc(count, sizeof(*times));
	struct na_tick tick = {.kind = NA_KIND_ADD};
	pid_t child = fork();
	if (!times || child < 0)
		return 3;
	pin(child == 0);
	struct na_view *in = view_of(child ? back : there);
	struct na_ring *out = child ? there : back;
	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t began = now_ns();
		if (child) {
			na_ring_push(out, &tick);
			na_ring_commit(out);
		}
		while (!nar_available(in, i, 1))
			;
		if (!child) {
			na_ring_push(out, &tick);
			na_ring_commit(out);
		}
		times[i] = (double)(now_ns() - began) / 2;
	}
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	printf("hop %.0f %.0f\n", quantile(times, (int)count, 0.5), quantile(times, (int)count, 0.99));
	return 0;
}

static void bursts(struct na_ring *ring, uint64_t count, unsigned size, double *times)
{
	struct na_tick tick = {.kind = NA_KIND_ADD};
	for (uint64_t i = 0; i < count; i++) {
		uint64_t began = times ? now_ns() : 0;
		for (unsigned k = 0; k < size; k++) {
			tick.ref = i + k;
			na_ring_push(ring, &tick);
		}
		na_ring_commit(ring);
		na_ring_flush(ring);
		if (times)
			times[i] = (double)(now_ns() - began);
	}
}

/* A process that reads and waits as readers do, stopped in the middle of its wait: its flag stays up. */
static pid_t stopped_reader(struct na_ring *ring, int page_fd)
{
	pid_t pid = fork();
	if (!pid) {
		struct na_reader reader;
		const struct na_tick *ticks;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		attach(&reader, ring, page_fd);
		for (;;) {
			nar_advance(&reader, nar_batch(&reader, 1024, &ticks));
			nar_wait(&reader, UINT64_MAX);
		}
	}
	const struct na_ring_page *page = (const struct na_ring_page *)mmap(NULL, 4096, PROT_READ, MAP_SHARED, page_fd, 0);
	if (pid < 0 || page == MAP_FAILED)
		exit(3);
	for (;;) {
		while (!__atomic_load_n(&page->waiting, __ATOMIC_ACQUIRE))
			usleep(1000);
		kill(pid, SIGSTOP);
		int status;
		waitpid(pid, &status, WUNTRACED);
		if (__atomic_load_n(&page->waiting, __ATOMIC_ACQUIRE))
			return pid;
		kill(pid, SIGCONT); /* it woke up just then */
	}
}

static int stopped(int pairs, uint64_t count, unsigned size)
{
	struct na_ring *ring = make(1 << 16);
	int page_fd = make_page();
	double *times = (double *)calloc(count, sizeof(*times));
	pid_t pid = stopped_reader(ring, page_fd);
	pin(0);
	if (!times)
		return 3;
	bursts(ring, count, size, times);
	for (int pair = 0; pair < pairs; pair++) {
		double p99[2];
		/* Which one comes first changes each time. */
		for (int turn = 0; turn < 2; turn++) {
			int arm = (turn + pair) % 2;
			if (arm && na_ring_add_reader(ring, 0, page_fd, NA_MODE_LOSSY))
				return 3;
			bursts(ring, count, size, times);
			if (arm)
				na_ring_remove_reader(ring, 0);
			p99[arm] = quantile(times, (int)count, 0.99);
		}
		printf("pair %.0f %.0f\n", p99[0], p99[1]);
	}
	printf("wakes %llu\n", (unsigned long long)ring->info.wakes);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	na_ring_destroy(ring);
	return 0;
}

/* The same without a process: a page whose flag is up, as a stopped reader leaves it. */
static int work(int arm, uint64_t count, unsigned size)
{
	struct na_ring *ring = make(1 << 15);
	int page_fd = make_page();
	uint32_t up = 1;
	if (pwrite(page_fd, &up, sizeof(up), offsetof(struct na_ring_page, waiting)) != sizeof(up))
		return 3;
	if (arm && na_ring_add_reader(ring, 0, page_fd, NA_MODE_LOSSY))
		return 3;
	bursts(ring, count, size, NULL);
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t n[5] = {0};
	for (int i = 2; i < argc && i < 5; i++)
		n[i] = strtoull(argv[i], NULL, 10);
	if (argc == 4 && !strcmp(argv[1], "publish"))
		return publish(n[2], (unsigned)n[3]);
	if (argc == 5 && !strcmp(argv[1], "lossless"))
		return lossless((uint32_t)n[2], n[3], (unsigned)n[4]);
	if (argc == 3 && !strcmp(argv[1], "hop"))
		return hop(n[2]);
	if (argc == 5 && !strcmp(argv[1], "stopped"))
		return stopped((int)n[2], n[3], (unsigned)n[4]);
	if (argc == 5 && !strcmp(argv[1], "bursts"))
		return work((int)n[2], n[3], (unsigned)n[4]);
	return 64;
}
