/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The GPU's driver in the kernel, seen through system calls on its devices: ioctl, poll, ppoll, mmap. */
#ifndef OGF_DRIVER_BPF_H
#define OGF_DRIVER_BPF_H

#include "ogf_calls.bpf.h"
#include "ogf_files.bpf.h"

enum {
	OGF_MAX_POLLED = 16, /* descriptors that are looked at in one poll */
	OGF_MINOR_BITS = 20,
	/* NV_ESC_IOCTL_XFER_CMD, magic 'F': the real command is the first word behind the pointer. */
	OGF_NVIDIA_XFER = 'F' << 8 | 211,
};

/* Major numbers of GPU devices → enum ogf_device_driver. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 64);
} gpu_majors SEC(".maps");

struct ogf_device_call {
	struct ogf_call_event event;
	__u64 voluntary_switches;
};

/* System calls on GPU devices between entry and exit, by thread. A driver call (calls_in_flight) may be around it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, struct ogf_device_call);
	__uint(max_entries, 16384);
} device_calls SEC(".maps");

/* Note the device behind a descriptor in the event; false if it is no GPU's. */
static __always_inline bool ogf_take_device(__s32 fd, struct ogf_call_event *event)
{
	struct file *file = fd < 0 ? NULL : ogf_open_file(fd);
	__u32 device, major, *driver;

	if (!file)
		return false;
	device = BPF_CORE_READ(file, f_inode, i_rdev);
	major = device >> OGF_MINOR_BITS;
	driver = bpf_map_lookup_elem(&gpu_majors, &major);
	if (!driver)
		return false;
	event->stream = device;
	event->grid[0] = *driver;
	return true;
}

/* struct pollfd: the descriptor is the first of its 8 bytes. */
static __always_inline bool ogf_take_polled_device(__u64 polled, __u64 count, struct ogf_call_event *event)
{
	for (__u32 i = 0; i < OGF_MAX_POLLED && i < count; i++) {
		__s32 fd = -1;

		if (bpf_probe_read_user(&fd, sizeof(fd), (void *)(polled + 8 * i)))
			return false;
		if (ogf_take_device(fd, event))
			return true;
	}
	return false;
}

static __always_inline bool ogf_take_device_call(struct pt_regs *regs, __u64 cookie, struct ogf_call_event *event)
{
	__u32 fd_argument = ogf_cookie_field(cookie, OGF_COOKIE_STREAM, 4), command;

	if (!fd_argument)
		return ogf_take_polled_device(ogf_argument(regs, 1), ogf_argument(regs, 2), event);
	if (!ogf_take_device(ogf_argument(regs, fd_argument), event))
		return false;
	event->bytes = ogf_argument(regs, ogf_cookie_field(cookie, OGF_COOKIE_BYTES, 4));
	event->object = (__u32)ogf_argument(regs, ogf_cookie_field(cookie, OGF_COOKIE_OBJECT, 4));
	if (event->grid[0] == OGF_DEVICE_NVIDIA && (event->object & 0xffff) == OGF_NVIDIA_XFER &&
	    !bpf_probe_read_user(&command, sizeof(command), (void *)ogf_argument(regs, 3)))
		event->object = (event->object & ~0xffULL) | (command & 0xff);
	return true;
}

/* One program for all calls: the cookie tells their arguments, which are in the registers that user mode left. */
SEC("tp")
int on_device_enter(void *context)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct ogf_target *target = ogf_current_target();
	__u64 thread = bpf_get_current_pid_tgid(), cookie, started_ns;
	struct ogf_device_call call = {};
	struct ogf_place place;

	if (!target)
		return 0;
	cookie = bpf_get_attach_cookie(context);
	if (!ogf_take_device_call((struct pt_regs *)bpf_task_pt_regs(task), cookie, &call.event))
		return 0;
	ogf_count(OGF_KIND_DRIVER, OGF_OUTCOME_SEEN);
	if (bpf_map_lookup_elem(&device_calls, &thread))
		ogf_count(OGF_KIND_DRIVER, OGF_OUTCOME_NO_RETURN);
	ogf_fill_thread(target, OGF_KIND_DRIVER, &call.event);
	call.event.api = ogf_cookie_field(cookie, OGF_COOKIE_API, 16);
	place = ogf_place_in_user();
	ogf_take_stack(&place, target, &call.event);
	call.voluntary_switches = task->nvcsw;
	started_ns = call.event.start_ns;
	/* Taken last, as for driver calls. */
	call.event.start_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&device_calls, &thread, &call, BPF_ANY))
		ogf_count(OGF_KIND_DRIVER, OGF_OUTCOME_TABLE_FULL);
	ogf_account_program(started_ns, 0);
	return 0;
}

SEC("tp")
int on_device_exit(void *context)
{
	__u64 end_ns = bpf_ktime_get_ns(), thread = bpf_get_current_pid_tgid();
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct ogf_device_call *call = bpf_map_lookup_elem(&device_calls, &thread);

	if (!call)
		return 0;
	call->event.end_ns = end_ns;
	call->event.voluntary_switches = task->nvcsw - call->voluntary_switches;
	call->event.flags |= OGF_CALL_RETURNED;
	ogf_send_call(&call->event);
	bpf_map_delete_elem(&device_calls, &thread);
	ogf_account_program(end_ns, 0);
	return 0;
}

#endif
