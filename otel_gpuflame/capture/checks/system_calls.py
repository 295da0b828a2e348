"""System calls that Python does not have, for checks: each raises OSError with the kernel's answer."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

MAP_LRU_HASH: Final = 9
MAP_RINGBUF: Final = 27

_BPF: Final = {"x86_64": 321, "aarch64": 280}
_PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}
_BPF_MAP_CREATE, _BPF_PROG_LOAD = 0, 5
_PROG_TYPE_TRACEPOINT: Final = 5
# r0 = 0; exit
_INSTRUCTIONS: Final = bytes.fromhex("b7000000000000009500000000000000")
_ATTRIBUTES_BYTES: Final = 128
_TYPE_SOFTWARE, _CPU_CLOCK, _HZ, _FREQUENCY, _CLOEXEC = 1, 0, 99, 1 << 10, 8


class _Buffer(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def create_map(type_: int, *, key: int, value: int, entries: int) -> int:
    """BPF_MAP_CREATE; a descriptor. Sizes in bytes."""
    return _bpf(_BPF_MAP_CREATE, struct.pack("<IIII", type_, key, value, entries), "create a map")


def load_empty_tracepoint_program() -> int:
    """BPF_PROG_LOAD of a program that returns 0; a descriptor."""
    instructions = ctypes.create_string_buffer(_INSTRUCTIONS, len(_INSTRUCTIONS))
    licence = ctypes.create_string_buffer(b"Dual BSD/GPL")
    attributes = struct.pack(
        "<IIQQ",
        _PROG_TYPE_TRACEPOINT,
        len(_INSTRUCTIONS) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
    )
    return _bpf(_BPF_PROG_LOAD, attributes, "load a program")


def open_cpu_clock(*, cpu: int) -> int:
    """perf_event_open of the CPU clock at 99 Hz, for all processes of one CPU; a descriptor."""
    # type, size, config, frequency, sample_type, read_format, flags
    attributes = struct.pack(
        "<IIQQQQQ", _TYPE_SOFTWARE, _ATTRIBUTES_BYTES, _CPU_CLOCK, _HZ, 0, 0, _FREQUENCY
    ).ljust(_ATTRIBUTES_BYTES, b"\0")
    number = _number(_PERF_EVENT_OPEN)
    return _checked(_libc().syscall(number, attributes, -1, cpu, -1, _CLOEXEC), "sample a CPU")


def read_process(pid: int, address: int, size_bytes: int) -> bytes:
    """process_vm_readv of one range; may be shorter than asked for."""
    data = ctypes.create_string_buffer(size_bytes)
    local = _Buffer(ctypes.addressof(data), size_bytes)
    remote = _Buffer(address, size_bytes)
    call = _libc().process_vm_readv
    call.restype = ctypes.c_ssize_t
    call.argtypes = (
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong),
        *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
    )
    count = call(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    return data.raw[: _checked(count, f"read process {pid}")]


def _bpf(command: int, attributes: bytes, what: str) -> int:
    # The kernel takes more than it knows as long as the rest is zero, and the last arguments have no pointers.
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES)
    return _checked(_libc().syscall(_number(_BPF), command, buffer, _ATTRIBUTES_BYTES), what)


def _number(numbers: dict[str, int]) -> int:
    machine = os.uname().machine
    if machine not in numbers:
        raise OSError(errno.ENOSYS, f"system calls of {machine} are not known")
    return numbers[machine]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result
