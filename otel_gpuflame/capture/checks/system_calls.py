"""System calls that Python does not have, for checks: each raises OSError with the kernel's answer."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

from otel_gpuflame.capture.system_call import system_call

MAP_LRU_HASH: Final = 9
MAP_RINGBUF: Final = 27

_BPF_MAP_CREATE, _BPF_PROG_LOAD = 0, 5
_PROG_TYPE_TRACEPOINT: Final = 5
# r0 = 0; exit
_INSTRUCTIONS: Final = bytes.fromhex("b7000000000000009500000000000000")
_ATTRIBUTES_BYTES: Final = 128


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


def read_process(pid: int, address: int, size_bytes: int) -> bytes:
    """process_vm_readv of one range; may be shorter than asked for."""
    data = ctypes.create_string_buffer(size_bytes)
    local = _Buffer(ctypes.addressof(data), size_bytes)
    remote = _Buffer(address, size_bytes)
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    call.restype = ctypes.c_ssize_t
    call.argtypes = (
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong),
        *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
    )
    count = call(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if count < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"read process {pid}")
    return data.raw[:count]


def _bpf(command: int, attributes: bytes, what: str) -> int:
    # The kernel takes more than it knows as long as the rest is zero, and the last arguments have no pointers.
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES)
    result = system_call("bpf", command, buffer, _ATTRIBUTES_BYTES)
    if result < 0:
        raise OSError(-result, os.strerror(-result), what)
    return result
