// SPDX-License-Identifier: Apache-2.0
/* A window of capture: from the first record that CUPTI is asked for to the last that it gives. */
#include "cupti.h"
#include "inject.h"

enum {
	LAST_FLUSH_STEP_MS = 5,
	LAST_FLUSH_MS = 1000,
	/* A context that is there later has been begun in the window. Making one takes 0.1 to 0.5 s on one device. */
	CONTEXT_MS = 5000,
};

static struct {
	bool is_open;
	uint32_t generation;
	uint64_t contexts_until_ns;                   /* until then, a context that is new may have been begun before */
	uint32_t contexts;                            /* known by device */
	uint64_t no_buffer, ring_full, cupti_dropped; /* counters when it began */
	bool lost_to_other;
	bool has_new_context;
	uint64_t complete_ns; /* to be said at the next flush */
} window;

static void write_mark(enum ogf_gpu_kind kind, uint64_t start_ns, uint64_t end_ns, enum ogf_gpu_incomplete why)
{
	const struct ogf_gpu_record record = {
		.kind = kind,
		.detail = why,
		.start_ns = start_ns,
		.end_ns = end_ns,
		.correlation_id = window.generation,
		.device = UINT8_MAX,
	};

	ogf_ring_write(&record);
	ogf_ring_publish();
}

static void count_dropped(void)
{
	size_t dropped = 0;

	if (ogf_cupti.cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped) == CUPTI_SUCCESS)
		ogf_count(OGF_GPU_COUNT_CUPTI_DROPPED, dropped);
}

static void write_filled(void)
{
	struct ogf_filled filled;

	while (ogf_buffers_take(&filled)) {
		ogf_records_write(&filled);
		ogf_buffers_release(&filled);
	}
}

/*
 * What was launched before the flush, and is in no buffer that CUPTI still has, is in the ring after it. That is said
 * one flush later: a thread may have taken the time of its launch, and not yet written the record.
 */
static void flush(uint32_t how)
{
	const uint64_t begin_ns = ogf_now_ns();
	uint64_t earliest_ns;

	ogf_cupti.cuptiActivityFlushAll(how);
	write_filled();
	ogf_set_complete_ns(window.complete_ns);
	earliest_ns = ogf_buffers_earliest_ns();
	window.complete_ns = earliest_ns < begin_ns ? earliest_ns : begin_ns;
}

static void discard_filled(void)
{
	struct ogf_filled stale;

	while (ogf_buffers_take(&stale))
		ogf_buffers_release(&stale);
}

static uint32_t prepare(void)
{
	window.no_buffer = ogf_counted(OGF_GPU_COUNT_NO_BUFFER);
	window.ring_full = ogf_counted(OGF_GPU_COUNT_RING_FULL);
	window.cupti_dropped = ogf_counted(OGF_GPU_COUNT_CUPTI_DROPPED);
	window.lost_to_other = false;
	window.has_new_context = false;
	window.complete_ns = 0;
	return ogf_buffers_open() ? CUPTI_SUCCESS : CUPTI_ERROR_OUT_OF_MEMORY;
}

/*
 * After this, we are CUPTI's client. A buffer that was given out at the very end of the last window comes back now;
 * what is in it belongs to no window.
 */
static uint32_t take_over(void)
{
	const uint32_t result = ogf_client_register();

	if (result != CUPTI_SUCCESS)
		return result;
	ogf_cupti.cuptiActivityFlushAll(CUPTI_FLUSH_COMPLETED);
	discard_filled();
	return CUPTI_SUCCESS;
}

/* `result`: of becoming CUPTI's client. */
static bool open_window(uint32_t generation, uint64_t begin_ns, uint32_t result)
{
	window.generation = generation;
	ogf_set_generation(generation);
	if (result == CUPTI_SUCCESS)
		result = prepare();
	if (result == CUPTI_SUCCESS)
		result = ogf_kinds_enable();
	write_mark(OGF_GPU_WINDOW_OPEN, begin_ns, ogf_now_ns(), OGF_GPU_COMPLETE);
	window.is_open = result == CUPTI_SUCCESS;
	if (window.is_open) {
		ogf_set_error(OGF_GPU_NO_ERROR, 0);
		ogf_set_state(OGF_GPU_CAPTURING);
		return true;
	}
	ogf_buffers_close();
	ogf_set_error(OGF_GPU_CUPTI_ERROR, result);
	write_mark(OGF_GPU_WINDOW_CLOSE, ogf_now_ns(), ogf_now_ns(), OGF_GPU_REFUSED);
	return false;
}

/* Whoever starts between the look before and this loses CUPTI to us: about a microsecond. */
static bool take_window(uint32_t generation)
{
	const uint64_t begin_ns = ogf_now_ns();

	ogf_set_state(OGF_GPU_DORMANT); /* a state is of the generation that is there, or of a later one */
	window.contexts = ogf_devices_with_context();
	window.contexts_until_ns = begin_ns + CONTEXT_MS * OGF_NS_PER_MS;
	if (!open_window(generation, begin_ns, take_over()))
		return false;
	ogf_client_look();
	return true;
}

static void stand_down(uint32_t generation)
{
	const uint64_t now_ns = ogf_now_ns();

	window.generation = generation;
	ogf_set_generation(generation);
	ogf_count(OGF_GPU_COUNT_STOOD_DOWN, 1);
	write_mark(OGF_GPU_WINDOW_OPEN, now_ns, now_ns, OGF_GPU_COMPLETE);
	write_mark(OGF_GPU_WINDOW_CLOSE, now_ns, now_ns, OGF_GPU_STOOD_DOWN);
	ogf_set_state(OGF_GPU_STANDING_DOWN);
}

bool ogf_window_open(uint32_t generation)
{
	if (ogf_client_may_open())
		return take_window(generation);
	stand_down(generation);
	return false;
}

/* Nobody profiles yet: from now on, a client that comes before our first window is noticed. */
void ogf_window_driver_is_up(void)
{
	ogf_client_look();
}

/*
 * We are CUPTI's client already, and no context can have been begun. Launch records once more, now that kinds are on:
 * in which order CUPTI wants the two, to give those of the CUDA runtime's calls, is not known.
 */
bool ogf_window_open_at_init(void)
{
	if (!open_window(0, ogf_now_ns(), CUPTI_SUCCESS))
		return false;
	ogf_launches_open();
	return true;
}

/*
 * Where kernel records were enabled while another thread was making a context, a context has been seen that gave none
 * (1 of 6, CUPTI 13.0), though copies and waits came. Enabling what is enabled may change nothing; windows that
 * disable and enable all have been seen to be whole, however many.
 */
static bool is_context_new(void)
{
	return ogf_now_ns() < window.contexts_until_ns && ogf_devices_with_context() & ~window.contexts;
}

static bool open_again(void)
{
	window.has_new_context = true;
	ogf_window_close(false);
	if (!ogf_client_is_lost())
		return take_window(window.generation);
	stand_down(window.generation);
	return false;
}

/*
 * Until it is noticed, what the other client would get goes into buffers that CUPTI has from us. Opening a window takes
 * CUPTI 2 ms and more, and so does what the other client does between registering and its first record.
 */
const unsigned int ogf_window_look_ms = 2;

bool ogf_window_is_lost(void)
{
	return ogf_client_is_lost();
}

bool ogf_window_tick(void)
{
	if (is_context_new())
		return open_again();
	flush(CUPTI_FLUSH_COMPLETED);
	count_dropped();
	ogf_ring_publish();
	ogf_buffers_adapt();
	return true;
}

/* Whether CUPTI still has a buffer of the time before the window's end. Later ones hold launches that go on. */
static bool is_out(uint64_t end_ns)
{
	return ogf_buffers_earliest_ns() <= end_ns;
}

/* False: work was still running at the end of our patience. */
static bool flush_to_the_end(uint64_t end_ns, unsigned int patience_ms)
{
	const uint64_t until_ns = end_ns + patience_ms * OGF_NS_PER_MS;

	flush(CUPTI_FLUSH_COMPLETED);
	while (is_out(end_ns) && ogf_now_ns() < until_ns && !ogf_worker_is_ending()) {
		ogf_sleep_until(ogf_now_ns() + LAST_FLUSH_STEP_MS * OGF_NS_PER_MS);
		flush(CUPTI_FLUSH_COMPLETED);
	}
	return !is_out(end_ns);
}

/* The most telling reason is given; the counters have the others. */
static enum ogf_gpu_incomplete why_incomplete(uint64_t end_ns, bool forced)
{
	if (window.lost_to_other || is_out(end_ns) || ogf_buffers_got_foreign())
		return OGF_GPU_OTHER_CLIENT;
	if (ogf_counted(OGF_GPU_COUNT_NO_BUFFER) != window.no_buffer)
		return OGF_GPU_NO_BUFFER;
	if (ogf_counted(OGF_GPU_COUNT_CUPTI_DROPPED) != window.cupti_dropped)
		return OGF_GPU_CUPTI_DROPPED;
	if (ogf_counted(OGF_GPU_COUNT_RING_FULL) != window.ring_full)
		return OGF_GPU_RING_FULL;
	if (window.has_new_context)
		return OGF_GPU_NEW_CONTEXT;
	return forced ? OGF_GPU_NOT_FLUSHED : OGF_GPU_COMPLETE;
}

/* Whether work was still running, and is cut. */
static bool switch_off(uint64_t end_ns, bool at_exit)
{
	const bool is_told = ogf_client_look() == OGF_CLIENT_US;
	bool is_cut;

	ogf_kinds_disable();
	ogf_client_rests();
	is_cut = !flush_to_the_end(end_ns, at_exit ? 0 : LAST_FLUSH_MS);
	/*
	 * By force also when all of ours is back: a buffer that another client had left behind shows now. But not the
	 * buffers of one that has begun meanwhile.
	 */
	if ((is_cut || is_told) && !ogf_client_is_lost())
		flush(CUPTI_FLUSH_FORCED);
	count_dropped();
	return is_cut;
}

/* What another client may have asked for is left to it: it could not know that we switched it off. */
static void leave_on(void)
{
	window.lost_to_other = true;
	ogf_client_lost();
	ogf_kinds_leave_on();
	ogf_count(OGF_GPU_COUNT_STOOD_DOWN, 1);
}

void ogf_window_close(bool at_exit)
{
	const uint64_t end_ns = ogf_now_ns();
	bool forced = false;

	if (!window.is_open)
		return;
	window.is_open = false;
	if (ogf_client_is_lost())
		leave_on();
	else
		forced = switch_off(end_ns, at_exit);
	write_filled();
	ogf_set_complete_ns(window.complete_ns);
	write_mark(OGF_GPU_WINDOW_CLOSE, end_ns, ogf_now_ns(), why_incomplete(end_ns, forced));
	ogf_buffers_close();
	ogf_set_state(window.lost_to_other ? OGF_GPU_STANDING_DOWN : OGF_GPU_DORMANT);
}
