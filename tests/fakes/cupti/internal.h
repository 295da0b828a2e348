/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the fake CUPTI. */
#ifndef OGF_FAKE_CUPTI_INTERNAL_H
#define OGF_FAKE_CUPTI_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "fake_profiler.h"

#define OGF_EXPORT __attribute__((visibility("default")))

/* One client a process: whoever registers last. */
struct cupti_client {
	CUpti_BuffersCallbackRequestFunc request;
	CUpti_BuffersCallbackCompleteFunc complete;
	CUpti_TimestampCallbackFunc timestamp; /* NULL: CLOCK_REALTIME */
};

extern struct cupti_client cupti_client; /* under cupti_lock */
extern pthread_mutex_t cupti_lock;

/* client.c */
uint64_t cupti_monotonic_ns(void);
uint64_t cupti_now(void);
/* A time of the device in the client's clock. */
uint64_t cupti_convert(uint64_t monotonic_ns);
bool cupti_is_enabled(uint32_t kind);
bool cupti_is_recorded(const struct fake_cuda_call *call, uint32_t cbid);
/* Whether kernels were enabled while a context was being made, by the fault of that name. */
bool cupti_loses_kernels(void);
void cupti_set_client(const struct cupti_client *client);

/* cbids.c: 0 for calls without one. */
uint32_t cupti_cbid(unsigned int api);

/* buffers.c */
size_t cupti_record_size(uint32_t kind);
/* done_ns: when the record is complete, CLOCK_MONOTONIC; until then its buffer only goes by force. */
void cupti_append(const union cupti_record *record, uint64_t done_ns);
void cupti_count_dropped(size_t count);
size_t cupti_take_dropped(void);
void cupti_flush(bool forced);
void cupti_start_delivery(void);

/* collect.c */
/* Of an execution's record. */
void cupti_set_times(union cupti_record *record, uint64_t start, uint64_t end);
void cupti_attach(void);

/* faults.c: FAKE_CUPTI_FAULTS, every Nth execution record; 0: never. */
struct cupti_faults {
	unsigned long late, duplicate, drop, dropped, zero, invert, unknown, steal;
	unsigned long refuse; /* the activity kind that cannot be enabled */
	bool wrap, starve, late_api, hang, context_race, idle_clock;
};

extern struct cupti_faults cupti_faults;

void cupti_read_faults(void);
void cupti_append_late(const union cupti_record *record);
/* Moves what has been late for long enough into a buffer. */
void cupti_release_late(void);
/* Makes somebody else CUPTI's client, who takes all buffers and forgets them. */
void cupti_steal(void);

#endif
