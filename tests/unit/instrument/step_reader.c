// SPDX-License-Identifier: Apache-2.0
/*
 * Stops a writer after each of its instructions, as a probe may, and reads its record: whenever the
 * record says that it is valid it must be one of the spans that were set, never a mixture.
 * Usage: step_reader LIBRARY. Exits 0 when all holds, 77 when ptrace is not allowed here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                        \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

enum { SPANS = 3, SIZE = 46 };

typedef int set_fn(const uint8_t *, const uint8_t *, const uint8_t *, uint8_t);

static set_fn *set;
static void (*clear)(void);
static uint8_t *record;
static uint8_t expected[SPANS][SIZE];

/* Span n consists of bytes of value n; the second one has no local root. */
static void set_span(uint8_t n)
{
	uint8_t id[16];

	memset(id, n, sizeof(id));
	CHECK(set(id, id, n == 2 ? NULL : id, n) == 0);
}

static size_t record_size(const uint8_t *bytes)
{
	uint16_t attrs_data_size;

	memcpy(&attrs_data_size, bytes + 26, 2);
	return 28 + (size_t)attrs_data_size;
}

static int which_span(const uint8_t *bytes)
{
	for (int i = 0; i < SPANS; i++)
		if (record_size(bytes) == record_size(expected[i]) &&
		    memcmp(bytes, expected[i], record_size(bytes)) == 0)
			return i;
	return -1;
}

static void write_spans(void)
{
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
		_exit(77);
	raise(SIGSTOP);
	set_span(2);
	set_span(3);
	clear();
	set_span(1);
	_exit(0);
}

int main(int argc, char **argv)
{
	uint8_t bytes[SIZE];
	struct iovec local = {bytes, SIZE}, remote;
	int seen[SPANS] = {0}, invalid = 0, status;
	void *library;
	pid_t pid;

	CHECK(argc == 2);
	library = dlopen(argv[1], RTLD_NOW);
	CHECK(library);
	set = (set_fn *)dlsym(library, "ogf_context_set");
	clear = (void (*)(void))dlsym(library, "ogf_context_clear");
	CHECK(set && clear);
	for (int i = SPANS; i > 0; i--) {
		set_span(i);
		record = *(uint8_t **)dlsym(library, "otel_thread_ctx_v1");
		memcpy(expected[i - 1], record, SIZE);
	}
	remote = (struct iovec){record, SIZE};

	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		write_spans();
	CHECK(waitpid(pid, &status, 0) == pid);
	while (WIFSTOPPED(status)) {
		CHECK(process_vm_readv(pid, &local, 1, &remote, 1, 0) == SIZE);
		if (bytes[24] == 1) {
			CHECK(which_span(bytes) >= 0);
			seen[which_span(bytes)]++;
		} else {
			invalid++;
		}
		CHECK(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0);
		CHECK(waitpid(pid, &status, 0) == pid);
	}
	CHECK(WIFEXITED(status));
	if (WEXITSTATUS(status) == 0)
		CHECK(seen[0] && seen[1] && seen[2] && invalid);
	return WEXITSTATUS(status);
}
