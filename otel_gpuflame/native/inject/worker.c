// SPDX-License-Identifier: Apache-2.0
/* The one thread of this library: sleeps until the exporter asks for something, then follows its lease. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include "inject.h"

/* glibc 2.32 and 2.34 moved these into libc: see context.c. */
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_detach, pthread_detach@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.2.5");
#endif

enum {
	/*
	 * 50 ms from flush to flush on average. CUPTI gives back a buffer only if all work in it has ended: a program
	 * whose device rests for a moment in each of its steps would otherwise be looked at while it works, step by
	 * step, for seconds (a step of 100 ms with 80 ms of work, seen on the fake).
	 */
	LEAST_FLUSH_PERIOD_MS = 35,
	FLUSH_PERIODS = 31,     /* 35 to 65 ms, each once before any comes again */
	FLUSH_PERIOD_STEP = 12, /* coprime to their number */
	DRIVER_PERIOD_MS = 10,  /* how often we look whether cuInit has ended */
	DRIVER_WAIT_MS = 60000, /* and for how long without a lease: on hosts with many devices it takes 10 s */
	/* However often the exporter's page changes, this is how often we look, and how often CUPTI is switched on. */
	LEAST_LOOK_MS = 1,
	LEAST_BETWEEN_WINDOWS_MS = 50,
	/*
	 * How long a window without a lease waits for one. An exporter that watches looks within milliseconds, but its
	 * round may take a second (symbols of large libraries); as long as one prolongation of a lease.
	 */
	FIRST_LEASE_MS = 3000,
	/* Values of `phase`. */
	DORMANT = 0, /* asleep without a window, and will look at `ending` before it enters CUPTI */
	BUSY = 1,
	IN_WINDOW = 2, /* asleep between two flushes */
	DONE = 3,
};

static atomic_bool ending;
static uint32_t phase = DORMANT; /* atomic; a futex */

static struct {
	bool is_open;
	bool was_refused; /* the lease of that generation gets no second window */
	uint32_t generation;
	uint64_t opened_ns;
	uint64_t first_until_ns; /* no exporter has given a lease yet: until then one may; 0: not so */
} window;

static void set_phase(uint32_t value)
{
	__atomic_store_n(&phase, value, __ATOMIC_SEQ_CST);
	if (value == DONE)
		ogf_futex_wake(&phase);
}

static uint64_t flush_period_ns(void)
{
	static unsigned int turn;

	turn = (turn + FLUSH_PERIOD_STEP) % FLUSH_PERIODS;
	return (LEAST_FLUSH_PERIOD_MS + turn) * OGF_NS_PER_MS;
}

static void close_window(bool at_exit)
{
	/* Records refer to devices. */
	ogf_devices_describe();
	ogf_window_close(at_exit);
	window.is_open = false;
	window.first_until_ns = 0;
}

/* When to look again. */
static uint64_t open_window(const struct ogf_lease *lease, uint64_t now_ns)
{
	const uint64_t allowed_ns = window.opened_ns + LEAST_BETWEEN_WINDOWS_MS * OGF_NS_PER_MS;

	if (window.opened_ns && now_ns < allowed_ns)
		return allowed_ns;
	if (!ogf_devices_describe())
		return now_ns + DRIVER_PERIOD_MS * OGF_NS_PER_MS;
	window.opened_ns = now_ns;
	window.generation = lease->generation;
	window.is_open = ogf_window_open(lease->generation);
	window.was_refused = !window.is_open;
	return window.is_open ? ogf_now_ns() + flush_period_ns() : lease->until_ns;
}

/*
 * The first lease carries on the window that was there before it. An exporter writes the generation, then the lease's
 * end, then `wake`: what was read after a changed `wake` is a lease, also where it is over.
 */
static struct ogf_lease first_lease(const struct ogf_lease *lease, bool is_written, uint64_t now_ns)
{
	struct ogf_lease first = {.generation = window.generation, .until_ns = window.first_until_ns};

	if (lease->until_ns > now_ns) {
		window.generation = lease->generation;
		window.first_until_ns = 0;
		ogf_set_generation(lease->generation);
		return *lease;
	}
	if (is_written)
		first.until_ns = now_ns;
	return first;
}

/* The lease gets no other window. */
static uint64_t give_window_up(const struct ogf_lease *lease)
{
	close_window(false);
	window.was_refused = true;
	return lease->until_ns;
}

static uint64_t earliest(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* While a window is open. */
static uint64_t follow_window(const struct ogf_lease *lease, uint64_t now_ns)
{
	static uint64_t next_flush_ns;

	if (lease->until_ns <= now_ns || lease->generation != window.generation) {
		close_window(false);
		return now_ns; /* the lease may be for another one */
	}
	if (!ogf_devices_describe())
		return now_ns + DRIVER_PERIOD_MS * OGF_NS_PER_MS;
	if (ogf_window_is_lost())
		return give_window_up(lease);
	if (now_ns >= next_flush_ns) {
		if (!ogf_window_tick())
			return give_window_up(lease);
		next_flush_ns = now_ns + flush_period_ns();
	}
	return earliest(earliest(next_flush_ns, lease->until_ns), now_ns + ogf_window_look_ms * OGF_NS_PER_MS);
}

/* Whether there is nothing to wait for but the exporter. */
static bool is_settled(uint64_t now_ns)
{
	static bool is_up;
	static uint64_t until_ns;

	if (is_up)
		return true;
	if (!until_ns)
		until_ns = now_ns + DRIVER_WAIT_MS * OGF_NS_PER_MS;
	is_up = ogf_devices_describe();
	if (is_up)
		ogf_window_driver_is_up();
	return is_up || now_ns >= until_ns;
}

/* The state is that of a lease which has run out. */
static uint64_t rest(uint64_t now_ns)
{
	ogf_set_state(OGF_GPU_DORMANT);
	ogf_window_clean();
	return is_settled(now_ns) ? OGF_FOREVER : now_ns + DRIVER_PERIOD_MS * OGF_NS_PER_MS;
}

static uint64_t follow_lease(void)
{
	const uint64_t now_ns = ogf_now_ns();
	const bool is_written = __atomic_load_n(&ogf_region_control()->wake, __ATOMIC_ACQUIRE) != 0;
	struct ogf_lease lease = ogf_lease_read(now_ns);

	if (window.first_until_ns)
		lease = first_lease(&lease, is_written, now_ns);
	if (window.is_open) {
		is_settled(now_ns);
		return follow_window(&lease, now_ns);
	}
	if (lease.until_ns <= now_ns)
		return rest(now_ns);
	if (window.was_refused && lease.generation == window.generation)
		return lease.until_ns;
	is_settled(now_ns);
	return open_window(&lease, now_ns);
}

static void *work(void *unused)
{
	const uint32_t *wake = &ogf_region_control()->wake;

	(void)unused;
	ogf_set_worker_thread();
	prctl(PR_SET_NAME, "otel_gpuflame");
	while (true) {
		const uint32_t seen = __atomic_load_n(wake, __ATOMIC_ACQUIRE);
		const uint64_t look_ns = ogf_now_ns() + LEAST_LOOK_MS * OGF_NS_PER_MS;
		uint64_t until_ns;

		set_phase(BUSY);
		if (atomic_load(&ending))
			break;
		until_ns = follow_lease();
		set_phase(window.is_open ? IN_WINDOW : DORMANT);
		if (atomic_load(&ending))
			continue;
		ogf_futex_wait(wake, seen, until_ns);
		ogf_sleep_until(look_ns);
	}
	if (window.is_open)
		close_window(true);
	ogf_set_state(OGF_GPU_ENDED);
	set_phase(DONE);
	return NULL;
}

void ogf_worker_carry_on(void)
{
	window.is_open = true;
	window.opened_ns = ogf_now_ns();
	window.first_until_ns = window.opened_ns + FIRST_LEASE_MS * OGF_NS_PER_MS;
	set_phase(IN_WINDOW); /* a program that ends before the worker runs has it close the window */
}

/* The program's signals are for its own threads. */
bool ogf_worker_start(void)
{
	sigset_t all, before;
	pthread_t thread;
	int error;

	sigfillset(&all);
	if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0)
		return false;
	error = pthread_create(&thread, NULL, work, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return false;
	pthread_detach(thread);
	return true;
}

bool ogf_worker_is_ending(void)
{
	return atomic_load(&ending);
}

/* A worker that sleeps is left asleep: it looks at `ending` before it enters CUPTI again. */
void ogf_worker_end(uint64_t until_ns)
{
	atomic_store(&ending, true);
	if (__atomic_load_n(&phase, __ATOMIC_SEQ_CST) == DORMANT) {
		ogf_set_state(OGF_GPU_ENDED);
		return;
	}
	ogf_futex_wake(&ogf_region_control()->wake);
	while (ogf_now_ns() < until_ns) {
		const uint32_t now = __atomic_load_n(&phase, __ATOMIC_SEQ_CST);

		if (now == DONE)
			return;
		ogf_futex_wait(&phase, now, until_ns);
	}
}
