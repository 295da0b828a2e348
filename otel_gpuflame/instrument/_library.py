# SPDX-License-Identifier: Apache-2.0
"""Finds and loads ``libogf_context.so``; knows its functions and nothing about spans."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from otel_gpuflame.errors import OtelGpuflameError

LIBRARY_VARIABLE = "OTEL_GPUFLAME_CONTEXT_LIB"
LIBRARY_NAME = "libogf_context.so"


class LibraryUnavailableError(OtelGpuflameError):
    """The library cannot be used. The text names the file, the cause and the remedy."""


class ContextLibrary(Protocol):
    """Writes the calling thread's record. No call blocks, raises or writes to stderr."""

    @property
    def set(self) -> Callable[[object], object]:
        """Gives the context variable a value, and publishes what that says."""

    def refresh(self) -> object:
        """Publishes what the thread's ``contextvars.Context`` says."""

    def clear(self) -> object:
        """Publishes no span."""

    def enable(self, enabled: int, /) -> object:
        """Whether spans are published; while they are not, a refresh clears."""


class NativeContextLibrary:
    """``libogf_context.so`` through ctypes."""

    def __init__(self, path: Path) -> None:
        # PyDLL keeps the GIL: the calls take some ten nanoseconds, never block, and read objects.
        library = ctypes.PyDLL(str(path))
        # The functions are attributes, and without argtypes, for speed: ctypes passes None as NULL
        # and int as int.
        self.clear = library.ogf_context_clear
        self.clear.restype = None
        self.refresh = library.ogf_switch_refresh
        self.refresh.restype = None
        self.enable = library.ogf_switch_enable
        self.enable.restype = None
        self.set: Callable[[object], object] = self._not_connected
        self.set_function = library.ogf_switch_set_function
        self.set_function.restype = ctypes.py_object
        self.switch_count = library.ogf_switch_count
        self.switch_count.restype = ctypes.c_ulong
        self.watcher = library.ogf_switch_watcher
        self.publish_process = library.ogf_process_context_publish
        self.publish_process.argtypes = [ctypes.c_char_p, ctypes.c_uint32]
        self.init = library.ogf_switch_init
        self.init.argtypes = [ctypes.c_void_p, ctypes.py_object]
        self.init.restype = None
        self.run_method = library.ogf_switch_run_method
        self.run_method.argtypes = [ctypes.py_object]
        self.run_method.restype = ctypes.py_object
        self.follow = library.ogf_switch_follow
        self.follow.argtypes = [ctypes.c_char_p]

    @staticmethod
    def _not_connected(_: object) -> object:
        raise LibraryUnavailableError("the library was not told about this Python yet")


def library_path() -> Path:
    """Where the library is expected: the environment's choice, else the one of this package."""
    configured = os.environ.get(LIBRARY_VARIABLE)
    if configured:
        return Path(configured)
    return Path(__file__).resolve().parent.parent / "_artifacts" / LIBRARY_NAME


def load_library() -> NativeContextLibrary:
    """Loads the library.

    Raises:
        LibraryUnavailableError: it is missing, or is not our library, or is for another platform.
    """
    path = library_path()
    try:
        return NativeContextLibrary(path)
    except (OSError, AttributeError) as error:
        text = (
            f"cannot load {path} ({error}); install the otel-gpuflame wheel for this platform, "
            f"or set {LIBRARY_VARIABLE} to the path of {LIBRARY_NAME}"
        )
        raise LibraryUnavailableError(text) from error
