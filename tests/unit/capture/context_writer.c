// SPDX-License-Identifier: Apache-2.0
/*
 * Publishes a process context as OTEP 4719 describes it, knowing the specification and not our reader.
 * Usage: context_writer PAYLOAD... (hexadecimal). The first one is published at once. Then one command a line of
 * standard input, each answered with a line:
 *   publish N       replace the payload by the Nth, in place
 *   updating        stop in the middle of an update
 *   poke AT N       write the 4 bytes of N at the offset AT of the header
 *   race            replace the payload again and again, until the next line comes
 *   fork            fork a child, which lives as long as this process; answers its pid
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA           0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

enum { MAPPING_BYTES = 4096, MAX_PAYLOADS = 8, MAX_PAYLOAD_BYTES = 1 << 17 };

struct header {
	char signature[8];
	uint32_t version;
	uint32_t payload_bytes;
	_Atomic uint64_t published_ns;
	uint64_t payload;
};

_Static_assert(sizeof(struct header) == 32, "as in the specification");

static struct header *header;
static uint8_t buffer[MAX_PAYLOAD_BYTES];
static uint8_t *payloads[MAX_PAYLOADS];
static uint32_t sizes[MAX_PAYLOADS];
static int count;

static uint64_t boottime_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void name_mapping(void)
{
	prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, header, MAPPING_BYTES, "OTEL_CTX");
}

static void publish(int index)
{
	uint64_t before = header->published_ns, now = boottime_ns();

	header->published_ns = 0;
	atomic_thread_fence(memory_order_seq_cst);
	memcpy(buffer, payloads[index], sizes[index]);
	header->payload = (uintptr_t)buffer;
	header->payload_bytes = sizes[index];
	atomic_thread_fence(memory_order_seq_cst);
	header->published_ns = now > before ? now : before + 1;
	name_mapping();
}

static void map_header(void)
{
	int fd = memfd_create("OTEL_CTX", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, MAPPING_BYTES))
		exit(2);
	header = mmap(NULL, MAPPING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (header == MAP_FAILED || madvise(header, MAPPING_BYTES, MADV_DONTFORK))
		exit(2);
	close(fd);
	memcpy(header->signature, "OTEL_CTX", 8);
	header->version = 2;
}

static void parse_payload(const char *hex)
{
	size_t length = strlen(hex) / 2;
	uint8_t *bytes = malloc(length + 1);
	unsigned int byte;

	if (!bytes || count == MAX_PAYLOADS || length > MAX_PAYLOAD_BYTES)
		exit(2);
	for (size_t i = 0; i < length; i++) {
		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			exit(2);
		bytes[i] = byte;
	}
	sizes[count] = length;
	payloads[count++] = bytes;
}

static void race(void)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

	for (int i = 0; poll(&input, 1, 0) == 0; i++)
		publish(i % count);
}

static pid_t fork_child(void)
{
	pid_t child = fork();

	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pause();
	_exit(0);
}

static void obey(const char *line)
{
	unsigned int first = 0, second = 0;

	if (sscanf(line, "publish %u", &first) == 1 && first < (unsigned int)count) {
		publish(first);
	} else if (!strncmp(line, "updating", 8)) {
		header->published_ns = 0;
	} else if (sscanf(line, "poke %u %u", &first, &second) == 2 && first <= sizeof(*header) - 4) {
		memcpy((char *)header + first, &second, sizeof(second));
	} else if (!strncmp(line, "race", 4)) {
		printf("racing\n");
		fflush(stdout);
		race();
	} else if (!strncmp(line, "fork", 4)) {
		printf("%d\n", fork_child());
		fflush(stdout);
		return;
	}
	printf("ok\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char line[256];

	/* Unbuffered, so that poll() sees what fgets() has not taken. */
	setvbuf(stdin, NULL, _IONBF, 0);
	map_header();
	for (int i = 1; i < argc; i++)
		parse_payload(argv[i]);
	if (!count)
		return 2;
	publish(0);
	printf("ok\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	return 0;
}
