"""System calls that load and attach programs without libbpf. Each raises LibbpfError with the kernel's answer."""

from __future__ import annotations

import ctypes
import struct
from typing import Final

from otel_gpuflame.capture.bpf.libbpf import LibbpfError
from otel_gpuflame.capture.system_call import system_call

PROGRAM_TYPE_KPROBE: Final = 2
"""Also of uprobes."""
PROGRAM_TYPE_TRACEPOINT: Final = 5

_PROG_LOAD, _LINK_CREATE = 5, 28
_ATTACH_TYPE_PERF_EVENT: Final = 41
_INSTRUCTION_BYTES: Final = 8
_NAME_BYTES: Final = 16
_LOG_BYTES: Final = 1 << 20
_LOG_LINES_KEPT: Final = 5


def load_program(name: str, type_: int, instructions: bytes, *, attach_type: int) -> int:
    """BPF_PROG_LOAD; a descriptor. A refusal ends with the last lines of the verifier."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"Dual BSD/GPL")
    log = ctypes.create_string_buffer(_LOG_BYTES)
    log_size = 0
    while True:
        # type, count, instructions, licence, log level, size and address, version, flags, name, ifindex, attach type
        attributes = struct.pack(
            "<IIQQIIQII16sII",
            type_,
            len(instructions) // _INSTRUCTION_BYTES,
            ctypes.addressof(code),
            ctypes.addressof(licence),
            int(log_size > 0),
            log_size,
            ctypes.addressof(log) if log_size else 0,
            0,
            0,
            name.encode()[: _NAME_BYTES - 1],
            0,
            attach_type,
        )
        fd = _bpf(_PROG_LOAD, attributes)
        if fd >= 0:
            return fd
        if log_size:
            lines = log.value.decode("utf-8", "replace").splitlines()[-_LOG_LINES_KEPT:]
            raise LibbpfError(-fd, "\n".join([f"load {name}", *lines]))
        # Once more for the log: asking for it makes every load slower.
        log_size = _LOG_BYTES


def link_perf_event(program_fd: int, event_fd: int, cookie: int) -> int:
    """BPF_LINK_CREATE of a program to a perf event; a descriptor that attaches as long as it is open."""
    attributes = struct.pack("<IIIIQ", program_fd, event_fd, _ATTACH_TYPE_PERF_EVENT, 0, cookie)
    fd = _bpf(_LINK_CREATE, attributes)
    if fd < 0:
        raise LibbpfError(-fd, "link a program to a perf event")
    return fd


def _bpf(command: int, attributes: bytes) -> int:
    """A descriptor, or -errno."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return system_call("bpf", command, buffer, len(attributes))
