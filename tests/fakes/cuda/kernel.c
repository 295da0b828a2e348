// SPDX-License-Identifier: Apache-2.0
/* Modules, libraries, kernels and their launches. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define NO_DURATION UINT64_MAX

_Thread_local uint64_t ogf_next_duration_ns = NO_DURATION;
static struct ogf_name *names;

struct ogf_name *ogf_name_intern(const char *text)
{
	const size_t size = strlen(text) + 1;
	struct ogf_name *name;

	for (name = names; name; name = name->next)
		if (strcmp(name->text, text) == 0)
			return name;
	name = malloc(sizeof(*name) + size);
	if (!name)
		return NULL;
	memcpy(name->text, text, size);
	atomic_init(&name->duration_ns, OGF_DURATION_DEFAULT);
	name->next = names;
	names = name;
	return name;
}

uint64_t ogf_name_duration_ns(const struct ogf_name *name)
{
	const uint64_t own_ns = atomic_load_explicit(&name->duration_ns, memory_order_relaxed);

	return own_ns == OGF_DURATION_DEFAULT ? ogf_state.config.kernel_ns : own_ns;
}

OGF_EXPORT void fake_cuda_set_duration_ns(const char *text, uint64_t duration_ns)
{
	struct ogf_name *name;

	ogf_lock();
	name = ogf_name_intern(text);
	if (name)
		atomic_store_explicit(&name->duration_ns, duration_ns, memory_order_relaxed);
	ogf_unlock();
}

/* The image is not read: a fake module has every kernel that is asked of it. */
static CUresult module_load(struct ogf_module **ret, const void *image, enum ogf_handle_kind kind)
{
	struct ogf_context *context;
	CUresult result = CUDA_SUCCESS;

	ogf_lock();
	if (kind == OGF_MODULE)
		result = ogf_context_current(&context);
	else if (!ogf_state.initialised)
		result = CUDA_ERROR_NOT_INITIALIZED;
	if (result == CUDA_SUCCESS && (!ret || !image))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		*ret = ogf_handle_new(kind, sizeof(**ret));
		if (!*ret)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	ogf_unlock();
	return result;
}

static void free_functions(struct ogf_function *function)
{
	while (function) {
		struct ogf_function *next = function->next;

		ogf_handle_free(&function->handle);
		function = next;
	}
}

static CUresult module_unload(struct ogf_module *module, enum ogf_handle_kind kind)
{
	CUresult result = CUDA_SUCCESS;

	ogf_lock();
	if (ogf_handle_is(module, kind)) {
		free_functions(module->functions);
		free_functions(module->kernels);
		ogf_handle_free(&module->handle);
	} else {
		result = CUDA_ERROR_INVALID_HANDLE;
	}
	ogf_unlock();
	return result;
}

/* The same module and name give the same handle, as with the real driver. */
static struct ogf_function *find_or_add(struct ogf_module *module, enum ogf_handle_kind kind, struct ogf_name *name)
{
	struct ogf_function **list = kind == OGF_KERNEL ? &module->kernels : &module->functions;
	struct ogf_function *function;

	for (function = *list; function; function = function->next)
		if (function->name == name)
			return function;
	function = ogf_handle_new(kind, sizeof(*function));
	if (!function)
		return NULL;
	function->module = module;
	function->name = name;
	function->next = *list;
	*list = function;
	return function;
}

static CUresult get_by_name(struct ogf_function **ret, struct ogf_module *module, const char *text,
			    enum ogf_handle_kind module_kind, enum ogf_handle_kind kind)
{
	struct ogf_name *name;
	CUresult result = CUDA_SUCCESS;

	if (!ret || !text)
		return CUDA_ERROR_INVALID_VALUE;
	if (!*text)
		return CUDA_ERROR_NOT_FOUND;
	ogf_lock();
	if (!ogf_handle_is(module, module_kind)) {
		result = CUDA_ERROR_INVALID_HANDLE;
	} else {
		name = ogf_name_intern(text);
		*ret = name ? find_or_add(module, kind, name) : NULL;
		if (!*ret)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	ogf_unlock();
	return result;
}

static CUresult kernel_function(CUfunction *ret, CUkernel kernel)
{
	CUresult result = CUDA_SUCCESS;

	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	ogf_lock();
	if (ogf_handle_is(kernel, OGF_KERNEL)) {
		*ret = find_or_add(kernel->module, OGF_FUNCTION, kernel->name);
		if (!*ret)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		result = CUDA_ERROR_INVALID_HANDLE;
	}
	ogf_unlock();
	return result;
}

static CUresult name_of(const char **ret, struct ogf_function *function, enum ogf_handle_kind kind)
{
	CUresult result = CUDA_SUCCESS;

	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	ogf_lock();
	if (ogf_handle_is(function, kind))
		*ret = function->name->text;
	else
		result = CUDA_ERROR_INVALID_HANDLE;
	ogf_unlock();
	return result;
}

static uint64_t take_duration_ns(const struct ogf_name *name)
{
	const uint64_t own_ns = ogf_next_duration_ns;

	ogf_next_duration_ns = NO_DURATION;
	return own_ns == NO_DURATION ? ogf_name_duration_ns(name) : own_ns;
}

static CUresult submit_kernel(uint64_t now_ns, struct ogf_function *function, const struct fake_cuda_shape *shape,
			      struct ogf_stream *stream)
{
	const struct ogf_graph_node node = {.kind = OGF_NODE_KERNEL, .name = function->name, .shape = *shape};
	uint64_t duration_ns, end_ns;

	if (stream->capture)
		return ogf_graph_add(stream->capture, &node) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	duration_ns = take_duration_ns(function->name);
	end_ns = ogf_stream_submit(stream, now_ns, duration_ns);
	ogf_profile_execution(stream,
			      (struct fake_cuda_execution){.work = FAKE_CUDA_KERNEL,
							   .name = function->name->text,
							   .shape = *shape,
							   .start_ns = end_ns - duration_ns},
			      duration_ns);
	ogf_state.counters.launches++;
	ogf_state.counters.kernel_ns += duration_ns;
	return CUDA_SUCCESS;
}

static bool shape_is_valid(const struct fake_cuda_shape *shape)
{
	for (size_t axis = 0; axis < 3; axis++)
		if (!shape->grid[axis] || !shape->block[axis])
			return false;
	return true;
}

/* A launch waits while more than queue_ns of work lies before it, as a full queue makes real ones wait. */
static void wait_for_room(uint64_t begin_ns, uint64_t tail_ns)
{
	const uint64_t queue_ns = ogf_state.config.queue_ns;

	if (!queue_ns || tail_ns <= begin_ns + queue_ns)
		return;
	ogf_sleep_until(tail_ns - queue_ns);
	ogf_profile_blocked(begin_ns, ogf_now_ns());
}

static CUresult launch(uint64_t now_ns, CUfunction function, const struct fake_cuda_shape *shape, CUstream handle,
		       enum ogf_default_stream which)
{
	struct ogf_stream *stream;
	uint64_t tail_ns = 0;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && !ogf_handle_is(function, OGF_FUNCTION) && !ogf_handle_is(function, OGF_KERNEL))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS && !shape_is_valid(shape))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		result = submit_kernel(now_ns, function, shape, stream);
	if (result == CUDA_SUCCESS)
		tail_ns = stream->tail_ns;
	ogf_unlock();
	wait_for_room(now_ns, tail_ns);
	return result;
}

static CUresult launch_ex(uint64_t now_ns, const CUlaunchConfig *config, CUfunction function,
			  enum ogf_default_stream which)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	return launch(now_ns, function,
		      &(struct fake_cuda_shape){.grid = {config->grid_x, config->grid_y, config->grid_z},
						.block = {config->block_x, config->block_y, config->block_z},
						.shared_bytes = config->shared_bytes},
		      config->stream, which);
}

OGF_ENTRY(cuModuleLoadData, (CUmodule * ret, const void *image), module_load(ret, image, OGF_MODULE))
OGF_ENTRY(cuModuleUnload, (CUmodule module), module_unload(module, OGF_MODULE))
OGF_ENTRY(cuModuleGetFunction, (CUfunction * ret, CUmodule module, const char *name),
	  get_by_name(ret, module, name, OGF_MODULE, OGF_FUNCTION))
OGF_ENTRY(cuFuncGetName, (const char **ret, CUfunction function), name_of(ret, function, OGF_FUNCTION))
OGF_ENTRY(cuLibraryLoadData,
	  (CUlibrary * ret, const void *image, const void *jit_options, const void *jit_values, unsigned int jit_count,
	   const void *options, const void *values, unsigned int count),
	  ((void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count,
	   module_load(ret, image, OGF_LIBRARY)))
OGF_ENTRY(cuLibraryUnload, (CUlibrary library), module_unload(library, OGF_LIBRARY))
OGF_ENTRY(cuLibraryGetKernel, (CUkernel * ret, CUlibrary library, const char *name),
	  get_by_name(ret, library, name, OGF_LIBRARY, OGF_KERNEL))
OGF_ENTRY(cuKernelGetFunction, (CUfunction * ret, CUkernel kernel), kernel_function(ret, kernel))
OGF_ENTRY(cuKernelGetName, (const char **ret, CUkernel kernel), name_of(ret, kernel, OGF_KERNEL))

#define LAUNCH_PARAMETERS                                                                                              \
	(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,     \
	 unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters,    \
	 void **extra)
#define COOPERATIVE_PARAMETERS                                                                                         \
	(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,     \
	 unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters)
#define SHAPE                                                                                                          \
	&(struct fake_cuda_shape)                                                                                      \
	{                                                                                                              \
		.grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}, .shared_bytes = shared_bytes   \
	}

OGF_ENTRY_TWICE(cuLaunchKernel, cuLaunchKernel_ptsz, LAUNCH_PARAMETERS,
		((void)parameters, (void)extra, launch(call.begin_ns, function, SHAPE, stream, which)))
OGF_ENTRY_TWICE(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz, COOPERATIVE_PARAMETERS,
		((void)parameters, launch(call.begin_ns, function, SHAPE, stream, which)))
OGF_ENTRY_TWICE(cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
		(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
		((void)parameters, (void)extra, launch_ex(call.begin_ns, config, function, which)))
