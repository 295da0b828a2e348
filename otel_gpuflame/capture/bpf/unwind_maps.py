"""Unwind tables and mappings in BPF's maps: an array of its own for each file and each process."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from ctypes import c_size_t, c_uint32, c_uint64
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.bpf.libbpf import LibbpfError

_BPF_MAP_TYPE_ARRAY: Final = 2
_BPF_F_MMAPABLE: Final = 1 << 10
_BPF_F_INNER_MAP: Final = 1 << 12


class _MapOptions(ctypes.Structure):
    """struct bpf_map_create_opts, as far as libbpf 1.0 has it."""

    _fields_ = (
        ("size", c_size_t),
        ("btf_fd", c_uint32),
        ("btf_key_type", c_uint32),
        ("btf_value_type", c_uint32),
        ("btf_kernel_value_type", c_uint32),
        ("inner_map_fd", c_uint32),
        ("flags", c_uint32),
        ("extra", c_uint64),
        ("numa_node", c_uint32),
        ("interface", c_uint32),
    )


class UnwindMaps:
    """`unwind_files` and `unwind_processes`. Used by one thread. Every method but `drop_*` raises LibbpfError.

    The kernel frees an array some time after it was dropped, when no program can be reading it any more: taking it out
    of the outer map waits until all programs have ended that may have found it.
    """

    def __init__(self, library: ctypes.CDLL, map_fd: Callable[[str], int]) -> None:
        self._library = library
        self._files = map_fd("unwind_files")
        self._processes = map_fd("unwind_processes")

    def put_file(self, number: int, rows: NDArray[Any]) -> None:
        """The table of a file: `wire.UNWIND_ROW`, in order."""
        self._put(self._files, number, rows)

    def drop_file(self, number: int) -> None:
        """No mapping refers to this file any more."""
        self._drop(self._files, number)

    def put_process(self, pid: int, mappings: NDArray[Any]) -> None:
        """All that is known of a process, instead of what was: `wire.UNWIND_MAPPING`, element 0 about the process."""
        self._put(self._processes, pid, mappings)

    def drop_process(self, pid: int) -> None:
        """The process has gone."""
        self._drop(self._processes, pid)

    def _put(self, outer: int, key: int, values: NDArray[Any]) -> None:
        fd = self._array(values)
        try:
            value = c_uint32(fd)
            self._check(
                self._library.bpf_map_update_elem(
                    outer, ctypes.byref(c_uint32(key)), ctypes.byref(value), 0
                ),
                "publish an unwind table",
            )
        finally:
            # The outer map holds it now.
            os.close(fd)

    def _array(self, values: NDArray[Any]) -> int:
        """A new array map with these values; written through memory, without a system call for each."""
        options = _MapOptions(
            size=ctypes.sizeof(_MapOptions), flags=_BPF_F_MMAPABLE | _BPF_F_INNER_MAP
        )
        fd = int(
            self._library.bpf_map_create(
                _BPF_MAP_TYPE_ARRAY,
                b"ogf_unwind",
                4,
                values.itemsize,
                len(values),
                ctypes.byref(options),
            )
        )
        if fd < 0:
            raise LibbpfError(fd, f"make an unwind table of {len(values)} rows")
        try:
            with mmap.mmap(
                fd, values.nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
            ) as memory:
                # By numpy, which lets go of the interpreter's lock: a slice of `memory` would hold it for megabytes.
                np.frombuffer(memory, np.uint8)[:] = np.ascontiguousarray(values).view(np.uint8)
        except OSError as error:
            os.close(fd)
            raise LibbpfError(error.errno or 0, "write an unwind table") from error
        return fd

    def _drop(self, outer: int, key: int) -> None:
        self._library.bpf_map_delete_elem(outer, ctypes.byref(c_uint32(key)))

    @staticmethod
    def _check(result: int, attempt: str) -> None:
        if result:
            raise LibbpfError(ctypes.get_errno() or result, attempt)
