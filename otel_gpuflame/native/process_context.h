// SPDX-License-Identifier: Apache-2.0
#ifndef OGF_PROCESS_CONTEXT_H
#define OGF_PROCESS_CONTEXT_H

#include <stdint.h>

/*
 * Publishes what this process says of itself, in the layout of OTEP 4719: a header in a mapping that
 * readers find by its name, OTEL_CTX, in /proc/PID/maps. A child does not inherit it.
 *
 * `payload` is a serialised ProcessContext message; it is copied, and replaces what was published
 * before. One call at a time. Returns 0 or a negative errno, after which what was published stands.
 */
int ogf_process_context_publish(const uint8_t *payload, uint32_t size);

#endif
