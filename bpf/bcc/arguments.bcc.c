/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Arguments of a probed function, found by the cookie of its probe. */

static __always_inline __u64 ogf_read_u64(__u64 address)
{
	__u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

/* In assembly: the compiler may prove the mask redundant, and the verifier cannot follow that proof. */
static __always_inline __u64 ogf_masked(__u64 value, const __u64 mask)
{
	asm volatile("%0 &= %1" : "+r"(value) : "i"(mask));
	return value;
}

static __always_inline __u32 ogf_cookie_field(__u64 cookie, __u32 shift, __u32 bits)
{
	return cookie >> shift & ((1U << bits) - 1);
}

/* Argument `number`, counted from 1; 0 for number 0, so that a cookie can say "none". */
static __always_inline __u64 ogf_argument(struct pt_regs *ctx, __u32 number)
{
	switch (number) {
	case 0:
		return 0;
	case 1:
		return ctx->di;
	case 2:
		return ctx->si;
	case 3:
		return ctx->dx;
	case 4:
		return ctx->cx;
	case 5:
		return ctx->r8;
	case 6:
		return ctx->r9;
	default:
		return ogf_read_u64(ctx->sp + 8 * (number - OGF_REGISTER_ARGS));
	}
}

static __always_inline int ogf_read_dimensions(__u64 address, void *ret)
{
	return bpf_probe_read_user(ret, 3 * sizeof(__u32), (void *)address);
}

/* CUlaunchConfig: gridDim @0, blockDim @12, sharedMemBytes @24, hStream @32. */
static __always_inline int ogf_read_launch_config(__u64 config, struct ogf_call_event *event)
{
	return ogf_read_dimensions(config, event->grid) || ogf_read_dimensions(config + 12, event->block) ||
	       bpf_probe_read_user(&event->stream, sizeof(event->stream), (void *)(config + 32));
}

/* OpenCL gives size_t arrays of 1 to 3 elements; the local one may be NULL. */
static __always_inline int ogf_read_ndrange(__u64 dimensions, __u64 global, __u64 local, struct ogf_call_event *event)
{
	__u64 size = 0;

	for (int i = 0; i < 3; i++) {
		event->grid[i] = 1;
		if (i >= (int)dimensions)
			continue;
		if (bpf_probe_read_user(&size, sizeof(size), (void *)(global + 8 * i)))
			return -1;
		event->grid[i] = size;
		if (local && !bpf_probe_read_user(&size, sizeof(size), (void *)(local + 8 * i)))
			event->block[i] = size;
	}
	return 0;
}

/* CUDA_MEMCPY2D: WidthInBytes @112, Height @120. CUDA_MEMCPY3D: @176, @184, Depth @192. */
static __always_inline int ogf_read_copy_extent(__u64 descriptor, __u32 shape, struct ogf_call_event *event)
{
	__u64 extent[3] = {};

	/* Not in the initialiser: that would be read-only data, which BCC has no place for. */
	extent[2] = 1;
	if (shape == OGF_SHAPE_COPY_2D) {
		if (bpf_probe_read_user(extent, 2 * sizeof(__u64), (void *)(descriptor + 112)))
			return -1;
	} else if (bpf_probe_read_user(extent, sizeof(extent), (void *)(descriptor + 176))) {
		return -1;
	}
	event->bytes = extent[0] * extent[1] * extent[2];
	return 0;
}

/* More parts than are looked at: the call is seen, and its size marked as unreadable. */
static __always_inline int ogf_read_batch_size(__u64 sizes, __u64 count, struct ogf_call_event *event)
{
	__u64 size = 0;

	for (__u32 i = 0; i < OGF_MAX_BATCHED_COPIES; i++) {
		if (i >= count)
			return 0;
		if (bpf_probe_read_user(&size, sizeof(size), (void *)(sizes + 8 * i)))
			return -1;
		event->bytes += size;
	}
	return count > OGF_MAX_BATCHED_COPIES ? -1 : 0;
}

static __always_inline int ogf_read_rectangle(__u64 region, struct ogf_call_event *event)
{
	__u64 extent[3] = {};

	if (bpf_probe_read_user(extent, sizeof(extent), (void *)region))
		return -1;
	event->bytes = extent[0] * extent[1] * extent[2];
	return 0;
}

static __always_inline void ogf_take_arguments(struct pt_regs *ctx, __u64 cookie, struct ogf_call_event *event)
{
	__u32 unit = ogf_cookie_field(cookie, OGF_COOKIE_UNIT, 4);
	__u32 shape = ogf_cookie_field(cookie, OGF_COOKIE_SHAPE, 4);
	int error = 0;

	event->stream = ogf_argument(ctx, ogf_cookie_field(cookie, OGF_COOKIE_STREAM, 4));
	event->object = ogf_argument(ctx, ogf_cookie_field(cookie, OGF_COOKIE_OBJECT, 4));
	event->bytes = ogf_argument(ctx, ogf_cookie_field(cookie, OGF_COOKIE_BYTES, 4)) << unit;
	if (ogf_argument(ctx, ogf_cookie_field(cookie, OGF_COOKIE_BLOCKING, 4)) & 0xffffffff)
		event->flags |= OGF_CALL_BLOCKING_ARG;
	switch (shape) {
	case OGF_SHAPE_LAUNCH_ARGS:
		event->grid[0] = ctx->si;
		event->grid[1] = ctx->dx;
		event->grid[2] = ctx->cx;
		event->block[0] = ctx->r8;
		event->block[1] = ctx->r9;
		event->block[2] = ogf_read_u64(ctx->sp + 8);
		break;
	case OGF_SHAPE_LAUNCH_CONFIG:
		error = ogf_read_launch_config(ctx->di, event);
		break;
	case OGF_SHAPE_NDRANGE:
		error = ogf_read_ndrange(ctx->dx, ctx->r8, ctx->r9, event);
		break;
	case OGF_SHAPE_COPY_2D:
	case OGF_SHAPE_COPY_3D:
		error = ogf_read_copy_extent(ctx->di, shape, event);
		break;
	case OGF_SHAPE_SET_2D:
		event->bytes = ctx->cx * ctx->r8 << unit;
		break;
	case OGF_SHAPE_COPY_BATCH:
		error = ogf_read_batch_size(ctx->dx, ctx->cx, event);
		break;
	case OGF_SHAPE_COPY_RECT:
		error = ogf_read_rectangle(ctx->r9, event);
		break;
	}
	if (error)
		event->flags |= OGF_CALL_ARGS_UNREADABLE;
}
