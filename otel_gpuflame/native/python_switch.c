// SPDX-License-Identifier: Apache-2.0
#include "python_switch.h"

#include "context.h"
#include "imports.h"

#include <string.h>

#define OGF_EXPORT __attribute__((visibility("default")))

/* The public layout of CPython's PyMethodDef. */
struct method_definition {
	const char *name;
	void *function;
	int flags;
	const char *documentation;
};

enum {
	METH_O = 0x0008,
	METH_FASTCALL_WITH_KEYWORDS = 0x0082,
};

static struct ogf_python python;
static ogf_object *variable;
static int publishing;
static unsigned long switches;

static void publish(ogf_object *entry)
{
	ogf_object *image = python.PyTuple_GetItem(entry, 0);

	if (image && python.PyBytes_Size(image) == sizeof(struct ogf_context_record)) {
		ogf_context_copy((const struct ogf_context_record *)python.PyBytes_AsString(image));
		return;
	}
	python.PyErr_Clear();
	ogf_context_clear();
}

static void refresh(void)
{
	ogf_object *entry = NULL;

	if (!publishing) {
		ogf_context_clear();
		return;
	}
	if (python.PyContextVar_Get(variable, NULL, &entry) != 0)
		python.PyErr_Clear();
	if (!entry) {
		ogf_context_clear();
		return;
	}
	if (entry == python.None)
		ogf_context_clear();
	else
		publish(entry);
	python.Py_DecRef(entry);
}

/* A Context is also left by exceptions: what is pending stays pending. */
static void note_switch(void)
{
	ogf_object *type, *value, *traceback;

	switches++;
	if (!python.PyErr_Occurred()) {
		refresh();
		return;
	}
	python.PyErr_Fetch(&type, &value, &traceback);
	refresh();
	python.PyErr_Restore(type, value, traceback);
}

static int enter(ogf_object *context)
{
	int err = python.PyContext_Enter(context);

	note_switch();
	return err;
}

static int leave(ogf_object *context)
{
	int err = python.PyContext_Exit(context);

	note_switch();
	return err;
}

static ogf_object *call(ogf_object *const *args, size_t count, ogf_object *names)
{
	ptrdiff_t named = names ? python.PyTuple_Size(names) : 0;
	ogf_object *keywords, *result = NULL;

	/* PyObject_Vectorcall would take the names as they are, but CPython 3.10 does not export it. */
	if (named == 0)
		return python.PyObject_VectorcallDict(args[0], args + 1, count - 1, NULL);
	keywords = python.PyDict_New();
	if (!keywords)
		return NULL;
	for (ptrdiff_t i = 0; i < named; i++)
		if (python.PyDict_SetItem(keywords, python.PyTuple_GetItem(names, i), args[count + i]) != 0)
			goto out;
	result = python.PyObject_VectorcallDict(args[0], args + 1, count - 1, keywords);
out:
	python.Py_DecRef(keywords);
	return result;
}

static ogf_object *run(ogf_object *context, ogf_object *const *args, ptrdiff_t count, ogf_object *names)
{
	ogf_object *result;

	if (count < 1) {
		python.PyErr_SetString(python.TypeError, "run() missing 1 required positional argument");
		return NULL;
	}
	if (enter(context) != 0)
		return NULL;
	result = call(args, (size_t)count, names);
	if (leave(context) != 0 && result) {
		python.Py_DecRef(result);
		result = NULL;
	}
	return result;
}

static ogf_object *set(ogf_object *module, ogf_object *entry)
{
	ogf_object *token = python.PyContextVar_Set(variable, entry);

	(void)module;
	if (!token)
		return NULL;
	python.Py_DecRef(token);
	if (publishing && entry != python.None)
		publish(entry);
	else
		ogf_context_clear();
	python.Py_IncRef(python.None);
	return python.None;
}

OGF_EXPORT void ogf_switch_init(const struct ogf_python *functions, ogf_object *record_variable)
{
	python = *functions;
	variable = record_variable;
}

OGF_EXPORT void ogf_switch_enable(int enabled)
{
	publishing = enabled;
}

OGF_EXPORT void ogf_switch_refresh(void)
{
	refresh();
}

OGF_EXPORT unsigned long ogf_switch_count(void)
{
	return switches;
}

OGF_EXPORT int ogf_switch_watcher(int event, ogf_object *context)
{
	(void)event;
	(void)context;
	note_switch();
	return 0;
}

OGF_EXPORT ogf_object *ogf_switch_set_function(void)
{
	static struct method_definition definition = {.name = "set", .function = (void *)set, .flags = METH_O};

	return python.PyCFunction_NewEx(&definition, NULL, NULL);
}

OGF_EXPORT ogf_object *ogf_switch_run_method(ogf_object *context_type)
{
	static struct method_definition definition = {
		.name = "run",
		.function = (void *)run,
		.flags = METH_FASTCALL_WITH_KEYWORDS,
	};

	return python.PyDescr_NewMethod(context_type, &definition);
}

OGF_EXPORT int ogf_switch_follow(const char *library)
{
	static const struct ogf_import imports[] = {
		{.name = "PyContext_Enter", .replacement = (void *)enter},
		{.name = "PyContext_Exit", .replacement = (void *)leave},
	};

	return ogf_replace_imports(library, imports, sizeof(imports) / sizeof(imports[0]));
}
