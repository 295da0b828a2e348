// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The capture object: GPU driver calls with stack and span, names of GPU functions, life of the captured processes.
 * Programs are small and live in headers by subject, because they share maps and the loader attaches one object.
 */
#include "ogf_autograd.bpf.h"
#include "ogf_calls.bpf.h"
#include "ogf_cpu.bpf.h"
#include "ogf_driver.bpf.h"
#include "ogf_names.bpf.h"
#include "ogf_process.bpf.h"
#include "ogf_unwind.h"
#include "ogf_xid.bpf.h"

/* A type that nothing refers to is left out of BTF, and wire.py is generated from there. */
const enum ogf_kind _keep_kind __attribute__((unused)) = OGF_KIND_NONE;
const enum ogf_outcome _keep_outcome __attribute__((unused)) = OGF_OUTCOME_SEEN;
const enum ogf_off_cpu_state _keep_off_cpu_state __attribute__((unused)) = OGF_OFF_CPU_PREEMPTED;
const enum ogf_device_driver _keep_device_driver __attribute__((unused)) = OGF_DEVICE_OTHER;
const enum ogf_call_flag _keep_call_flag __attribute__((unused)) = OGF_CALL_RETURNED;
const enum ogf_python_state _keep_python_state __attribute__((unused)) = OGF_PYTHON_NONE;
const enum ogf_native_state _keep_native_state __attribute__((unused)) = OGF_NATIVE_END;
const enum ogf_process_change _keep_process_change __attribute__((unused)) = OGF_PROCESS_FORK;
const enum ogf_cookie_shift _keep_cookie_shift __attribute__((unused)) = OGF_COOKIE_API;
const enum ogf_shape _keep_shape __attribute__((unused)) = OGF_SHAPE_PLAIN;
const enum ogf_name_shape _keep_name_shape __attribute__((unused)) = OGF_NAME_OUT_POINTER;
const struct ogf_call_event *_keep_call_event __attribute__((unused));
const struct ogf_stack_event *_keep_stack_event __attribute__((unused));
const struct ogf_python_frame *_keep_python_frame __attribute__((unused));
const struct ogf_name_event *_keep_name_event __attribute__((unused));
const struct ogf_process_event *_keep_process_event __attribute__((unused));
const struct ogf_xid_event *_keep_xid_event __attribute__((unused));
const struct ogf_settings *_keep_settings __attribute__((unused));
const struct ogf_cost *_keep_cost __attribute__((unused));
const struct ogf_unwind_row *_keep_unwind_row __attribute__((unused));
const struct ogf_unwind_mapping *_keep_unwind_mapping __attribute__((unused));
const enum ogf_rule_kind _keep_rule_kind __attribute__((unused)) = OGF_RULE_NONE;
const enum ogf_rule_shift _keep_rule_shift __attribute__((unused)) = OGF_RULE_OPERAND;
const enum ogf_walk_outcome _keep_walk_outcome __attribute__((unused)) = OGF_WALK_REMEMBERED;

char LICENSE[] SEC("license") = "Dual BSD/GPL";
