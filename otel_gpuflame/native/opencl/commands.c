// SPDX-License-Identifier: Apache-2.0
/*
 * Commands on their way: slots that many threads claim and one worker gives back.
 *
 * A slot's `turn` says whose turn it is, and for which claim: 4 * number + stage. A slot that was claimed a moment ago
 * still has the turn of the claim before, so that the worker cannot take it for given back.
 */
#include "layer.h"

enum {
	SLOTS = 1 << 14, /* 6 MiB, touched where used */
	STAGES = 4,
	STAGE_CLAIMED = 1,
	STAGE_READY = 2,
	STAGE_OVER = 3,
};

struct slot {
	_Atomic uint64_t turn;
	uint64_t number;
	struct ogf_cl_command command;
};

static struct slot *slots;
static _Atomic uint64_t claimed;
static _Atomic uint64_t given_back;
static atomic_bool is_wanted;
static atomic_bool is_left;
static atomic_bool has_untimed;

bool ogf_commands_want(bool wanted)
{
	if (wanted && !slots)
		slots = ogf_reserve(SLOTS * sizeof(*slots));
	if (wanted)
		atomic_store(&is_left, false);
	atomic_store_explicit(&is_wanted, wanted && slots, memory_order_release);
	return slots;
}

void ogf_commands_leave(void)
{
	atomic_store(&is_left, true);
}

bool ogf_commands_are_wanted(void)
{
	return atomic_load_explicit(&is_wanted, memory_order_acquire) &&
	       !atomic_load_explicit(&ogf_inert, memory_order_relaxed);
}

void ogf_command_note_untimed(void)
{
	atomic_store_explicit(&has_untimed, true, memory_order_relaxed);
}

bool ogf_commands_take_untimed(void)
{
	return atomic_exchange_explicit(&has_untimed, false, memory_order_relaxed);
}

static struct slot *claim(void)
{
	uint64_t number = atomic_load_explicit(&claimed, memory_order_relaxed);

	do {
		/* Signed: `number` may be older than what has been given back; then the exchange fails. */
		if ((int64_t)(number - atomic_load_explicit(&given_back, memory_order_acquire)) >= SLOTS) {
			ogf_count(OGF_GPU_COUNT_NO_BUFFER, 1);
			return NULL;
		}
	} while (!atomic_compare_exchange_weak_explicit(&claimed, &number, number + 1, memory_order_seq_cst,
							memory_order_relaxed));
	slots[number % SLOTS].number = number;
	return &slots[number % SLOTS];
}

struct ogf_cl_command *ogf_command_begin(void)
{
	struct slot *slot = claim();

	if (!slot)
		return NULL;
	/* After the claim: whoever saw no claim at time t knows that no command began before t. */
	slot->command.start_ns = ogf_now_ns();
	atomic_store_explicit(&slot->turn, slot->number * STAGES + STAGE_CLAIMED, memory_order_release);
	return &slot->command;
}

void ogf_command_end(struct ogf_cl_command *command, bool took)
{
	struct slot *slot = (struct slot *)((char *)command - offsetof(struct slot, command));
	const uint64_t first = slot->number * STAGES;
	uint64_t ready = first + STAGE_READY;

	atomic_store(&slot->turn, took ? ready : first + STAGE_OVER);
	/* Either the last sweep of the window saw that it was ready, or it is seen here that the window is over. */
	if (took && atomic_load(&is_left) &&
	    atomic_compare_exchange_strong(&slot->turn, &ready, first + STAGE_CLAIMED)) {
		ogf_command_release(command);
		atomic_store(&slot->turn, first + STAGE_OVER);
	}
}

static void give_back(uint64_t until)
{
	uint64_t number = atomic_load_explicit(&given_back, memory_order_relaxed);

	while (number < until &&
	       atomic_load_explicit(&slots[number % SLOTS].turn, memory_order_acquire) == number * STAGES + STAGE_OVER)
		number++;
	atomic_store_explicit(&given_back, number, memory_order_release);
}

/* When the first of those began that are not over. All are looked at: a thread may lose the CPU before it begins. */
static uint64_t earliest_ns(uint64_t until, uint64_t otherwise_ns)
{
	uint64_t earliest = otherwise_ns;

	for (uint64_t number = atomic_load_explicit(&given_back, memory_order_relaxed); number < until; number++) {
		const struct slot *slot = &slots[number % SLOTS];
		const uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);

		if (turn == number * STAGES + STAGE_OVER)
			continue;
		/* Claimed, and its begin is not known yet. */
		if (turn / STAGES != number || turn % STAGES == 0)
			return 0;
		if (slot->command.start_ns < earliest)
			earliest = slot->command.start_ns;
	}
	return earliest;
}

uint64_t ogf_commands_sweep(bool (*finish)(struct ogf_cl_command *command, uint32_t correlation_id), uint64_t now_ns)
{
	const uint64_t until = atomic_load_explicit(&claimed, memory_order_seq_cst);

	if (!slots)
		return now_ns;
	for (uint64_t number = atomic_load_explicit(&given_back, memory_order_relaxed); number < until; number++) {
		struct slot *slot = &slots[number % SLOTS];
		uint64_t ready = number * STAGES + STAGE_READY;

		if (atomic_compare_exchange_strong(&slot->turn, &ready, number * STAGES + STAGE_CLAIMED))
			atomic_store(&slot->turn,
				     number * STAGES +
					     (finish(&slot->command, (uint32_t)number + 1) ? STAGE_OVER : STAGE_READY));
	}
	give_back(until);
	return earliest_ns(until, now_ns);
}

bool ogf_commands_are_over(void)
{
	return atomic_load_explicit(&claimed, memory_order_seq_cst) ==
	       atomic_load_explicit(&given_back, memory_order_relaxed);
}
