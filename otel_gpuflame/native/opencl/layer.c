// SPDX-License-Identifier: Apache-2.0
/* What the loader calls: the layer's own two functions, and the enqueues that it stands in front of. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "layer.h"

/* glibc 2.34 moved these into libc: see context.c. */
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dladdr, dladdr@GLIBC_2.2.5");
#endif

typedef int32_t (*nd_range_fn)(void *queue, void *kernel, uint32_t dimensions, const size_t *offset,
			       const size_t *global, const size_t *local, uint32_t wait_count, void *const *waits,
			       void **event);
typedef int32_t (*read_fn)(void *queue, void *buffer, uint32_t blocking, size_t offset, size_t size_bytes, void *to,
			   uint32_t wait_count, void *const *waits, void **event);
typedef int32_t (*write_fn)(void *queue, void *buffer, uint32_t blocking, size_t offset, size_t size_bytes,
			    const void *from, uint32_t wait_count, void *const *waits, void **event);
typedef int32_t (*copy_fn)(void *queue, void *from, void *to, size_t from_offset, size_t to_offset, size_t size_bytes,
			   uint32_t wait_count, void *const *waits, void **event);
typedef int32_t (*fill_fn)(void *queue, void *buffer, const void *pattern, size_t pattern_bytes, size_t offset,
			   size_t size_bytes, uint32_t wait_count, void *const *waits, void **event);

/* Kinds of copies as CUPTI numbers them, so that a record says the same whoever wrote it. */
enum {
	COPY_HOST_TO_DEVICE = 1,
	COPY_DEVICE_TO_HOST = 2,
	COPY_DEVICE_TO_DEVICE = 8,
};

static void *next_table[OGF_CL_MAX_FUNCTIONS];
static void *own_table[OGF_CL_MAX_FUNCTIONS];

void *ogf_cl_next(enum ogf_cl_function function)
{
	return next_table[function];
}

static void *queue_handle(void *queue, uint32_t name)
{
	void *value = NULL;

	((ogf_cl_get_info)ogf_cl_next(OGF_CL_GET_COMMAND_QUEUE_INFO))(queue, name, sizeof(value), &value, NULL);
	return value;
}

static uint64_t properties_of(void *queue)
{
	uint64_t properties = 0;

	((ogf_cl_get_info)ogf_cl_next(OGF_CL_GET_COMMAND_QUEUE_INFO))(queue, OGF_CL_QUEUE_PROPERTIES,
								      sizeof(properties), &properties, NULL);
	return properties;
}

/* NULL: not to be recorded. */
static struct ogf_cl_command *begin(void *queue, enum ogf_gpu_kind kind, uint16_t detail, uint64_t bytes)
{
	struct ogf_cl_command *command;
	uint64_t properties;

	if (!ogf_commands_are_wanted())
		return NULL;
	properties = properties_of(queue);
	if (!(properties & OGF_CL_QUEUE_PROFILING_ENABLE)) {
		ogf_command_note_untimed();
		return NULL;
	}
	command = ogf_command_begin();
	if (!command)
		return NULL;
	command->thread_pointer = (uint64_t)(uintptr_t)pthread_self();
	command->queue = queue;
	command->context = queue_handle(queue, OGF_CL_QUEUE_CONTEXT);
	command->device = queue_handle(queue, OGF_CL_QUEUE_DEVICE);
	command->kind = (uint8_t)kind;
	command->detail = detail;
	command->bytes = bytes;
	command->out_of_order = properties & OGF_CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
	command->name[0] = '\0';
	command->event = NULL;
	memset(command->global, 0, sizeof(command->global));
	memset(command->local, 0, sizeof(command->local));
	return command;
}

/* The program's event if it asked for one, else ours. */
static void **event_of(struct ogf_cl_command *command, void **event)
{
	return event ? event : &command->event;
}

static int32_t end(struct ogf_cl_command *command, int32_t result, void **event)
{
	if (result == OGF_CL_SUCCESS && event) {
		command->event = *event;
		((ogf_cl_reference)ogf_cl_next(OGF_CL_RETAIN_EVENT))(command->event);
	}
	command->end_ns = ogf_now_ns();
	ogf_command_end(command, result == OGF_CL_SUCCESS);
	return result;
}

static uint32_t size_of(const size_t *sizes, uint32_t dimension, uint32_t dimensions)
{
	if (!sizes)
		return 0;
	return dimension < dimensions ? (uint32_t)sizes[dimension] : 1;
}

static int32_t nd_range(void *queue, void *kernel, uint32_t dimensions, const size_t *offset, const size_t *global,
			const size_t *local, uint32_t wait_count, void *const *waits, void **event)
{
	const nd_range_fn next = (nd_range_fn)ogf_cl_next(OGF_CL_ENQUEUE_ND_RANGE_KERNEL);
	struct ogf_cl_command *command = begin(queue, OGF_GPU_KERNEL, 0, 0);
	int32_t result;

	if (!command)
		return next(queue, kernel, dimensions, offset, global, local, wait_count, waits, event);
	result = next(queue, kernel, dimensions, offset, global, local, wait_count, waits, event_of(command, event));
	if (result == OGF_CL_SUCCESS) {
		if (((ogf_cl_get_info)ogf_cl_next(OGF_CL_GET_KERNEL_INFO))(kernel, OGF_CL_KERNEL_FUNCTION_NAME,
									   sizeof(command->name), command->name, NULL))
			command->name[0] = '\0';
		for (uint32_t i = 0; i < 3; i++) {
			command->global[i] = size_of(global, i, dimensions);
			command->local[i] = size_of(local, i, dimensions);
		}
	}
	return end(command, result, event);
}

static int32_t read_buffer(void *queue, void *buffer, uint32_t blocking, size_t offset, size_t size_bytes, void *to,
			   uint32_t wait_count, void *const *waits, void **event)
{
	const read_fn next = (read_fn)ogf_cl_next(OGF_CL_ENQUEUE_READ_BUFFER);
	struct ogf_cl_command *command = begin(queue, OGF_GPU_COPY, COPY_DEVICE_TO_HOST, size_bytes);

	if (!command)
		return next(queue, buffer, blocking, offset, size_bytes, to, wait_count, waits, event);
	return end(command,
		   next(queue, buffer, blocking, offset, size_bytes, to, wait_count, waits, event_of(command, event)),
		   event);
}

static int32_t write_buffer(void *queue, void *buffer, uint32_t blocking, size_t offset, size_t size_bytes,
			    const void *from, uint32_t wait_count, void *const *waits, void **event)
{
	const write_fn next = (write_fn)ogf_cl_next(OGF_CL_ENQUEUE_WRITE_BUFFER);
	struct ogf_cl_command *command = begin(queue, OGF_GPU_COPY, COPY_HOST_TO_DEVICE, size_bytes);

	if (!command)
		return next(queue, buffer, blocking, offset, size_bytes, from, wait_count, waits, event);
	return end(command,
		   next(queue, buffer, blocking, offset, size_bytes, from, wait_count, waits, event_of(command, event)),
		   event);
}

static int32_t copy_buffer(void *queue, void *from, void *to, size_t from_offset, size_t to_offset, size_t size_bytes,
			   uint32_t wait_count, void *const *waits, void **event)
{
	const copy_fn next = (copy_fn)ogf_cl_next(OGF_CL_ENQUEUE_COPY_BUFFER);
	struct ogf_cl_command *command = begin(queue, OGF_GPU_COPY, COPY_DEVICE_TO_DEVICE, size_bytes);

	if (!command)
		return next(queue, from, to, from_offset, to_offset, size_bytes, wait_count, waits, event);
	return end(
		command,
		next(queue, from, to, from_offset, to_offset, size_bytes, wait_count, waits, event_of(command, event)),
		event);
}

static int32_t fill_buffer(void *queue, void *buffer, const void *pattern, size_t pattern_bytes, size_t offset,
			   size_t size_bytes, uint32_t wait_count, void *const *waits, void **event)
{
	const fill_fn next = (fill_fn)ogf_cl_next(OGF_CL_ENQUEUE_FILL_BUFFER);
	struct ogf_cl_command *command = begin(queue, OGF_GPU_SET, 0, size_bytes);

	if (!command)
		return next(queue, buffer, pattern, pattern_bytes, offset, size_bytes, wait_count, waits, event);
	return end(command,
		   next(queue, buffer, pattern, pattern_bytes, offset, size_bytes, wait_count, waits,
			event_of(command, event)),
		   event);
}

static int32_t give(const void *value, size_t value_bytes, size_t size_bytes, void *to, size_t *size_ret)
{
	if (to && size_bytes < value_bytes)
		return OGF_CL_INVALID_VALUE;
	if (to)
		memcpy(to, value, value_bytes);
	if (size_ret)
		*size_ret = value_bytes;
	return OGF_CL_SUCCESS;
}

OGF_EXPORT int32_t clGetLayerInfo(uint32_t name, size_t size_bytes, void *value, size_t *size_ret)
{
	static const char layer_name[] = "otel_gpuflame";
	const uint32_t version = OGF_CL_LAYER_API_VERSION_100;

	if (name == OGF_CL_LAYER_API_VERSION)
		return give(&version, sizeof(version), size_bytes, value, size_ret);
	if (name == OGF_CL_LAYER_NAME)
		return give(layer_name, sizeof(layer_name), size_bytes, value, size_ret);
	return OGF_CL_INVALID_VALUE;
}

static void stand_before(enum ogf_cl_function function, void *ours)
{
	if (next_table[function])
		own_table[function] = ours;
}

/* Whatever we may call later must stay mapped, also when the program closes its loader. */
static void pin(const void *function)
{
	Dl_info where;

	if (function && dladdr(function, &where) && where.dli_fname)
		dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

/*
 * A loader whose table ends before a function that we need is left alone: the layer then passes everything on. A second
 * loader in the process is refused: our tables belong to the first.
 */
OGF_EXPORT int32_t clInitLayer(uint32_t count, void *const *target, uint32_t *count_ret, void *const **table_ret)
{
	static atomic_flag called = ATOMIC_FLAG_INIT;

	if (!target || !count_ret || !table_ret || atomic_flag_test_and_set(&called))
		return OGF_CL_INVALID_VALUE;
	if (count > OGF_CL_MAX_FUNCTIONS)
		count = OGF_CL_MAX_FUNCTIONS;
	memcpy(next_table, target, count * sizeof(*target));
	memcpy(own_table, target, count * sizeof(*target));
	for (uint32_t i = 0; i < count; i++)
		pin(target[i]);
	if (count > OGF_CL_ENQUEUE_FILL_BUFFER && ogf_cl_start()) {
		stand_before(OGF_CL_ENQUEUE_ND_RANGE_KERNEL, (void *)nd_range);
		stand_before(OGF_CL_ENQUEUE_READ_BUFFER, (void *)read_buffer);
		stand_before(OGF_CL_ENQUEUE_WRITE_BUFFER, (void *)write_buffer);
		stand_before(OGF_CL_ENQUEUE_COPY_BUFFER, (void *)copy_buffer);
		stand_before(OGF_CL_ENQUEUE_FILL_BUFFER, (void *)fill_buffer);
	}
	*count_ret = count;
	*table_ret = own_table;
	return OGF_CL_SUCCESS;
}
