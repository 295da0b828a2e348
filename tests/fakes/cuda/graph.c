// SPDX-License-Identifier: Apache-2.0
/* Graphs: built node by node or by stream capture; a launch runs the nodes one after the other. */
#include <stdlib.h>

#include "internal.h"

static uint32_t last_graph_id;
static uint64_t last_node_id;

struct ogf_graph *ogf_graph_new(enum ogf_handle_kind kind)
{
	struct ogf_graph *graph = ogf_handle_new(kind, sizeof(*graph));

	if (graph) {
		graph->last = &graph->nodes;
		graph->id = ++last_graph_id;
	}
	return graph;
}

void ogf_graph_free(struct ogf_graph *graph)
{
	while (graph->nodes) {
		struct ogf_graph_node *next = graph->nodes->next;

		free(graph->nodes);
		graph->nodes = next;
	}
	ogf_handle_free(&graph->handle);
}

struct ogf_graph_node *ogf_graph_add(struct ogf_graph *graph, const struct ogf_graph_node *node)
{
	struct ogf_graph_node *copy = malloc(sizeof(*copy));

	if (!copy)
		return NULL;
	*copy = *node;
	copy->next = NULL;
	copy->id = ++last_node_id;
	*graph->last = copy;
	graph->last = &copy->next;
	graph->node_count++;
	return copy;
}

bool ogf_capture_is_active(const struct ogf_graph *graph)
{
	return ogf_handle_is(graph, OGF_GRAPH) && graph->origin;
}

/* Into `graph`, which exists already, or into a new one. */
static CUresult capture_begin(CUstream handle, struct ogf_graph *graph, enum ogf_default_stream which)
{
	struct ogf_stream *stream;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && stream->legacy)
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	else if (result == CUDA_SUCCESS && stream->capture)
		result = CUDA_ERROR_ILLEGAL_STATE;
	if (result == CUDA_SUCCESS) {
		stream->capture = graph ? graph : ogf_graph_new(OGF_GRAPH);
		if (stream->capture)
			stream->capture->origin = stream;
		else
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	ogf_unlock();
	return result;
}

static CUresult capture_begin_to(CUstream handle, CUgraph graph, enum ogf_default_stream which)
{
	bool is_free;

	ogf_lock();
	is_free = ogf_handle_is(graph, OGF_GRAPH) && !((struct ogf_graph *)graph)->origin;
	ogf_unlock();
	return is_free ? capture_begin(handle, graph, which) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult capture_end(CUstream handle, CUgraph *ret, enum ogf_default_stream which)
{
	struct ogf_graph *graph;
	struct ogf_stream *stream;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && !ret)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS && (!stream->capture || stream->capture->origin != stream))
		result = CUDA_ERROR_ILLEGAL_STATE;
	if (result == CUDA_SUCCESS) {
		graph = stream->capture;
		graph->origin = NULL;
		for (stream = stream->context->streams; stream; stream = stream->next)
			if (stream->capture == graph)
				stream->capture = NULL;
		*ret = graph;
	}
	ogf_unlock();
	return result;
}

static CUresult is_capturing(CUstream handle, int *ret, enum ogf_default_stream which)
{
	struct ogf_stream *stream;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && !ret)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*ret = stream->capture ? 1 : 0;
	ogf_unlock();
	return result;
}

static CUresult create(CUgraph *ret, unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;

	if (!ret || flags)
		return CUDA_ERROR_INVALID_VALUE;
	ogf_lock();
	if (!ogf_state.initialised)
		result = CUDA_ERROR_NOT_INITIALIZED;
	else if (!(*ret = ogf_graph_new(OGF_GRAPH)))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	ogf_unlock();
	return result;
}

/* Dependencies are accepted and met: nodes run in the order in which they were added. */
static CUresult add_kernel(CUgraphNode *ret, CUgraph graph, const CUDA_KERNEL_NODE_PARAMS_v2 *node)
{
	struct ogf_function *function;
	CUresult result = CUDA_SUCCESS;

	if (!ret || !node)
		return CUDA_ERROR_INVALID_VALUE;
	function = node->function ? node->function : node->kernel;
	ogf_lock();
	if (!ogf_handle_is(graph, OGF_GRAPH) ||
	    (!ogf_handle_is(function, OGF_FUNCTION) && !ogf_handle_is(function, OGF_KERNEL))) {
		result = CUDA_ERROR_INVALID_HANDLE;
	} else {
		*ret = ogf_graph_add(graph, &(struct ogf_graph_node){
						    .kind = OGF_NODE_KERNEL,
						    .name = function->name,
						    .shape = {.grid = {node->grid_x, node->grid_y, node->grid_z},
							      .block = {node->block_x, node->block_y, node->block_z},
							      .shared_bytes = node->shared_bytes},
					    });
		if (!*ret)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	ogf_unlock();
	return result;
}

static CUresult instantiate(CUgraphExec *ret, CUgraph graph)
{
	CUresult result = CUDA_SUCCESS;

	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	ogf_lock();
	if (!ogf_handle_is(graph, OGF_GRAPH) || graph->origin)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (!(*ret = ogf_graph_new(OGF_GRAPH_EXEC)))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS)
		for (const struct ogf_graph_node *node = graph->nodes; node; node = node->next)
			if (!ogf_graph_add(*ret, node))
				result = CUDA_ERROR_OUT_OF_MEMORY;
	ogf_unlock();
	return result;
}

static CUresult destroy(struct ogf_graph *graph, enum ogf_handle_kind kind)
{
	CUresult result = CUDA_SUCCESS;

	ogf_lock();
	if (ogf_handle_is(graph, kind) && !graph->origin)
		ogf_graph_free(graph);
	else
		result = CUDA_ERROR_INVALID_HANDLE;
	ogf_unlock();
	return result;
}

static uint64_t run_node(const struct ogf_graph_node *node)
{
	uint64_t duration_ns;

	if (node->kind == OGF_NODE_KERNEL) {
		duration_ns = ogf_name_duration_ns(node->name);
		ogf_state.counters.graph_kernels++;
		ogf_state.counters.kernel_ns += duration_ns;
		return duration_ns;
	}
	duration_ns = ogf_transfer_ns(&node->transfer);
	ogf_state.counters.copy_ns += duration_ns;
	ogf_transfer_move(&node->transfer);
	return duration_ns;
}

static void report_node(const struct ogf_graph *exec, const struct ogf_graph_node *node,
			const struct ogf_stream *stream, uint64_t start_ns, uint64_t duration_ns)
{
	struct fake_cuda_execution execution = {
		.work = FAKE_CUDA_KERNEL,
		.start_ns = start_ns,
	};

	if (node->kind == OGF_NODE_KERNEL) {
		execution.name = node->name->text;
		execution.shape = node->shape;
	} else {
		execution = ogf_transfer_execution(&node->transfer, start_ns);
	}
	execution.graph_id = exec->id;
	execution.graph_node_id = node->id;
	ogf_profile_execution(stream, execution, duration_ns);
}

/* One after the other. */
static void run(uint64_t now_ns, const struct ogf_graph *exec, struct ogf_stream *stream)
{
	for (const struct ogf_graph_node *node = exec->nodes; node; node = node->next) {
		const uint64_t duration_ns = run_node(node);
		const uint64_t end_ns = ogf_stream_submit(stream, now_ns, duration_ns);

		report_node(exec, node, stream, end_ns - duration_ns, duration_ns);
	}
}

static CUresult launch(uint64_t now_ns, CUgraphExec exec, CUstream handle, enum ogf_default_stream which)
{
	struct ogf_stream *stream;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && !ogf_handle_is(exec, OGF_GRAPH_EXEC))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS && stream->capture)
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (result == CUDA_SUCCESS) {
		run(now_ns, exec, stream);
		ogf_state.counters.graph_launches++;
	}
	ogf_unlock();
	return result;
}

OGF_ENTRY_TWICE(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode),
		((void)mode, capture_begin(stream, NULL, which)))
/* Nodes run in the order in which they were added, so that dependencies are met. */
OGF_ENTRY_TWICE(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz,
		(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count,
		 int mode),
		((void)dependencies, (void)edges, (void)count, (void)mode, capture_begin_to(stream, graph, which)))
OGF_ENTRY_TWICE(cuStreamEndCapture, cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *ret),
		capture_end(stream, ret, which))
OGF_ENTRY_TWICE(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, (CUstream stream, int *ret),
		is_capturing(stream, ret, which))
OGF_ENTRY(cuGraphCreate, (CUgraph * ret, unsigned int flags), create(ret, flags))
OGF_ENTRY(cuGraphDestroy, (CUgraph graph), destroy(graph, OGF_GRAPH))
OGF_ENTRY(cuGraphAddKernelNode_v2,
	  (CUgraphNode * ret, CUgraph graph, const CUgraphNode *dependencies, size_t count,
	   const CUDA_KERNEL_NODE_PARAMS_v2 *node),
	  ((void)dependencies, (void)count, add_kernel(ret, graph, node)))
OGF_ENTRY(cuGraphInstantiateWithFlags, (CUgraphExec * ret, CUgraph graph, unsigned long long flags),
	  ((void)flags, instantiate(ret, graph)))
OGF_ENTRY(cuGraphExecDestroy, (CUgraphExec exec), destroy(exec, OGF_GRAPH_EXEC))
OGF_ENTRY_TWICE(cuGraphLaunch, cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream),
		launch(call.begin_ns, exec, stream, which))
