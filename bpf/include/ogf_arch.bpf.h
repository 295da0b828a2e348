/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Everything that differs between processor architectures. */
#ifndef OGF_ARCH_BPF_H
#define OGF_ARCH_BPF_H

#include "ogf_core.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

static __always_inline int ogf_read_u64(__u64 address, __u64 *ret)
{
	return bpf_probe_read_user(ret, sizeof(*ret), (void *)address);
}

#if defined(__TARGET_ARCH_x86)

enum {
	OGF_REGISTER_ARGS = 6,
	OGF_TLS_VECTOR_AT = 8, /* in glibc's thread control block: where the thread's blocks of dynamic TLS are */
	OGF_CALL_BYTES = 8,    /* that a call puts on the stack: its return address */
	/* In a signal frame, whose ucontext lies where the handler returns to: rbp, rsp, rip. */
	OGF_SIGNAL_FRAME_POINTER = 120,
	OGF_SIGNAL_STACK_POINTER = 160,
	OGF_SIGNAL_INSTRUCTION = 168,
};

static __always_inline __u64 ogf_thread_pointer(struct task_struct *task)
{
	return task->thread.fsbase;
}

/* At a function's first instruction the return address is on top of the stack. */
static __always_inline __u64 ogf_return_address(struct pt_regs *regs)
{
	__u64 address = 0;

	bpf_probe_read_user(&address, sizeof(address), (void *)regs->sp);
	return address;
}

static __always_inline __u64 ogf_stack_argument(struct pt_regs *regs, __u32 index)
{
	__u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)(regs->sp + 8 + 8 * index));
	return value;
}

/* Stack pointer of the caller's frame while the call is in progress: equal at entry and at return. */
static __always_inline __u64 ogf_frame_at_entry(struct pt_regs *regs)
{
	return regs->sp + 8;
}

static __always_inline __u64 ogf_frame_at_return(struct pt_regs *regs)
{
	return regs->sp;
}

static __always_inline __u64 ogf_frame_pointer(struct pt_regs *regs)
{
	return regs->bp;
}

static __always_inline __u64 ogf_instruction(struct pt_regs *regs)
{
	return regs->ip;
}

/* Whether a function is still being run whose call has put its return address there. */
static __always_inline bool ogf_still_returns_to(__u64 return_at, __u64 return_address)
{
	__u64 address = 0;

	return !bpf_probe_read_user(&address, sizeof(address), (void *)return_at) && address == return_address;
}

/*
 * Does a call instruction end at `address`? E8 rel32, or FF /2 with any addressing form (2 to 7 bytes).
 * Data that looks like an address rarely passes this; user space also checks that the mapping is executable.
 */
static __always_inline bool ogf_preceded_by_call(__u64 address)
{
	__u8 code[8];

	if (bpf_probe_read_user(code, sizeof(code), (void *)(address - 8)))
		return false;
	return code[3] == 0xe8 || (code[6] == 0xff && (code[7] & 0x38) == 0x10) ||
	       (code[5] == 0xff && (code[6] & 0x38) == 0x10) || (code[4] == 0xff && (code[5] & 0x38) == 0x10) ||
	       (code[2] == 0xff && (code[3] & 0x38) == 0x10) || (code[1] == 0xff && (code[2] & 0x38) == 0x10);
}

#else

/* No unwind tables are made for arm64, whose compilers keep frame pointers: signal frames are never looked at. */
enum {
	OGF_REGISTER_ARGS = 8,
	OGF_TLS_VECTOR_AT = 0,
	OGF_CALL_BYTES = 0,
	OGF_SIGNAL_FRAME_POINTER = 0,
	OGF_SIGNAL_STACK_POINTER = 0,
	OGF_SIGNAL_INSTRUCTION = 0,
};

static __always_inline __u64 ogf_thread_pointer(struct task_struct *task)
{
	return task->thread.uw.tp_value;
}

static __always_inline __u64 ogf_return_address(struct pt_regs *regs)
{
	return regs->regs[30];
}

static __always_inline __u64 ogf_stack_argument(struct pt_regs *regs, __u32 index)
{
	__u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)(regs->sp + 8 * index));
	return value;
}

static __always_inline __u64 ogf_frame_at_entry(struct pt_regs *regs)
{
	return regs->sp;
}

static __always_inline __u64 ogf_frame_at_return(struct pt_regs *regs)
{
	return regs->sp;
}

static __always_inline __u64 ogf_frame_pointer(struct pt_regs *regs)
{
	return regs->regs[29];
}

static __always_inline __u64 ogf_instruction(struct pt_regs *regs)
{
	return regs->pc;
}

/* The return address is in a register, and wherever the function saves that. */
static __always_inline bool ogf_still_returns_to(__u64 return_at, __u64 return_address)
{
	return true;
}

/* BL imm26 or BLR Xn. */
static __always_inline bool ogf_preceded_by_call(__u64 address)
{
	__u32 code;

	if (bpf_probe_read_user(&code, sizeof(code), (void *)(address - 4)))
		return false;
	return (code & 0xfc000000) == 0x94000000 || (code & 0xfffffc1f) == 0xd63f0000;
}

#endif

/* Argument `number`, counted from 1; 0 for number 0, so that a cookie can say "none". */
static __always_inline __u64 ogf_argument(struct pt_regs *regs, __u32 number)
{
	switch (number) {
	case 0:
		return 0;
	case 1:
		return PT_REGS_PARM1(regs);
	case 2:
		return PT_REGS_PARM2(regs);
	case 3:
		return PT_REGS_PARM3(regs);
	case 4:
		return PT_REGS_PARM4(regs);
	case 5:
		return PT_REGS_PARM5(regs);
#if defined(__TARGET_ARCH_x86)
	case 6:
		return regs->r9;
#else
	case 6:
		return regs->regs[5];
	case 7:
		return regs->regs[6];
	case 8:
		return regs->regs[7];
#endif
	default:
		return ogf_stack_argument(regs, number - OGF_REGISTER_ARGS - 1);
	}
}

#endif
