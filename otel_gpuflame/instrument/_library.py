# SPDX-License-Identifier: Apache-2.0
"""Finds and loads ``libogf_context.so``; knows its functions and nothing about spans."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Protocol

from otel_gpuflame.errors import OtelGpuflameError

LIBRARY_VARIABLE = "OTEL_GPUFLAME_CONTEXT_LIB"
LIBRARY_NAME = "libogf_context.so"


class LibraryUnavailableError(OtelGpuflameError):
    """The library cannot be used. The text names the file, the cause and the remedy."""


class ContextLibrary(Protocol):
    """Writes the calling thread's record. No call blocks, raises or writes to stderr."""

    def publish(
        self, trace_id: bytes, span_id: bytes, local_root: bytes | None, trace_flags: int, /
    ) -> int:
        """Publishes a span: ids of 16, 8 and 8 bytes. Returns 0 or a negative errno."""

    def clear(self) -> object:
        """Publishes no span."""


class NativeContextLibrary:
    """``libogf_context.so`` through ctypes."""

    def __init__(self, path: Path) -> None:
        # PyDLL keeps the GIL: the calls take some ten nanoseconds and never block, whereas giving
        # up the GIL at every span switch would let other threads in between.
        library = ctypes.PyDLL(str(path))
        # The functions are attributes, and without argtypes, for speed: ctypes passes bytes as a
        # pointer, None as NULL and int as int.
        self.publish = library.ogf_context_set
        self.clear = library.ogf_context_clear
        self.clear.restype = None


def library_path() -> Path:
    """Where the library is expected: the environment's choice, else the one of this package."""
    configured = os.environ.get(LIBRARY_VARIABLE)
    if configured:
        return Path(configured)
    return Path(__file__).resolve().parent.parent / "_artifacts" / LIBRARY_NAME


def load_library() -> ContextLibrary:
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
