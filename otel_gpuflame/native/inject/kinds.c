// SPDX-License-Identifier: Apache-2.0
/* What CUPTI is asked to record: kinds that are on or off for every client of the process. */
#include "cupti.h"
#include "inject.h"

enum {
	GIVE_BACK_STEP_MS = 2,
	GIVE_BACK_STEPS = 25,
};

/* Without the first, there is nothing to see. */
static const uint32_t kinds[] = {
	CUPTI_KIND_CONCURRENT_KERNEL, CUPTI_KIND_MEMCPY,          CUPTI_KIND_MEMCPY2, CUPTI_KIND_MEMSET,
	CUPTI_KIND_OVERHEAD,          CUPTI_KIND_SYNCHRONIZATION,
};

#define KIND_COUNT (sizeof(kinds) / sizeof(kinds[0]))

/* We had switched them on when another client came. */
static bool left_on;

/* Between windows CUPTI drops launch records, for we give it no buffers: that is no loss. */
static void forget_dropped(void)
{
	size_t dropped;

	ogf_cupti.cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped);
}

/* Launches first: at the window's edges there are launches without executions, rather than the reverse. */
uint32_t ogf_kinds_enable(void)
{
	uint32_t result;

	ogf_launches_open();
	result = ogf_cupti.cuptiActivityEnable(kinds[0]);
	if (result != CUPTI_SUCCESS) {
		ogf_launches_close();
		return result;
	}
	for (size_t index = 1; index < KIND_COUNT; index++)
		ogf_cupti.cuptiActivityEnable(kinds[index]);
	forget_dropped();
	return CUPTI_SUCCESS;
}

void ogf_kinds_disable(void)
{
	for (size_t index = 0; index < KIND_COUNT; index++)
		ogf_cupti.cuptiActivityDisable(kinds[index]);
	ogf_launches_close();
	left_on = false;
}

/*
 * CUPTI goes on to fill the buffers that it had from us, and gives them to the other client, which can only throw them
 * away: so it gets them now. Not by force, which would cut what is running in buffers of the other one's.
 */
static void give_back_buffers(void)
{
	for (int step = 0; step < GIVE_BACK_STEPS; step++) {
		ogf_cupti.cuptiActivityFlushAll(CUPTI_FLUSH_COMPLETED);
		if (ogf_worker_is_ending())
			return;
		ogf_sleep_until(ogf_now_ns() + GIVE_BACK_STEP_MS * OGF_NS_PER_MS);
	}
}

void ogf_kinds_leave_on(void)
{
	left_on = true;
	give_back_buffers();
}

void ogf_window_clean(void)
{
	if (left_on && ogf_client_others_ended())
		ogf_kinds_disable();
}
