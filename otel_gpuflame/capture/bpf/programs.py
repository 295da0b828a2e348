"""The programs that a host may refuse, one by one: what each is for, and where it is attached."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from otel_gpuflame.events.apis import SYSTEM_CALLS
from otel_gpuflame.events.wire import CookieShift, Kind


class Feature(Enum):
    """What a program belongs to."""

    CALLS = "calls"
    """Always wanted."""
    CPU = "cpu"
    """On-CPU samples and off-CPU stacks."""
    DRIVER = "driver"
    """System calls on GPU devices."""
    ERRORS = "errors"
    """What NVIDIA's driver reports of its devices."""


@dataclass(frozen=True, slots=True)
class Tracepoint:
    """A tracepoint, of a system call or of another `category`; the cookie tells the program which it is.

    With `fields` the cookie is where this kernel has them in the record: 16 bits for each offset, the first lowest.
    """

    name: str
    cookie: int = 0
    category: str = "syscalls"
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalProgram:
    """A program, and what is missing without it.

    Without `tracepoints` it is attached where its section says, or as the CPU sampler.
    """

    name: str
    feature: Feature = Feature.CALLS
    consequence: str
    tracepoints: tuple[Tracepoint, ...] = field(default=())


CPU_SAMPLER: Final = "on_cpu_sample"
_LATE_LIBRARIES: Final = "libraries loaded later are found by scanning once a second"
_API_IDS: Final = {api.name: api.id for api in SYSTEM_CALLS}
_NO_DEVICE_CALLS: Final = "no time in the GPU's kernel driver (gpu_driver)"


def _device_call(name: str, *, fd: int = 0, command: int = 0, length: int = 0) -> Tracepoint:
    """Entry of a system call; positions of its arguments from 1, `fd` 0: an array of struct pollfd comes first."""
    cookie = (
        _API_IDS[name] << CookieShift.API
        | Kind.DRIVER << CookieShift.KIND
        | fd << CookieShift.STREAM
        | command << CookieShift.OBJECT
        | length << CookieShift.BYTES
    )
    return Tracepoint(f"sys_enter_{name}", cookie)


_DEVICE_CALLS: Final = (
    _device_call("ioctl", fd=1, command=2),
    _device_call("poll"),
    _device_call("ppoll"),
    _device_call("mmap", fd=5, length=2),
)

OPTIONAL: Final = (
    OptionalProgram(name="on_fork", consequence="children of recorded processes are not followed"),
    OptionalProgram(
        name="on_exec",
        consequence="recorded processes that execute another program lose their Python frames and span",
    ),
    OptionalProgram(
        name="on_exit", consequence="calls cut short by the end of a thread are counted as pending"
    ),
    OptionalProgram(
        name="on_mmap_enter",
        consequence=_LATE_LIBRARIES,
        tracepoints=(Tracepoint("sys_enter_mmap"),),
    ),
    OptionalProgram(
        name="on_mmap_exit",
        consequence=_LATE_LIBRARIES,
        tracepoints=(Tracepoint("sys_exit_mmap"),),
    ),
    OptionalProgram(name=CPU_SAMPLER, feature=Feature.CPU, consequence="no CPU profile (samples)"),
    OptionalProgram(
        name="on_switch", feature=Feature.CPU, consequence="no off-CPU stacks (off_cpu)"
    ),
    # Exits first: a call whose entry was seen must also have its exit seen.
    OptionalProgram(
        name="on_device_exit",
        feature=Feature.DRIVER,
        consequence=_NO_DEVICE_CALLS,
        tracepoints=tuple(Tracepoint(call.name.replace("enter", "exit")) for call in _DEVICE_CALLS),
    ),
    OptionalProgram(
        name="on_device_enter",
        feature=Feature.DRIVER,
        consequence=_NO_DEVICE_CALLS,
        tracepoints=_DEVICE_CALLS,
    ),
    OptionalProgram(
        name="on_xid",
        feature=Feature.ERRORS,
        consequence="no errors of NVIDIA devices (Xid): the loaded driver has no tracepoint nvidia:nvidia_dev_xid, "
        "or it cannot be read",
        tracepoints=(
            Tracepoint("nvidia_dev_xid", category="nvidia", fields=("dev", "error_code", "msg")),
        ),
    ),
)
