/* SPDX-License-Identifier: Apache-2.0
 * Kills a producer and checks what its readers see. Built with -DNODEAGENT_KILL_POINTS from ring.c.
 *
 *   ring_kill exhaustive        dies at every kill point, one after another, of: opening the first segment, publishing
 *                           over a chunk's and a lap's end, continuing a dead segment, symbols, frames
 *   ring_kill random N SEED     N random kills of a flat-out producer, read all the while
 *
 * Every record's content follows from its position. Checked after each death: no record below the end is torn or
 * foreign, the next incarnation starts exactly at the end, begins with RESTART, and every position of the
 * lineage was read once or counted as lost.
 */
#include "ring_view.h"
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

extern const char *na_kill_at;

#define CAPACITY 32768u /* the smallest: 2 MiB of ticks */
#define PREFILL (CAPACITY - 24)
#define AFTER 60

static void die(const char *what, long long a, long long b)
{
	fprintf(stderr, "FAILED: %s (%lld, %lld)\n", what, a, b);
	exit(1);
}

static struct na_tick content(uint64_t position)
{
	uint64_t h = (position + 1) * 0x9e3779b97f4a7c15u;
	return (struct na_tick){.ts_exch_ns = h, .ts_rx_ns = h ^ 1, .price = (int64_t)(h ^ 2), .size = h ^ 3, .ref = h ^ 4,
	                        .aux = h ^ 5, .instrument = (uint32_t)h, .kind = NA_KIND_ADD, .side = 'B', .flags = 0};
}

static int same(const struct na_tick *got, uint64_t position)
{
	struct na_tick want = content(position);
	want.seq = position + 1;
	if (got->kind == NA_KIND_RESTART)
		return got->seq == position + 1;
	return memcmp(got, &want, sizeof(want)) == 0;
}

static int send_fd(int sock, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {&byte, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
	return sendmsg(sock, &m, 0) == 1 ? 0 : -1;
}

static int take_fd(int sock)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {&byte, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	if (recvmsg(sock, &m, MSG_CMSG_CLOEXEC) != 1)
		return -1; /* the child died before it had anything to offer */
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int fd = -1;
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(int));
	return fd;
}

enum job { FIRST, OVER_A_LAP, CONTINUE, FRAMES, CONTINUE_FRAMES, JOBS };
static const char *job_name[] = {"first segment", "publishing over a lap's end", "continuing", "frames", "continuing frames"};

static struct na_ring *open_ring(uint32_t kind, int dead_fd)
{
	struct na_ring_config config = {.feed = "kills", .kind = kind, .price_exponent = -4, .node = -1,
	                                .capacity = kind == NA_RING_TICKS ? CAPACITY : 1};
	struct na_view *dead = NULL;
	struct na_ring *ring;
	char why[256] = "";
	if (dead_fd >= 0 && nar_view_open(dead_fd, kind, 1, &dead, why, sizeof(why)))
		die(why, 0, 0);
	int rc = na_ring_create(&config, dead, &ring, why, sizeof(why));
	if (rc)
		die(why, rc, 0);
	nar_view_unref(dead);
	return ring;
}

static void publish(struct na_ring *ring, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct na_tick tick = content(ring->position);
		na_ring_push(ring, &tick);
		if (i % 3 == 2)
			na_ring_commit(ring);
		if (i % 9 == 8)
			na_ring_flush(ring);
	}
	na_ring_commit(ring);
	na_ring_flush(ring);
}

static void publish_frames(struct na_ring *ring, unsigned count)
{
	uint8_t payload[4096];
	struct na_frame meta = {.family = 4, .vlan = NA_FRAME_NO_VLAN};
	for (unsigned i = 0; i < count; i++) {
		size_t length = 1000 + ring->number * 7 % 3000;
		memset(payload, (int)(ring->number & 255), length);
		meta.ts_rx_ns = ring->number;
		na_ring_push_frame(ring, &meta, payload, length);
	}
	na_ring_flush(ring);
}

/* A reader that says it waits, so that every flush takes the way to the wake. */
static void waiting_reader(struct na_ring *ring)
{
	int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct na_ring_page page = {.waiting = 1};
	if (fd < 0 || write(fd, &page, sizeof(page)) != (ssize_t)sizeof(page) ||
	    fcntl(fd, NA_F_ADD_SEALS, NA_F_SEAL_SHRINK | NA_F_SEAL_GROW | NA_F_SEAL_SEAL) < 0)
		die("the page", errno, 0);
	int rc = na_ring_add_reader(ring, 0, fd, NA_MODE_LOSSY);
	if (rc)
		die("the reader", rc, 0);
	close(fd);
}

/* The child: never returns. */
static void produce(enum job job, int sock, int dead_fd, const char *at)
{
	int ticks = job < FRAMES;
	na_kill_at = at && (job == FIRST || job == CONTINUE || job == CONTINUE_FRAMES) ? at : NULL;
	struct na_ring *ring = open_ring(ticks ? NA_RING_TICKS : NA_RING_FRAMES, dead_fd);
	if (send_fd(sock, ring->info.fd))
		_exit(3);
	na_kill_at = NULL;
	waiting_reader(ring);
	if (job == OVER_A_LAP)
		publish(ring, PREFILL);
	if (job == FRAMES)
		publish_frames(ring, 820); /* the ring of 2 MiB is nearly full */
	na_kill_at = at;
	if (ticks) {
		na_ring_set_symbol(ring, 5, "ABC", 3);
		publish(ring, AFTER);
	} else
		publish_frames(ring, 30);
	_exit(0);
}

struct seen {
	uint64_t records, restarts, end;
};

/* Reads a dead segment's ticks from position on; every one must be whole. */
static struct seen drain(const struct na_view *view, uint64_t cursor)
{
	struct seen seen = {0, 0, cursor};
	if (nar_reserve(view) - cursor > view->capacity)
		cursor = nar_reserve(view) - view->capacity;
	for (;;) {
		uint64_t n = nar_available(view, cursor, 4096);
		if (!n)
			break;
		if (nar_overwritten(view, cursor, n))
			die("a dead segment was overwritten", (long long)cursor, (long long)n);
		for (uint64_t i = 0; i < n; i++) {
			const struct na_tick *t = nar_tick(view, cursor + i);
			if (!same(t, cursor + i))
				die("torn record", (long long)(cursor + i), (long long)t->seq);
			seen.restarts += t->kind == NA_KIND_RESTART;
		}
		cursor += n;
		seen.records += n;
	}
	seen.end = cursor;
	return seen;
}

static uint64_t drain_frames(const struct na_view *view, uint64_t *last)
{
	uint8_t payload[8192];
	struct na_frame meta;
	uint64_t position = __atomic_load_n(&view->hot->first, __ATOMIC_ACQUIRE), count = 0, number = 0;
	int64_t length;
	while ((length = nar_next_frame(view, &position, &meta, payload, sizeof(payload))) >= 0) {
		if (count && meta.number != number + 1)
			die("frames out of number", (long long)meta.number, (long long)number);
		number = meta.number;
		if ((uint64_t)length != 1000 + number * 7 % 3000 || meta.ts_rx_ns != number)
			die("torn frame header", (long long)number, length);
		for (int64_t i = 0; i < length; i++)
			if (payload[i] != (number & 255))
				die("torn frame", (long long)number, i);
		count++;
	}
	if (length != -ENOENT)
		die("frames cannot be read to their end", length, (long long)count);
	*last = number;
	return count;
}

static int run_child(enum job job, int dead_fd, const char *at, int *fd)
{
	int pair[2], status;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		die("socketpair", errno, 0);
	pid_t pid = fork();
	if (!pid) {
		close(pair[0]);
		produce(job, pair[1], dead_fd, at);
	}
	close(pair[1]);
	*fd = take_fd(pair[0]);
	close(pair[0]);
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid", errno, 0);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return 1;
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		die("the producer failed by itself", status, 0);
	return 0;
}

static struct na_view *view_of(int fd)
{
	struct na_view *view;
	char why[256];
	if (nar_view_open(fd, 0, 1, &view, why, sizeof(why)))
		die(why, 0, 0);
	return view;
}

/* After a death: the successor goes on where the dead one ended, and all of it is whole. */
static void check_ticks(int fd, const struct na_view *before, uint64_t before_end)
{
	struct na_view *view = view_of(fd);
	struct seen seen = drain(view, view->fixed.start);
	if (before && view->fixed.start != before_end)
		die("a continuation starts elsewhere", (long long)view->fixed.start, (long long)before_end);
	if (before && seen.records && nar_tick(view, view->fixed.start)->kind != NA_KIND_RESTART)
		die("a continuation does not begin with RESTART", nar_tick(view, view->fixed.start)->kind, 0);
	int next_fd;
	if (run_child(CONTINUE, fd, NULL, &next_fd))
		die("the successor was killed", 0, 0);
	struct na_view *next = view_of(next_fd);
	if (next->fixed.start != seen.end || next->fixed.lineage != view->fixed.lineage ||
	    next->fixed.incarnation != view->fixed.incarnation + 1)
		die("the successor does not continue", (long long)next->fixed.start, (long long)seen.end);
	struct seen after = drain(next, next->fixed.start);
	if (after.records != AFTER + 1 || after.restarts != 1)
		die("the successor's records", (long long)after.records, (long long)after.restarts);
	struct na_symbol symbol;
	if (nar_symbol(next, 5, &symbol) || symbol.length != 3 || memcmp(symbol.name, "ABC", 3))
		die("the symbol is damaged", symbol.length, 0);
	nar_view_unref(view);
	nar_view_unref(next);
	close(next_fd);
}

static void check_frames(int fd)
{
	struct na_view *view = view_of(fd);
	uint64_t last, last_next, count = drain_frames(view, &last);
	int next_fd;
	if (run_child(CONTINUE_FRAMES, fd, NULL, &next_fd))
		die("the successor was killed", 0, 0);
	struct na_view *next = view_of(next_fd);
	uint64_t expected = count ? last + 1 : next->fixed.start_number;
	if (next->fixed.start_number != expected)
		die("frames are not numbered on", (long long)next->fixed.start_number, (long long)last);
	if (drain_frames(next, &last_next) != 30 || last_next != expected + 29)
		die("the successor's frames", (long long)last_next, (long long)expected);
	nar_view_unref(view);
	nar_view_unref(next);
	close(next_fd);
}

static int exhaustive(void)
{
	unsigned long total = 0;
	for (enum job job = FIRST; job < JOBS; job++) {
		int continues = job == CONTINUE || job == CONTINUE_FRAMES, dead_fd = -1;
		struct na_view *dead = NULL;
		uint64_t dead_end = 0;
		if (continues) {
			/* Something to continue: a producer killed in the middle of a record. */
			if (!run_child(job == CONTINUE ? OVER_A_LAP : FRAMES, -1, "*:97", &dead_fd))
				die("the predecessor was not killed", job, 0);
			dead = view_of(dead_fd);
			if (job == CONTINUE)
				dead_end = drain(dead, dead->fixed.start).end;
		}
		unsigned long k = 1;
		for (;; k++) {
			char at[32];
			int fd;
			snprintf(at, sizeof(at), "*:%lu", k);
			int killed = run_child(job, dead_fd, at, &fd);
			if (fd >= 0) {
				if (job < FRAMES)
					check_ticks(fd, dead, dead_end);
				else
					check_frames(fd);
				close(fd);
			} else if (!killed)
				die("no segment came", job, (long long)k);
			if (!killed)
				break;
		}
		printf("%s: %lu kill points\n", job_name[job], k - 1);
		if (k < 10)
			die("too few kill points: is this the kill build?", job, (long long)k);
		total += k - 1;
		nar_view_unref(dead);
		if (dead_fd >= 0)
			close(dead_fd);
	}
	printf("%lu kills, 0 torn, 0 wrong counts\n", total);
	return 0;
}

static int random_kills(unsigned long kills, unsigned seed)
{
	int dead_fd = -1;
	uint64_t cursor = 0, read = 0, lost = 0, laps = 0;
	srandom(seed);
	for (unsigned long k = 0; k < kills; k++) {
		int pair[2];
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
			die("socketpair", errno, 0);
		pid_t pid = fork();
		if (!pid) {
			struct na_ring *ring = open_ring(NA_RING_TICKS, dead_fd);
			if (send_fd(pair[1], ring->info.fd))
				_exit(3);
			for (;;)
				publish(ring, 1000);
		}
		close(pair[1]);
		int fd = take_fd(pair[0]);
		close(pair[0]);
		if (fd < 0)
			die("no segment came", (long long)k, 0);
		struct na_view *view = view_of(fd);
		if (dead_fd >= 0) {
			if (view->fixed.start != cursor)
				die("the successor does not start where the readers ended", (long long)view->fixed.start, (long long)cursor);
			close(dead_fd);
		}
		cursor = view->fixed.start;
		uint64_t until = nar_now_ns() + (uint64_t)random() % 2000000;
		/* A slow reader now and then, so that it is lapped. */
		int slow = random() % 2;
		int alive = 1;
		while (alive || nar_available(view, cursor, 1)) {
			if (alive && nar_now_ns() >= until) {
				kill(pid, SIGKILL);
				waitpid(pid, NULL, 0);
				alive = 0;
			}
			if (slow && alive)
				poll(NULL, 0, 1);
			uint64_t n = nar_available(view, cursor, 512);
			struct na_tick copy[512];
			for (uint64_t i = 0; i < n; i++)
				copy[i] = *nar_tick(view, cursor + i);
			uint64_t bad = nar_overwritten(view, cursor, n);
			for (uint64_t i = bad; i < n; i++)
				if (!same(&copy[i], cursor + i))
					die("torn record", (long long)(cursor + i), (long long)k);
			read += n - bad;
			if (bad || (!n && nar_lapped(view, cursor))) {
				uint64_t to = nar_resume(view), from = cursor + (bad ? n : 0);
				lost += bad;
				if (to > from) {
					lost += to - from;
					from = to;
				}
				cursor = from;
				laps++;
			} else
				cursor += n;
		}
		dead_fd = fd;
		nar_view_unref(view);
	}
	if (read + lost != cursor)
		die("read and lost are not all", (long long)(read + lost), (long long)cursor);
	printf("%lu random kills: %llu records read, %llu lost in %llu laps, 0 torn, sums exact\n", kills,
	       (unsigned long long)read, (unsigned long long)lost, (unsigned long long)laps);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "exhaustive"))
		return exhaustive();
	if (argc == 4 && !strcmp(argv[1], "random"))
		return random_kills(strtoul(argv[2], NULL, 10), (unsigned)strtoul(argv[3], NULL, 10));
	fprintf(stderr, "usage: ring_kill exhaustive | random N SEED\n");
	return 64;
}
