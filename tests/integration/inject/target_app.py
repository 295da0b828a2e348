"""Target program: does with the fake driver what each line on stdin says, and answers with the truth as JSON.

`{"do": "launch", "count": 3, ...}` calls `do_launch(count=3, ...)`. It ends when stdin does.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.cuda_driver import FakeCuda
from tests.fakes.cupti_client import ProfilerClient

Truth = dict[str, Any]


class Target:
    """The driver and what the commands have made."""

    def __init__(self) -> None:
        self.cuda = FakeCuda()
        self.streams: dict[str, int] = {}
        self.graphs: dict[str, int] = {}
        self.profiler = ProfilerClient()

    def stream(self, name: str | None) -> int:
        """A stream by name; None: the default stream."""
        if name is None:
            return 0
        if name not in self.streams:
            self.streams[name] = self.cuda.create_stream()
        return self.streams[name]

    def do_launch(
        self,
        kernel: str = "kernel",
        count: int = 1,
        stream: str | None = None,
        duration_ns: int | None = None,
    ) -> Truth:
        """Launch one by one, with the time before and after each call."""
        if duration_ns is not None:
            self.cuda.set_duration_ns(kernel, duration_ns)
        handle = self.stream(stream)
        self.cuda.function(kernel)
        spans = []
        for index in range(count):
            begin_ns = time.monotonic_ns()
            self.cuda.launch(kernel, handle, grid=(index + 1, 2, 3), block=(32, 4, 1))
            spans.append((begin_ns, time.monotonic_ns()))
        return {"spans": spans, "thread": threading.get_ident()}

    def do_launch_many(self, kernel: str = "kernel", count: int = 1) -> Truth:
        """Launch from compiled code."""
        return {"launched": self.cuda.launch_many(kernel, count)}

    def do_in_threads(self, threads: int, count: int) -> Truth:
        """Each thread launches a kernel with a name of its own."""
        truths: list[Truth] = []

        def work(number: int) -> None:
            self.cuda.bind_thread()
            name = f"of_thread_{number}"
            truths.append({"kernel": name, **self.do_launch(kernel=name, count=count)})

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return {"threads": truths}

    def do_copies(self, size_bytes: int) -> Truth:
        """Copies to the device, on it, between devices and back, and a set."""
        first, second = self.cuda.allocate(size_bytes), self.cuda.allocate(size_bytes)
        size = ctypes.c_size_t(size_bytes)
        to, source = ctypes.c_void_p(first), ctypes.c_void_p(second)
        self.cuda.copy_to_device(first, bytes(size_bytes))
        self.cuda.call("cuMemcpyDtoD_v2", source, to, size)
        self.cuda.call("cuMemcpyPeer", to, None, source, None, size)
        self.cuda.copy_to_host(ctypes.create_string_buffer(size_bytes), first)
        self.cuda.call("cuMemsetD8_v2", to, ctypes.c_ubyte(7), size)
        return {}

    def do_make_graph(self, kernels: list[str]) -> Truth:
        """Capture a graph."""
        stream = self.stream("capture")

        def submit() -> None:
            for kernel in kernels:
                self.cuda.launch(kernel, stream)

        self.graphs["graph"] = self.cuda.instantiate_captured(stream, submit)
        return {}

    def do_launch_graph(self, count: int = 1) -> Truth:
        """Launch the captured graph."""
        for _ in range(count):
            self.cuda.launch_graph(self.graphs["graph"], self.stream("replay"))
        return {}

    def do_synchronize(self) -> Truth:
        """Wait for the device."""
        self.cuda.synchronize()
        return {}

    def do_launch_names(self, count: int, size: int) -> Truth:
        """Launch kernels whose names of `size` bytes differ at their end only."""
        for index in range(count):
            self.cuda.launch(f"{index:0{size}d}")
        return {}

    def do_launch_alternating(self, count: int, streams: list[str]) -> Truth:
        """Launch on one stream after the other."""
        for index in range(count):
            self.cuda.launch("alternating", self.stream(streams[index % len(streams)]))
        return {}

    def do_profile_begin(self, *, has_clock: bool = True) -> Truth:
        """A profiler of the program's own begins, and records."""
        self.profiler.begin(has_clock=has_clock)
        return {"begun_ns": time.monotonic_ns()}

    def do_profile_end(self, *, finalize: bool = False) -> Truth:
        """It ends; what it got."""
        self.profiler.disable()
        self.profiler.flush()
        if finalize:
            self.profiler.finalize()
        ended_ns = time.monotonic_ns()
        profile = self.profiler.take()
        return {"records": profile.records, "foreign": profile.foreign, "ended_ns": ended_ns}

    def do_exec(self) -> Truth:
        """Become another program in the same process; that one answers."""
        os.execv(sys.executable, [sys.executable, os.path.abspath(__file__)])

    def do_spawn(self, count: int) -> Truth:
        """Launch in a process that multiprocessing starts afresh."""
        spawn = multiprocessing.get_context("spawn")
        child = spawn.Process(target=launch_and_end, args=(count,))
        child.start()
        child.join()
        return {"status": child.exitcode}

    def do_fork(self) -> Truth:
        """Fork; the child launches with a driver of its own, and says what descriptors it has."""
        return in_child(
            lambda: {"regions": regions(), "launched": Target().cuda.launch_many("child", 10)}
        )


def in_child(act: Callable[[], Truth]) -> Truth:
    """What a forked child answers, and its status."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as text:
                text.write(json.dumps(act()))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as text:
        answer = json.loads(text.read() or "{}")
    _, status = os.waitpid(child, 0)
    return {"status": status, **answer}


def launch_and_end(count: int) -> None:
    """A short life."""
    FakeCuda().launch_many("spawned", count)


def regions() -> int:
    """How many descriptors of this process are the library's memory."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(
        os.readlink(link).startswith("/memfd:otel_gpuflame ")
        for link in links
        if os.path.islink(link)
    )


def commands(target: Target) -> Mapping[str, Callable[..., Truth]]:
    """The commands by name."""
    return {name[3:]: getattr(target, name) for name in dir(target) if name.startswith("do_")}


def main() -> None:
    """Answer each line."""
    table = commands(Target())
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(table[command.pop("do")](**command)), flush=True)


if __name__ == "__main__":
    main()
