"""The driver calls we know. Ids are part of the capture format: never reused, new ones at the end of their range."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from otel_gpuflame.events.wire import Kind


class Runtime(Enum):
    """Which library exports the call."""

    CUDA = "cuda"
    OPENCL = "opencl"
    CUPTI = "cupti"
    OS_KERNEL = "os kernel"
    """No library: system calls."""


class Blocking(Enum):
    """When the time inside the call is time spent waiting for the GPU."""

    NEVER = "never"
    ALWAYS = "always"
    BY_ARGUMENT = "by argument"
    """OpenCL: the program says so."""
    BY_DURATION = "by duration"
    """Asynchronous by name, but blocks for pageable host memory, which only shows in how long it takes.

    Copies between device addresses do not wait, also under their synchronous names.
    """


@dataclass(frozen=True, slots=True)
class Api:
    """One driver call. `name` is the exported symbol without version and stream suffixes."""

    id: int
    name: str
    runtime: Runtime
    kind: Kind
    blocking: Blocking
    detail: str = ""
    """Shown as the leaf frame where there is no GPU kernel: `copy HtoD`."""


def _cuda(id_: int, name: str, kind: Kind, blocking: Blocking, detail: str = "") -> Api:
    return Api(id_, name, Runtime.CUDA, kind, blocking, detail)


def _opencl(id_: int, name: str, kind: Kind, blocking: Blocking, detail: str = "") -> Api:
    return Api(id_, name, Runtime.OPENCL, kind, blocking, detail)


def _cupti(id_: int, name: str) -> Api:
    return Api(id_, name, Runtime.CUPTI, Kind.CUPTI, Blocking.NEVER)


def _system_call(id_: int, name: str) -> Api:
    return Api(id_, name, Runtime.OS_KERNEL, Kind.DRIVER, Blocking.NEVER)


_NEVER, _ALWAYS = Blocking.NEVER, Blocking.ALWAYS
_ARGUMENT, _DURATION = Blocking.BY_ARGUMENT, Blocking.BY_DURATION

ALL: Final[tuple[Api, ...]] = (
    _cuda(1, "cuLaunchKernel", Kind.LAUNCH, _NEVER),
    _cuda(2, "cuLaunchKernelEx", Kind.LAUNCH, _NEVER),
    _cuda(3, "cuLaunchCooperativeKernel", Kind.LAUNCH, _NEVER),
    _cuda(4, "cuGraphLaunch", Kind.GRAPH_LAUNCH, _NEVER, "graph"),
    _cuda(10, "cuMemcpy", Kind.COPY, _ALWAYS, "copy"),
    _cuda(11, "cuMemcpyAsync", Kind.COPY, _DURATION, "copy"),
    _cuda(12, "cuMemcpyHtoD", Kind.COPY, _ALWAYS, "copy HtoD"),
    _cuda(13, "cuMemcpyHtoDAsync", Kind.COPY, _DURATION, "copy HtoD"),
    _cuda(14, "cuMemcpyDtoH", Kind.COPY, _ALWAYS, "copy DtoH"),
    _cuda(15, "cuMemcpyDtoHAsync", Kind.COPY, _DURATION, "copy DtoH"),
    _cuda(16, "cuMemcpyDtoD", Kind.COPY, _NEVER, "copy DtoD"),
    _cuda(17, "cuMemcpyDtoDAsync", Kind.COPY, _NEVER, "copy DtoD"),
    _cuda(18, "cuMemcpyPeer", Kind.COPY, _NEVER, "copy peer"),
    _cuda(19, "cuMemcpyPeerAsync", Kind.COPY, _NEVER, "copy peer"),
    _cuda(20, "cuMemcpy2D", Kind.COPY, _ALWAYS, "copy 2D"),
    _cuda(21, "cuMemcpy2DAsync", Kind.COPY, _DURATION, "copy 2D"),
    _cuda(22, "cuMemcpy2DUnaligned", Kind.COPY, _ALWAYS, "copy 2D"),
    _cuda(23, "cuMemcpy3D", Kind.COPY, _ALWAYS, "copy 3D"),
    _cuda(24, "cuMemcpy3DAsync", Kind.COPY, _DURATION, "copy 3D"),
    _cuda(25, "cuMemcpy3DPeer", Kind.COPY, _NEVER, "copy 3D peer"),
    _cuda(26, "cuMemcpy3DPeerAsync", Kind.COPY, _NEVER, "copy 3D peer"),
    _cuda(27, "cuMemcpyHtoA", Kind.COPY, _ALWAYS, "copy HtoA"),
    _cuda(28, "cuMemcpyAtoH", Kind.COPY, _ALWAYS, "copy AtoH"),
    _cuda(29, "cuMemcpyDtoA", Kind.COPY, _NEVER, "copy DtoA"),
    _cuda(30, "cuMemcpyAtoD", Kind.COPY, _NEVER, "copy AtoD"),
    _cuda(31, "cuMemcpyAtoA", Kind.COPY, _NEVER, "copy AtoA"),
    _cuda(32, "cuMemcpyHtoAAsync", Kind.COPY, _DURATION, "copy HtoA"),
    _cuda(33, "cuMemcpyAtoHAsync", Kind.COPY, _DURATION, "copy AtoH"),
    _cuda(34, "cuMemcpyBatchAsync", Kind.COPY, _DURATION, "copy batch"),
    _cuda(40, "cuMemsetD8", Kind.SET, _NEVER, "set"),
    _cuda(41, "cuMemsetD16", Kind.SET, _NEVER, "set"),
    _cuda(42, "cuMemsetD32", Kind.SET, _NEVER, "set"),
    _cuda(43, "cuMemsetD2D8", Kind.SET, _NEVER, "set 2D"),
    _cuda(44, "cuMemsetD2D16", Kind.SET, _NEVER, "set 2D"),
    _cuda(45, "cuMemsetD2D32", Kind.SET, _NEVER, "set 2D"),
    _cuda(46, "cuMemsetD8Async", Kind.SET, _NEVER, "set"),
    _cuda(47, "cuMemsetD16Async", Kind.SET, _NEVER, "set"),
    _cuda(48, "cuMemsetD32Async", Kind.SET, _NEVER, "set"),
    _cuda(49, "cuMemsetD2D8Async", Kind.SET, _NEVER, "set 2D"),
    _cuda(50, "cuMemsetD2D16Async", Kind.SET, _NEVER, "set 2D"),
    _cuda(51, "cuMemsetD2D32Async", Kind.SET, _NEVER, "set 2D"),
    _cuda(60, "cuCtxSynchronize", Kind.WAIT, _ALWAYS),
    _cuda(61, "cuStreamSynchronize", Kind.WAIT, _ALWAYS),
    _cuda(62, "cuEventSynchronize", Kind.WAIT, _ALWAYS),
    _cuda(70, "cuEventRecord", Kind.EVENT_RECORD, _NEVER),
    _cuda(71, "cuEventRecordWithFlags", Kind.EVENT_RECORD, _NEVER),
    _cuda(72, "cuStreamWaitEvent", Kind.STREAM_WAIT, _NEVER),
    # Not work, and no event: what is given to the stream in between becomes a graph.
    _cuda(73, "cuStreamBeginCapture", Kind.EVENT_RECORD, _NEVER),
    _cuda(74, "cuStreamBeginCaptureToGraph", Kind.EVENT_RECORD, _NEVER),
    _cuda(75, "cuStreamEndCapture", Kind.EVENT_RECORD, _NEVER),
    _cuda(80, "cuMemFree", Kind.FREE, _ALWAYS),
    _cuda(81, "cuMemFreeHost", Kind.FREE, _ALWAYS),
    _opencl(200, "clEnqueueNDRangeKernel", Kind.LAUNCH, _NEVER),
    _opencl(202, "clEnqueueReadBuffer", Kind.COPY, _ARGUMENT, "copy DtoH"),
    _opencl(203, "clEnqueueWriteBuffer", Kind.COPY, _ARGUMENT, "copy HtoD"),
    _opencl(204, "clEnqueueCopyBuffer", Kind.COPY, _NEVER, "copy DtoD"),
    _opencl(205, "clEnqueueFillBuffer", Kind.SET, _NEVER, "set"),
    # Maps copy where host and device do not share the memory, so that no bytes are claimed for them.
    _opencl(206, "clEnqueueMapBuffer", Kind.COPY, _ARGUMENT, "map"),
    _opencl(207, "clEnqueueMapImage", Kind.COPY, _ARGUMENT, "map"),
    _opencl(208, "clEnqueueReadBufferRect", Kind.COPY, _ARGUMENT, "copy DtoH"),
    _opencl(209, "clEnqueueWriteBufferRect", Kind.COPY, _ARGUMENT, "copy HtoD"),
    _opencl(210, "clFinish", Kind.WAIT, _ALWAYS),
    _opencl(211, "clWaitForEvents", Kind.WAIT, _ALWAYS),
    _opencl(212, "clEnqueueCopyBufferRect", Kind.COPY, _NEVER, "copy DtoD"),
)
"""Driver calls: functions that a library exports."""

SYSTEM_CALLS: Final = (
    _system_call(300, "ioctl"),
    _system_call(301, "poll"),
    _system_call(302, "ppoll"),
    _system_call(303, "mmap"),
)
"""Calls on GPU devices of the operating system."""


CUPTI_CALLS: Final = (
    _cupti(400, "cuptiActivityRegisterCallbacks"),
    _cupti(401, "cuptiActivityEnable"),
    _cupti(402, "cuptiActivityDisable"),
    _cupti(403, "cuptiActivityEnableContext"),
    _cupti(404, "cuptiActivityDisableContext"),
    _cupti(405, "cuptiActivityFlushAll"),
    _cupti(406, "cuptiFinalize"),
)
"""Calls that tell who profiles a process: they never leave the capture stage."""
_CAPTURES: Final = frozenset(
    {"cuStreamBeginCapture", "cuStreamBeginCaptureToGraph", "cuStreamEndCapture"}
)


def is_windowed(api: Api) -> bool:
    """Whether the agent probes this call only in windows, however rare it is: it returns at once, and mostly is not.

    Launches of graphs are windowed where a program makes many (`capture/frequent.py`), as calls that may wait are.
    """
    is_rare = api.kind in (Kind.GRAPH_LAUNCH, Kind.CUPTI) or api.name in _CAPTURES
    return api.blocking is Blocking.NEVER and not is_rare


BY_ID: Final[dict[int, Api]] = {api.id: api for api in ALL + SYSTEM_CALLS}
BY_NAME: Final[dict[str, Api]] = {api.name: api for api in ALL + CUPTI_CALLS}

CPU_SAMPLES_HZ: Final = 99
"""On-CPU samples a second of CPU time. Not 100, so as not to run in step with what programs do at round intervals."""

SUBMISSIONS: Final = frozenset({Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY, Kind.SET})
"""Kinds that give the GPU work."""
