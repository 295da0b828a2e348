// SPDX-License-Identifier: Apache-2.0
/* The exporter's page: any value can stand there, and can change at any time. */
#include "inject.h"

/*
 * A lease counts from when it was first seen. Measured against the clock at each look, one that lies for ever ahead
 * would never run out.
 */
struct ogf_lease ogf_lease_read(uint64_t now_ns)
{
	static struct ogf_lease seen, given;
	const struct ogf_gpu_control *control = ogf_region_control();
	const struct ogf_lease latest = {
		.until_ns = __atomic_load_n(&control->lease_until_ns, __ATOMIC_ACQUIRE),
		.generation = __atomic_load_n(&control->generation, __ATOMIC_ACQUIRE),
	};

	if (latest.until_ns != seen.until_ns || latest.generation != seen.generation) {
		seen = latest;
		given = latest;
		if (given.until_ns > now_ns && given.until_ns - now_ns > OGF_LEASE_MAX_NS)
			given.until_ns = now_ns + OGF_LEASE_MAX_NS;
	}
	return given;
}
