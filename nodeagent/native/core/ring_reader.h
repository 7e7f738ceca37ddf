/* SPDX-License-Identifier: Apache-2.0
 * A reader of the ticks ring: attach by ring.sock, take batches without copying, validate, advance, wait. Inline: a
 * reader in C11 or C++11 needs this header and no library. One thread uses a reader at a time.
 *
 *     struct na_reader reader; char why[256]; const struct na_tick *ticks; size_t count;
 *     if (nar_attach(&reader, "/run/nodeagent/ring.sock", "itch", "me", NA_MODE_LOSSY, why, sizeof(why)) < 0) ...
 *     while ((count = nar_batch(&reader, 1024, &ticks)) || nar_wait(&reader, UINT64_MAX) >= 0) {
 *         use(ticks, count);
 *         if (nar_validate(&reader)) undo the leading ones: they were overwritten while being used
 *         nar_advance(&reader, count);
 *     }
 *
 * A producer that dies and comes back is followed by itself; numbers and gap counts go on. See docs/ring.md. */
#ifndef NODEAGENT_RING_READER_H
#define NODEAGENT_RING_READER_H
#include "ring_view.h"
#include "ring_reader_abi.h"
#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NA_READER_SERVICE_NS 10000000u /* how often an idle reader looks at its socket and the heartbeat */
#define NA_READER_BUSY_SERVICE_NS 100000000u /* and a busy one */
#define NA_READER_RETRY_NS 200000000u /* between two tries to reach a daemon that is away */
#define NA_READER_ATTACH_MS 5000 /* how long the first answer may take */

/* ---- messages ---- */

static inline void nar_message(const struct na_reader *reader, struct na_ring_msg *msg, uint16_t type)
{
	memset(msg, 0, sizeof(*msg));
	msg->magic = NA_MSG_MAGIC;
	msg->version = NA_MSG_VERSION;
	msg->type = type;
	msg->ring = NA_RING_TICKS;
	msg->mode = (uint16_t)reader->mode;
	memcpy(msg->feed, reader->feed, sizeof(msg->feed));
	memcpy(msg->name, reader->name, sizeof(msg->name));
	if (reader->ticks) {
		msg->lineage = reader->ticks->fixed.lineage;
		msg->incarnation = reader->ticks->fixed.incarnation;
		msg->cursor = reader->cursor;
	}
}

static inline int nar_send(struct na_reader *reader, uint16_t type)
{
	struct na_ring_msg msg;
	nar_message(reader, &msg, type);
	return send(reader->sock, &msg, sizeof(msg), MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof(msg) ? 0 : -errno;
}

static inline void nar_close_all(const int *fds, int count)
{
	for (int i = 0; i < count; i++)
		close(fds[i]);
}

/* One message with its descriptors and text. 1: got; 0: nothing there; -errno: the connection is over. */
static inline int nar_receive(struct na_reader *reader, struct na_ring_msg *msg, int *fds, int *fd_count, char *text,
                              size_t text_bytes)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(NA_MSG_MAX_FDS * sizeof(int))];
	} control;
	struct iovec parts[2];
	parts[0].iov_base = msg;
	parts[0].iov_len = sizeof(*msg);
	parts[1].iov_base = text;
	parts[1].iov_len = text_bytes - 1;
	struct msghdr head;
	memset(&head, 0, sizeof(head));
	head.msg_iov = parts;
	head.msg_iovlen = 2;
	head.msg_control = &control;
	head.msg_controllen = sizeof(control);
	*fd_count = 0;
	ssize_t got = recvmsg(reader->sock, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (got < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&head); c; c = CMSG_NXTHDR(&head, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			*fd_count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(fds, CMSG_DATA(c), (size_t)*fd_count * sizeof(int));
		}
	if (got == 0)
		return -ECONNRESET;
	if (got < (ssize_t)sizeof(*msg) || msg->magic != NA_MSG_MAGIC || msg->version != NA_MSG_VERSION) {
		nar_close_all(fds, *fd_count);
		*fd_count = 0;
		return -EPROTO;
	}
	text[(size_t)got - sizeof(*msg)] = 0;
	return 1;
}

static inline void nar_hang_up(struct na_reader *reader, uint64_t now)
{
	if (reader->sock >= 0)
		close(reader->sock);
	reader->sock = -1;
	reader->attached = 0;
	reader->asked = 0;
	reader->retry_ns = now + NA_READER_RETRY_NS;
}

static inline int nar_connect(struct na_reader *reader)
{
	struct sockaddr_un at;
	memset(&at, 0, sizeof(at));
	at.sun_family = AF_UNIX;
	memcpy(at.sun_path, reader->path, sizeof(at.sun_path));
	reader->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (reader->sock < 0)
		return -errno;
	if (connect(reader->sock, (const struct sockaddr *)&at, sizeof(at)) < 0)
		return -errno;
	/* EPIPE: turned away already; why is there to be read. */
	int rc = nar_send(reader, NA_MSG_ATTACH);
	return rc == -EPIPE ? 0 : rc;
}

/* ---- segments and page ---- */

/* Takes over what ATTACHED or SEGMENT brought: the segments become the next ones, or are dropped when already held. */
static inline int nar_take(struct na_reader *reader, const struct na_ring_msg *msg, const int *fds, int fd_count,
                           char *why, size_t why_bytes)
{
	int used = 0, rc = 0;
	struct na_view *ticks = NULL, *frames = NULL;
	int held = reader->ticks && msg->lineage == reader->ticks->fixed.lineage &&
	           msg->incarnation == reader->ticks->fixed.incarnation;
	for (uint32_t kind = NA_RING_TICKS; kind <= NA_RING_FRAMES && !rc; kind++)
		if (msg->rings >> kind & 1) {
			if (used == fd_count)
				rc = nar_fail(EPROTO, why, why_bytes, "the daemon's answer lacks a descriptor");
			else if (!held)
				rc = nar_view_open(fds[used], kind, 1, kind == NA_RING_TICKS ? &ticks : &frames, why, why_bytes);
			used++;
		}
	if (!rc && !held && !ticks)
		rc = nar_fail(EPROTO, why, why_bytes, "the daemon's answer holds no ring of ticks");
	if (!rc && msg->type == NA_MSG_ATTACHED) {
		void *page = used < fd_count ? mmap(NULL, sizeof(struct na_ring_page), PROT_READ | PROT_WRITE, MAP_SHARED,
		                                    fds[used], 0)
		                             : MAP_FAILED;
		if (page == MAP_FAILED)
			rc = nar_fail(EPROTO, why, why_bytes, "the reader's page is missing or cannot be mapped");
		else {
			if (reader->page) {
				memcpy(page, reader->page, sizeof(struct na_ring_page));
				munmap(reader->page, sizeof(struct na_ring_page));
			}
			reader->page = (struct na_ring_page *)page;
		}
	}
	if (rc) {
		nar_view_unref(ticks);
		nar_view_unref(frames);
		return rc;
	}
	if (ticks) {
		nar_view_unref(reader->next_ticks);
		nar_view_unref(reader->next_frames);
		reader->next_ticks = ticks;
		reader->next_frames = frames;
	}
	return 0;
}

/* Goes over to the next incarnation; the old one must be drained. */
static inline void nar_switch(struct na_reader *reader)
{
	struct na_view *next = reader->next_ticks;
	uint64_t start = next->fixed.start;
	if (!reader->ticks || reader->ticks->fixed.lineage != next->fixed.lineage || start < reader->cursor) {
		/* Numbers begin anew: what was missed in between cannot be told. */
		if (reader->ticks)
			reader->renumbered++;
		reader->cursor = reader->ticks ? start : nar_commit(next);
	} else {
		/* 0 unless whole incarnations were missed. */
		reader->gap += start - reader->cursor;
		reader->lost += start - reader->cursor;
		reader->cursor = start;
	}
	nar_view_unref(reader->ticks);
	nar_view_unref(reader->frames);
	reader->ticks = next;
	reader->frames = reader->next_frames;
	reader->next_ticks = reader->next_frames = NULL;
	reader->gone = reader->asked = 0;
	reader->switches++;
	reader->state = NA_READER_LIVE;
}

static inline void nar_publish_page(struct na_reader *reader)
{
	struct na_ring_page *page = reader->page;
	__atomic_store_n(&page->lineage, reader->ticks->fixed.lineage, __ATOMIC_RELAXED);
	__atomic_store_n(&page->records, reader->records, __ATOMIC_RELAXED);
	__atomic_store_n(&page->lost, reader->lost, __ATOMIC_RELAXED);
	/* After the last use of what lies before it: a gated producer may write there now. */
	__atomic_store_n(&page->cursor, reader->cursor, __ATOMIC_RELEASE);
}

/* ---- keeping in touch ---- */

static inline void nar_handle(struct na_reader *reader, const struct na_ring_msg *msg, const int *fds, int fd_count)
{
	switch (msg->type) {
	case NA_MSG_ATTACHED:
		reader->attached = nar_take(reader, msg, fds, fd_count, NULL, 0) == 0;
		if (reader->attached && reader->ticks)
			nar_publish_page(reader);
		if (reader->attached && !(msg->flags & NA_MSG_LIVE))
			reader->gone = 1;
		break;
	case NA_MSG_SEGMENT:
		reader->asked = 0;
		(void)nar_take(reader, msg, fds, fd_count, NULL, 0);
		break;
	case NA_MSG_GONE:
		if (reader->ticks && msg->lineage == reader->ticks->fixed.lineage &&
		    msg->incarnation == reader->ticks->fixed.incarnation)
			reader->gone = 1;
		break;
	case NA_MSG_DROPPED:
		reader->mode = NA_MODE_LOSSY;
		reader->dropped = 1;
		break;
	default:
		break;
	}
}

/* Looks at the heartbeat and the socket: reconnects, asks for the next incarnation. Never blocks. */
static inline void nar_service(struct na_reader *reader, uint64_t now)
{
	char text[512];
	struct na_ring_msg msg;
	int fds[NA_MSG_MAX_FDS], fd_count, rc;
	reader->serviced_ns = now;
	uint64_t beat = __atomic_load_n(&reader->ticks->hot->heartbeat_ns, __ATOMIC_RELAXED);
	int closed = __atomic_load_n(&reader->ticks->hot->state, __ATOMIC_ACQUIRE) == NA_RING_CLOSED;
	reader->state = closed || reader->gone || (now > beat && now - beat > NA_RING_STALE_NS) ? NA_READER_STALE
	                                                                                       : NA_READER_LIVE;
	if (reader->sock < 0) {
		if (now < reader->retry_ns)
			return;
		rc = nar_connect(reader);
		if (rc < 0)
			nar_hang_up(reader, now);
		return;
	}
	for (int turn = 0; turn < 16; turn++) {
		rc = nar_receive(reader, &msg, fds, &fd_count, text, sizeof(text));
		if (rc == 0)
			break;
		if (rc > 0) {
			nar_handle(reader, &msg, fds, fd_count);
			nar_close_all(fds, fd_count);
		}
		if (rc < 0 || msg.type == NA_MSG_ERROR) {
			nar_hang_up(reader, now);
			return;
		}
	}
	if (reader->state == NA_READER_STALE && reader->attached && !reader->asked && !reader->next_ticks)
		reader->asked = nar_send(reader, NA_MSG_NEXT) == 0;
}

/* ---- the reader ---- */

static inline void nar_detach(struct na_reader *reader)
{
	if (reader->sock >= 0)
		close(reader->sock);
	if (reader->page)
		munmap(reader->page, sizeof(struct na_ring_page));
	nar_view_unref(reader->ticks);
	nar_view_unref(reader->frames);
	nar_view_unref(reader->next_ticks);
	nar_view_unref(reader->next_frames);
	memset(reader, 0, sizeof(*reader));
	reader->sock = -1;
}

/* Attaches at the newest record. 0 or -errno with one sentence in why (and, after a newline, a remedy). */
static inline int nar_attach(struct na_reader *reader, const char *path, const char *feed, const char *name, int mode,
                             char *why, size_t why_bytes)
{
	char text[1024];
	struct na_ring_msg msg;
	int fds[NA_MSG_MAX_FDS], fd_count = 0;
	memset(reader, 0, sizeof(*reader));
	reader->sock = -1;
	reader->mode = mode;
	if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return nar_fail(ENAMETOOLONG, why, why_bytes, "the socket's path is longer than 107 bytes");
	if (!feed[0] || strlen(feed) >= sizeof(reader->feed) || !name[0] || strlen(name) >= sizeof(reader->name))
		return nar_fail(EINVAL, why, why_bytes, "names of feeds and readers have 1 to %d bytes", NA_RING_NAME_BYTES - 1);
	memcpy(reader->path, path, strlen(path));
	memcpy(reader->feed, feed, strlen(feed));
	memcpy(reader->name, name, strlen(name));
	int rc = nar_connect(reader);
	/* EAGAIN: many come at once and the daemon has not got round to us. */
	for (int turn = 0; rc == -EAGAIN && turn < NA_READER_ATTACH_MS / 10; turn++) {
		close(reader->sock);
		(void)poll(NULL, 0, 10);
		rc = nar_connect(reader);
	}
	if (rc < 0)
		nar_fail(-rc, why, why_bytes, "%s: %s\nis nodeagentd running, and may this user reach it?", path, strerror(-rc));
	if (rc == 0) {
		struct pollfd waited;
		waited.fd = reader->sock;
		waited.events = POLLIN;
		if (poll(&waited, 1, NA_READER_ATTACH_MS) == 1)
			rc = nar_receive(reader, &msg, fds, &fd_count, text, sizeof(text));
		if (rc == 0)
			rc = nar_fail(ETIMEDOUT, why, why_bytes, "%s: no answer within 5 s", path);
		else if (rc < 0)
			nar_fail(-rc, why, why_bytes, "%s: the daemon closed the connection\nonly root and members of the reader "
			         "groups may attach", path);
		else if (msg.type == NA_MSG_ERROR)
			rc = nar_fail(msg.status == NA_ERR_NO_FEED ? ENOENT : msg.status == NA_ERR_DENIED ? EACCES
			              : msg.status == NA_ERR_FULL                                        ? EUSERS
			                                                                                 : EPROTO,
			              why, why_bytes, "%s", text);
		else if (msg.type != NA_MSG_ATTACHED)
			rc = nar_fail(EPROTO, why, why_bytes, "%s: an answer of type %u, expected %u", path, msg.type, NA_MSG_ATTACHED);
		else
			rc = nar_take(reader, &msg, fds, fd_count, why, why_bytes);
		nar_close_all(fds, fd_count);
	}
	if (rc < 0) {
		nar_detach(reader);
		return rc;
	}
	nar_switch(reader);
	reader->switches = 0;
	reader->attached = 1;
	reader->gone = !(msg.flags & NA_MSG_LIVE);
	nar_publish_page(reader);
	nar_service(reader, nar_now_ns());
	return 0;
}

/* Bucket of a value: the arithmetic of nodeagent/model/histogram.py. */
static inline unsigned nar_bucket(uint64_t value)
{
	if (value < 4)
		return (unsigned)value;
	unsigned exponent = 63u - (unsigned)__builtin_clzll(value);
	return ((exponent - 1) << 2) + (unsigned)(value >> (exponent - 2) & 3);
}

static inline void nar_age(struct na_reader *reader, uint64_t now, uint64_t age)
{
	struct na_ring_page *page = reader->page;
	uint64_t *count = &page->age_counts[nar_bucket(age)];
	reader->age_ns = age;
	__atomic_store_n(&page->age_ns, age, __ATOMIC_RELAXED);
	__atomic_store_n(&page->looked_ns, now, __ATOMIC_RELAXED);
	if (age > page->age_max_ns)
		__atomic_store_n(&page->age_max_ns, age, __ATOMIC_RELAXED);
	__atomic_store_n(count, *count + 1, __ATOMIC_RELAXED);
}

/* Records from the cursor on, at most max, without copying: *ticks points to them (contiguous, even over the wrap).
 * 0: nothing new. reader->gap is what was lost before the first of them. Until nar_advance it gives the same again. */
static inline size_t nar_batch(struct na_reader *reader, size_t max, const struct na_tick **ticks)
{
	uint64_t count = 0;
	reader->gap = 0;
	reader->overwritten = 0;
	reader->validated = 0;
	for (int attempt = 0; attempt < 16; attempt++) {
		count = nar_available(reader->ticks, reader->cursor, max);
		if (count || !max)
			break;
		if (nar_lapped(reader->ticks, reader->cursor)) {
			uint64_t resume = nar_resume(reader->ticks);
			if (resume > reader->cursor) {
				reader->gap += resume - reader->cursor;
				reader->lost += resume - reader->cursor;
				reader->cursor = resume;
				nar_publish_page(reader);
			}
			continue;
		}
		if (reader->next_ticks) {
			/* A next one exists only when this one is over, and it was just seen to be drained: but look once more,
			 * now that it is known to be over. */
			if (!nar_available(reader->ticks, reader->cursor, 1) && !nar_lapped(reader->ticks, reader->cursor)) {
				nar_switch(reader);
				nar_publish_page(reader);
			}
			continue;
		}
		/* The clock costs more than the look at the slot. */
		if (reader->idle++ & 15)
			break;
		uint64_t now = nar_now_ns();
		if (now - reader->serviced_ns < NA_READER_SERVICE_NS)
			break;
		nar_service(reader, now);
		if (!reader->next_ticks)
			break;
	}
	*ticks = nar_tick(reader->ticks, reader->cursor);
	reader->batch = count;
	if (count) {
		uint64_t now = nar_now_ns(), stamp = ring_load(&(*ticks)->ts_rx_ns);
		nar_age(reader, now, stamp && now > stamp ? now - stamp : 0);
		if (now - reader->serviced_ns > NA_READER_BUSY_SERVICE_NS)
			nar_service(reader, now);
	} else
		reader->age_ns = 0;
	return (size_t)count;
}

/* After use of the batch: how many of its leading records had been overwritten by then. What was taken from those is to
 * be thrown away; the rest stands. */
static inline size_t nar_validate(struct na_reader *reader)
{
	reader->overwritten = nar_overwritten(reader->ticks, reader->cursor, reader->batch);
	reader->validated = 1;
	return (size_t)reader->overwritten;
}

/* Done with the first count records of the batch. */
static inline void nar_advance(struct na_reader *reader, size_t count)
{
	if (count > reader->batch)
		count = (size_t)reader->batch;
	if (!reader->validated)
		nar_validate(reader);
	uint64_t lost = reader->overwritten < count ? reader->overwritten : count;
	reader->cursor += count;
	reader->batch -= count;
	reader->overwritten -= lost;
	reader->lost += lost;
	reader->records += count - lost;
	nar_publish_page(reader);
}

/* Waits for something to read. NA_WAIT_READY; NA_WAIT_TIMEOUT; NA_WAIT_STALE: the producer has fallen silent, told at
 * once and then at the end of each timeout until it speaks again. timeout_ns UINT64_MAX: for ever. Sleeps on the futex
 * word after reader->spin_ns of looking. */
static inline int nar_wait(struct na_reader *reader, uint64_t timeout_ns)
{
	uint64_t began = nar_now_ns(), now = began;
	struct timespec span;
	for (;;) {
		if (nar_seq(reader->ticks, reader->cursor) == reader->cursor + 1 || nar_lapped(reader->ticks, reader->cursor))
			return NA_WAIT_READY;
		if (reader->next_ticks)
			return NA_WAIT_READY; /* nar_batch goes over to it */
		if (now - reader->serviced_ns >= NA_READER_SERVICE_NS) {
			nar_service(reader, now);
			if (reader->next_ticks)
				continue;
		}
		uint64_t spent = now - began;
		if (reader->state == NA_READER_LIVE)
			reader->told_stale = 0;
		else if (!reader->told_stale || spent >= timeout_ns) {
			reader->told_stale = 1;
			return NA_WAIT_STALE;
		}
		if (spent >= timeout_ns)
			return NA_WAIT_TIMEOUT;
		if (spent >= reader->spin_ns) {
			uint64_t left = timeout_ns - spent;
			if (left > NA_RING_WAIT_NS)
				left = NA_RING_WAIT_NS;
			span.tv_sec = 0;
			span.tv_nsec = (long)left;
			uint32_t word = __atomic_load_n(&reader->ticks->hot->futex, __ATOMIC_ACQUIRE);
			__atomic_store_n(&reader->page->waiting, 1u, __ATOMIC_RELAXED);
			/* The producer stores the slot, then looks at the flag; we store the flag, then look at the slot. */
			__atomic_thread_fence(__ATOMIC_SEQ_CST);
			if (nar_seq(reader->ticks, reader->cursor) != reader->cursor + 1)
				(void)syscall(SYS_futex, &reader->ticks->hot->futex, FUTEX_WAIT, word, &span, NULL, 0);
			__atomic_store_n(&reader->page->waiting, 0u, __ATOMIC_RELAXED);
			now = nar_now_ns();
		} else if ((reader->idle++ & 63) == 63)
			now = nar_now_ns();
	}
}

#ifdef __cplusplus
}
#endif
#endif
