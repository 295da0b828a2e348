// SPDX-License-Identifier: Apache-2.0
/* Replays a transcript through the exported functions, from native threads, at its times. */
#include <errno.h>
#include <string.h>

#include "replay.h"

#define START_DELAY_NS 1000000ULL /* for all threads to reach their first call */
#define SPIN_NS        60000ULL   /* a sleep ends up to 50 us late: spin the rest */

struct worker {
	struct ogf_replay *replay;
	unsigned int index;
	pthread_t thread;
};

static void wait_for_turn(uint64_t when_ns)
{
	if (ogf_now_ns() + SPIN_NS < when_ns)
		ogf_sleep_until(when_ns - SPIN_NS);
	while (ogf_now_ns() < when_ns)
		;
}

static void note_failure(struct ogf_replay *replay, const struct ogf_step *step, CUresult result)
{
	pthread_mutex_lock(&replay->failure_lock);
	if (!replay->failed || step->line < replay->failed->line) {
		replay->failed = step;
		replay->failed_result = result;
	}
	pthread_mutex_unlock(&replay->failure_lock);
}

static void *run_worker(void *argument)
{
	const struct worker *worker = argument;
	struct ogf_replay *replay = worker->replay;
	struct ogf_transcript *transcript = &replay->transcript;

	ogf_current = replay->context;
	for (size_t index = 0; index < transcript->count; index++) {
		struct ogf_step *step = &transcript->steps[index];
		CUresult result;

		if (step->thread != worker->index)
			continue;
		wait_for_turn(replay->begin_ns + step->offset_ns);
		result = ogf_replay_call(replay, step);
		if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
			note_failure(replay, step, result);
	}
	return NULL;
}

static int run(struct ogf_replay *replay)
{
	struct worker workers[OGF_TRANSCRIPT_THREADS];
	unsigned int started = 0;
	int error = 0;

	replay->begin_ns = ogf_now_ns() + START_DELAY_NS;
	while (started < replay->transcript.threads && !error) {
		struct worker *worker = &workers[started];

		worker->replay = replay;
		worker->index = started;
		error = -pthread_create(&worker->thread, NULL, run_worker, worker);
		if (!error)
			started++;
	}
	while (started > 0)
		pthread_join(workers[--started].thread, NULL);
	if (error) {
		ogf_set_error("cannot start a thread: %s", strerror(-error));
	} else if (replay->failed) {
		ogf_set_error("line %u: %s returned %d", replay->failed->line, replay->failed->api->name,
			      replay->failed_result);
		error = -EIO;
	}
	return error;
}

OGF_EXPORT int fake_cuda_replay(const char *transcript_path)
{
	struct ogf_replay replay = {.failure_lock = PTHREAD_MUTEX_INITIALIZER};
	int error = ogf_transcript_read(transcript_path, &replay.transcript);

	if (error)
		return error;
	error = ogf_replay_prepare(&replay);
	if (!error)
		error = run(&replay);
	ogf_replay_release(&replay);
	return error;
}
