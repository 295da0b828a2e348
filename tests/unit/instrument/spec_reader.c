// SPDX-License-Identifier: Apache-2.0
/*
 * Reads the record of its own threads as OTEP 4947 describes it, knowing the specification and not
 * our header. Usage: spec_reader LIBRARY GOT_OFFSET; GOT_OFFSET is the file address of the word
 * that holds the thread-pointer offset of otel_thread_ctx_v1 after relocation.
 * Prints nothing and exits 0 when all holds, else names the line that failed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                        \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

typedef int set_fn(const uint8_t *, const uint8_t *, const uint8_t *, uint8_t);

static set_fn *set;
static void (*clear)(void);
static void *library;
static uint64_t got_offset;
static pthread_key_t late_key;

static const uint8_t trace_id[16] = {0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6,
				     0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36};
static const uint8_t span_id[8] = {0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7};
static const uint8_t local_root[8] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};

static const uint8_t *record(void)
{
	const uint8_t **slot = dlsym(library, "otel_thread_ctx_v1");

	CHECK(slot);
	return *slot;
}

static void check_span(const uint8_t *bytes)
{
	uint16_t size;

	CHECK((uintptr_t)bytes % 2 == 0);
	CHECK(memcmp(bytes, trace_id, 16) == 0);
	CHECK(memcmp(bytes + 16, span_id, 8) == 0);
	CHECK(bytes[24] == 1);
	CHECK(bytes[25] == 0x03);
	memcpy(&size, bytes + 26, 2);
	CHECK(size == 18);
	CHECK(bytes[28] == 0 && bytes[29] == 16);
	CHECK(memcmp(bytes + 30, "0123456789abcdef", 16) == 0);
}

#ifdef __x86_64__
static void check_got(void)
{
	uint64_t thread_pointer, offset;
	const uint8_t *slot = dlsym(library, "otel_thread_ctx_v1");
	Dl_info info;

	__asm__("mov %%fs:0, %0" : "=r"(thread_pointer));
	CHECK(dladdr((void *)set, &info));
	memcpy(&offset, (const uint8_t *)info.dli_fbase + got_offset, 8);
	CHECK(thread_pointer + offset == (uint64_t)slot);
}
#else
static void check_got(void)
{
	CHECK(got_offset == 0);
}
#endif

/* Runs after the destructor of the record, whose key is older. */
static void check_no_record(void *unused)
{
	(void)unused;
	CHECK(record() == NULL);
}

/* Returns the address of this thread's pointer, so that the caller sees whether it was reused. */
static void *use_a_thread(void *unused)
{
	(void)unused;
	CHECK(record() == NULL);
	clear();
	CHECK(record() == NULL);
	check_got();
	CHECK(set(trace_id, span_id, local_root, 0x03) == 0);
	check_span(record());
	CHECK(pthread_setspecific(late_key, &late_key) == 0);
	return dlsym(library, "otel_thread_ctx_v1");
}

static void *run_thread(void)
{
	pthread_t thread;
	void *ret;

	CHECK(pthread_create(&thread, NULL, use_a_thread, NULL) == 0);
	CHECK(pthread_join(thread, &ret) == 0);
	return ret;
}

int main(int argc, char **argv)
{
	static const uint8_t zeros[16];
	const uint8_t *first;
	void *address;

	CHECK(argc == 3);
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
	got_offset = strtoull(argv[2], NULL, 0);
	set = (set_fn *)dlsym(library, "ogf_context_set");
	clear = (void (*)(void))dlsym(library, "ogf_context_clear");
	CHECK(set && clear);

	CHECK(pthread_key_create(&late_key, check_no_record) == 0);
	CHECK(record() == NULL);
	CHECK(set(zeros, span_id, local_root, 0) < 0);
	CHECK(record() == NULL);

	CHECK(set(trace_id, span_id, local_root, 0x03) == 0);
	first = record();
	check_span(first);
	address = run_thread();
	CHECK(run_thread() == address); /* the same TLS block, and no record in it */
	check_span(first);

	clear();
	CHECK(record() == first && first[24] == 0);
	CHECK(set(trace_id, span_id, NULL, 0) == 0);
	CHECK(record() == first && first[24] == 1 && first[25] == 0);
	CHECK(first[26] == 0 && first[27] == 0);
	CHECK(set(trace_id, zeros, local_root, 0) < 0);
	CHECK(record() == first && first[24] == 0);

	/* Threads may outlive a dlclose(): the library and its destructor stay. */
	CHECK(dlclose(library) == 0);
	CHECK(dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD));
	return 0;
}
