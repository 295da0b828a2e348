/* SPDX-License-Identifier: Apache-2.0 */
/* What a test may ask of the fake driver, beside the CUDA driver API itself. */
#ifndef OGF_FAKE_CUDA_H
#define OGF_FAKE_CUDA_H

#include <stdint.h>

struct fake_cuda_counters {
	uint64_t launches; /* kernel launch calls that succeeded, captured ones excluded */
	uint64_t graph_launches;
	uint64_t copies;
	uint64_t copy_bytes;
	uint64_t sets;
	uint64_t waits;         /* calls that wait for the device, also when it is idle already */
	uint64_t wait_ns;       /* time inside those calls, entry to return */
	uint64_t graph_kernels; /* kernels run by graph launches */
	uint64_t kernel_ns;     /* device time of all kernels */
	uint64_t copy_ns;       /* device time of all copies and sets */
	uint64_t sleeps;        /* waits that left the CPU */
};

enum fake_cuda_wait_mode {
	FAKE_CUDA_WAIT_BLOCK = 0, /* off the CPU until the work has ended */
	FAKE_CUDA_WAIT_SPIN = 1,  /* on the CPU, as the real driver does by default */
};

/* Duration of every later run of the kernel with this name. */
void fake_cuda_set_duration_ns(const char *name, uint64_t duration_ns);

/* How contexts without a scheduling flag wait; -EINVAL for an unknown mode. */
int fake_cuda_set_wait_mode(int mode);

/* Every later wait also lasts until this descriptor can be read; -1: no longer than the work. */
void fake_cuda_hold_waits(int fd);

void fake_cuda_counters(struct fake_cuda_counters *ret);

/* Calls of one exported function and the time inside them; -ENOENT for an unknown name. */
int fake_cuda_api_count(const char *api, uint64_t *ret_count, uint64_t *ret_ns);

/* The api names, one at a time from 0; NULL after the last. */
const char *fake_cuda_api_name(unsigned int index);

/* Replays a transcript (README.md); 0, -EINVAL (bad line), -EIO (a call failed) or -errno. */
int fake_cuda_replay(const char *transcript_path);

/* What the last failing cuInit or fake_cuda_replay of this thread had to say; "" when nothing. */
const char *fake_cuda_error(void);

#endif
