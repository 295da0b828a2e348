// SPDX-License-Identifier: Apache-2.0
/* The objects of a replay: made before its clock starts, released after its last call. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"

/* The only driver calls here: a profiler learns kernel names from them. */
CUresult cuModuleLoadData(CUmodule *ret, const void *image);
CUresult cuModuleGetFunction(CUfunction *ret, CUmodule module, const char *name);
CUresult cuModuleUnload(CUmodule module);

static struct ogf_replay_object *object_of(struct ogf_replay_objects *objects, uint64_t token)
{
	struct ogf_replay_object *grown;

	for (size_t index = 0; index < objects->count; index++)
		if (objects->entries[index].token == token)
			return &objects->entries[index];
	grown = reallocarray(objects->entries, objects->count + 1, sizeof(*grown));
	if (!grown)
		return NULL;
	objects->entries = grown;
	grown[objects->count] = (struct ogf_replay_object){.token = token};
	return &grown[objects->count++];
}

static unsigned int stream_flags(const struct ogf_transcript *transcript, uint64_t token)
{
	for (size_t index = 0; index < transcript->non_blocking_count; index++)
		if (transcript->non_blocking[index] == token)
			return CU_STREAM_NON_BLOCKING;
	return 0;
}

static bool prepare_stream(struct ogf_replay *replay, struct ogf_step *step)
{
	struct ogf_replay_object *stream;

	step->stream_handle = (void *)(uintptr_t)step->stream;
	if (step->stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return true;
	stream = object_of(&replay->streams, step->stream);
	if (!stream)
		return false;
	if (!stream->handle)
		stream->handle = ogf_stream_new(replay->context, stream_flags(&replay->transcript, step->stream));
	step->stream_handle = stream->handle;
	return stream->handle;
}

static bool prepare_event(struct ogf_replay *replay, struct ogf_step *step)
{
	struct ogf_replay_object *event;

	if (!step->event)
		return true;
	event = object_of(&replay->events, step->event);
	if (!event)
		return false;
	if (!event->handle)
		event->handle = ogf_event_new(replay->context, 0);
	step->event_handle = event->handle;
	return event->handle;
}

static bool prepare_graph(struct ogf_step *step, const struct ogf_function *function)
{
	const struct ogf_graph_node node = {.kind = OGF_NODE_KERNEL, .name = function->name};
	struct ogf_graph *graph = ogf_graph_new(OGF_GRAPH_EXEC);

	step->object = graph;
	for (uint64_t count = 0; graph && count < step->kernels; count++)
		if (!ogf_graph_add(graph, &node))
			return false;
	return graph;
}

static bool prepare_handles(struct ogf_replay *replay, struct ogf_step *step)
{
	bool is_ready;

	ogf_lock();
	is_ready = prepare_stream(replay, step) && prepare_event(replay, step);
	if (is_ready && step->api->shape == OGF_SHAPE_FREE) {
		step->object = ogf_memory_new(step->size_bytes, OGF_DEVICE_MEMORY);
		is_ready = step->object;
	}
	if (is_ready && step->api->shape == OGF_SHAPE_GRAPH)
		is_ready = prepare_graph(step, step->object);
	ogf_unlock();
	return is_ready;
}

static bool prepare_step(struct ogf_replay *replay, struct ogf_step *step)
{
	CUfunction function;

	if (step->name) {
		if (cuModuleGetFunction(&function, replay->module, step->name))
			return false;
		step->object = function;
	}
	return prepare_handles(replay, step);
}

static bool prepare_buffers(struct ogf_replay *replay)
{
	uint64_t largest_bytes = 1;

	for (size_t index = 0; index < replay->transcript.count; index++)
		if (replay->transcript.steps[index].size_bytes > largest_bytes)
			largest_bytes = replay->transcript.steps[index].size_bytes;
	replay->pageable = malloc(largest_bytes);
	ogf_lock();
	replay->device[0] = ogf_memory_new(largest_bytes, OGF_DEVICE_MEMORY);
	replay->device[1] = ogf_memory_new(largest_bytes, OGF_DEVICE_MEMORY);
	replay->pinned = ogf_memory_new(largest_bytes, OGF_PINNED_MEMORY);
	ogf_unlock();
	if (!replay->pageable || !replay->device[0] || !replay->device[1] || !replay->pinned)
		return false;
	/* Page faults now, not inside the replayed calls. */
	memset(replay->pageable, 0, largest_bytes);
	memset(replay->device[0], 0, largest_bytes);
	memset(replay->device[1], 0, largest_bytes);
	return true;
}

int ogf_replay_prepare(struct ogf_replay *replay)
{
	CUresult result;

	ogf_lock();
	result = ogf_context_current(&replay->context);
	ogf_unlock();
	if (result != CUDA_SUCCESS || cuModuleLoadData(&replay->module, "replay")) {
		ogf_set_error("no current context: call cuInit and cuCtxSetCurrent first");
		return -EPERM;
	}
	for (size_t index = 0; index < replay->transcript.count; index++) {
		struct ogf_step *step = &replay->transcript.steps[index];

		if (!prepare_step(replay, step)) {
			ogf_set_error("line %u: no memory for its objects", step->line);
			return -ENOMEM;
		}
	}
	if (prepare_buffers(replay))
		return 0;
	ogf_set_error("no memory for the copies");
	return -ENOMEM;
}

static void release_step(struct ogf_step *step)
{
	if (!step->object)
		return;
	if (step->api->shape == OGF_SHAPE_GRAPH && ogf_handle_is(step->object, OGF_GRAPH_EXEC))
		ogf_graph_free(step->object);
	if (step->api->shape == OGF_SHAPE_ALLOCATE || step->api->shape == OGF_SHAPE_FREE)
		ogf_memory_free(step->object);
}

void ogf_replay_release(struct ogf_replay *replay)
{
	ogf_lock();
	for (size_t index = 0; index < replay->transcript.count; index++)
		release_step(&replay->transcript.steps[index]);
	for (size_t index = 0; index < replay->streams.count; index++)
		if (replay->streams.entries[index].handle)
			ogf_stream_free(replay->streams.entries[index].handle);
	for (size_t index = 0; index < replay->events.count; index++)
		if (replay->events.entries[index].handle)
			ogf_handle_free(replay->events.entries[index].handle);
	ogf_memory_free(replay->device[0]);
	ogf_memory_free(replay->device[1]);
	ogf_memory_free(replay->pinned);
	ogf_unlock();
	if (replay->module)
		cuModuleUnload(replay->module);
	free(replay->pageable);
	free(replay->streams.entries);
	free(replay->events.entries);
	ogf_transcript_free(&replay->transcript);
}
