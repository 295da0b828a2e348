/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls through code of every kind (program, libraries, run-time compiled), with frame pointers, then prints its chain
 * of return addresses, leaf first, as hexadecimal numbers on one line, and waits until standard input ends.
 * Arguments: library with names, library without names, library that is deleted once loaded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void (*ogf_step_fn)(void **steps);

static const uint8_t ogf_compiled[] = {
	0x55,                   /* push %rbp */
	0x48, 0x89, 0xe5,       /* mov %rsp,%rbp */
	0x48, 0x83, 0xc7, 0x08, /* add $8,%rdi */
	0xff, 0x17,             /* call *(%rdi) */
	0x5d,                   /* pop %rbp */
	0xc3,                   /* ret */
};

static void ogf_leaf(void **steps)
{
	uintptr_t *frame = __builtin_frame_address(0);
	char byte;

	(void)steps;
	while (frame[1] && frame[0] > (uintptr_t)frame) {
		printf("%lx ", (unsigned long)frame[1]);
		frame = (uintptr_t *)frame[0];
	}
	printf("\n");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
}

static void *ogf_step_of(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);
	ogf_step_fn *step = library ? dlsym(library, "ogf_step_entry") : NULL;

	if (!step) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return *step;
}

static void *ogf_compile(void)
{
	int access = PROT_READ | PROT_WRITE | PROT_EXEC;
	void *code = mmap(NULL, 4096, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char path[64];
	FILE *map;

	memcpy(code, ogf_compiled, sizeof(ogf_compiled));
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
	if (!getenv("OGF_PERF_MAP"))
		return code;
	map = fopen(path, "w");
	fprintf(map, "%lx %zx compiled function\n", (unsigned long)code, sizeof(ogf_compiled));
	fclose(map);
	return code;
}

/* Named as a C++ compiler names space::outer(void**). */
void ogf_outer(void **steps) __asm__("_ZN5space5outerEPPv");

__attribute__((noinline)) void ogf_outer(void **steps)
{
	((ogf_step_fn)steps[0])(steps);
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	void *steps[5];

	if (argc != 4)
		return 2;
	for (int i = 0; i < 3; i++)
		steps[i] = ogf_step_of(argv[i + 1]);
	unlink(argv[3]);
	steps[3] = ogf_compile();
	steps[4] = ogf_leaf;
	ogf_outer(steps);
	return 0;
}
