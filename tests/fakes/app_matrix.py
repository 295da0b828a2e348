"""Target program: calls every counted driver function, each alias too, and prints the counts."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda
from tests.fakes.cuda_layouts import (
    FORMAT_UNSIGNED_8,
    MEMORY_ARRAY,
    MEMORY_DEVICE,
    MEMORY_HOST,
    ArrayDescriptor,
    Copy2D,
    Copy3D,
    LaunchConfig,
    Side2D,
    Side3D,
)

ROW_BYTES, ROWS, SLICES = 64, 8, 8
SIZE_BYTES = ROW_BYTES * ROWS * SLICES
Arguments = tuple[object, ...]
STREAM_VARIANT = re.compile(r"_(ptsz|ptds)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What the calls work on."""

    stream: ctypes.c_void_p
    event: ctypes.c_void_p
    function: ctypes.c_void_p
    graph_exec: ctypes.c_void_p
    device: ctypes.c_void_p
    other: ctypes.c_void_p
    array: ctypes.c_void_p
    host: ctypes.Array[ctypes.c_char]


def make_objects(cuda: FakeCuda) -> Objects:
    """Make them with the plain functions; these calls count too."""
    stream = cuda.create_stream()
    graph_exec = cuda.instantiate_captured(stream, lambda: cuda.launch(app_common.KERNEL, stream))
    event = cuda.create_event()
    cuda.record(event, stream)
    shape = ArrayDescriptor(width=ROW_BYTES, height=ROWS, format=FORMAT_UNSIGNED_8, channels=1)
    array = ctypes.c_void_p()
    cuda.call("cuArrayCreate_v2", ctypes.byref(array), ctypes.byref(shape))
    return Objects(
        stream=ctypes.c_void_p(stream),
        event=ctypes.c_void_p(event),
        function=ctypes.c_void_p(cuda.function(app_common.KERNEL)),
        graph_exec=ctypes.c_void_p(graph_exec),
        device=ctypes.c_void_p(cuda.allocate(SIZE_BYTES)),
        other=ctypes.c_void_p(cuda.allocate(SIZE_BYTES)),
        array=array,
        host=cuda.allocate_pinned(SIZE_BYTES),
    )


def order_arguments(made: Objects) -> dict[str, Arguments]:
    """Launches, and what orders or waits for them."""
    shape = (2, 1, 1, 32, 1, 1, 0)
    config = LaunchConfig(grid=(2, 1, 1), block=(32, 1, 1), stream=made.stream)
    return {
        "cuLaunchKernel": (made.function, *shape, made.stream, None, None),
        "cuLaunchCooperativeKernel": (made.function, *shape, made.stream, None),
        "cuLaunchKernelEx": (ctypes.byref(config), made.function, None, None),
        "cuGraphLaunch": (made.graph_exec, made.stream),
        "cuStreamSynchronize": (made.stream,),
        "cuStreamQuery": (made.stream,),
        "cuStreamWaitEvent": (made.stream, made.event, 0),
        "cuEventRecord": (made.event, made.stream),
        "cuEventRecordWithFlags": (made.event, made.stream, 0),
        "cuEventSynchronize": (made.event,),
        "cuEventQuery": (made.event,),
        "cuCtxSynchronize": (),
    }


def copy_arguments(made: Objects) -> dict[str, Arguments]:
    """Copies of one row; arrays have room for one slice."""
    size, none = ctypes.c_size_t(SIZE_BYTES), ctypes.c_void_p()
    zero, slice_bytes = ctypes.c_size_t(0), ctypes.c_size_t(ROW_BYTES * ROWS)
    return {
        "cuMemcpy": (made.device, made.other, size),
        "cuMemcpyAsync": (made.device, made.other, size, made.stream),
        "cuMemcpyHtoD_v2": (made.device, made.host, size),
        "cuMemcpyHtoDAsync_v2": (made.device, made.host, size, made.stream),
        "cuMemcpyDtoH_v2": (made.host, made.device, size),
        "cuMemcpyDtoHAsync_v2": (made.host, made.device, size, made.stream),
        "cuMemcpyDtoD_v2": (made.device, made.other, size),
        "cuMemcpyDtoDAsync_v2": (made.device, made.other, size, made.stream),
        "cuMemcpyPeer": (made.device, none, made.other, none, size),
        "cuMemcpyPeerAsync": (made.device, none, made.other, none, size, made.stream),
        "cuMemcpyHtoA_v2": (made.array, zero, made.host, slice_bytes),
        "cuMemcpyHtoAAsync_v2": (made.array, zero, made.host, slice_bytes, made.stream),
        "cuMemcpyAtoH_v2": (made.host, made.array, zero, slice_bytes),
        "cuMemcpyAtoHAsync_v2": (made.host, made.array, zero, slice_bytes, made.stream),
        "cuMemcpyDtoA_v2": (made.array, zero, made.device, slice_bytes),
        "cuMemcpyAtoD_v2": (made.device, made.array, zero, slice_bytes),
        "cuMemcpyAtoA_v2": (made.array, zero, made.array, zero, slice_bytes),
    }


BATCH_BYTES = SIZE_BYTES // 2, SIZE_BYTES // 4, SIZE_BYTES // 4
"""Copies of one batch; the size of each is behind a pointer."""


def batch_arguments(made: Objects) -> dict[str, Arguments]:
    """Copies in batches, in the form of CUDA 12 and in that of CUDA 13."""
    count = len(BATCH_BYTES)
    parts = (
        (ctypes.c_uint64 * count)(*[made.device.value or 0] * count),
        (ctypes.c_uint64 * count)(*[made.other.value or 0] * count),
        (ctypes.c_size_t * count)(*BATCH_BYTES),
        ctypes.c_size_t(count),
    )
    attributes = (None, None, ctypes.c_size_t(0))
    return {
        "cuMemcpyBatchAsync": (*parts, *attributes, None, made.stream),
        "cuMemcpyBatchAsync_v2": (*parts, *attributes, made.stream),
    }


def box_arguments(made: Objects) -> dict[str, Arguments]:
    """Copies and sets of rectangles and boxes: ROW_BYTES x ROWS (x SLICES) bytes."""
    host = ctypes.addressof(made.host)
    flat = Copy2D(
        source=Side2D(type=MEMORY_DEVICE, device=made.device, pitch_bytes=ROW_BYTES),
        target=Side2D(type=MEMORY_ARRAY, array=made.array),
        width_bytes=ROW_BYTES,
        height=ROWS,
    )
    pitch = {"pitch_bytes": ROW_BYTES, "height": ROWS}
    box = Copy3D(
        source=Side3D(type=MEMORY_HOST, host=host, **pitch),
        target=Side3D(type=MEMORY_DEVICE, device=made.device, **pitch),
        width_bytes=ROW_BYTES,
        height=ROWS,
        depth=SLICES,
    )
    result: dict[str, Arguments] = {
        "cuMemcpy2D_v2": (ctypes.byref(flat),),
        "cuMemcpy2DUnaligned_v2": (ctypes.byref(flat),),
        "cuMemcpy2DAsync_v2": (ctypes.byref(flat), made.stream),
        "cuMemcpy3D_v2": (ctypes.byref(box),),
        "cuMemcpy3DAsync_v2": (ctypes.byref(box), made.stream),
        "cuMemcpy3DPeer": (ctypes.byref(box),),
        "cuMemcpy3DPeerAsync": (ctypes.byref(box), made.stream),
    }
    rows = ctypes.c_size_t(ROWS)
    for bits, value in ((8, ctypes.c_ubyte(1)), (16, ctypes.c_ushort(1)), (32, ctypes.c_uint(1))):
        count = ctypes.c_size_t(SIZE_BYTES * 8 // bits)
        width = ctypes.c_size_t(ROW_BYTES * 8 // bits)
        flat_set = (made.device, ctypes.c_size_t(ROW_BYTES), value, width, rows)
        result[f"cuMemsetD{bits}_v2"] = (made.device, value, count)
        result[f"cuMemsetD{bits}Async"] = (made.device, value, count, made.stream)
        result[f"cuMemsetD2D{bits}_v2"] = flat_set
        result[f"cuMemsetD2D{bits}Async"] = (*flat_set, made.stream)
    return result


def call_work(cuda: FakeCuda, made: Objects) -> None:
    """Call each of them once, with every stream variant there is."""
    arguments = order_arguments(made) | copy_arguments(made) | batch_arguments(made)
    arguments |= box_arguments(made)
    for api in cuda.api_names():
        base = STREAM_VARIANT.sub("", api)
        if base not in arguments:
            continue
        cuda.call(api, *arguments[base])
    cuda.call("cuCtxSynchronize_v2", ctypes.c_void_p(cuda.context))


def call_lookups(cuda: FakeCuda) -> None:
    """Library, kernel and function lookups, by which kernel names are learned."""
    image = ctypes.create_string_buffer(b"fake image")
    library, kernel, function, name = (ctypes.c_void_p() for _ in range(4))
    none = (None, None, 0, None, None, 0)
    cuda.call("cuLibraryLoadData", ctypes.byref(library), image, *none)
    cuda.call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"from_library")
    cuda.call("cuKernelGetFunction", ctypes.byref(function), kernel)
    cuda.call("cuKernelGetName", ctypes.byref(name), kernel)
    cuda.call("cuFuncGetName", ctypes.byref(name), function)
    cuda.call("cuLibraryUnload", library)


def call_queries(cuda: FakeCuda) -> None:
    """Functions that only answer."""
    number, text = ctypes.c_int(), ctypes.create_string_buffer(100)
    name = ctypes.c_char_p()
    cuda.call("cuDriverGetVersion", ctypes.byref(number))
    cuda.call("cuDeviceGetCount", ctypes.byref(number))
    cuda.call("cuDeviceGetAttribute", ctypes.byref(number), 16, 0)
    cuda.call("cuDeviceGet", ctypes.byref(number), 0)
    cuda.call("cuDeviceGetName", text, len(text), 0)
    cuda.call("cuDeviceGetUuid_v2", text, 0)
    cuda.call("cuCtxGetCurrent", ctypes.byref(ctypes.c_void_p()))
    cuda.call("cuGetErrorName", 600, ctypes.byref(name))
    cuda.call("cuGetErrorString", 600, ctypes.byref(name))
    address = ctypes.byref(ctypes.c_void_p())
    cuda.call("cuGetProcAddress", b"cuLaunchKernel", address, 13000, ctypes.c_uint64(0))
    cuda.call("cuGetProcAddress_v2", b"cuLaunchKernel", address, 13000, ctypes.c_uint64(0), None)


def call_graphs(cuda: FakeCuda, made: Objects) -> None:
    """Graphs by hand and by capture, in both stream variants."""
    number, graph = ctypes.c_int(), ctypes.c_void_p()
    for suffix in ("", "_ptsz"):
        cuda.call(f"cuStreamBeginCapture_v2{suffix}", made.stream, 0)
        cuda.call(f"cuStreamIsCapturing{suffix}", made.stream, ctypes.byref(number))
        cuda.call(f"cuStreamEndCapture{suffix}", made.stream, ctypes.byref(graph))
        cuda.call("cuGraphDestroy", graph)
    cuda.call("cuGraphCreate", ctypes.byref(graph), 0)
    for suffix in ("", "_ptsz"):
        dependencies = (None, None, ctypes.c_size_t(0))
        cuda.call(f"cuStreamBeginCaptureToGraph{suffix}", made.stream, graph, *dependencies, 0)
        cuda.call(f"cuStreamEndCapture{suffix}", made.stream, ctypes.byref(graph))
    # CUDA_KERNEL_NODE_PARAMS_v2 starts with the function; zero is a valid rest.
    node = (ctypes.c_uint64 * 9)(made.function.value or 0)
    added = ctypes.byref(ctypes.c_void_p())
    cuda.call("cuGraphAddKernelNode_v2", added, graph, None, ctypes.c_size_t(0), node)
    cuda.call("cuGraphExecDestroy", made.graph_exec)


def call_ends(cuda: FakeCuda, made: Objects) -> None:
    """Timing between two events, then the functions that give things back."""
    begin, end, elapsed = cuda.create_event(), cuda.create_event(), ctypes.c_float()
    cuda.record(begin)
    cuda.record(end)
    cuda.synchronize()
    for api in ("cuEventElapsedTime", "cuEventElapsedTime_v2"):
        cuda.call(api, ctypes.byref(elapsed), ctypes.c_void_p(begin), ctypes.c_void_p(end))
    other = ctypes.c_void_p()
    cuda.call("cuStreamCreateWithPriority", ctypes.byref(other), 0, -1)
    cuda.call("cuStreamDestroy_v2", other)
    cuda.call("cuEventDestroy_v2", made.event)
    cuda.call("cuMemFree_v2", made.device)
    cuda.call("cuMemFreeHost", made.host)
    cuda.call("cuArrayDestroy", made.array)
    cuda.call("cuModuleUnload", ctypes.c_void_p(cuda.module))
    cuda.call("cuDevicePrimaryCtxSetFlags_v2", 0, 0)
    flags, active = ctypes.c_uint(), ctypes.c_int()
    cuda.call("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    cuda.call("cuDevicePrimaryCtxRelease_v2", 0)
    context = ctypes.c_void_p(cuda.create_context())
    cuda.call("cuCtxDestroy_v2", context)


def main() -> None:
    """Call everything and print how often each function was called."""
    parser = app_common.parser(__doc__ or "")
    options = parser.parse_args()
    cuda = FakeCuda()
    app_common.hold(options)
    before = {api: cuda.api_count(api).count for api in cuda.api_names()}
    made = make_objects(cuda)
    steps: tuple[Callable[[], None], ...] = (
        lambda: call_work(cuda, made),
        lambda: call_lookups(cuda),
        lambda: call_queries(cuda),
        lambda: call_graphs(cuda, made),
        lambda: call_ends(cuda, made),
    )
    for step in steps:
        step()
    counts = {api: cuda.api_count(api).count - before[api] for api in before}
    truth = {"pid": os.getpid(), "counts": counts, "counters": app_common.counter_dict(cuda)}
    app_common.emit(truth)


if __name__ == "__main__":
    app_common.run(main)
