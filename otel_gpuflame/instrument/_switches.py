# SPDX-License-Identifier: Apache-2.0
"""Lets the library see every switch of a thread to another ``contextvars.Context``.

CPython 3.14 tells watchers of such switches. Older versions tell nobody, so there the functions
that make them are replaced: the method ``Context.run``, and what extension modules import (uvloop,
and asyncio's eager tasks, call the C functions). docs/decisions/0012-span-publication.md weighs it.
"""

from __future__ import annotations

import asyncio.tasks
import contextvars
import ctypes
import functools
import gc
import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Any

from otel_gpuflame.errors import OtelGpuflameError
from otel_gpuflame.instrument._library import NativeContextLibrary

# The order of struct ogf_python.
_FUNCTIONS = (
    "PyContext_Enter",
    "PyContext_Exit",
    "PyContextVar_Get",
    "PyContextVar_Set",
    "PyObject_VectorcallDict",
    "PyTuple_GetItem",
    "PyTuple_Size",
    "PyDict_New",
    "PyDict_SetItem",
    "PyBytes_AsString",
    "PyBytes_Size",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Occurred",
    "PyErr_Fetch",
    "PyErr_Restore",
    "PyErr_Clear",
    "PyErr_SetString",
    "PyDescr_NewMethod",
    "PyCFunction_NewEx",
)


class SwitchesUnseenError(OtelGpuflameError):
    """This Python does not let us see the switches of its threads. The text says why."""


def follow_switches(library: NativeContextLibrary, variable: contextvars.ContextVar[Any]) -> None:
    """Puts the library in the way of all switches, for as long as the process lives.

    Args:
        library: writes the record.
        variable: holds, in each Context, a tuple that starts with the image of its record.

    Raises:
        SwitchesUnseenError: it cannot be done in this Python. Nothing is published then.
    """
    if sys.implementation.name != "cpython":
        raise SwitchesUnseenError(f"{sys.implementation.name} is not CPython")
    try:
        _hand_over(library, variable)
        if hasattr(ctypes.pythonapi, "PyContext_AddWatcher"):
            _watch(library)
        else:
            _replace_run(library)
            _follow_extensions(library)
            _follow_eager_tasks(library)
    except (AttributeError, OSError) as error:
        raise SwitchesUnseenError(f"switches of contextvars cannot be seen: {error}") from error
    seen = library.switch_count()
    contextvars.Context().run(int)
    # One to enter and one to leave. A watcher may be told of fewer, never of none.
    if library.switch_count() == seen:
        raise SwitchesUnseenError("a switch of contextvars went unseen")


def _hand_over(library: NativeContextLibrary, variable: contextvars.ContextVar[Any]) -> None:
    api = ctypes.pythonapi
    addresses = [ctypes.cast(getattr(api, name), ctypes.c_void_p).value for name in _FUNCTIONS]
    addresses += [id(TypeError), id(None)]
    table = (ctypes.c_void_p * len(addresses))(*addresses)
    # It is copied; the variable lives in a module, hence as long as the process.
    library.init(ctypes.addressof(table), variable)
    library.set = library.set_function()


def _watch(library: NativeContextLibrary) -> None:
    add_watcher = ctypes.pythonapi.PyContext_AddWatcher
    add_watcher.argtypes = [ctypes.c_void_p]
    try:
        add_watcher(ctypes.cast(library.watcher, ctypes.c_void_p))
    except RuntimeError as error:  # At most eight watchers.
        raise OSError(str(error)) from error


def _replace_run(library: NativeContextLibrary) -> None:
    # A type of C cannot be assigned to, but the dictionary behind its read-only view can.
    (namespace,) = gc.get_referents(contextvars.Context.__dict__)
    if type(namespace) is not dict or namespace.get("run") is not contextvars.Context.run:
        raise AttributeError("contextvars.Context has another layout")
    namespace["run"] = library.run_method(contextvars.Context)
    modified = ctypes.pythonapi.PyType_Modified
    modified.argtypes = [ctypes.py_object]
    modified.restype = None
    modified(contextvars.Context)


def _follow_extensions(library: NativeContextLibrary) -> None:
    _raise_for(library.follow(None))
    original = ExtensionFileLoader.create_module

    @functools.wraps(original)
    def create_module(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
        module = original(self, spec)
        if spec.origin is not None:
            library.follow(os.fsencode(spec.origin))
        return module

    ExtensionFileLoader.create_module = create_module  # type: ignore[method-assign]


def _follow_eager_tasks(library: NativeContextLibrary) -> None:
    """Where asyncio is part of the executable, its eager tasks call without a slot to change.

    A task that suspends in its eager step is added to this set just after its Context was left.
    """
    if sys.version_info < (3, 12) or "_asyncio" not in sys.builtin_module_names:
        return
    tasks: Any = asyncio.tasks._scheduled_tasks
    original = tasks.add

    def add(task: object) -> None:
        library.refresh()
        original(task)

    tasks.add = add


def _raise_for(status: int) -> None:
    if status < 0:
        raise OSError(-status, os.strerror(-status))
