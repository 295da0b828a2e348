"""The frames above a captured stack: the driver call, and what it was about."""

from __future__ import annotations

from functools import cache

from otel_gpuflame.correlate.waits import WaitMode
from otel_gpuflame.events import apis
from otel_gpuflame.events.apis import Api, Runtime
from otel_gpuflame.events.frames import Frame, FrameKind, mark
from otel_gpuflame.events.records import HandleName
from otel_gpuflame.events.wire import Kind, OffCpuState
from otel_gpuflame.profile.device_commands import command_name

_MODULES = {Runtime.CUDA: "libcuda.so.1", Runtime.OPENCL: "libOpenCL.so.1"}
_DRIVER_SHIFT = 32
NO_STACK = mark("no stack: lost on the way")
NO_STACK_OFF_CPU = mark("no stack: the thread is switched too often")
NO_FRAMES = mark("no frames: the thread was in code that could not be resolved")
NO_STACK_TAKEN = mark("no stack: no room to take one")


@cache
def call_frame(api_id: int) -> Frame:
    """The driver call itself."""
    api = apis.BY_ID.get(api_id)
    if api is None:
        return mark(f"unknown call {api_id}")
    if api.runtime is Runtime.OS_KERNEL:
        # Not to be taken for the C library's function of the same name, which called it.
        return Frame(FrameKind.OS_KERNEL, f"sys_{api.name}")
    return Frame(FrameKind.NATIVE, api.name, module=_MODULES[api.runtime])


@cache
def wait_frame(mode: int) -> Frame:
    """How the thread waited: spinning costs a CPU, blocking does not."""
    return mark(WaitMode(mode).name.lower())


@cache
def off_cpu_frame(state: int) -> Frame:
    """Why a thread was off the CPU: `[preempted]`, `[interruptible]` …"""
    known = state in set(OffCpuState)
    return mark(OffCpuState(state).name.lower() if known else "off the CPU")


@cache
def device_call_frame(api_id: int, subject: int, mode: int) -> Frame:
    """What a device driver was asked for, and how the thread spent the time: `[NV_ESC_RM_CONTROL blocked]`.

    `subject` is DeviceDriver << 32 | ioctl command, as in `correlate.threads`.
    """
    api = apis.BY_ID.get(api_id)
    command = subject & (1 << _DRIVER_SHIFT) - 1
    if api is None:
        name = f"unknown call {api_id}"
    elif api.name == "ioctl":
        name = command_name(subject >> _DRIVER_SHIFT, command)
    else:
        name = api.name
    return mark(f"{name} {'blocked' if mode == WaitMode.BLOCKED else 'on-CPU'}")


@cache
def lost_frame(reason: str) -> Frame:
    """What was seen and did not arrive, by outcome of the source: `[lost: ring full]`."""
    return mark(f"lost: {reason.replace('_', ' ')}")


def work_frame(api_id: int, name: HandleName | None) -> Frame:
    """What was submitted: the GPU kernel, else a mark."""
    api = apis.BY_ID.get(api_id)
    if api is None:
        return mark("unknown work")
    if api.kind is not Kind.LAUNCH:
        return mark(api.detail)
    return mark("kernel of unknown name") if name is None else kernel_frame(api, name)


def kernel_frame(api: Api, name: HandleName) -> Frame:
    """A GPU kernel: readable name, and the mangled one as its identity."""
    kind = FrameKind.GPU if api.runtime is Runtime.CUDA else FrameKind.GPU_OPENCL
    readable = name.readable or name.name
    return Frame(kind, readable, system_name="" if readable == name.name else name.name)
