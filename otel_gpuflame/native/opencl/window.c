// SPDX-License-Identifier: Apache-2.0
/* A window: from its opening until its close, every command is written down when it is over. Only the worker runs this.
 */
#include <string.h>

#include "layer.h"

enum {
	MAX_BEHIND = 32,
	LAST_COMMANDS_MS = 1000,
	LAST_COMMANDS_STEP_MS = 5,
};

#define COMPARE_EVERY_NS OGF_NS_PER_S /* clocks drift by up to 50 µs a second */

static struct {
	uint32_t generation;
	uint64_t no_buffer, ring_full; /* counters when it began */
	uint64_t compared_ns;
	/* Queues with a command that is not over: those behind it are not asked about in the same sweep. */
	void *behind[MAX_BEHIND];
	uint32_t behind_count;
} window;

static bool is_behind(void *queue)
{
	for (uint32_t i = 0; i < window.behind_count; i++)
		if (window.behind[i] == queue)
			return true;
	return false;
}

static int32_t status_of(void *event)
{
	int32_t status = 1;

	((ogf_cl_get_info)ogf_cl_next(OGF_CL_GET_EVENT_INFO))(event, OGF_CL_EVENT_COMMAND_EXECUTION_STATUS,
							      sizeof(status), &status, NULL);
	return status;
}

static void write_launch(const struct ogf_cl_command *command, const struct ogf_gpu_record *of)
{
	struct ogf_gpu_record record = {
		.start_ns = command->start_ns,
		.end_ns = command->end_ns,
		.thread_pointer = command->thread_pointer,
		.correlation_id = of->correlation_id,
		.context_id = of->context_id,
		.stream_id = of->stream_id,
		.device = of->device,
		.kind = OGF_GPU_API,
	};

	ogf_ring_write(&record);
}

static void write_down(const struct ogf_cl_command *command, uint32_t correlation_id)
{
	const uint8_t device = ogf_device_index(command->device);
	const struct ogf_cl_times times = ogf_command_times(command, device);
	struct ogf_gpu_record record = {
		.start_ns = times.start_ns,
		.end_ns = times.end_ns,
		.bytes = command->bytes,
		.correlation_id = correlation_id,
		.context_id = ogf_handle_number(command->context),
		.stream_id = ogf_handle_number(command->queue),
		.name = ogf_name_intern(command->name),
		.detail = command->detail,
		.device = device,
		.kind = command->kind,
	};

	for (int i = 0; i < 3; i++) {
		record.grid[i] = command->local[i] ? command->global[i] / command->local[i] : command->global[i];
		record.block[i] = command->local[i];
	}
	if (!times.start_ns)
		ogf_count(OGF_GPU_COUNT_NO_TIME, 1);
	write_launch(command, &record);
	ogf_ring_write(&record);
}

void ogf_command_release(struct ogf_cl_command *command)
{
	((ogf_cl_reference)ogf_cl_next(OGF_CL_RELEASE_EVENT))(command->event);
}

static bool is_over(const struct ogf_cl_command *command)
{
	if (!command->out_of_order && is_behind(command->queue))
		return false;
	/* Negative: it failed, and has no times. */
	if (status_of(command->event) <= OGF_CL_COMPLETE)
		return true;
	if (!command->out_of_order && window.behind_count < MAX_BEHIND)
		window.behind[window.behind_count++] = command->queue;
	return false;
}

/* Before anything is written: a program's first enqueue may have compiled the kernel, and says little about clocks. */
static bool compare_clocks(struct ogf_cl_command *command, uint32_t correlation_id)
{
	(void)correlation_id;
	if (is_over(command))
		ogf_command_compare(command);
	return false;
}

static bool finish(struct ogf_cl_command *command, uint32_t correlation_id)
{
	if (!is_over(command))
		return false;
	write_down(command, correlation_id);
	ogf_command_release(command);
	return true;
}

static bool let_go(struct ogf_cl_command *command, uint32_t correlation_id)
{
	(void)correlation_id;
	ogf_command_release(command);
	return true;
}

static void write_mark(enum ogf_gpu_kind kind, uint64_t start_ns, enum ogf_gpu_incomplete why)
{
	const struct ogf_gpu_record record = {
		.kind = kind,
		.detail = why,
		.start_ns = start_ns,
		.end_ns = ogf_now_ns(),
		.correlation_id = window.generation,
		.device = UINT8_MAX,
	};

	ogf_ring_write(&record);
	ogf_ring_publish();
}

bool ogf_window_open(uint32_t generation)
{
	const uint64_t begin_ns = ogf_now_ns();

	window.generation = generation;
	window.no_buffer = ogf_counted(OGF_GPU_COUNT_NO_BUFFER);
	window.ring_full = ogf_counted(OGF_GPU_COUNT_RING_FULL);
	ogf_set_generation(generation);
	ogf_clocks_compare();
	window.compared_ns = ogf_now_ns();
	ogf_commands_take_untimed();
	if (!ogf_commands_want(true)) {
		write_mark(OGF_GPU_WINDOW_OPEN, begin_ns, OGF_GPU_COMPLETE);
		write_mark(OGF_GPU_WINDOW_CLOSE, begin_ns, OGF_GPU_REFUSED);
		return false;
	}
	write_mark(OGF_GPU_WINDOW_OPEN, begin_ns, OGF_GPU_COMPLETE);
	ogf_set_state(OGF_GPU_CAPTURING);
	return true;
}

bool ogf_window_tick(void)
{
	const uint64_t now_ns = ogf_now_ns();

	if (now_ns - window.compared_ns > COMPARE_EVERY_NS) {
		ogf_clocks_compare();
		window.compared_ns = now_ns;
	}
	window.behind_count = 0;
	ogf_commands_sweep(compare_clocks, now_ns);
	window.behind_count = 0;
	ogf_set_complete_ns(ogf_commands_sweep(finish, now_ns));
	ogf_ring_publish();
	return true;
}

static enum ogf_gpu_incomplete why_incomplete(void)
{
	if (ogf_counted(OGF_GPU_COUNT_NO_BUFFER) != window.no_buffer)
		return OGF_GPU_NO_BUFFER;
	if (ogf_counted(OGF_GPU_COUNT_RING_FULL) != window.ring_full)
		return OGF_GPU_RING_FULL;
	if (!ogf_commands_are_over())
		return OGF_GPU_NOT_FLUSHED;
	return ogf_commands_take_untimed() ? OGF_GPU_NOT_TIMED : OGF_GPU_COMPLETE;
}

/* What has not ended in time runs on without us. */
void ogf_window_close(bool at_exit)
{
	const uint64_t end_ns = ogf_now_ns();
	const uint64_t until_ns = end_ns + (at_exit ? 0 : LAST_COMMANDS_MS * OGF_NS_PER_MS);

	ogf_commands_want(false);
	ogf_window_tick();
	while (!ogf_commands_are_over() && ogf_now_ns() < until_ns && !ogf_worker_is_ending()) {
		ogf_sleep_until(ogf_now_ns() + LAST_COMMANDS_STEP_MS * OGF_NS_PER_MS);
		ogf_window_tick();
	}
	write_mark(OGF_GPU_WINDOW_CLOSE, end_ns, why_incomplete());
	ogf_commands_leave();
	ogf_commands_sweep(let_go, end_ns);
	ogf_set_state(OGF_GPU_DORMANT);
}

/* Layers stand beside each other: nobody's place is taken. */
const unsigned int ogf_window_look_ms = 1000;

bool ogf_window_is_lost(void)
{
	return false;
}

void ogf_window_driver_is_up(void)
{
}

void ogf_window_clean(void)
{
}
