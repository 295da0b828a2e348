// SPDX-License-Identifier: Apache-2.0
/* Mentions each type of the injected library's region once, so that the compiler writes them into BTF. */
#include "../otel_gpuflame/native/gpu_region.h"

struct ogf_gpu_library library;
struct ogf_gpu_control control;
struct ogf_gpu_record record;
enum ogf_gpu_limit limit;
enum ogf_gpu_kind kind;
enum ogf_gpu_incomplete incomplete;
enum ogf_gpu_state state;
enum ogf_gpu_error error;
enum ogf_gpu_counter counter;
