/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* GPU driver calls, and how their threads wait. */

static __always_inline void ogf_fill_call(struct pt_regs *ctx, const struct ogf_target *target, __u64 cookie,
					  struct ogf_call_event *event)
{
	__u64 thread = bpf_get_current_pid_tgid();

	event->start_ns = bpf_ktime_get_ns();
	event->tgid = thread >> 32;
	event->tid = (__u32)thread;
	event->process_start_ns = ogf_process_start(event->tgid);
	event->kind = ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8);
	event->api = ogf_cookie_field(cookie, OGF_COOKIE_API, 16);
	ogf_take_arguments(ctx, cookie, event);
	if (event->kind != OGF_KIND_CUPTI)
		ogf_take_stack(ctx, target, event);
}

static __always_inline void ogf_send_call(struct ogf_call_event *event)
{
	if (calls.ringbuf_output(event, sizeof(*event), BPF_RB_NO_WAKEUP))
		ogf_count(event->kind, OGF_OUTCOME_RING_FULL);
	else
		ogf_count(event->kind, OGF_OUTCOME_SENT);
}

/* A call whose frame lies below the new one's was left by longjmp or an exception: it is given up. */
static __always_inline bool ogf_inside_call(__u64 thread, __u64 frame)
{
	struct ogf_call_in_flight *outer = calls_in_flight.lookup(&thread);

	if (!outer)
		return false;
	if (outer->frame > frame)
		return true;
	ogf_count(outer->event.kind, OGF_OUTCOME_NO_RETURN);
	calls_in_flight.delete(&thread);
	return false;
}

int on_call(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), cookie = ogf_attach_cookie(ctx);
	__u32 tgid = thread >> 32, kind = ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8);
	struct ogf_target *target = targets.lookup(&tgid);
	struct ogf_call_event event = {};

	if (!target)
		return 0;
	ogf_count(kind, OGF_OUTCOME_SEEN);
	if (kind != OGF_KIND_CUPTI && ogf_inside_call(thread, ctx->sp + 8)) {
		ogf_count(kind, OGF_OUTCOME_NESTED);
		return 0;
	}
	ogf_fill_call(ctx, target, cookie, &event);
	ogf_send_call(&event);
	ogf_account(event.start_ns);
	return 0;
}

int on_call_enter(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), cookie = ogf_attach_cookie(ctx), started_ns;
	__u32 tgid = thread >> 32, kind = ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8);
	struct ogf_target *target = targets.lookup(&tgid);
	struct ogf_call_in_flight call = {};

	if (!target)
		return 0;
	ogf_count(kind, OGF_OUTCOME_SEEN);
	call.frame = ctx->sp + 8;
	if (ogf_inside_call(thread, call.frame)) {
		ogf_count(kind, OGF_OUTCOME_NESTED);
		return 0;
	}
	ogf_fill_call(ctx, target, cookie, &call.event);
	started_ns = call.event.start_ns;
	/* Taken last: what the probe itself costs is not the driver's time. */
	call.event.start_ns = bpf_ktime_get_ns();
	if (calls_in_flight.update(&thread, &call))
		ogf_count(kind, OGF_OUTCOME_TABLE_FULL);
	ogf_account(started_ns);
	return 0;
}

int on_call_return(struct pt_regs *ctx)
{
	__u64 end_ns = bpf_ktime_get_ns(), thread = bpf_get_current_pid_tgid();
	struct ogf_call_in_flight *call = calls_in_flight.lookup(&thread);

	/* The return of a nested call, or of one that began before we attached. */
	if (!call || call->frame != ctx->sp)
		return 0;
	call->event.end_ns = end_ns;
	call->event.flags |= OGF_CALL_RETURNED;
	ogf_send_call(&call->event);
	calls_in_flight.delete(&thread);
	ogf_account(end_ns);
	return 0;
}

/* A thread that gives up the CPU inside a call waits there; otherwise it spins. */
int on_switch(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct ogf_call_in_flight *call = calls_in_flight.lookup(&thread);
	long state = 0;

	if (!call)
		return 0;
	bpf_probe_read_kernel(&state, sizeof(state), ctx + OGF_PREV_STATE_AT);
	if (state & OGF_TASK_SLEEPS)
		call->event.voluntary_switches++;
	return 0;
}
