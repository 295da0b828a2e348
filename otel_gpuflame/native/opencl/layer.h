/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An OpenCL layer (OPENCL_LAYERS) that tells the exporter when commands ran, where the program enabled profiling on
 * their queue.
 *
 * Threads of the program, inside an enqueue, claim a slot, and fill it when the driver has taken the command; our one
 * worker asks for the times when the command is over, and writes everything. While a window is open, an enqueue costs
 * some questions to the driver, and an event where the program wanted none; there is no lock of ours. Memory, ring,
 * names and lease are those of ../inject.
 */
#ifndef OGF_OPENCL_LAYER_H
#define OGF_OPENCL_LAYER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "../inject/inject.h"
#include "abi.h"

enum {
	OGF_CL_NAME_BYTES = 256,
};

/* One enqueued command. Written by the thread that enqueues until it is ready, read by the worker from then on. */
struct ogf_cl_command {
	uint64_t start_ns; /* the enqueue, on the CPU */
	uint64_t end_ns;
	uint64_t thread_pointer;
	uint64_t bytes;
	void *queue;
	void *context;
	void *device;
	void *event; /* ours to release */
	/* Not the kernel: a program whose kernels somebody holds cannot be built again. Empty: none, or not known. */
	char name[OGF_CL_NAME_BYTES];
	uint32_t global[3];
	uint32_t local[3];
	uint16_t detail;
	uint8_t kind; /* enum ogf_gpu_kind */
	bool out_of_order;
};

/* layer.c: the function of the driver, or of the next layer. */
void *ogf_cl_next(enum ogf_cl_function function);

/* commands.c */
bool ogf_commands_are_wanted(void);
/* A slot, with its start; NULL: none is free. */
struct ogf_cl_command *ogf_command_begin(void);
/* `took`: the driver took the command, and everything in the slot is set. Otherwise it is given back. */
void ogf_command_end(struct ogf_cl_command *command, bool took);
/* False: there is no memory for it. */
bool ogf_commands_want(bool wanted);
/* From here on nobody looks at what becomes ready: whoever enqueued it lets go of it. Until the next window. */
void ogf_commands_leave(void);
/* Commands of queues without profiling, which have no times. */
void ogf_command_note_untimed(void);
bool ogf_commands_take_untimed(void);
/*
 * Calls `finish` for each ready command in order of their enqueues, with its correlation id; one for which it says yes
 * is over. Returns the time (now_ns at the latest, taken before) before which no command was enqueued that is not over.
 */
uint64_t ogf_commands_sweep(bool (*finish)(struct ogf_cl_command *command, uint32_t correlation_id), uint64_t now_ns);
bool ogf_commands_are_over(void);

/* times.c */
struct ogf_cl_times {
	uint64_t start_ns;
	uint64_t end_ns;
};

/* Compares clocks by a command that is over. */
void ogf_command_compare(const struct ogf_cl_command *command);
/* When a command ran, in CLOCK_MONOTONIC; zeros where the driver does not say. */
struct ogf_cl_times ogf_command_times(const struct ogf_cl_command *command, uint8_t device);
/* The place of a device in the region, 255: no room. */
uint8_t ogf_device_index(void *device);
/* To be called once a second: what was compared before the last call is forgotten. */
void ogf_clocks_compare(void);

/* handles.c: small numbers for queues and contexts. */
uint32_t ogf_handle_number(void *handle);

/* window.c: gives back what a command holds. */
void ogf_command_release(struct ogf_cl_command *command);

/* entry.c: region, worker, fork and exit. False: nothing will be recorded. */
bool ogf_cl_start(void);

#endif
