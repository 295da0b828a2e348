"""System calls that load and attach programs without libbpf. Each raises LibbpfError with the kernel's answer."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.bpf.libbpf import LibbpfError

PROGRAM_TYPE_KPROBE: Final = 2
"""Also of uprobes."""
PROGRAM_TYPE_TRACEPOINT: Final = 5

_BPF: Final = {"x86_64": 321, "aarch64": 280}
_PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}
_PROG_LOAD, _LINK_CREATE = 5, 28
_ATTACH_TYPE_PERF_EVENT: Final = 41
_INSTRUCTION_BYTES: Final = 8
_NAME_BYTES: Final = 16
_LOG_BYTES: Final = 1 << 20
_LOG_LINES_KEPT: Final = 5
_PERF_TYPE_SOFTWARE, _PERF_TYPE_TRACEPOINT = 1, 2
_CPU_CLOCK: Final = 0
_ON_FIRST_CPU: Final = (-1, 0)
_PERF_ATTRIBUTES_BYTES: Final = 72
_PERF_FLAG_CLOEXEC: Final = 8
_UPROBES: Final = Path("/sys/bus/event_source/devices/uprobe")


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


def open_tracepoint(number: int, *, thread: int | None = None) -> int:
    """A tracepoint as a perf event. One CPU is enough: a BPF program then runs on all. Of a `thread` it counts hits."""
    place = _ON_FIRST_CPU if thread is None else (thread, -1)
    return _perf_event(_PERF_TYPE_TRACEPOINT, number, f"open tracepoint {number}", place=place)


def open_cpu_clock(period_ns: int) -> int:
    """Interrupts this thread every `period_ns` of its CPU time, with nobody to take the samples."""
    place = (0, -1)
    return _perf_event(
        _PERF_TYPE_SOFTWARE, _CPU_CLOCK, "open the CPU clock", period=period_ns, place=place
    )


def open_uprobe(path: Path, offset: int, *, is_return: bool) -> int:
    """A uprobe at a file offset as a perf event, for every process."""
    try:
        type_ = int((_UPROBES / "type").read_text())
        bit = int((_UPROBES / "format/retprobe").read_text().partition(":")[2])
    except (OSError, ValueError) as error:
        raise LibbpfError(getattr(error, "errno", None) or 0, f"read {_UPROBES}") from error
    buffer = ctypes.create_string_buffer(os.fsencode(path))
    what = f"attach to {path}+{offset:#x}"
    return _perf_event(type_, int(is_return) << bit, what, more=(ctypes.addressof(buffer), offset))


def _perf_event(
    type_: int,
    config: int,
    what: str,
    *,
    more: tuple[int, int] = (0, 0),
    period: int = 1,
    place: tuple[int, int] = _ON_FIRST_CPU,
) -> int:
    """perf_event_open with config1 and config2 as `more`; `place` is a thread (-1: all, 0: this one) and a CPU."""
    # type, size, config, sample_period, sample_type, read_format, flags, wakeup_events, bp_type, config1, config2
    attributes = struct.pack(
        "<IIQQQQQIIQQ", type_, _PERF_ATTRIBUTES_BYTES, config, period, 0, 0, 0, 1, 0, *more
    )
    libc = ctypes.CDLL(None, use_errno=True)
    number = _PERF_EVENT_OPEN[os.uname().machine]
    fd = libc.syscall(number, attributes, *place, -1, _PERF_FLAG_CLOEXEC)
    if fd < 0:
        raise LibbpfError(ctypes.get_errno(), what)
    return int(fd)


def _bpf(command: int, attributes: bytes) -> int:
    """A descriptor, or -errno."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(_BPF[os.uname().machine], command, buffer, len(attributes))
    return int(result) if result >= 0 else -ctypes.get_errno()
