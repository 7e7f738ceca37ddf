/* SPDX-License-Identifier: Apache-2.0
 * A producer killed at a named point (build with -DNODEAGENT_KILL_POINTS), again and again, each time followed by one that
 * numbers on: every record that a reader of the dead segment can read is whole, no number is missing or there twice, what
 * was committed is readable, no symbol is half there. usage: ring_kill [EXTRA random occurrences a point] */
#include "ring_view.h"
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

extern const char *na_kill_at;

#define RECORDS 40000u /* a producer's life: more than a lap of 32,768 */
#define FRAME_EVERY 10u

static const char *const points[] = {
	"file made", "policy set", "file allocated", "file mapped", "file populated", "start found", "header filled",
	"file sealed", "restart recorded", "before reserve", "reserve stored", "reserve fenced", "payload word stored",
	"seq stored", "before commit", "commit stored", "first stored", "frame header stored", "frame payload stored",
	"frame seq stored", "symbol seq odd", "symbol cleared", "symbol words stored", "symbol stored",
};

#define CHECK(condition)                                                                                      \
	do {                                                                                                  \
		if (!(condition)) {                                                                           \
			fprintf(stderr, "%s:%d: at %s: %s\n", __FILE__, __LINE__, now_at, #condition);        \
			exit(1);                                                                              \
		}                                                                                             \
	} while (0)

static char now_at[64];

static struct na_tick made(uint64_t at)
{
	struct na_tick t = {.ts_exch_ns = at * 3, .ts_rx_ns = at, .price = (int64_t)at, .size = at ^ 0x55, .ref = ~at,
	                    .aux = at * 7, .instrument = (uint32_t)at, .kind = NA_KIND_ADD};
	return t;
}

static void send_fds(int sock, int a, int b)
{
	int fds[2] = {a, b};
	char byte = 1, room[CMSG_SPACE(sizeof(fds))] = {0};
	struct iovec part = {&byte, 1};
	struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&head);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(c), fds, sizeof(fds));
	if (sendmsg(sock, &head, 0) != 1)
		_exit(2);
}

/* The child: makes both rings, hands them over, publishes until it is killed or done. */
static void live(int sock, struct na_view *dead_ticks, struct na_view *dead_frames)
{
	struct na_ring_config config = {.feed = "kill", .kind = NA_RING_TICKS, .capacity = 1 << 15, .node = -1};
	struct na_ring *ticks, *frames;
	char why[256], name[24];
	uint8_t payload[256];
	na_kill_at = now_at;
	if (na_ring_create(&config, dead_ticks, &ticks, why, sizeof(why)))
		_exit(2);
	config.kind = NA_RING_FRAMES;
	config.capacity = 1 << 21;
	if (na_ring_create(&config, dead_frames, &frames, why, sizeof(why)))
		_exit(2);
	send_fds(sock, ticks->info.fd, frames->info.fd);
	for (uint32_t i = 0; i < RECORDS; i++) {
		struct na_tick t = made(ticks->position);
		if (i % FRAME_EVERY == 0) {
			struct na_frame meta = {.ts_rx_ns = frames->number};
			memset(payload, (int)(frames->number & 0xff), sizeof(payload));
			na_ring_push_frame(frames, &meta, payload, frames->number % sizeof(payload));
		}
		na_ring_push(ticks, &t);
		if (i % 7 == 6)
			na_ring_commit(ticks);
		if (i % 1000 == 0) {
			int length = snprintf(name, sizeof(name), "S%u-%u-%u", i, i, i);
			na_ring_set_symbol(ticks, i / 1000, name, (size_t)length);
		}
	}
	na_ring_commit(ticks);
	_exit(0);
}

static int receive_fds(int sock, int fds[2])
{
	char byte, room[CMSG_SPACE(2 * sizeof(int))];
	struct iovec part = {&byte, 1};
	struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
	if (recvmsg(sock, &head, MSG_CMSG_CLOEXEC) != 1)
		return 0;
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&head)), 2 * sizeof(int));
	return 1;
}

/* What a reader of the dead segment reads, from the oldest on. Returns where it ends. */
static uint64_t drain_ticks(const struct na_view *view)
{
	uint64_t start = view->fixed.start, reserve = nar_reserve(view), commit = nar_commit(view);
	uint64_t at = reserve - start > view->capacity ? reserve - view->capacity : start, count;
	while ((count = nar_available(view, at, 100))) {
		for (uint64_t i = 0; i < count; i++) {
			struct na_tick want = made(at + i);
			const struct na_tick *got = nar_tick(view, at + i);
			want.seq = at + i + 1;
			if (got->kind == NA_KIND_RESTART)
				CHECK(at + i == start && got->ref == view->fixed.incarnation);
			else
				CHECK(memcmp(got, &want, sizeof(want)) == 0);
		}
		CHECK(nar_overwritten(view, at, count) == 0);
		at += count;
	}
	CHECK(at >= commit && at <= reserve);
	return at;
}

static uint64_t drain_frames(const struct na_view *view, uint64_t *number)
{
	struct na_frame meta;
	uint8_t payload[256];
	uint64_t at = __atomic_load_n(&view->hot->first, __ATOMIC_ACQUIRE), commit = nar_commit(view);
	int64_t length;
	*number = view->fixed.start_number;
	for (int first = 1; (length = nar_next_frame(view, &at, &meta, payload, sizeof(payload))) >= 0; first = 0) {
		CHECK(first ? meta.number >= *number : meta.number == *number);
		CHECK(meta.ts_rx_ns == meta.number && length == (int64_t)(meta.number % sizeof(payload)));
		for (int64_t i = 0; i < length; i++)
			CHECK(payload[i] == (meta.number & 0xff));
		*number = meta.number + 1;
	}
	CHECK(length == -ENOENT && at == commit);
	return at;
}

static void check_symbols(const struct na_view *view)
{
	for (uint32_t i = 0; i < 50; i++) {
		struct na_symbol symbol;
		char want[24];
		if (nar_symbol(view, i, &symbol))
			continue;
		int length = snprintf(want, sizeof(want), "S%u-%u-%u", i * 1000, i * 1000, i * 1000);
		CHECK(symbol.length == length && memcmp(symbol.name, want, (size_t)length) == 0);
	}
}

static struct na_view *open_view(int fd, uint32_t kind)
{
	struct na_view *view = NULL;
	char why[256] = "";
	CHECK(nar_view_open(fd, kind, 0, &view, why, sizeof(why)) == 0);
	close(fd);
	return view;
}

/* One life and death. Returns 1 when the point was reached. */
static int round_of(const char *point, uint64_t n)
{
	static struct na_view *ticks, *frames;
	static uint64_t tick_end, frame_end, number;
	int pair[2], fds[2], status;
	snprintf(now_at, sizeof(now_at), "%s:%llu", point, (unsigned long long)n);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	pid_t child = fork();
	if (!child)
		live(pair[1], ticks, frames);
	close(pair[1]);
	waitpid(child, &status, 0);
	CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
	if (receive_fds(pair[0], fds)) {
		uint64_t next;
		int first = !ticks;
		nar_view_unref(ticks);
		nar_view_unref(frames);
		ticks = open_view(fds[0], NA_RING_TICKS);
		frames = open_view(fds[1], NA_RING_FRAMES);
		/* It begins exactly where readers of the one before it ended. */
		CHECK(first || (ticks->fixed.start == tick_end && frames->fixed.start == frame_end));
		CHECK(first || frames->fixed.start_number == number);
		tick_end = drain_ticks(ticks);
		frame_end = drain_frames(frames, &next);
		number = next;
		check_symbols(ticks);
	}
	close(pair[0]);
	return WIFSIGNALED(status);
}

int main(int argc, char **argv)
{
	unsigned extra = argc > 1 ? (unsigned)atoi(argv[1]) : 6, seed = 11, rounds = 0, reached = 0, missed = 0;
	for (size_t p = 0; p < sizeof(points) / sizeof(*points); p++) {
		unsigned here = 0;
		/* Each of the first, so every step of a life's beginning; then some anywhere, after the first lap too. */
		for (uint64_t n = 1; n <= 4 + extra; n++) {
			uint64_t at = n <= 4 ? n : 1 + (uint64_t)rand_r(&seed) % (n % 2 ? RECORDS / 10 : RECORDS);
			int killed = round_of(points[p], at);
			rounds++;
			here += (unsigned)killed;
		}
		reached += here;
		if (!here) {
			missed++;
			fprintf(stderr, "never reached: %s\n", points[p]);
		}
	}
	printf("%u lives, %u killed, %zu points, %u never reached\n", rounds, reached, sizeof(points) / sizeof(*points), missed);
	return missed != 0;
}
