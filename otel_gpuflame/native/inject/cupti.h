/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of CUPTI's ABI that we use, of CUDA 12 and 13. CUPTI is opened at run time, and its records are read by
 * offset: new versions append to them. Numbers as in cupti_activity.h and cupti_result.h of CUPTI 13.0.
 */
#ifndef OGF_INJECT_CUPTI_H
#define OGF_INJECT_CUPTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	CUPTI_SUCCESS = 0,
	CUPTI_ERROR_OUT_OF_MEMORY = 8,
};

enum {
	CUPTI_KIND_MEMCPY = 1,
	CUPTI_KIND_MEMSET = 2,
	CUPTI_KIND_DRIVER = 4,
	CUPTI_KIND_CONCURRENT_KERNEL = 10,
	CUPTI_KIND_OVERHEAD = 17,
	CUPTI_KIND_MEMCPY2 = 22, /* between devices */
	CUPTI_KIND_SYNCHRONIZATION = 38,
};

enum {
	CUPTI_FLUSH_COMPLETED = 0,
	CUPTI_FLUSH_FORCED = 1,
};

typedef void (*ogf_cupti_request)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*ogf_cupti_complete)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_size);

struct ogf_cupti {
	uint32_t (*cuptiGetVersion)(uint32_t *version);
	uint32_t (*cuptiGetTimestamp)(uint64_t *timestamp);
	uint32_t (*cuptiActivityRegisterCallbacks)(ogf_cupti_request request, ogf_cupti_complete complete);
	uint32_t (*cuptiActivityRegisterTimestampCallback)(uint64_t (*timestamp)(void));
	uint32_t (*cuptiActivityEnable)(uint32_t kind);
	uint32_t (*cuptiActivityDisable)(uint32_t kind);
	uint32_t (*cuptiActivityEnableDriverApi)(uint32_t cbid, uint8_t enable);
	uint32_t (*cuptiActivityFlushAll)(uint32_t flag);
	uint32_t (*cuptiActivityGetNextRecord)(uint8_t *buffer, size_t valid_size, void **record);
	uint32_t (*cuptiActivityGetNumDroppedRecords)(void *context, uint32_t stream, size_t *dropped);
};

extern struct ogf_cupti ogf_cupti;

/* cupti.c: 0, or why CUPTI cannot be used. */
enum ogf_gpu_error ogf_cupti_load(void);

/* cupti_path.c: opens the copy that the program has loaded, else the one that belongs to its CUDA; NULL: none. */
void *ogf_cupti_open(void);

/* driver.c */
/* The address of a function of the driver that loaded us, NULL when there is none. */
void *ogf_driver_function(const char *name);

#endif
