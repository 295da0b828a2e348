"""Where each driver call keeps its arguments, and the cookie that tells BPF so (bpf/include/ogf_events.h)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from otel_gpuflame.events.apis import BY_NAME, Api, Blocking, Runtime, is_windowed
from otel_gpuflame.events.wire import CookieShift, Kind, NameShape, Shape


class Program(Enum):
    """BPF programs in capture.bpf.c that serve uprobes."""

    CALL = "on_call"
    CALL_ENTER = "on_call_enter"
    CALL_RETURN = "on_call_return"
    NAME_ENTER = "on_name_enter"
    NAME_RETURN = "on_name_return"
    BACKWARD = "on_backward"
    NODE = "on_node"

    @property
    def is_return(self) -> bool:
        """Whether the program runs when the function returns."""
        return self in (Program.CALL_RETURN, Program.NAME_RETURN)


class ProbeGroup(Enum):
    """Probes that are always on as long as programs hit them rarely."""

    NAME = "names of functions"
    """A program asks the driver for a function by its name."""
    ALIAS = "other handles of functions"
    WAIT = "calls that may wait"
    GRAPH = "launches of graphs"
    BACKWARD = "backward passes"
    """A pass of PyTorch's autograd engine begins."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Positions counted from 1, 0 for none. `unit_log2`: the bytes argument counts units of 2**unit_log2 bytes."""

    stream: int = 0
    object: int = 0
    bytes: int = 0
    blocking: int = 0
    shape: Shape = Shape.PLAIN
    unit_log2: int = 0


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """One exported function to probe: `base` matches every exported version and stream variant of it."""

    base: str
    runtime: Runtime
    cookie: int
    programs: tuple[Program, ...]
    windowed: bool = False
    """The agent attaches this probe only in windows."""
    group: ProbeGroup | None = None


# Layouts: cuda.h of CUDA 13 and cl.h of OpenCL 3.0; argument positions are the same since CUDA 4.
_ARGUMENTS: Final[dict[str, Arguments]] = {
    "cuLaunchKernel": Arguments(object=1, stream=9, shape=Shape.LAUNCH_ARGS),
    "cuLaunchCooperativeKernel": Arguments(object=1, stream=9, shape=Shape.LAUNCH_ARGS),
    "cuLaunchKernelEx": Arguments(object=2, shape=Shape.LAUNCH_CONFIG),
    "cuGraphLaunch": Arguments(object=1, stream=2),
    "cuMemcpy": Arguments(bytes=3),
    "cuMemcpyAsync": Arguments(bytes=3, stream=4),
    "cuMemcpyHtoD": Arguments(bytes=3),
    "cuMemcpyHtoDAsync": Arguments(bytes=3, stream=4),
    "cuMemcpyDtoH": Arguments(bytes=3),
    "cuMemcpyDtoHAsync": Arguments(bytes=3, stream=4),
    "cuMemcpyDtoD": Arguments(bytes=3),
    "cuMemcpyDtoDAsync": Arguments(bytes=3, stream=4),
    "cuMemcpyPeer": Arguments(bytes=5),
    "cuMemcpyPeerAsync": Arguments(bytes=5, stream=6),
    "cuMemcpy2D": Arguments(shape=Shape.COPY_2D),
    "cuMemcpy2DAsync": Arguments(shape=Shape.COPY_2D, stream=2),
    "cuMemcpy2DUnaligned": Arguments(shape=Shape.COPY_2D),
    "cuMemcpy3D": Arguments(shape=Shape.COPY_3D),
    "cuMemcpy3DAsync": Arguments(shape=Shape.COPY_3D, stream=2),
    "cuMemcpy3DPeer": Arguments(shape=Shape.COPY_3D),
    "cuMemcpy3DPeerAsync": Arguments(shape=Shape.COPY_3D, stream=2),
    "cuMemcpyHtoA": Arguments(bytes=4),
    "cuMemcpyAtoH": Arguments(bytes=4),
    "cuMemcpyDtoA": Arguments(bytes=4),
    "cuMemcpyAtoD": Arguments(bytes=4),
    "cuMemcpyAtoA": Arguments(bytes=5),
    "cuMemcpyHtoAAsync": Arguments(bytes=4, stream=5),
    "cuMemcpyAtoHAsync": Arguments(bytes=4, stream=5),
    "cuMemcpyBatchAsync": Arguments(shape=Shape.COPY_BATCH, stream=8),
    "cuMemsetD8": Arguments(bytes=3),
    "cuMemsetD16": Arguments(bytes=3, unit_log2=1),
    "cuMemsetD32": Arguments(bytes=3, unit_log2=2),
    "cuMemsetD2D8": Arguments(shape=Shape.SET_2D),
    "cuMemsetD2D16": Arguments(shape=Shape.SET_2D, unit_log2=1),
    "cuMemsetD2D32": Arguments(shape=Shape.SET_2D, unit_log2=2),
    "cuMemsetD8Async": Arguments(bytes=3, stream=4),
    "cuMemsetD16Async": Arguments(bytes=3, stream=4, unit_log2=1),
    "cuMemsetD32Async": Arguments(bytes=3, stream=4, unit_log2=2),
    "cuMemsetD2D8Async": Arguments(shape=Shape.SET_2D, stream=6),
    "cuMemsetD2D16Async": Arguments(shape=Shape.SET_2D, stream=6, unit_log2=1),
    "cuMemsetD2D32Async": Arguments(shape=Shape.SET_2D, stream=6, unit_log2=2),
    "cuCtxSynchronize": Arguments(),
    "cuStreamSynchronize": Arguments(stream=1),
    "cuEventSynchronize": Arguments(object=1),
    "cuEventRecord": Arguments(object=1, stream=2),
    "cuEventRecordWithFlags": Arguments(object=1, stream=2),
    "cuStreamWaitEvent": Arguments(stream=1, object=2),
    "cuStreamBeginCapture": Arguments(stream=1),
    "cuStreamBeginCaptureToGraph": Arguments(stream=1),
    "cuStreamEndCapture": Arguments(stream=1),
    "cuMemFree": Arguments(object=1),
    "cuMemFreeHost": Arguments(object=1),
    "clEnqueueNDRangeKernel": Arguments(stream=1, object=2, shape=Shape.NDRANGE),
    "clEnqueueReadBuffer": Arguments(stream=1, object=2, blocking=3, bytes=5),
    "clEnqueueWriteBuffer": Arguments(stream=1, object=2, blocking=3, bytes=5),
    "clEnqueueCopyBuffer": Arguments(stream=1, object=2, bytes=6),
    "clEnqueueFillBuffer": Arguments(stream=1, object=2, bytes=6),
    "clEnqueueMapBuffer": Arguments(stream=1, object=2, blocking=3),
    "clEnqueueMapImage": Arguments(stream=1, object=2, blocking=3),
    "clEnqueueReadBufferRect": Arguments(stream=1, object=2, blocking=3, shape=Shape.COPY_RECT),
    "clEnqueueWriteBufferRect": Arguments(stream=1, object=2, blocking=3, shape=Shape.COPY_RECT),
    "clEnqueueCopyBufferRect": Arguments(stream=1, object=2, shape=Shape.COPY_RECT),
    "clFinish": Arguments(stream=1),
    "clWaitForEvents": Arguments(),
    # Object: the activity kind; stream: the context.
    "cuptiActivityRegisterCallbacks": Arguments(),
    "cuptiActivityEnable": Arguments(object=1),
    "cuptiActivityDisable": Arguments(object=1),
    "cuptiActivityEnableContext": Arguments(stream=1, object=2),
    "cuptiActivityDisableContext": Arguments(stream=1, object=2),
    "cuptiActivityFlushAll": Arguments(),
    "cuptiFinalize": Arguments(),
}

# base -> (how the handle comes back, its argument, argument of the name or of the handle that has it)
_NAMES: Final[dict[str, tuple[Runtime, NameShape, int, int]]] = {
    "cuModuleGetFunction": (Runtime.CUDA, NameShape.OUT_POINTER, 1, 3),
    "cuLibraryGetKernel": (Runtime.CUDA, NameShape.OUT_POINTER, 1, 3),
    "cuKernelGetFunction": (Runtime.CUDA, NameShape.ALIAS, 1, 2),
    "clCreateKernel": (Runtime.OPENCL, NameShape.RETURNED, 0, 2),
    # Kernels that come from clCreateKernelsInProgram have a name when the program asks for it.
    "clGetKernelInfo": (Runtime.OPENCL, NameShape.QUERIED, 1, 4),
}


def _call_cookie(api: Api, arguments: Arguments) -> int:
    return (
        api.id << CookieShift.API
        | api.kind << CookieShift.KIND
        | arguments.stream << CookieShift.STREAM
        | arguments.object << CookieShift.OBJECT
        | arguments.bytes << CookieShift.BYTES
        | arguments.shape << CookieShift.SHAPE
        | arguments.unit_log2 << CookieShift.UNIT
        | arguments.blocking << CookieShift.BLOCKING
    )


def _call_spec(name: str, arguments: Arguments) -> ProbeSpec:
    api = BY_NAME[name]
    cookie = _call_cookie(api, arguments)
    if api.blocking is Blocking.NEVER:
        group = ProbeGroup.GRAPH if api.kind is Kind.GRAPH_LAUNCH else None
        return ProbeSpec(name, api.runtime, cookie, (Program.CALL,), is_windowed(api), group)
    programs = (Program.CALL_ENTER, Program.CALL_RETURN)
    return ProbeSpec(name, api.runtime, cookie, programs, group=ProbeGroup.WAIT)


def _name_spec(name: str) -> ProbeSpec:
    runtime, shape, handle, source = _NAMES[name]
    cookie = shape | handle << 8 | source << 12
    group = ProbeGroup.ALIAS if shape is NameShape.ALIAS else ProbeGroup.NAME
    programs = (Program.NAME_ENTER, Program.NAME_RETURN)
    return ProbeSpec(name, runtime, cookie, programs, group=group)


ALL: Final[tuple[ProbeSpec, ...]] = (
    *(_call_spec(name, arguments) for name, arguments in _ARGUMENTS.items()),
    *(_name_spec(name) for name in _NAMES),
)

_BY_BASE: Final = {spec.base: spec for spec in ALL}
# Without a version these are the 32-bit forms of CUDA before 3.2, still exported, with a smaller descriptor: the call
# is seen, its size is not. The first version of cuMemcpyBatchAsync (CUDA 12) has one argument more before the stream.
_BATCH_OF_CUDA_12: Final = _call_spec(
    "cuMemcpyBatchAsync", replace(_ARGUMENTS["cuMemcpyBatchAsync"], stream=9)
)
_FIRST_VERSIONS = {
    "cuMemcpyBatchAsync": _BATCH_OF_CUDA_12,
    "cuMemcpyBatchAsync_ptsz": _BATCH_OF_CUDA_12,
}
_FIRST_VERSIONS |= {
    name: _call_spec(name, replace(_ARGUMENTS[name], shape=Shape.PLAIN))
    for name in (
        "cuMemcpy2D",
        "cuMemcpy2DAsync",
        "cuMemcpy2DUnaligned",
        "cuMemcpy3D",
        "cuMemcpy3DAsync",
    )
}
# libcuda exports versions (_v2) and the variants for per-thread default streams (_ptsz: asynchronous, _ptds: the rest).
_SUFFIX: Final = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")


def spec_for_symbol(symbol: str) -> ProbeSpec | None:
    """The probe for an exported symbol, or None if it is not one of ours."""
    found = _FIRST_VERSIONS.get(symbol) or _BY_BASE.get(symbol)
    # Later versions of CUPTI's functions are of an interface of their own, for subscribers.
    if found is not None or not symbol.startswith("cu") or symbol.startswith("cupti"):
        return found
    return _BY_BASE.get(_SUFFIX.sub("", symbol))
