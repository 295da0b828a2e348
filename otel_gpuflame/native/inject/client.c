// SPDX-License-Identifier: Apache-2.0
/*
 * Whether CUPTI's one client is still us. It tells nobody that another one has registered, but it asks the one that
 * registered last for the time: torch.profiler, which has a clock of its own, is noticed by that. A client without
 * one is not; of such ones the exporter knows, which sees their calls.
 */
#include "cupti.h"
#include "inject.h"

/*
 * CUPTI has asked us for the time since we registered, or since kinds were switched off, which may change whether it
 * asks at all: from then on, that it does not tells of another client.
 */
static bool was_our_clock;
/* That others have ended counts once: what was said before we registered, or lost CUPTI, is of earlier ones. */
static uint32_t known_ended;

static bool is_our_clock(void)
{
	const uint64_t before = ogf_timestamps_given();
	uint64_t now_ns;

	return ogf_cupti.cuptiGetTimestamp(&now_ns) == CUPTI_SUCCESS && ogf_timestamps_given() != before;
}

/* What the exporter says; it is another process's page, and any value can stand there. */
static uint32_t begun(void)
{
	return __atomic_load_n(&ogf_region_control()->others_begun, __ATOMIC_ACQUIRE);
}

static uint32_t ended(void)
{
	return __atomic_load_n(&ogf_region_control()->others_ended, __ATOMIC_ACQUIRE);
}

bool ogf_client_others_ended(void)
{
	return ended() != known_ended && begun() == ended();
}

uint32_t ogf_client_register(void)
{
	known_ended = ended();
	was_our_clock = false;
	return ogf_buffers_register();
}

void ogf_client_rests(void)
{
	was_our_clock = is_our_clock();
}

void ogf_client_lost(void)
{
	known_ended = ended();
}

enum ogf_client ogf_client_look(void)
{
	if (is_our_clock()) {
		was_our_clock = true;
		return OGF_CLIENT_US;
	}
	return was_our_clock ? OGF_CLIENT_OTHER : OGF_CLIENT_UNKNOWN;
}

bool ogf_client_is_lost(void)
{
	return begun() != ended() || ogf_client_look() == OGF_CLIENT_OTHER;
}

bool ogf_client_may_open(void)
{
	return ogf_client_others_ended() || !ogf_client_is_lost();
}
