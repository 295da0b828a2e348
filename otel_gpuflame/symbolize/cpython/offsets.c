/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints, for the CPython whose headers it is compiled with, where the frame walk and the code reader find their
 * fields: one `name value` a line. See README.md; regenerate.py compiles and runs this.
 */
#define Py_BUILD_CORE 1
#include <Python.h>

#include <stddef.h>
#include <stdio.h>

#include "internal/pycore_interp.h"
#include "internal/pycore_runtime.h"
#if PY_VERSION_HEX >= 0x030b0000
#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"
#if PY_VERSION_HEX >= 0x030e0000
#include "internal/pycore_interpframe.h"
#endif
#else
#include <frameobject.h>
#endif

static void ogf_print(const char *name, long value)
{
	printf("%s %ld\n", name, value);
}

#define OGF_FIELD(name, type, field) ogf_print(name, (long)offsetof(type, field))

static void ogf_print_threads(void)
{
	OGF_FIELD("runtime_interpreters_head", _PyRuntimeState, interpreters.head);
#if PY_VERSION_HEX >= 0x030b0000
	OGF_FIELD("interpreter_threads_head", PyInterpreterState, threads.head);
#else
	OGF_FIELD("interpreter_threads_head", PyInterpreterState, tstate_head);
#endif
	OGF_FIELD("interpreter_next", PyInterpreterState, next);
	OGF_FIELD("thread_next", PyThreadState, next);
	OGF_FIELD("thread_id", PyThreadState, thread_id);
}

static void ogf_print_frames(void)
{
#if PY_VERSION_HEX >= 0x030d0000
	OGF_FIELD("thread_frame", PyThreadState, current_frame);
	OGF_FIELD("frame_code", _PyInterpreterFrame, f_executable);
	OGF_FIELD("frame_instruction", _PyInterpreterFrame, instr_ptr);
#elif PY_VERSION_HEX >= 0x030b0000
	OGF_FIELD("thread_frame", PyThreadState, cframe);
	OGF_FIELD("cframe_frame", _PyCFrame, current_frame);
	ogf_print("has_cframe", 1);
	OGF_FIELD("frame_code", _PyInterpreterFrame, f_code);
	OGF_FIELD("frame_instruction", _PyInterpreterFrame, prev_instr);
#endif
#if PY_VERSION_HEX >= 0x030b0000
	OGF_FIELD("frame_previous", _PyInterpreterFrame, previous);
	OGF_FIELD("frame_owner", _PyInterpreterFrame, owner);
#else
	OGF_FIELD("thread_frame", PyThreadState, frame);
	OGF_FIELD("frame_code", PyFrameObject, f_code);
	OGF_FIELD("frame_previous", PyFrameObject, f_back);
	OGF_FIELD("frame_instruction", PyFrameObject, f_lasti);
	ogf_print("instruction_is_index", 1);
#endif
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000
	OGF_FIELD("frame_entry", _PyInterpreterFrame, is_entry);
#endif
#if PY_VERSION_HEX >= 0x030e0000
	ogf_print("skip_owner", FRAME_OWNED_BY_INTERPRETER);
#elif PY_VERSION_HEX >= 0x030c0000
	ogf_print("skip_owner", FRAME_OWNED_BY_CSTACK);
#endif
}

static void ogf_print_code(void)
{
	OGF_FIELD("code_filename", PyCodeObject, co_filename);
	OGF_FIELD("code_first_line", PyCodeObject, co_firstlineno);
	OGF_FIELD("code_line_table", PyCodeObject, co_linetable);
#if PY_VERSION_HEX >= 0x030b0000
	OGF_FIELD("code_name", PyCodeObject, co_qualname);
	OGF_FIELD("code_instructions", PyCodeObject, co_code_adaptive);
#else
	OGF_FIELD("code_name", PyCodeObject, co_name);
#endif
#if PY_VERSION_HEX >= 0x030c0000
	OGF_FIELD("code_version", PyCodeObject, co_version);
#endif
	OGF_FIELD("object_type", PyObject, ob_type);
	OGF_FIELD("object_size", PyVarObject, ob_size);
	OGF_FIELD("bytes_data", PyBytesObject, ob_sval);
	OGF_FIELD("text_length", PyASCIIObject, length);
	OGF_FIELD("text_state", PyASCIIObject, state);
	ogf_print("text_ascii_header", (long)sizeof(PyASCIIObject));
	ogf_print("text_compact_header", (long)sizeof(PyCompactUnicodeObject));
}

int main(void)
{
	ogf_print("major", PY_MAJOR_VERSION);
	ogf_print("minor", PY_MINOR_VERSION);
	ogf_print_threads();
	ogf_print_frames();
	ogf_print_code();
	return 0;
}
