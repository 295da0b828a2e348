"""perf_event_open: what a BPF program can be attached to, or a thread be interrupted by."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.bpf.libbpf import LibbpfError
from otel_gpuflame.capture.system_call import system_call

_SOFTWARE, _TRACEPOINT = 1, 2
_CPU_CLOCK: Final = 0
_ON_FIRST_CPU: Final = (-1, 0)
"""One CPU is enough: a BPF program then runs on all."""
_IN_THIS_THREAD: Final = (0, -1)
_EXCLUDE_IDLE: Final = 1 << 7
_FREQUENCY: Final = 1 << 10
"""The period is a frequency."""
_ATTRIBUTES_BYTES: Final = 72
_CLOEXEC: Final = 8
_UPROBES: Final = Path("/sys/bus/event_source/devices/uprobe")


def open_tracepoint(number: int, *, thread: int | None = None) -> int:
    """A tracepoint, for every process; of a `thread` it counts hits."""
    place = _ON_FIRST_CPU if thread is None else (thread, -1)
    return _open(_TRACEPOINT, number, f"open tracepoint {number}", place=place)


def open_cpu_sampler(cpu: int, frequency_hz: int) -> int:
    """Fires `frequency_hz` times a second while `cpu` is busy, by a timer: virtual machines have one."""
    return _open(
        _SOFTWARE,
        _CPU_CLOCK,
        f"sample CPU {cpu}",
        period=frequency_hz,
        flags=_FREQUENCY | _EXCLUDE_IDLE,
        place=(-1, cpu),
    )


def open_cpu_clock(period_ns: int) -> int:
    """Interrupts this thread every `period_ns` of its CPU time, with nobody to take the samples."""
    return _open(
        _SOFTWARE, _CPU_CLOCK, "open the CPU clock", period=period_ns, place=_IN_THIS_THREAD
    )


def open_uprobe(path: Path, offset: int, *, is_return: bool, is_own: bool = False) -> int:
    """A uprobe at a file offset, for every process, or for this one only."""
    try:
        type_ = int((_UPROBES / "type").read_text())
        bit = int((_UPROBES / "format/retprobe").read_text().partition(":")[2])
    except (OSError, ValueError) as error:
        raise LibbpfError(getattr(error, "errno", None) or 0, f"read {_UPROBES}") from error
    buffer = ctypes.create_string_buffer(os.fsencode(path))
    what = f"attach to {path}+{offset:#x}"
    more = (ctypes.addressof(buffer), offset)
    place = _IN_THIS_THREAD if is_own else _ON_FIRST_CPU
    return _open(type_, int(is_return) << bit, what, more=more, place=place)


def _open(
    type_: int,
    config: int,
    what: str,
    *,
    more: tuple[int, int] = (0, 0),
    period: int = 1,
    flags: int = 0,
    place: tuple[int, int] = _ON_FIRST_CPU,
) -> int:
    """A descriptor. `more`: config1 and config2; `place`: a thread (-1: all, 0: this one) and a CPU (-1: all).

    Raises LibbpfError with the kernel's answer.
    """
    # type, size, config, sample_period, sample_type, read_format, flags, wakeup_events, bp_type, config1, config2
    attributes = struct.pack(
        "<IIQQQQQIIQQ", type_, _ATTRIBUTES_BYTES, config, period, 0, 0, flags, 1, 0, *more
    )
    fd = system_call("perf_event_open", attributes, *place, -1, _CLOEXEC)
    if fd < 0:
        raise LibbpfError(-fd, what)
    return fd
