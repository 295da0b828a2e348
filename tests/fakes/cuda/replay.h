/* SPDX-License-Identifier: Apache-2.0 */
/* One replay in progress. */
#ifndef OGF_FAKE_CUDA_REPLAY_H
#define OGF_FAKE_CUDA_REPLAY_H

#include <pthread.h>

#include "internal.h"
#include "transcript.h"

struct ogf_replay_object {
	uint64_t token; /* as in the transcript */
	void *handle;
};

struct ogf_replay_objects {
	struct ogf_replay_object *entries;
	size_t count;
};

struct ogf_replay {
	struct ogf_transcript transcript;
	struct ogf_context *context;
	CUmodule module;
	struct ogf_replay_objects streams;
	struct ogf_replay_objects events;
	void *device[2];
	void *pageable;
	void *pinned;
	uint64_t begin_ns;
	pthread_mutex_t failure_lock;
	const struct ogf_step *failed; /* the first line that failed, NULL: none */
	CUresult failed_result;
};

/*
 * Makes every object the steps name, without driver calls that a probe would count, except that
 * kernels are looked up by name as in a real program. 0 or -errno with fake_cuda_error() set.
 */
int ogf_replay_prepare(struct ogf_replay *replay);
void ogf_replay_release(struct ogf_replay *replay);

/* Makes the driver call of one step. */
CUresult ogf_replay_call(const struct ogf_replay *replay, struct ogf_step *step);

#endif
