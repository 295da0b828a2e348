/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Names of GPU functions: taken when the program asks the driver for a handle by name. */

int on_name_enter(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), cookie = ogf_attach_cookie(ctx);
	struct ogf_name_in_flight call = {};
	__u32 tgid = thread >> 32;

	if (!targets.lookup(&tgid))
		return 0;
	call.cookie = cookie;
	call.handle = ogf_argument(ctx, cookie >> 8 & 15);
	call.name = ogf_argument(ctx, cookie >> 12 & 15);
	/* Other questions, and those for the size of the answer. */
	if ((cookie & 255) == OGF_NAME_QUERIED && ((__u32)ctx->si != OGF_CL_KERNEL_FUNCTION_NAME || !call.name))
		return 0;
	ogf_count(OGF_KIND_NAME, OGF_OUTCOME_SEEN);
	/* A second entry before the return replaces the first: the driver resolved one name inside another. */
	if (names_in_flight.lookup(&thread))
		ogf_count(OGF_KIND_NAME, OGF_OUTCOME_NO_RETURN);
	if (names_in_flight.update(&thread, &call))
		ogf_count(OGF_KIND_NAME, OGF_OUTCOME_TABLE_FULL);
	return 0;
}

static __always_inline __u32 ogf_send_name(struct ogf_name_in_flight *call, __u64 result, struct ogf_long_name *name)
{
	__u64 characters = 0;
	long length;

	name->head.time_ns = bpf_ktime_get_ns();
	name->head.tgid = bpf_get_current_pid_tgid() >> 32;
	name->head.process_start_ns = ogf_process_start(name->head.tgid);
	if ((call->cookie & 255) == OGF_NAME_RETURNED)
		name->head.handle = result;
	else if ((__u32)result)
		/* The driver refused (a CUresult other than 0): what the pointer leads to is from an earlier call. */
		return OGF_OUTCOME_UNREADABLE;
	else if ((call->cookie & 255) == OGF_NAME_QUERIED)
		name->head.handle = call->handle;
	else
		name->head.handle = ogf_read_u64(call->handle);
	if (!name->head.handle)
		return OGF_OUTCOME_UNREADABLE;
	if ((call->cookie & 255) == OGF_NAME_ALIAS) {
		name->head.alias_of = call->name;
	} else {
		length = bpf_probe_read_user_str(name->name, sizeof(name->name), (void *)call->name);
		if (length <= 1 || length > OGF_MAX_NAME_BYTES)
			return OGF_OUTCOME_UNREADABLE;
		name->head.name_bytes = length - 1;
		name->head.truncated = length == OGF_MAX_NAME_BYTES;
		characters = ogf_masked(length - 1, OGF_MAX_NAME_BYTES - 1);
	}
	if (names.ringbuf_output(name, sizeof(name->head) + characters, BPF_RB_NO_WAKEUP))
		return OGF_OUTCOME_RING_FULL;
	return OGF_OUTCOME_SENT;
}

int on_name_return(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct ogf_name_in_flight *found = names_in_flight.lookup(&thread);
	__u32 outcome = OGF_OUTCOME_TABLE_FULL;
	struct ogf_long_name *empty, *name;
	int zero = 0;

	if (!found)
		return 0;
	empty = empty_name.lookup(&zero);
	if (!empty)
		return 0;
	name_scratch.update(&thread, empty);
	name = name_scratch.lookup(&thread);
	if (name) {
		outcome = ogf_send_name(found, ctx->ax, name);
		name_scratch.delete(&thread);
	}
	names_in_flight.delete(&thread);
	ogf_count(OGF_KIND_NAME, outcome);
	return 0;
}
