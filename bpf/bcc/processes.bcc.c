/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Life of the captured processes. */

static __always_inline void ogf_send_process(__u32 tgid, __u32 parent, __u32 change)
{
	struct ogf_process_event event = {};

	event.time_ns = bpf_ktime_get_ns();
	event.process_start_ns = ogf_process_start(tgid);
	event.tgid = tgid;
	event.change = change;
	/* File names are in structures of the kernel, which are not read here: it may be one. */
	event.maps_gpu_library = change == OGF_PROCESS_MAP;
	bpf_get_current_comm(&event.comm, sizeof(event.comm));
	if (parent) {
		event.parent_tgid = parent;
		event.parent_start_ns = ogf_process_start(parent);
	}
	ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_SEEN);
	if (processes.ringbuf_output(&event, sizeof(event), 0))
		ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_RING_FULL);
	else
		ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_SENT);
}

/* task:task_newtask, in the parent, before the child runs. */
int on_fork(void *ctx)
{
	__u32 parent = bpf_get_current_pid_tgid() >> 32, child = 0;
	struct ogf_target *target = targets.lookup(&parent);
	__u64 flags = 0, now_ns = bpf_ktime_get_ns();
	struct ogf_target copy;

	if (!target)
		return 0;
	bpf_probe_read_kernel(&flags, sizeof(flags), ctx + OGF_CLONE_FLAGS_AT);
	bpf_probe_read_kernel(&child, sizeof(child), ctx + OGF_CHILD_PID_AT);
	if (flags & OGF_CLONE_THREAD)
		return 0;
	copy = *target;
	process_starts.update(&child, &now_ns);
	if (targets.update(&child, &copy)) {
		ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_SEEN);
		ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_TABLE_FULL);
		return 0;
	}
	ogf_send_process(child, parent, OGF_PROCESS_FORK);
	return 0;
}

/* sched:sched_process_exec */
int on_exec(void *ctx)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct ogf_target fresh = {};

	if (!targets.lookup(&tgid))
		return 0;
	targets.update(&tgid, &fresh);
	ogf_send_process(tgid, 0, OGF_PROCESS_EXEC);
	return 0;
}

/* sched:sched_process_exit. The main thread stands for the process: the end of the others is not told apart here. */
int on_exit(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	__u32 tgid = thread >> 32;
	struct ogf_call_in_flight *call;

	if (!targets.lookup(&tgid))
		return 0;
	call = calls_in_flight.lookup(&thread);
	if (call) {
		ogf_count(call->event.kind, OGF_OUTCOME_PROCESS_GONE);
		calls_in_flight.delete(&thread);
	}
	if (names_in_flight.lookup(&thread)) {
		ogf_count(OGF_KIND_NAME, OGF_OUTCOME_PROCESS_GONE);
		names_in_flight.delete(&thread);
	}
	if ((__u32)thread != tgid)
		return 0;
	ogf_send_process(tgid, 0, OGF_PROCESS_EXIT);
	targets.delete(&tgid);
	process_starts.delete(&tgid);
	costs.delete(&tgid);
	return 0;
}

/* syscalls:sys_enter_mmap: 8 common bytes, the number, then six arguments of 8 bytes each. */
int on_mmap_enter(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), arguments[6] = {};
	__u32 tgid = thread >> 32;
	__u8 yes = 1;

	if (!targets.lookup(&tgid))
		return 0;
	bpf_probe_read_kernel(arguments, sizeof(arguments), ctx + 16);
	if (!(arguments[2] & OGF_PROT_EXEC) || (__s32)arguments[4] < 0)
		return 0;
	mapping_code.update(&thread, &yes);
	return 0;
}

/* syscalls:sys_exit_mmap */
int on_mmap_exit(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();

	if (!mapping_code.lookup(&thread))
		return 0;
	mapping_code.delete(&thread);
	ogf_send_process(thread >> 32, 0, OGF_PROCESS_MAP);
	return 0;
}
