/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library that the CUDA driver loads into a program (CUDA_INJECTION64_PATH) and what its files share.
 *
 * Who runs what: InitializeInjection and the exit handler run in threads of the program, the request and complete
 * callbacks in any thread at any launch (they take no lock and no memory), everything else in our one worker thread,
 * but for the window that InitializeInjection opens before there is one.
 * docs/decisions/0011-gpu-side.md has the design, ../gpu_region.h the memory that the exporter reads.
 */
#ifndef OGF_INJECT_H
#define OGF_INJECT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../gpu_region.h"

#define OGF_EXPORT __attribute__((visibility("default")))

#define OGF_NS_PER_MS 1000000ULL
#define OGF_NS_PER_S  1000000000ULL
#define OGF_FOREVER   UINT64_MAX

/* Set in a forked child, which has neither our memory nor our thread: nothing may be touched any more. */
extern atomic_bool ogf_inert;

/* os.c: system calls that libc has under newer versions only, or not at all. */
uint64_t ogf_now_ns(void);
void ogf_sleep_until(uint64_t when_ns);
/* Waits while *word is expected, until a wake or until_ns (OGF_FOREVER: no limit). Works across processes. */
void ogf_futex_wait(const uint32_t *word, uint32_t expected, uint64_t until_ns);
void ogf_futex_wake(const uint32_t *word);
/* Anonymous memory that takes room only where touched; NULL when there is none. */
void *ogf_reserve(size_t size_bytes);

/* region.c: the shared memory. Everything written there is written by the worker, once that runs. */
bool ogf_region_make(void);
/* In a forked child: gives back the descriptor that it has inherited. Safe in a signal handler. */
void ogf_region_abandon(void);
const struct ogf_gpu_control *ogf_region_control(void);
struct ogf_gpu_device *ogf_region_device(unsigned int index);
char *ogf_region_names(void);
void ogf_set_state(enum ogf_gpu_state state);
void ogf_set_error(enum ogf_gpu_error error, uint32_t cupti_result);
void ogf_set_cupti_version(uint32_t version);
void ogf_set_generation(uint32_t generation);
void ogf_set_device_count(uint32_t count);
/* Which calls of CUPTI are ours: those of the worker, and those of the thread that is inside InitializeInjection. */
void ogf_set_worker_thread(void);
void ogf_set_init_begin(void);
void ogf_set_init_end(void);
void ogf_set_names_head(uint64_t size_bytes);
void ogf_set_complete_ns(uint64_t complete_ns);

/* ring.c: records and totals. */
void ogf_ring_write(const struct ogf_gpu_record *record);
/* Makes what was written and counted since the last call visible to the exporter. */
void ogf_ring_publish(void);
void ogf_count(enum ogf_gpu_counter counter, uint64_t amount);
uint64_t ogf_counted(enum ogf_gpu_counter counter);

/* names.c */
/* 1 + the offset of the name, 0 when there is no name or no room for it. */
uint32_t ogf_name_intern(const char *name);

/* lease.c: what the exporter asks for; the page is untrusted. */
struct ogf_lease {
	uint32_t generation;
	uint64_t until_ns; /* never more than OGF_LEASE_MAX_NS after it was first seen */
};

#define OGF_LEASE_MAX_NS (10 * OGF_NS_PER_S)

struct ogf_lease ogf_lease_read(uint64_t now_ns);

/* devices.c */
/* Describes the devices once; false while the driver is not ready. */
bool ogf_devices_describe(void);
/* Which devices have a primary context, one bit each; 0 while the driver is not ready. */
uint32_t ogf_devices_with_context(void);

/* launches.c */
enum ogf_launch_records {
	OGF_LAUNCHES_ALWAYS,     /* enabled before cuInit ends, and left so */
	OGF_LAUNCHES_IN_WINDOWS, /* enabled before cuInit ends, then off between windows */
	OGF_LAUNCHES_LATE,       /* enabled by the first window */
};

void ogf_launches_init(void);
void ogf_launches_open(void);
void ogf_launches_close(void);

/* kinds.c */
/* CUPTI's result for the kind that matters most. */
uint32_t ogf_kinds_enable(void);
void ogf_kinds_disable(void);
/* Leaves them as they are, for a client that has taken CUPTI over, which gets back what it cannot use. */
void ogf_kinds_leave_on(void);

/* buffers.c: memory that CUPTI fills. */
struct ogf_filled {
	uint8_t *bytes;
	size_t size_bytes;
};

/* Registers our callbacks with CUPTI; its result. */
uint32_t ogf_buffers_register(void);
/* Gives CUPTI buffers from now on; false: there is no memory. */
bool ogf_buffers_open(void);
void ogf_buffers_close(void);
/* Whether another client's buffer has come to us since ogf_buffers_open. */
bool ogf_buffers_got_foreign(void);
/* The next buffer that CUPTI has given back; false when there is none. Give each to ogf_buffers_release. */
bool ogf_buffers_take(struct ogf_filled *ret);
void ogf_buffers_release(const struct ogf_filled *filled);
/* When the longest held of the buffers that CUPTI has was asked for; OGF_FOREVER when it has none. */
uint64_t ogf_buffers_earliest_ns(void);
/* Sizes later buffers by how many were asked for since the last call. */
void ogf_buffers_adapt(void);
/* How often CUPTI has asked us for the time. */
uint64_t ogf_timestamps_given(void);

/* records.c */
/* Writes a buffer's records into the ring. */
void ogf_records_write(const struct ogf_filled *filled);

/* client.c */
enum ogf_client {
	OGF_CLIENT_US,
	OGF_CLIENT_OTHER,   /* another one has registered since we did */
	OGF_CLIENT_UNKNOWN, /* CUPTI has not asked us for the time since we registered: nothing can be said */
};

/* Makes us CUPTI's client, whoever was it before; CUPTI's result. */
uint32_t ogf_client_register(void);
enum ogf_client ogf_client_look(void);
/* After we have switched off what we recorded: whether the clock tells of other clients is found out anew. */
void ogf_client_rests(void);
/* Whether a window may take CUPTI, by what the exporter says, else by what is seen here. */
bool ogf_client_may_open(void);
/* Whether another client is at work, as far as is known; an open window of ours has lost CUPTI then. */
bool ogf_client_is_lost(void);
/* We have noticed that. */
void ogf_client_lost(void);
/* Whether those that we know of have ended since. */
bool ogf_client_others_ended(void);

/* window.c */
/* Once, as soon as the driver answers, whether or not a window is open. */
void ogf_window_driver_is_up(void);
/* False: not now; a window that was marked as opened is marked as closed. */
bool ogf_window_open(uint32_t generation);
/* The same for generation 0, in InitializeInjection: nothing is asked of CUPTI that needs a driver. */
bool ogf_window_open_at_init(void);
/* How often an open window asks the next one: whether another client has taken its place. */
extern const unsigned int ogf_window_look_ms;
bool ogf_window_is_lost(void);
/* One flush; false when the window cannot go on. */
bool ogf_window_tick(void);
/* at_exit: the program ends, so nothing may take longer than it must. */
void ogf_window_close(bool at_exit);
/* Without a window: switches off what a lost window has left on for another client, if that has ended. */
void ogf_window_clean(void);

/* worker.c */
/* Before ogf_worker_start: a window of generation 0 is open. The first lease carries it on. */
void ogf_worker_carry_on(void);
bool ogf_worker_start(void);
/* Whether the program is ending: nothing may take longer than it must. */
bool ogf_worker_is_ending(void);
/* Called from the exit handler: returns when the worker is done with CUPTI, at the latest after until_ns. */
void ogf_worker_end(uint64_t until_ns);

#endif
