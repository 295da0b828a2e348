/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The few kernel types we touch. preserve_access_index makes the loader relocate each access against the running
 * kernel's BTF, so these hold only the members that we read, in any order.
 */
#ifndef OGF_CORE_H
#define OGF_CORE_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>

/* bpf_tracing.h uses the kernel's own register names when it believes that vmlinux.h was included. */
#define __VMLINUX_H__

/* Part of the ABI between kernel and BPF (bpf_user_pt_regs_t): fixed offsets, hence not relocated. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
struct pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
#else
#error "set __TARGET_ARCH_x86 or __TARGET_ARCH_arm64"
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
};
#else
struct thread_uw {
	unsigned long tp_value;
};
struct thread_struct {
	struct thread_uw uw;
};
#endif

struct inode {
	__u32 i_rdev;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct path f_path;
	struct inode *f_inode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct return_instance {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

struct task_struct {
	unsigned int __state;
	unsigned int flags;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	struct files_struct *files;
	struct uprobe_task *utask;
	__u64 start_time;
	__u64 self_exec_id;
	__u64 parent_exec_id;
	struct task_struct *real_parent;
	unsigned long nvcsw;
	char comm[16];
	struct thread_struct thread;
};

#pragma clang attribute pop

#endif
