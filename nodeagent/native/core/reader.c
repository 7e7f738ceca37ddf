/* SPDX-License-Identifier: Apache-2.0
 * The inline reader of ring_reader.h as functions, and a thread that waits for an event loop. The thread lives in the
 * reader's own process and writes the reader's own eventfd: a descriptor of the reader in the producer's hands could make
 * the producer block. */
#include "ring_reader.h"
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

int na_reader_attach(struct na_reader *reader, const char *path, const char *feed, const char *name, int mode, char *why,
                     size_t why_bytes)
{
	return nar_attach(reader, path, feed, name, mode, why, why_bytes);
}

void na_reader_detach(struct na_reader *reader)
{
	nar_detach(reader);
}

size_t na_reader_batch(struct na_reader *reader, size_t max)
{
	const struct na_tick *ticks;
	return nar_batch(reader, max, &ticks);
}

size_t na_reader_validate(struct na_reader *reader)
{
	return nar_validate(reader);
}

void na_reader_advance(struct na_reader *reader, size_t count)
{
	nar_advance(reader, count);
}

int na_reader_wait(struct na_reader *reader, uint64_t timeout_ns)
{
	return nar_wait(reader, timeout_ns);
}

struct na_waiter {
	struct na_reader *reader;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int event;
	int armed;
	int cancelled;
	int stopped;
	int result;
	uint64_t timeout_ns;
};

/* One wait in slices, so that a cancellation is seen. */
static int wait_in_slices(struct na_waiter *waiter)
{
	uint64_t began = nar_now_ns();
	for (;;) {
		int told = waiter->reader->told_stale;
		uint64_t spent = nar_now_ns() - began;
		uint64_t left = spent < waiter->timeout_ns ? waiter->timeout_ns - spent : 0;
		int result = nar_wait(waiter->reader, left < NA_RING_WAIT_NS ? left : NA_RING_WAIT_NS);
		if (result == NA_WAIT_READY || left <= NA_RING_WAIT_NS || (result == NA_WAIT_STALE && !told) ||
		    __atomic_load_n(&waiter->cancelled, __ATOMIC_ACQUIRE))
			return result;
	}
}

static void *waiter_main(void *argument)
{
	struct na_waiter *waiter = (struct na_waiter *)argument;
	pthread_mutex_lock(&waiter->lock);
	while (!waiter->stopped) {
		if (!waiter->armed) {
			pthread_cond_wait(&waiter->changed, &waiter->lock);
			continue;
		}
		pthread_mutex_unlock(&waiter->lock);
		int result = wait_in_slices(waiter);
		pthread_mutex_lock(&waiter->lock);
		waiter->result = result;
		waiter->armed = 0;
		uint64_t one = 1;
		/* Our own counter, never near its limit: it does not block. */
		while (write(waiter->event, &one, sizeof(one)) < 0 && errno == EINTR)
			;
		pthread_cond_broadcast(&waiter->changed);
	}
	pthread_mutex_unlock(&waiter->lock);
	return NULL;
}

int na_waiter_start(struct na_reader *reader, struct na_waiter **out)
{
	struct na_waiter *waiter = (struct na_waiter *)calloc(1, sizeof(*waiter));
	if (!waiter)
		return -ENOMEM;
	waiter->reader = reader;
	waiter->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int rc = waiter->event < 0 ? errno : 0;
	pthread_mutex_init(&waiter->lock, NULL);
	pthread_cond_init(&waiter->changed, NULL);
	if (!rc) {
		/* Signals are the main thread's. */
		sigset_t all, before;
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		rc = pthread_create(&waiter->thread, NULL, waiter_main, waiter);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	if (rc) {
		if (waiter->event >= 0)
			close(waiter->event);
		free(waiter);
		return -rc;
	}
	*out = waiter;
	return 0;
}

int na_waiter_fd(const struct na_waiter *waiter)
{
	return waiter->event;
}

int na_waiter_arm(struct na_waiter *waiter, uint64_t timeout_ns)
{
	pthread_mutex_lock(&waiter->lock);
	int rc = waiter->armed ? -EBUSY : 0;
	if (!rc) {
		waiter->timeout_ns = timeout_ns;
		__atomic_store_n(&waiter->cancelled, 0, __ATOMIC_RELEASE);
		waiter->armed = 1;
		pthread_cond_broadcast(&waiter->changed);
	}
	pthread_mutex_unlock(&waiter->lock);
	return rc;
}

int na_waiter_take(struct na_waiter *waiter)
{
	uint64_t count;
	pthread_mutex_lock(&waiter->lock);
	__atomic_store_n(&waiter->cancelled, 1, __ATOMIC_RELEASE);
	while (waiter->armed)
		pthread_cond_wait(&waiter->changed, &waiter->lock);
	while (read(waiter->event, &count, sizeof(count)) < 0 && errno == EINTR)
		;
	int result = waiter->result;
	pthread_mutex_unlock(&waiter->lock);
	return result;
}

void na_waiter_stop(struct na_waiter *waiter)
{
	pthread_mutex_lock(&waiter->lock);
	waiter->stopped = 1;
	__atomic_store_n(&waiter->cancelled, 1, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&waiter->changed);
	pthread_mutex_unlock(&waiter->lock);
	pthread_join(waiter->thread, NULL);
	close(waiter->event);
	pthread_cond_destroy(&waiter->changed);
	pthread_mutex_destroy(&waiter->lock);
	free(waiter);
}
