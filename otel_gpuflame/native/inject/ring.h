/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OGF_INJECT_RING_H
#define OGF_INJECT_RING_H

#include "../gpu_region.h"

void ogf_ring_init(struct ogf_gpu_record *slots, struct ogf_gpu_library *library,
		   const struct ogf_gpu_control *control);

#endif
