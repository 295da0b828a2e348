"""Python's side of table.c: `.eh_frame` becomes rows that BPF can search, 8 bytes each, in a numpy array."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import POINTER, c_char_p, c_int, c_uint64, c_void_p
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events import wire
from otel_gpuflame.symbolize.unwind.eh_frame import EhFrame

LIBRARY: Final = Path(__file__).parents[2] / "_artifacts" / "libogf_unwind.so"


@dataclass(frozen=True, slots=True)
class UnwindCounts:
    """What a section holds, and what of it is left out: `struct ogf_unwind_counts`, in its order."""

    functions: int
    """Functions with rows."""
    malformed: int
    """Entries that contradict themselves. What they describe has no rows, or none from there on."""
    outside: int
    """Functions that are not in the file's code."""
    overlapping: int
    """Functions of which another one describes a part."""
    unsupported: int
    """Places whose way to the caller is more than a row can say."""


class _Table(ctypes.Structure):
    """struct ogf_unwind_table."""

    _fields_ = (
        ("rows", c_void_p),
        ("count", c_uint64),
        *((field.name, c_uint64) for field in fields(UnwindCounts)),
    )


@dataclass(frozen=True, slots=True)
class UnwindTable:
    """Rows (`wire.UNWIND_ROW`) by ascending address above `base`, an ELF address.

    The first row is at 0, the last one says that nothing is known behind it.
    """

    rows: NDArray[Any]
    base: int
    counts: UnwindCounts


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise SourceUnavailable(
            f"{error}. The package was built without its native parts: run `make bpf`, or reinstall it "
            "on a machine with a C compiler."
        ) from error
    library.ogf_unwind_build.restype = c_int
    library.ogf_unwind_build.argtypes = (
        *(c_char_p, c_uint64, c_uint64, c_uint64, c_uint64),
        POINTER(_Table),
    )
    library.ogf_unwind_free.argtypes = (POINTER(_Table),)
    return library


def build_table(section: EhFrame) -> UnwindTable:
    """Rows for a section; the interpreter lock is not held meanwhile. 0.1 s for the largest libraries.

    Raises MemoryError, and SourceUnavailable where the package was built without native parts. Nothing that the section
    holds raises.
    """
    library, table = _library(), _Table()
    free = partial(library.ogf_unwind_free, ctypes.byref(table))
    if library.ogf_unwind_build(
        section.data,
        len(section.data),
        section.address,
        section.code_start,
        section.code_end,
        ctypes.byref(table),
    ):
        raise MemoryError("no memory for an unwind table")
    # Not copied: megabytes, under the interpreter's lock.
    size = table.count * wire.UNWIND_ROW.itemsize
    memory = (ctypes.c_uint8 * size).from_address(table.rows)
    weakref.finalize(memory, free).atexit = False
    rows = np.frombuffer(memory, wire.UNWIND_ROW)
    counts = UnwindCounts(*(int(getattr(table, field.name)) for field in fields(UnwindCounts)))
    return UnwindTable(rows, section.code_start, counts)
