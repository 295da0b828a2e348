// SPDX-License-Identifier: Apache-2.0
/* Reads a transcript. A bad line refuses the whole file: nothing runs half understood. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "transcript.h"

#define HEADER      "fake-cuda-transcript 1"
#define MAX_BYTES   (64ULL << 20) /* a copy's buffers are really allocated */
#define MAX_NS      3600000000000ULL
#define MAX_KERNELS 100000ULL
#define BLANKS      " \t\r\n"

struct reader {
	struct ogf_transcript *transcript;
	unsigned int line;
};

static const struct {
	const char *text;
	enum ogf_key key;
} keys[] = {
	{"name", OGF_KEY_NAME},       {"stream", OGF_KEY_STREAM},       {"grid", OGF_KEY_GRID},
	{"block", OGF_KEY_BLOCK},     {"shared_bytes", OGF_KEY_SHARED}, {"duration_ns", OGF_KEY_DURATION},
	{"event", OGF_KEY_EVENT},     {"bytes", OGF_KEY_BYTES},         {"host", OGF_KEY_HOST},
	{"kernels", OGF_KEY_KERNELS},
};

#define REJECT(reader, ...) (reject((reader), __VA_ARGS__), -EINVAL)

static void __attribute__((format(printf, 2, 3))) reject(const struct reader *reader, const char *format, ...)
{
	char reason[200];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(reason, sizeof(reason), format, arguments);
	va_end(arguments);
	ogf_set_error("line %u: %s", reader->line, reason);
}

/* Decimal or 0x…; no sign, no blanks, at most `high`. */
static bool parse_number(const char *text, uint64_t high, uint64_t *ret)
{
	const bool is_hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
	const char *digits = is_hex ? text + 2 : text;
	char *end;

	if (!*digits || strspn(digits, is_hex ? "0123456789abcdefABCDEF" : "0123456789") != strlen(digits))
		return false;
	errno = 0;
	*ret = strtoull(digits, &end, is_hex ? 16 : 10);
	return !errno && *ret <= high;
}

static bool parse_triple(char *text, unsigned int ret[3])
{
	uint64_t value;

	for (int index = 0; index < 3; index++) {
		const size_t size = strcspn(text, ",");

		if ((text[size] == '\0') != (index == 2))
			return false;
		text[size] = '\0';
		if (!parse_number(text, UINT32_MAX, &value) || !value)
			return false;
		ret[index] = (unsigned int)value;
		text += size + 1;
	}
	return true;
}

static enum ogf_key find_key(const char *text)
{
	for (size_t index = 0; index < sizeof(keys) / sizeof(keys[0]); index++)
		if (strcmp(keys[index].text, text) == 0)
			return keys[index].key;
	return 0;
}

static bool parse_value(struct ogf_step *step, enum ogf_key key, char *text)
{
	uint64_t shared;

	switch (key) {
	case OGF_KEY_NAME:
		if (!*text || strlen(text) > OGF_TRANSCRIPT_NAME_BYTES)
			return false;
		step->name = strdup(text);
		return step->name;
	case OGF_KEY_STREAM:
		return parse_number(text, UINT64_MAX, &step->stream);
	case OGF_KEY_GRID:
		return parse_triple(text, step->grid);
	case OGF_KEY_BLOCK:
		return parse_triple(text, step->block);
	case OGF_KEY_SHARED:
		if (!parse_number(text, UINT32_MAX, &shared))
			return false;
		step->shared_bytes = (unsigned int)shared;
		return true;
	case OGF_KEY_DURATION:
		return parse_number(text, MAX_NS, &step->duration_ns);
	case OGF_KEY_EVENT:
		return parse_number(text, UINT64_MAX, &step->event) && step->event;
	case OGF_KEY_BYTES:
		return parse_number(text, MAX_BYTES, &step->size_bytes) && step->size_bytes;
	case OGF_KEY_HOST:
		step->pinned = strcmp(text, "pinned") == 0;
		return step->pinned || strcmp(text, "pageable") == 0;
	case OGF_KEY_KERNELS:
		return parse_number(text, MAX_KERNELS, &step->kernels) && step->kernels;
	}
	return false;
}

static int parse_argument(const struct reader *reader, struct ogf_step *step, char *text)
{
	char *value = strchr(text, '=');
	enum ogf_key key;

	if (!value)
		return REJECT(reader, "'%.60s': want key=value", text);
	*value++ = '\0';
	key = find_key(text);
	if (!key || !(ogf_shape_allowed(step->api->shape) & key))
		return REJECT(reader, "%s takes no argument '%.60s'", step->api->name, text);
	if (step->keys & key)
		return REJECT(reader, "argument '%s' is given twice", text);
	if (!parse_value(step, key, value))
		return REJECT(reader, "bad value of '%s'", text);
	step->keys |= key;
	return 0;
}

static int check_required(const struct reader *reader, const struct ogf_step *step)
{
	const unsigned int missing = ogf_shape_required(step->api->shape) & ~step->keys;

	for (size_t index = 0; index < sizeof(keys) / sizeof(keys[0]); index++)
		if (missing & keys[index].key)
			return REJECT(reader, "%s needs %s=", step->api->name, keys[index].text);
	return 0;
}

static int check_order(const struct reader *reader, const struct ogf_step *step)
{
	struct ogf_transcript *transcript = reader->transcript;

	if (step->offset_ns < transcript->last_ns[step->thread])
		return REJECT(reader, "time goes back in thread %u", step->thread);
	transcript->last_ns[step->thread] = step->offset_ns;
	if (step->thread >= transcript->threads)
		transcript->threads = step->thread + 1;
	return 0;
}

static int parse_stream(const struct reader *reader, char **rest)
{
	struct ogf_transcript *transcript = reader->transcript;
	const char *token = strtok_r(NULL, BLANKS, rest);
	const char *flavour = strtok_r(NULL, BLANKS, rest);
	uint64_t *grown;
	uint64_t stream;

	if (!token || !flavour || strtok_r(NULL, BLANKS, rest) || strcmp(flavour, "nonblocking") != 0 ||
	    !parse_number(token, UINT64_MAX, &stream) || stream <= 2)
		return REJECT(reader, "want: stream <handle above 2> nonblocking");
	grown = reallocarray(transcript->non_blocking, transcript->non_blocking_count + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	transcript->non_blocking = grown;
	grown[transcript->non_blocking_count++] = stream;
	return 0;
}

static struct ogf_step *append(struct ogf_transcript *transcript)
{
	if (transcript->count == transcript->capacity) {
		const size_t capacity = transcript->capacity ? 2 * transcript->capacity : 64;
		struct ogf_step *grown = reallocarray(transcript->steps, capacity, sizeof(*grown));

		if (!grown)
			return NULL;
		transcript->steps = grown;
		transcript->capacity = capacity;
	}
	memset(&transcript->steps[transcript->count], 0, sizeof(*transcript->steps));
	return &transcript->steps[transcript->count++];
}

static int parse_call(const struct reader *reader, const char *first, char **rest)
{
	const char *thread = strtok_r(NULL, BLANKS, rest);
	const char *api = strtok_r(NULL, BLANKS, rest);
	struct ogf_step *step = append(reader->transcript);
	uint64_t thread_index;
	char *argument;
	int error;

	if (!step)
		return -ENOMEM;
	step->line = reader->line;
	for (int index = 0; index < 3; index++)
		step->grid[index] = step->block[index] = 1;
	if (!api)
		return REJECT(reader, "want: <offset_ns> <thread> <api> [key=value ...]");
	if (!parse_number(first, MAX_NS, &step->offset_ns))
		return REJECT(reader, "bad time offset '%.60s'", first);
	if (!parse_number(thread, OGF_TRANSCRIPT_THREADS - 1, &thread_index))
		return REJECT(reader, "bad thread index '%.60s': want 0 to %d", thread, OGF_TRANSCRIPT_THREADS - 1);
	step->thread = (unsigned int)thread_index;
	step->api = ogf_replay_api_find(api);
	if (!step->api)
		return REJECT(reader, "unknown api '%.60s'", api);
	while ((argument = strtok_r(NULL, BLANKS, rest))) {
		error = parse_argument(reader, step, argument);
		if (error)
			return error;
	}
	error = check_required(reader, step);
	return error ? error : check_order(reader, step);
}

static int parse_line(const struct reader *reader, char *text, bool *has_header)
{
	char *rest = NULL;
	char *first;

	text[strcspn(text, "\n")] = '\0';
	if (!*has_header) {
		*has_header = strcmp(text, HEADER) == 0;
		return *has_header ? 0 : REJECT(reader, "want the header '%s'", HEADER);
	}
	first = strtok_r(text, BLANKS, &rest);
	if (!first || *first == '#')
		return 0;
	if (strcmp(first, "stream") == 0)
		return parse_stream(reader, &rest);
	return parse_call(reader, first, &rest);
}

int ogf_transcript_read(const char *path, struct ogf_transcript *ret)
{
	struct reader reader = {.transcript = ret};
	bool has_header = false;
	size_t capacity = 0;
	char *text = NULL;
	ssize_t size = 0;
	int error = 0;
	FILE *file;

	memset(ret, 0, sizeof(*ret));
	file = fopen(path, "re");
	if (!file) {
		error = -errno;
		ogf_set_error("%.150s: %s", path, strerror(-error));
		return error;
	}
	while (!error && (size = getline(&text, &capacity, file)) > 0) {
		reader.line++;
		if (memchr(text, '\0', (size_t)size))
			error = REJECT(&reader, "a zero byte: not a text file");
		else
			error = parse_line(&reader, text, &has_header);
	}
	if (!error && !has_header)
		error = REJECT(&reader, "empty file: want the header '%s'", HEADER);
	free(text);
	fclose(file);
	if (error)
		ogf_transcript_free(ret);
	return error;
}

void ogf_transcript_free(struct ogf_transcript *transcript)
{
	for (size_t index = 0; index < transcript->count; index++)
		free(transcript->steps[index].name);
	free(transcript->steps);
	free(transcript->non_blocking);
	memset(transcript, 0, sizeof(*transcript));
}
