/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Life of the captured processes: children are followed from their first instruction. */
#ifndef OGF_PROCESS_BPF_H
#define OGF_PROCESS_BPF_H

#include "ogf_calls.bpf.h"
#include "ogf_core.h"
#include "ogf_cpu.bpf.h"
#include "ogf_driver.bpf.h"
#include "ogf_files.bpf.h"
#include "ogf_maps.bpf.h"
#include "ogf_names.bpf.h"
#include "ogf_target.bpf.h"

enum { OGF_PROT_EXEC = 4 };

/* Stable layout of the syscalls:sys_enter_* tracepoints. */
struct ogf_syscall_enter {
	__u64 _common;
	__s64 number;
	__u64 arguments[6];
};

/* Threads inside an mmap() that will make code executable: whether it is that of a GPU library. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u64);
	__type(value, __u8);
	__uint(max_entries, 16384);
} mapping_code SEC(".maps");

SEC("tp_btf/sched_process_fork")
int on_fork(__u64 *arguments)
{
	struct task_struct *parent = (struct task_struct *)arguments[0];
	struct task_struct *child = (struct task_struct *)arguments[1];
	__u32 parent_tgid = parent->tgid, child_tgid = child->tgid;
	struct ogf_target *target;

	if (child->pid != child->tgid)
		return 0;
	target = bpf_map_lookup_elem(&targets, &parent_tgid);
	/* Host-wide, a child becomes a target when it uses the GPU itself: services start many that never do. */
	if (!target || ogf_is_host_wide())
		return 0;
	if (bpf_map_update_elem(&targets, &child_tgid, target, BPF_ANY)) {
		ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_SEEN);
		ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_TABLE_FULL);
		return 0;
	}
	ogf_send_process(child, parent, OGF_PROCESS_FORK);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int on_exec(__u64 *arguments)
{
	struct task_struct *task = (struct task_struct *)arguments[0];
	__u32 tgid = task->tgid, tid = task->pid, old_tid = arguments[1];
	__u64 thread = bpf_get_current_pid_tgid();
	struct ogf_target fresh = {};

	/* It stays a target, whatever it has become: user space must hear of its end, to forget what it knows of it. */
	if (bpf_map_update_elem(&targets, &tgid, &fresh, BPF_EXIST))
		return 0;
	/* All other threads are gone, and this one may have taken over the number of the first. */
	bpf_map_delete_elem(&off_cpu, &tid);
	bpf_map_delete_elem(&off_cpu, &old_tid);
	bpf_map_delete_elem(&loops_of_threads, &thread);
	ogf_send_process(task, NULL, OGF_PROCESS_EXEC);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(__u64 *arguments)
{
	struct task_struct *task = (struct task_struct *)arguments[0];
	__u32 tgid = task->tgid, tid = task->pid;
	__u64 thread = (__u64)tgid << 32 | tid;
	struct ogf_call_in_flight *call;

	/* Before the process is looked up: its last thread may come here before others that ended with it. */
	call = bpf_map_lookup_elem(&calls_in_flight, &thread);
	if (call) {
		ogf_count(call->event.kind, OGF_OUTCOME_PROCESS_GONE);
		bpf_map_delete_elem(&calls_in_flight, &thread);
	}
	if (bpf_map_lookup_elem(&names_in_flight, &thread)) {
		ogf_count(OGF_KIND_NAME, OGF_OUTCOME_PROCESS_GONE);
		bpf_map_delete_elem(&names_in_flight, &thread);
	}
	if (!bpf_map_delete_elem(&device_calls, &thread))
		ogf_count(OGF_KIND_DRIVER, OGF_OUTCOME_PROCESS_GONE);
	bpf_map_delete_elem(&python_threads, &tid);
	bpf_map_delete_elem(&loops_of_threads, &thread);
	bpf_map_delete_elem(&off_cpu, &tid);
	/* The kernel has already counted this thread out: at 0 it was the last one. */
	if (task->signal->live.counter || !bpf_map_lookup_elem(&targets, &tgid))
		return 0;
	ogf_send_process(task, NULL, OGF_PROCESS_EXIT);
	bpf_map_delete_elem(&targets, &tgid);
	bpf_map_delete_elem(&costs, &tgid);
	return 0;
}

/* libcuda.so*, libOpenCL*: the only new files that matter on a host where anybody may start anything. */
static __always_inline bool ogf_is_gpu_library(__u32 fd)
{
	const unsigned char *name = NULL;
	struct file *file = ogf_open_file(fd);
	__u64 begin[2] = {};

	if (!file)
		return false;
	name = BPF_CORE_READ(file, f_path.dentry, d_name.name);
	if (bpf_probe_read_kernel_str(begin, sizeof(begin), name) < 0)
		return false;
	/* "libcuda." + "so" and "libOpenC" + "L", little endian: there is no memcmp in BPF. */
	return (begin[0] == 0x2e6164756362696cULL && (begin[1] & 0xffff) == 0x6f73) ||
	       (begin[0] == 0x436e65704f62696cULL && (begin[1] & 0xff) == 0x4c);
}

SEC("tp/syscalls/sys_enter_mmap")
int on_mmap_enter(struct ogf_syscall_enter *context)
{
	__u64 thread = bpf_get_current_pid_tgid();
	bool is_target = ogf_current_target();
	__u8 is_gpu_library;

	if (!(context->arguments[2] & OGF_PROT_EXEC) || (__s32)context->arguments[4] < 0)
		return 0;
	if (!is_target && !ogf_is_host_wide())
		return 0;
	is_gpu_library = ogf_is_gpu_library(context->arguments[4]);
	if (is_target || is_gpu_library)
		bpf_map_update_elem(&mapping_code, &thread, &is_gpu_library, BPF_ANY);
	return 0;
}

SEC("tp/syscalls/sys_exit_mmap")
int on_mmap_exit(void *context)
{
	__u64 thread = bpf_get_current_pid_tgid();
	__u8 *found = bpf_map_lookup_elem(&mapping_code, &thread), is_gpu_library;

	if (!found)
		return 0;
	is_gpu_library = *found;
	bpf_map_delete_elem(&mapping_code, &thread);
	if (ogf_is_host_wide())
		ogf_take_in();
	ogf_send_mapping((struct task_struct *)bpf_get_current_task_btf(), NULL, OGF_PROCESS_MAP, is_gpu_library);
	return 0;
}

#endif
