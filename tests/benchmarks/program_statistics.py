"""How often each BPF program runs and how long it takes, by the kernel's own count (BPF_ENABLE_STATS, Linux 5.8)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from otel_gpuflame.capture.bpf.libbpf import BpfObject, LibbpfError

_RUN_TIME: Final = 0
_INFO_BYTES: Final = 256
# struct bpf_prog_info: offsets of run_time_ns and run_cnt.
_RUN_TIME_AT: Final = 192
_RUN_COUNT_AT: Final = 200

Statistics = dict[str, tuple[int, int]]
"""By program: runs, nanoseconds."""


@contextmanager
def program_statistics(loaded: BpfObject) -> Iterator[Callable[[], Statistics]]:
    """The kernel counts while this is open, which costs each run some 20 ns. Raises LibbpfError where it refuses."""
    functions = loaded._library
    fd = functions.bpf_enable_stats(_RUN_TIME)
    if fd < 0:
        raise LibbpfError(ctypes.get_errno(), "count runs of BPF programs")
    try:
        yield lambda: {
            name: _read(functions, int(functions.bpf_program__fd(program)))
            for name, program in loaded.programs()
            if functions.bpf_program__fd(program) >= 0
        }
    finally:
        os.close(fd)


def _read(functions: ctypes.CDLL, fd: int) -> tuple[int, int]:
    info = (ctypes.c_uint8 * _INFO_BYTES)()
    size = ctypes.c_uint32(_INFO_BYTES)
    if functions.bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(size)):
        raise LibbpfError(ctypes.get_errno(), "read what a BPF program has taken")
    data = bytes(info)
    run_time_ns = int.from_bytes(data[_RUN_TIME_AT : _RUN_TIME_AT + 8], "little")
    return int.from_bytes(data[_RUN_COUNT_AT : _RUN_COUNT_AT + 8], "little"), run_time_ns
