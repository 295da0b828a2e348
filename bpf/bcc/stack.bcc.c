/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The native stack at a function's first instruction. */

static __always_inline void ogf_hash(__u64 *hash, __u64 word)
{
	hash[0] = (hash[0] ^ word) * 0x9e3779b97f4a7c15ULL;
	hash[0] ^= hash[0] >> 32;
	hash[1] = (hash[1] + word) * 0xc2b2ae3d27d4eb4fULL;
	hash[1] ^= hash[1] >> 29;
}

/* Does a call instruction end at `address`? E8 rel32, or FF /2 with any addressing form (2 to 7 bytes). */
static __always_inline bool ogf_preceded_by_call(__u64 address)
{
	__u8 code[8];

	if (bpf_probe_read_user(code, sizeof(code), (void *)(address - 8)))
		return false;
	return code[3] == 0xe8 || (code[6] == 0xff && (code[7] & 0x38) == 0x10) ||
	       (code[5] == 0xff && (code[6] & 0x38) == 0x10) || (code[4] == 0xff && (code[5] & 0x38) == 0x10) ||
	       (code[2] == 0xff && (code[3] & 0x38) == 0x10) || (code[1] == 0xff && (code[2] & 0x38) == 0x10);
}

/* Return addresses by frame pointer, leaf first; cut where the next frame is not plausible. */
static __always_inline void ogf_walk_native(struct ogf_native_stack *stack, __u64 floor, __u64 frame_pointer)
{
	__u64 address = ogf_read_u64(floor), pair[2] = {};

	stack->head.native_state = OGF_NATIVE_TRUNCATED;
	for (__u32 i = 0; i < OGF_FRAMES_BY_POINTER; i++) {
		if (!address) {
			stack->head.native_state = OGF_NATIVE_END;
			break;
		}
		if (i && !ogf_preceded_by_call(address)) {
			stack->head.native_state = OGF_NATIVE_CUT;
			break;
		}
		stack->words[i & (OGF_STACK_WORDS - 1)] = address;
		stack->head.native_count = i + 1;
		ogf_hash(stack->head.stack_hash, address);
		if (!frame_pointer) {
			stack->head.native_state = OGF_NATIVE_END;
			break;
		}
		if (frame_pointer < floor || frame_pointer - floor > OGF_MAX_STACK_BYTES || frame_pointer & 7 ||
		    bpf_probe_read_user(pair, sizeof(pair), (void *)frame_pointer)) {
			stack->head.native_state = OGF_NATIVE_CUT;
			break;
		}
		floor = frame_pointer + 16;
		frame_pointer = pair[0];
		address = pair[1];
	}
}

static __always_inline void ogf_send_stack(struct ogf_native_stack *stack)
{
	__u64 size = sizeof(stack->head) + 8 * ogf_masked(stack->head.native_count, OGF_STACK_WORDS - 1);
	struct ogf_stack_key key = {};
	__u8 yes = 1;

	key.hash[0] = stack->head.stack_hash[0];
	key.hash[1] = stack->head.stack_hash[1];
	if (seen_stacks.lookup(&key))
		return;
	ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SEEN);
	if (stacks.ringbuf_output(stack, size, BPF_RB_NO_WAKEUP)) {
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_RING_FULL);
		return;
	}
	ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SENT);
	seen_stacks.update(&key, &yes);
}

static __always_inline void ogf_take_stack(struct pt_regs *ctx, const struct ogf_target *target,
					   struct ogf_call_event *event)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct ogf_native_stack *empty, *stack;
	int zero = 0;

	empty = empty_stack.lookup(&zero);
	if (!empty)
		return;
	stack_scratch.update(&thread, empty);
	stack = stack_scratch.lookup(&thread);
	if (!stack) {
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SEEN);
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_TABLE_FULL);
		return;
	}
	stack->head.process_start_ns = event->process_start_ns;
	stack->head.tgid = event->tgid;
	stack->head.tid = event->tid;
	if (target->python.interpreters_head)
		stack->head.python_state = OGF_PYTHON_NOT_READ;
	if (target->python.unsupported)
		stack->head.python_state = OGF_PYTHON_UNSUPPORTED;
	ogf_hash(stack->head.stack_hash, event->process_start_ns);
	ogf_hash(stack->head.stack_hash, event->tgid);
	ogf_walk_native(stack, ctx->sp, ctx->bp);
	/* Two stacks that differ only in why they end must not be taken for one. */
	ogf_hash(stack->head.stack_hash, (__u64)stack->head.python_state << 8 | stack->head.native_state | 1ULL << 63);
	ogf_send_stack(stack);
	event->stack_hash[0] = stack->head.stack_hash[0];
	event->stack_hash[1] = stack->head.stack_hash[1];
	stack_scratch.delete(&thread);
}
