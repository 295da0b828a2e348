// SPDX-License-Identifier: Apache-2.0
/*
 * Publishes spans as OTEP 4947 describes it, knowing the specification and not our reader, then breaks it in every way.
 * Waits for a line when it is ready, launches a number of kernels of its own in each state, and says how many: a JSON
 * line with the states in their order, each with the ids (in hexadecimal) that a reader may see, or "" for none. Waits
 * for a line again.
 * Usage: span_writer stops | lies | races | exec | killed | names CONTEXT
 * names: also publishes CONTEXT (hexadecimal), a serialised process context, as OTEP 4719 describes it, before it is
 * ready. It calls attribute 3 the local root; half way it takes the context back.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi.h"

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuModuleLoadData(CUmodule *ret, const void *image);
CUresult cuModuleGetFunction(CUfunction *ret, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
			CUstream stream, void **parameters, void **extra);

enum { PAGE_BYTES = 4096, HEAD_BYTES = 28, ROOT_BYTES = 18, MAX_TEXT_BYTES = 1 << 14, RACED_LAUNCHES = 5000 };

struct record {
	uint8_t trace_id[16];
	uint8_t span_id[8];
	_Atomic uint8_t valid;
	uint8_t flags;
	uint16_t attributes_bytes;
	uint8_t attributes[36];
};

_Static_assert(sizeof(struct record) == 64, "packed as in the specification");

__attribute__((visibility("default"))) __thread struct record *_Atomic otel_thread_ctx_v1;
#ifdef TLS_PADDING
__thread char tls_padding[TLS_PADDING];
#endif

static CUcontext context;
static CUfunction kernel;
static char text[MAX_TEXT_BYTES];
static size_t text_bytes;
static int states;
static struct record own __attribute__((aligned(64)));
static atomic_bool racing;

static void launch(int count)
{
	for (int i = 0; i < count; i++)
		if (cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
			exit(3);
}

static void hex(char *to, const uint8_t *bytes, int count)
{
	for (int i = 0; i < count; i++)
		sprintf(to + 2 * i, "%02x", bytes[i]);
}

/* A number of launches that no other state has. */
static void state(const char *name, const struct record *seen, uint8_t root, int is_sampled)
{
	char span_id[17] = "", trace_id[33] = "", root_id[17] = "";
	int count = 3 + 2 * states++;

	if (seen) {
		hex(trace_id, seen->trace_id, 16);
		hex(span_id, seen->span_id, 8);
	}
	if (root)
		memset(root_id, root, 16);
	launch(count);
	text_bytes += (size_t)snprintf(text + text_bytes, sizeof(text) - text_bytes,
				       "%s{\"state\": \"%s\", \"launches\": %d, \"trace_id\": \"%s\", "
				       "\"span_id\": \"%s\", \"root\": \"%s\", \"sampled\": %s}",
				       text_bytes ? ", " : "", name, count, trace_id, span_id, root_id,
				       is_sampled ? "true" : "false");
}

static void none(const char *name)
{
	state(name, NULL, 0, 0);
}

static void answer(const char *what)
{
	char line[8];

	printf("%s\n", what);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(4);
}

static void tell(void)
{
	static char line[MAX_TEXT_BYTES + 64];

	snprintf(line, sizeof(line), "{\"pid\": %d, \"states\": [%s]}", getpid(), text);
	answer(line);
}

/* A span whose ids are of one byte each; its root, a digit of hexadecimal repeated, if not 0. */
static void fill(struct record *record, uint8_t id, uint8_t root)
{
	memset(record->trace_id, id, sizeof(record->trace_id));
	memset(record->span_id, id, sizeof(record->span_id));
	record->flags = 1;
	record->attributes_bytes = root ? ROOT_BYTES : 0;
	record->attributes[0] = 0;
	record->attributes[1] = 16;
	memset(record->attributes + 2, root, 16);
}

static void publish(struct record *record)
{
	atomic_signal_fence(memory_order_seq_cst);
	otel_thread_ctx_v1 = record;
	atomic_signal_fence(memory_order_seq_cst);
}

static void set_valid(uint8_t valid)
{
	atomic_signal_fence(memory_order_seq_cst);
	own.valid = valid;
	atomic_signal_fence(memory_order_seq_cst);
}

/* The first bytes of the page after it cannot be read. */
static uint8_t *end_of_memory(void)
{
	uint8_t *pages = mmap(NULL, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED || munmap(pages + PAGE_BYTES, PAGE_BYTES))
		exit(2);
	return pages + PAGE_BYTES;
}

static void *ends_in_a_span(void *unused)
{
	cuCtxSetCurrent(context);
	publish(&own);
	state("a thread", &own, 'a', 1);
	return unused;
}

static void *publishes_nothing(void *unused)
{
	cuCtxSetCurrent(context);
	none("a thread in its place");
	return unused;
}

static void run_thread(void *(*work)(void *))
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, work, NULL) || pthread_join(thread, NULL))
		exit(2);
}

/* Each stop is in the middle of a request: the span goes on. */
static void stops(void)
{
	struct record *freed = (struct record *)(end_of_memory() - PAGE_BYTES);

	none("before");
	fill(&own, 0xA1, 'a');
	set_valid(1);
	publish(&own);
	state("in a span", &own, 'a', 1);
	set_valid(0);
	none("not valid");
	set_valid(1);
	state("valid again", &own, 'a', 1);
	set_valid(0);
	memset(own.trace_id, 0xB2, sizeof(own.trace_id));
	memset(own.span_id, 0xB2, sizeof(own.span_id) / 2);
	none("half of the next one is written");
	fill(&own, 0xB2, 'b');
	own.flags = 0;
	set_valid(1);
	state("the next one, not sampled", &own, 'b', 0);
	publish(NULL);
	none("no record");
	fill(freed, 0xC3, 'c');
	freed->valid = 1;
	publish(freed);
	state("in another record", freed, 'c', 1);
	munmap(freed, PAGE_BYTES);
	none("the record is gone");
	publish(NULL);
	fill(&own, 0xD4, 'a');
	run_thread(ends_in_a_span);
	run_thread(publishes_nothing);
	none("after");
}

/* A record that has `count` other attributes of `length` bytes before its root. */
static void put_root_behind(int count, uint8_t length)
{
	int before = count * (2 + length);

	fill(&own, 0xA1, 'a');
	memmove(own.attributes + before, own.attributes, ROOT_BYTES);
	memset(own.attributes, 9, (size_t)before);
	for (int i = 0; i < count; i++)
		own.attributes[i * (2 + length) + 1] = length;
	own.attributes_bytes = (uint16_t)(before + ROOT_BYTES);
}

static void lies(void)
{
	uint8_t *end = end_of_memory();
	struct record *at_end;

	fill(&own, 0xA1, 'a');
	for (int valid = 2; valid < 256; valid += 253) {
		set_valid((uint8_t)valid);
		publish(&own);
		none("another value of valid");
	}
	set_valid(1);
	own.attributes_bytes = UINT16_MAX;
	state("attributes of 64 KiB", &own, 'a', 1);
	own.attributes_bytes = ROOT_BYTES - 1;
	state("attributes that are cut", &own, 0, 1);
	own.attributes_bytes = ROOT_BYTES;
	own.attributes[1] = 15;
	state("a root that is short", &own, 0, 1);
	own.attributes[1] = 255;
	state("a root that is long", &own, 0, 1);
	own.attributes[1] = 16;
	own.attributes[9] = 'g';
	state("a root that is no number", &own, 0, 1);
	fill(&own, 0xA1, 'a');
	own.attributes[0] = 7;
	state("an attribute of another key", &own, 0, 1);
	put_root_behind(1, 5);
	state("a root behind another attribute", &own, 'a', 1);
	put_root_behind(7, 0);
	state("a root behind seven empty ones", &own, 'a', 1);
	put_root_behind(8, 0);
	state("a root behind more than anybody looks at", &own, 0, 1);
	fill(&own, 0xA1, 0);
	state("no attributes", &own, 0, 1);
	fill(&own, 0, 'a');
	state("ids of zeros", &own, 'a', 1);
	publish((struct record *)8);
	none("a record in the first page");
	publish((struct record *)(UINTPTR_MAX - 63));
	none("a record in the kernel");
	publish((struct record *)0x8000000000000000ULL);
	none("a record nowhere");
	publish((struct record *)(end - HEAD_BYTES + 1));
	none("a record that is cut");
	at_end = (struct record *)(end - HEAD_BYTES);
	memset(at_end->trace_id, 0xE5, sizeof(at_end->trace_id));
	memset(at_end->span_id, 0xE5, sizeof(at_end->span_id));
	at_end->flags = 1;
	at_end->attributes_bytes = ROOT_BYTES;
	at_end->valid = 1;
	publish(at_end);
	state("a record at the end of memory", at_end, 0, 1);
	publish(NULL);
}

/* No writer may do this: only the thread itself writes its record. */
static void *rewrite(void *unused)
{
	for (uint8_t id = 1; racing; id++) {
		struct record *volatile record = &own;

		memset((void *)record, id, sizeof(own));
		record->valid = id & 3;
	}
	return unused;
}

static void races(void)
{
	pthread_t thread;

	racing = true;
	publish(&own);
	if (pthread_create(&thread, NULL, rewrite, NULL))
		exit(2);
	launch(RACED_LAUNCHES);
	racing = false;
	pthread_join(thread, NULL);
	publish(NULL);
}

static struct {
	char signature[8];
	uint32_t version;
	uint32_t payload_bytes;
	_Atomic uint64_t published_ns;
	uint64_t payload;
} * header;

static void publish_context(const char *payload)
{
	size_t bytes = strlen(payload) / 2;
	uint8_t *copy = malloc(bytes + 1);
	int fd = memfd_create("OTEL_CTX", MFD_CLOEXEC);
	unsigned int byte;

	if (!copy || fd < 0 || ftruncate(fd, PAGE_BYTES))
		exit(2);
	for (size_t i = 0; i < bytes; i++) {
		if (sscanf(payload + 2 * i, "%2x", &byte) != 1)
			exit(2);
		copy[i] = (uint8_t)byte;
	}
	header = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (header == MAP_FAILED)
		exit(2);
	memcpy(header->signature, "OTEL_CTX", 8);
	header->version = 2;
	header->payload_bytes = (uint32_t)bytes;
	header->payload = (uintptr_t)copy;
	header->published_ns = 1;
}

static void names(void)
{
	fill(&own, 0xA1, 'a');
	set_valid(1);
	publish(&own);
	state("attribute 0 is something else", &own, 0, 1);
	own.attributes[0] = 3;
	state("attribute 3 is the root", &own, 'a', 1);
	munmap(header, PAGE_BYTES);
	state("the context is withdrawn", &own, 'a', 1);
	publish(NULL);
}

static void in_a_span(void)
{
	fill(&own, 0xA1, 'a');
	set_valid(1);
	publish(&own);
	state("in a span", &own, 'a', 1);
}

static void set_up(void)
{
	static const char image[] = ".version 7.0\n.target sm_70\n.visible .entry work() { ret; }\n";
	int code = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	CUmodule module;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	    cuModuleLoadData(&module, image) || cuModuleGetFunction(&kernel, module, "work"))
		exit(5);
	/* A profiler looks at a process when that maps code. */
	if (mmap(NULL, PAGE_BYTES, PROT_READ | PROT_EXEC, MAP_PRIVATE, code, 0) == MAP_FAILED)
		exit(6);
	answer("{\"ready\": true}");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (argc > 2)
		publish_context(argv[2]);
	set_up();
	if (!strcmp(what, "stops")) {
		stops();
	} else if (!strcmp(what, "lies")) {
		lies();
	} else if (!strcmp(what, "races")) {
		races();
	} else if (!strcmp(what, "names") && argc > 2) {
		names();
	} else if (!strcmp(what, "after")) {
		none("another program");
		in_a_span();
	} else if (!strcmp(what, "exec") || !strcmp(what, "killed")) {
		in_a_span();
	} else {
		return 2;
	}
	tell();
	if (!strcmp(what, "exec"))
		execl("/proc/self/exe", argv[0], "after", NULL);
	return 0;
}
