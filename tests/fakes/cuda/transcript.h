/* SPDX-License-Identifier: Apache-2.0 */
/* A parsed API transcript; the text format is described in tests/fakes/README.md. */
#ifndef OGF_FAKE_CUDA_TRANSCRIPT_H
#define OGF_FAKE_CUDA_TRANSCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	OGF_TRANSCRIPT_THREADS = 256,
	OGF_TRANSCRIPT_NAME_BYTES = 4096,
};

/* Arguments that a line may carry. */
enum ogf_key {
	OGF_KEY_NAME = 1 << 0,
	OGF_KEY_STREAM = 1 << 1,
	OGF_KEY_GRID = 1 << 2,
	OGF_KEY_BLOCK = 1 << 3,
	OGF_KEY_SHARED = 1 << 4,
	OGF_KEY_DURATION = 1 << 5,
	OGF_KEY_EVENT = 1 << 6,
	OGF_KEY_BYTES = 1 << 7,
	OGF_KEY_HOST = 1 << 8,
	OGF_KEY_KERNELS = 1 << 9,
};

enum ogf_shape {
	OGF_SHAPE_LAUNCH,
	OGF_SHAPE_LAUNCH_EX,
	OGF_SHAPE_COOPERATIVE,
	OGF_SHAPE_GRAPH,
	OGF_SHAPE_VOID,
	OGF_SHAPE_STREAM,
	OGF_SHAPE_EVENT,
	OGF_SHAPE_RECORD,
	OGF_SHAPE_STREAM_WAIT,
	OGF_SHAPE_COPY_IN,
	OGF_SHAPE_COPY_OUT,
	OGF_SHAPE_COPY_DEVICE,
	OGF_SHAPE_COPY_IN_ASYNC,
	OGF_SHAPE_COPY_OUT_ASYNC,
	OGF_SHAPE_COPY_DEVICE_ASYNC,
	OGF_SHAPE_SET_ASYNC,
	OGF_SHAPE_ALLOCATE,
	OGF_SHAPE_FREE,
	OGF_SHAPES,
};

struct ogf_replay_api {
	const char *name;
	enum ogf_shape shape;
	void (*function)(void);
};

struct ogf_step {
	unsigned int line;
	unsigned int thread;
	uint64_t offset_ns;
	const struct ogf_replay_api *api;
	unsigned int keys; /* those present */
	char *name;
	uint64_t stream; /* as in the text: 0, 1 and 2 are the default streams */
	uint64_t event;
	unsigned int grid[3];
	unsigned int block[3];
	unsigned int shared_bytes;
	uint64_t duration_ns;
	uint64_t size_bytes;
	uint64_t kernels;
	bool pinned;
	void *object; /* made for the replay: function, graph or buffer */
	void *stream_handle;
	void *event_handle;
};

struct ogf_transcript {
	struct ogf_step *steps;
	size_t count;
	size_t capacity;
	uint64_t *non_blocking; /* streams declared so */
	size_t non_blocking_count;
	unsigned int threads;
	uint64_t last_ns[OGF_TRANSCRIPT_THREADS];
};

/* Returns 0 or -errno; -EINVAL leaves the line and the reason in fake_cuda_error(). */
int ogf_transcript_read(const char *path, struct ogf_transcript *ret);
void ogf_transcript_free(struct ogf_transcript *transcript);

/* replay_apis.c */
const struct ogf_replay_api *ogf_replay_api_find(const char *name);
unsigned int ogf_shape_required(enum ogf_shape shape);
unsigned int ogf_shape_allowed(enum ogf_shape shape);

#endif
