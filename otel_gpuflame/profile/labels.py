"""The frames above a captured stack: the driver call, and what it was about."""

from __future__ import annotations

from functools import lru_cache

from otel_gpuflame.correlate.waits import WaitMode
from otel_gpuflame.events import apis
from otel_gpuflame.events.apis import Runtime
from otel_gpuflame.events.attributions import Leaf, NoLaunch
from otel_gpuflame.events.frames import Frame, FrameKind, mark
from otel_gpuflame.events.records import HandleName
from otel_gpuflame.events.wire import Kind, OffCpuState
from otel_gpuflame.profile.device_commands import command_name
from otel_gpuflame.profile.kernel_names import readable_kernel_name

_MODULES = {Runtime.CUDA: "libcuda.so.1", Runtime.OPENCL: "libOpenCL.so.1"}
_DRIVER_SHIFT = 32
_CACHED = 4_096
"""Frames of a kind that are kept: programs choose the commands of their devices, and captures may say anything."""
NO_STACK = mark("no stack: lost on the way")
NO_STACK_OFF_CPU = mark("no stack: the thread is switched too often")
NO_FRAMES = mark("no frames: the thread was in code that could not be resolved")
NO_STACK_TAKEN = mark("no stack: no room to take one")
CAPTURED_AT = mark("captured at, estimated")
UNNAMED_KERNEL = mark("kernel of unknown name")

_REASONS: dict[int, str] = {
    Leaf.GPU_IDLE: "gpu idle",
    Leaf.DRIVER: "driver",
    Leaf.LAUNCH_LATENCY: "launch latency",
    Leaf.WAITS_FOR_EVENT: "waits for event",
    Leaf.DEVICE_FULL: "device full",
    Leaf.NO_SAMPLE: "no sample",
    Leaf.ON_CPU: "on CPU",
    Leaf.OFF_CPU: "off CPU",
    Leaf.DRIVER_CALL: "driver call",
    Leaf.UNKNOWN_NOT_CAPTURED: "unknown: a process on the device was not captured",
    Leaf.UNKNOWN_INCOMPLETE: "unknown: records are missing",
    Leaf.QUEUE_FULL: "queue full",
    Leaf.BEFORE_FIRST: "before the first execution",
    Leaf.AFTER_LAST: "after the last execution",
}


@lru_cache(_CACHED)
def call_frame(api_id: int) -> Frame:
    """The driver call itself."""
    api = apis.BY_ID.get(api_id)
    if api is None:
        return mark(f"unknown call {api_id}")
    if api.runtime is Runtime.OS_KERNEL:
        # Not to be taken for the C library's function of the same name, which called it.
        return Frame(FrameKind.OS_KERNEL, f"sys_{api.name}")
    return Frame(FrameKind.NATIVE, api.name, module=_MODULES[api.runtime])


@lru_cache(_CACHED)
def wait_frame(mode: int) -> Frame:
    """How the thread waited: spinning costs a CPU, blocking does not."""
    return mark(WaitMode(mode).name.lower())


@lru_cache(_CACHED)
def off_cpu_frame(state: int) -> Frame:
    """Why a thread was off the CPU: `[preempted]`, `[interruptible]` …"""
    known = state in set(OffCpuState)
    return mark(OffCpuState(state).name.lower() if known else "off the CPU")


@lru_cache(_CACHED)
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


@lru_cache(_CACHED)
def lost_frame(reason: str) -> Frame:
    """What was seen and did not arrive, by outcome of the source: `[lost: ring full]`."""
    return mark(f"lost: {reason.replace('_', ' ')}")


def stands_for_stack(frame: Frame) -> bool:
    """Whether a mark is in place of code: why there is no stack, or no launch."""
    return frame.kind is FrameKind.MARK and frame.name.startswith(("[no launch", "[no stack"))


@lru_cache(_CACHED)
def no_launch_frame(reason: int) -> Frame:
    """What stands in place of the stack of an execution whose launch is not known: `[no launch: no probe]`."""
    known = reason in set(NoLaunch)
    text = NoLaunch(reason).name.lower().replace("_", " ") if known else f"reason {reason}"
    return mark(f"no launch: {text}")


@lru_cache(_CACHED)
def reason_frame(leaf: int) -> Frame:
    """What a thread, or an execution, waited for; why a device was idle. `leaf` is a `Leaf` other than KERNEL."""
    return mark(_REASONS.get(leaf, f"unknown reason {leaf}"))


def executed_frame(api_id: int, leaf_api: int, name: HandleName | None) -> Frame:
    """What a device did: the kernel `name`, else what `leaf_api` gives it to do. `api_id` is the launch, or 0."""
    if name is not None:
        return kernel_frame(_runtime(api_id), name)
    api = apis.BY_ID.get(leaf_api)
    return UNNAMED_KERNEL if api is None else mark(api.detail)


def work_frame(api_id: int, name: HandleName | None) -> Frame:
    """What was submitted: the GPU kernel, else a mark."""
    api = apis.BY_ID.get(api_id)
    if api is None:
        return mark("unknown work")
    if api.kind is not Kind.LAUNCH:
        return mark(api.detail)
    return UNNAMED_KERNEL if name is None else kernel_frame(api.runtime, name)


def kernel_frame(runtime: Runtime, name: HandleName) -> Frame:
    """A GPU kernel: readable name, and the mangled one as its identity."""
    kind = FrameKind.GPU_OPENCL if runtime is Runtime.OPENCL else FrameKind.GPU
    readable = readable_kernel_name(name.readable or name.name)
    return Frame(kind, readable, system_name="" if readable == name.name else name.name)


def _runtime(api_id: int) -> Runtime:
    api = apis.BY_ID.get(api_id)
    return Runtime.CUDA if api is None else api.runtime
