// SPDX-License-Identifier: Apache-2.0
#ifndef OGF_PYTHON_SWITCH_H
#define OGF_PYTHON_SWITCH_H

/*
 * Keeps a thread's record in step with the contextvars.Context that the thread runs in.
 *
 * A context variable of ours holds what the Context publishes. Whenever a thread enters or leaves a
 * Context, and whenever the variable is set, the record is written anew from the variable. CPython
 * 3.14 reports such switches (PyContext_AddWatcher); in older ones the functions that make them are
 * replaced: Context.run, and PyContext_Enter and PyContext_Exit as extension modules call them.
 *
 * This library is not linked with Python, so that one build serves every version of it: the caller
 * hands over the addresses of the public C functions. All calls need the GIL.
 */

#include <stddef.h>

/* CPython's object: only its address is used. */
typedef struct ogf_object ogf_object;

/* The value of the variable is None, or a tuple whose first item is a bytes: a struct ogf_context_record. */
struct ogf_python {
	int (*PyContext_Enter)(ogf_object *context);
	int (*PyContext_Exit)(ogf_object *context);
	int (*PyContextVar_Get)(ogf_object *variable, ogf_object *fallback, ogf_object **value);
	ogf_object *(*PyContextVar_Set)(ogf_object *variable, ogf_object *value);
	ogf_object *(*PyObject_VectorcallDict)(ogf_object *callable, ogf_object *const *args, size_t count,
					       ogf_object *keywords);
	ogf_object *(*PyTuple_GetItem)(ogf_object *tuple, ptrdiff_t index);
	ptrdiff_t (*PyTuple_Size)(ogf_object *tuple);
	ogf_object *(*PyDict_New)(void);
	int (*PyDict_SetItem)(ogf_object *dict, ogf_object *key, ogf_object *value);
	char *(*PyBytes_AsString)(ogf_object *bytes);
	ptrdiff_t (*PyBytes_Size)(ogf_object *bytes);
	void (*Py_IncRef)(ogf_object *object);
	void (*Py_DecRef)(ogf_object *object);
	ogf_object *(*PyErr_Occurred)(void);
	void (*PyErr_Fetch)(ogf_object **type, ogf_object **value, ogf_object **traceback);
	void (*PyErr_Restore)(ogf_object *type, ogf_object *value, ogf_object *traceback);
	void (*PyErr_Clear)(void);
	void (*PyErr_SetString)(ogf_object *type, const char *text);
	ogf_object *(*PyDescr_NewMethod)(ogf_object *type, void *definition);
	ogf_object *(*PyCFunction_NewEx)(void *definition, ogf_object *self, ogf_object *module);
	/* An exception class, and None. */
	ogf_object *TypeError;
	ogf_object *None;
};

/* Sets the functions and the variable; both must live as long as the process. Publishes nothing yet. */
void ogf_switch_init(const struct ogf_python *functions, ogf_object *variable);

/* Whether switches publish. While they do not, each clears the record of its thread. */
void ogf_switch_enable(int enabled);

/* Writes the calling thread's record from the variable. */
void ogf_switch_refresh(void);

/*
 * New reference: a function of Python that gives the variable a value and writes the record from it;
 * calling it takes a fifth of the time of a call through ctypes. NULL with an exception if there is
 * no memory.
 */
ogf_object *ogf_switch_set_function(void);

/* How many switches were seen so far: by it an installation finds out that it works. */
unsigned long ogf_switch_count(void);

/* For PyContext_AddWatcher. */
int ogf_switch_watcher(int event, ogf_object *context);

/* New reference: a method `run` for contextvars.Context. NULL with an exception if there is no memory. */
ogf_object *ogf_switch_run_method(ogf_object *context_type);

/*
 * Lets PyContext_Enter and PyContext_Exit of loaded libraries come through here. `library` is the
 * path of one that was just loaded, or NULL for all. Returns how many call slots changed, or
 * a negative errno.
 */
int ogf_switch_follow(const char *library);

#endif
