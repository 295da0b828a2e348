"""Typed ctypes binding of the part of the CUDA driver API that tests and target programs use.

It loads `libcuda.so.1` by that name, through the loader, as any CUDA program does: start the
program with `fake_environment()`, or call `preload()` first inside an already running process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIBRARY = "libcuda.so.1"
APP_LIBRARY = "libfake_app.so"

LEGACY_STREAM = 1
PER_THREAD_STREAM = 2
STREAM_NON_BLOCKING = 1
EVENT_BLOCKING_SYNC = 1
WAIT_BLOCK = 0
WAIT_SPIN = 1
NOT_READY = 600


class FakeCudaError(RuntimeError):
    """A driver call failed; `code` is the CUresult."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class FakeCudaUnavailableError(RuntimeError):
    """There is no fake driver in this process; the text names the remedy."""


class _Counters(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "launches",
            "graph_launches",
            "copies",
            "copy_bytes",
            "sets",
            "waits",
            "wait_ns",
            "graph_kernels",
            "kernel_ns",
            "copy_ns",
            "sleeps",
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the fake driver did in this process since it was loaded or forked."""

    launches: int
    graph_launches: int
    copies: int
    copy_bytes: int
    sets: int
    waits: int
    wait_ns: int
    graph_kernels: int
    kernel_ns: int
    copy_ns: int
    sleeps: int

    def since(self, before: Counters) -> Counters:
        """The difference to an earlier reading."""
        return Counters(
            **{name: getattr(self, name) - getattr(before, name) for name in self.__slots__}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCount:
    """Calls of one exported function, failed ones included, and the time inside them."""

    count: int
    duration_ns: int


def preload(build_dir: Path) -> None:
    """Load the doubles by path, so that this process then finds them by name."""
    for name in (LIBRARY, APP_LIBRARY):
        ctypes.CDLL(str(build_dir / name), mode=ctypes.RTLD_GLOBAL)


class FakeCuda:
    """One initialised driver with the primary context of a device current in this thread.

    Handles are plain integers. Every method that maps to a driver call makes exactly that call.

    Raises:
        FakeCudaUnavailableError: `libcuda.so.1` is not found, or is not the fake.
        FakeCudaError: a driver call did not return CUDA_SUCCESS.
    """

    def __init__(self, *, device: int = 0) -> None:
        self._cuda = _load(LIBRARY)
        if not hasattr(self._cuda, "fake_cuda_counters"):
            msg = f"the {LIBRARY} found is not the fake: see tests/fakes/README.md"
            raise FakeCudaUnavailableError(msg)
        self._app = _load(APP_LIBRARY)
        self._cuda.fake_cuda_error.restype = ctypes.c_char_p
        self._cuda.fake_cuda_api_name.restype = ctypes.c_char_p
        self._functions: dict[str, int] = {}
        self.call("cuInit", 0)
        self.context = self._out("cuDevicePrimaryCtxRetain", device)
        self.bind_thread()
        image = ctypes.create_string_buffer(b"fake image")
        self.module = self._out("cuModuleLoadData", image)

    def create_context(self, flags: int = 0, *, device: int = 0) -> int:
        """Create a context with streams of its own and make it current in the calling thread."""
        return self._out("cuCtxCreate_v2", flags, device)

    def bind_thread(self) -> None:
        """Make the context current in the calling thread, as each new thread must."""
        self.call("cuCtxSetCurrent", _handle(self.context))

    def call(self, api: str, *arguments: Any) -> None:
        """Call an exported function by name and raise on any result but success."""
        code = self.result(api, *arguments)
        if code != 0:
            text = (api == "cuInit" and self.last_error()) or self.error_name(code)
            raise FakeCudaError(f"{api} returned {code}: {text}", code)

    def result(self, api: str, *arguments: Any) -> int:
        """Call an exported function by name and return its CUresult."""
        return int(getattr(self._cuda, api)(*arguments))

    def error_name(self, code: int) -> str:
        """Name of a CUresult, as cuGetErrorName has it."""
        name = ctypes.c_char_p()
        self._cuda.cuGetErrorName(code, ctypes.byref(name))
        return (name.value or b"unknown error").decode()

    def last_error(self) -> str:
        """What the last failing cuInit or replay of this thread said."""
        return (self._cuda.fake_cuda_error() or b"").decode()

    def function(self, name: str) -> int:
        """Handle of a kernel, looked up in the module once."""
        if name not in self._functions:
            handle = self._out("cuModuleGetFunction", _handle(self.module), name.encode())
            self._functions[name] = handle
        return self._functions[name]

    def launch(
        self,
        name: str,
        stream: int = 0,
        *,
        grid: tuple[int, int, int] = (128, 1, 1),
        block: tuple[int, int, int] = (256, 1, 1),
        api: str = "cuLaunchKernel",
    ) -> None:
        """Launch a kernel; `api` picks an alias with the arguments of cuLaunchKernel."""
        function = _handle(self.function(name))
        self.call(api, function, *grid, *block, 0, _handle(stream), None, None)

    def launch_many(
        self, name: str, count: int, *, rate_per_s: float | None = None, stream: int = 0
    ) -> int:
        """Launch from compiled code, without returning to Python in between.

        Returns:
            The number of launches made, `count` unless an error is raised.
        """
        launched = ctypes.c_uint64()
        code = self._app.fake_app_launch_many(
            _handle(self.function(name)),
            _handle(stream),
            ctypes.c_uint64(count),
            ctypes.c_double(rate_per_s or 0.0),
            ctypes.byref(launched),
        )
        if code != 0:
            raise FakeCudaError(f"launch {launched.value} of {count} failed: {code}", code)
        return launched.value

    def create_stream(self, flags: int = 0) -> int:
        """Create a stream; STREAM_NON_BLOCKING frees it of the legacy default stream."""
        return self._out("cuStreamCreate", flags)

    def create_event(self, flags: int = 0) -> int:
        """Create an event; EVENT_BLOCKING_SYNC makes waits for it leave the CPU."""
        return self._out("cuEventCreate", flags)

    def record(self, event: int, stream: int = 0) -> None:
        """Record an event at the end of what the stream has been given."""
        self.call("cuEventRecord", _handle(event), _handle(stream))

    def wait_event(self, stream: int, event: int) -> None:
        """Hold later work of a stream until the event."""
        self.call("cuStreamWaitEvent", _handle(stream), _handle(event), 0)

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for a stream, or without one for the whole context."""
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", _handle(stream))

    def synchronize_event(self, event: int) -> None:
        """Wait for an event."""
        self.call("cuEventSynchronize", _handle(event))

    def is_idle(self, stream: int = 0) -> bool:
        """Whether all work of the stream has ended (cuStreamQuery)."""
        code = self.result("cuStreamQuery", _handle(stream))
        if code not in (0, NOT_READY):
            raise FakeCudaError(f"cuStreamQuery returned {code}: {self.error_name(code)}", code)
        return code == 0

    def elapsed_ms(self, begin: int, end: int) -> float:
        """Device time between two completed events, in milliseconds."""
        value = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(value), _handle(begin), _handle(end))
        return value.value

    def allocate(self, size_bytes: int) -> int:
        """Device memory; free it with `free`."""
        return self._out("cuMemAlloc_v2", ctypes.c_size_t(size_bytes))

    def free(self, address: int) -> None:
        """Free device memory, which waits for the context."""
        self.call("cuMemFree_v2", _handle(address))

    def allocate_pinned(self, size_bytes: int) -> ctypes.Array[ctypes.c_char]:
        """Page-locked host memory, alive until the process ends."""
        address = self._out("cuMemHostAlloc", ctypes.c_size_t(size_bytes), 0)
        return (ctypes.c_char * size_bytes).from_address(address)

    def copy_to_device(self, to: int, data: bytes) -> None:
        """Blocking copy from host memory."""
        self.call("cuMemcpyHtoD_v2", _handle(to), data, ctypes.c_size_t(len(data)))

    def copy_to_host(self, to: ctypes.Array[ctypes.c_char], address: int) -> None:
        """Blocking copy that fills a host buffer."""
        self.call("cuMemcpyDtoH_v2", to, _handle(address), ctypes.c_size_t(len(to)))

    def copy_to_host_async(
        self, to: ctypes.Array[ctypes.c_char], address: int, stream: int = 0
    ) -> None:
        """Asynchronous copy that fills a host buffer; it waits if the buffer is pageable."""
        size = ctypes.c_size_t(len(to))
        self.call("cuMemcpyDtoHAsync_v2", to, _handle(address), size, _handle(stream))

    def instantiate_captured(self, stream: int, submit: Callable[[], None]) -> int:
        """Capture what `submit` gives the stream and return an executable graph."""
        self.call("cuStreamBeginCapture_v2", _handle(stream), 0)
        submit()
        graph = ctypes.c_void_p()
        self.call("cuStreamEndCapture", _handle(stream), ctypes.byref(graph))
        return self._out("cuGraphInstantiateWithFlags", graph, ctypes.c_uint64(0))

    def launch_graph(self, graph_exec: int, stream: int = 0) -> None:
        """Launch an executable graph."""
        self.call("cuGraphLaunch", _handle(graph_exec), _handle(stream))

    def set_duration_ns(self, name: str, duration_ns: int) -> None:
        """Set how long each later run of a kernel takes."""
        self._cuda.fake_cuda_set_duration_ns(name.encode(), ctypes.c_uint64(duration_ns))

    def set_wait_mode(self, mode: int) -> None:
        """Choose WAIT_BLOCK or WAIT_SPIN for contexts without a scheduling flag."""
        if self._cuda.fake_cuda_set_wait_mode(mode) != 0:
            raise ValueError(f"wait mode {mode}: want WAIT_BLOCK or WAIT_SPIN")

    def hold_waits(self, fd: int) -> None:
        """Have every later wait last until this descriptor can be read, too; -1: no longer."""
        self._cuda.fake_cuda_hold_waits(fd)

    def replay(self, transcript: Path) -> None:
        """Replay a transcript; the error names its line."""
        code = int(self._cuda.fake_cuda_replay(str(transcript).encode()))
        if code != 0:
            raise FakeCudaError(f"{transcript.name}: {self.last_error()}", code)

    def counters(self) -> Counters:
        """Ground truth of this process."""
        raw = _Counters()
        self._cuda.fake_cuda_counters(ctypes.byref(raw))
        return Counters(**{name: int(getattr(raw, name)) for name in Counters.__slots__})

    def api_count(self, api: str) -> ApiCount:
        """Calls of one exported function."""
        count, duration_ns = ctypes.c_uint64(), ctypes.c_uint64()
        code = self._cuda.fake_cuda_api_count(
            api.encode(), ctypes.byref(count), ctypes.byref(duration_ns)
        )
        if code != 0:
            raise KeyError(api)
        return ApiCount(count=count.value, duration_ns=duration_ns.value)

    def api_names(self) -> tuple[str, ...]:
        """Every exported function that is counted."""
        names: list[str] = []
        while (name := self._cuda.fake_cuda_api_name(len(names))) is not None:
            names.append(name.decode())
        return tuple(names)

    def _out(self, api: str, *arguments: Any) -> int:
        """Call a function whose first argument receives a handle or an address."""
        value = ctypes.c_void_p()
        self.call(api, ctypes.byref(value), *arguments)
        return value.value or 0


def _handle(value: int) -> ctypes.c_void_p:
    """Handles and device addresses are 64 bits wide; a bare int would be passed as 32."""
    return ctypes.c_void_p(value)


def _load(name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        msg = (
            f"{name} is not found ({error}): build the doubles with `make -C tests/fakes` and start"
            " the program with LD_LIBRARY_PATH=tests/fakes/.build (tests/fakes/README.md)"
        )
        raise FakeCudaUnavailableError(msg) from error
