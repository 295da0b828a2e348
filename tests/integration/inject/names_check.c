// SPDX-License-Identifier: Apache-2.0
/* Interns names at one address whose text changes, as when a module is unloaded and another takes its place. */
#include <stdio.h>
#include <string.h>

#include "inject.h"

static char region[OGF_GPU_NAMES_BYTES];
static uint64_t head_bytes;

char *ogf_region_names(void)
{
	return region;
}

void ogf_set_names_head(uint64_t size_bytes)
{
	head_bytes = size_bytes;
}

void ogf_count(enum ogf_gpu_counter counter, uint64_t amount)
{
	printf("counted %d %d\n", (int)counter, (int)amount);
}

static void show(const char *name)
{
	const uint32_t id = ogf_name_intern(name);
	struct ogf_gpu_name header = {0};

	if (id)
		memcpy(&header, region + id - 1, sizeof(header));
	printf("%u %.*s\n", id, (int)header.size_bytes, region + (id ? id - 1 + sizeof(header) : 0));
}

int main(void)
{
	static char text[64];
	const char *const texts[] = {"kernel_one", "kernel_two", "kernel", "kernel_one_longer", "kernel_one"};

	for (size_t index = 0; index < sizeof(texts) / sizeof(texts[0]); index++) {
		strcpy(text, texts[index]);
		show(text);
	}
	show("kernel_two");                   /* another address */
	memset(region, 0xff, sizeof(region)); /* an exporter that writes where it should not */
	show(text);
	show("");
	show(NULL);
	printf("%llu\n", (unsigned long long)head_bytes);
	return 0;
}
