"""Programs of which it is known what they cost: a machine that runs them, writes both sides down, and keeps the truth.

The truth is worked out interval by interval in plain Python, on other ways than the code under test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np

from otel_gpuflame.events import wire
from otel_gpuflame.events.apis import CPU_SAMPLES_HZ
from otel_gpuflame.events.attributions import Leaf, Measure
from otel_gpuflame.events.executions import EXECUTION
from otel_gpuflame.events.records import Event
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.unit.correlate.gpu.program import Program
from tests.unit.correlate.gpu.traffic import PROCESS, call

US: Final = 1_000
MS: Final = 1_000_000
SAMPLE_NS: Final = 1_000_000_000 // CPU_SAMPLES_HZ
CALL_NS: Final = 4 * US
"""CPU time of a call that does not wait."""
LATENCY_NS: Final = 5 * US
"""From the entry of a launch to its start, at the earliest."""
RETURN_NS: Final = 3 * US
"""From the end of what a call waited for to its return."""
QUEUE: Final = 1_024
"""Launches that a stream takes before it holds the next one back."""
EVENTS: Final = 3
"""A program records the same few again and again."""
DEVICE: Final = 2
NONE: Final = 0
"""No kernel."""

Key: TypeAlias = tuple[Leaf, int, int]
"""Leaf, line, kernel."""
Interval: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Work:
    """Something that ran on the device."""

    line: int
    kernel: int
    launched: int
    start: int
    end: int


@dataclass
class Stream:
    """In order. `waits_for`: until when what it was told to wait for lasts; `before`: what that is."""

    handle: int
    id: int
    work: list[Work] = field(default_factory=list)
    waits_for: int = 0
    before: list[Work] = field(default_factory=list)

    @property
    def free_at(self) -> int:
        """When all that it has to do is done, and what it waits for."""
        return max(self.work[-1].end if self.work else 0, self.waits_for)

    @property
    def all(self) -> list[Work]:
        """What has to be done until then."""
        return [*self.work, *self.before]


@dataclass
class Machine:
    """One thread, one device with streams. Lines of the program are stacks, `(line, 0)`."""

    program: Program = field(default_factory=Program)
    now: int = MS
    streams: list[Stream] = field(default_factory=list)
    truth: dict[Measure, Counter[Key]] = field(
        default_factory=lambda: {measure: Counter() for measure in Measure}
    )
    _did: list[tuple[Leaf, int, int, int]] = field(default_factory=list)
    """What the thread did: leaf, line, from, until."""
    _events: int = 0

    def stream(self) -> Stream:
        """Another one, that does not synchronise with the default stream."""
        place = len(self.streams)
        new = Stream(0xA000 + 0x1000 * place, 13 + place)
        self.streams.append(new)
        return new

    def launch(self, stream: Stream, line: int, kernel: int, duration: int) -> None:
        """A kernel."""
        begin, held_until = self.now, self.now
        if len(stream.work) >= QUEUE:
            held_until = max(self.now, stream.work[-QUEUE].end)
        work = self._submit(stream, line, kernel, duration, held_until)
        self._write(call(line, begin, stream=stream.handle), held_until + CALL_NS, stream, work)
        if held_until > begin + CALL_NS:
            self._hold_back(stream, line, begin + CALL_NS // 2, held_until)
        self.now = held_until + CALL_NS

    def copy(
        self,
        stream: Stream,
        line: int,
        duration: int,
        *,
        pinned: bool,
        api: str = "cuMemcpyHtoDAsync",
    ) -> None:
        """A copy: from pageable memory the thread waits for it."""
        begin = self.now
        work = self._submit(stream, line, NONE, duration, begin)
        until = begin + CALL_NS if pinned else work.end + RETURN_NS
        row = call(line, begin, until, api, stream=stream.handle)
        detail = 2 if "DtoH" in api else 1
        self._write(row, until, stream, work, kind=GpuKind.COPY, detail=detail)
        if pinned:
            self._did.append((Leaf.DRIVER_CALL, line, begin, until))
        else:
            self._waited(line, begin, until, stream.all)
        self.now = until

    def synchronise(self, line: int, *streams: Stream) -> None:
        """Until these streams have done everything; without any, the context."""
        waited_for = streams or tuple(self.streams)
        begin = self.now
        until = max([begin, *(stream.free_at for stream in waited_for)]) + RETURN_NS
        api = "cuStreamSynchronize" if streams else "cuCtxSynchronize"
        handle = streams[0].handle if streams else 0
        self.program.calls.append((until, call(line, begin, until, api, stream=handle)))
        self._waited(line, begin, until, [each for stream in waited_for for each in stream.all])
        self.now = until

    def wait_for(self, waiting: Stream, stream: Stream, line: int) -> None:
        """`waiting` waits, through an event, for all that `stream` has to do by now."""
        self._events = self._events % EVENTS + 1
        for api, on in (("cuEventRecord", stream), ("cuStreamWaitEvent", waiting)):
            row = call(line, self.now, api=api, stream=on.handle, object=self._events)
            self.program.calls.append((self.now, row))
            self.now += CALL_NS
        waiting.waits_for = max(waiting.waits_for, stream.free_at)
        waiting.before += stream.all

    def sleep(self, line: int, duration: int) -> None:
        """Off the CPU."""
        self._thread(Kind.OFF_CPU, line, self.now, self.now + duration)
        self._did.append((Leaf.OFF_CPU, line, self.now, self.now + duration))
        self.now += duration

    def compute(self, line: int, duration: int) -> None:
        """On the CPU, with a sample each 10 ms of the clock."""
        until = self.now + duration
        for at in range(-(-self.now // SAMPLE_NS) * SAMPLE_NS, until, SAMPLE_NS):
            self._thread(Kind.CPU_SAMPLE, line, at)
        self._did.append((Leaf.ON_CPU, line, self.now, until))
        self.now = until

    def events(self) -> list[Event]:
        """What a capture has of it, from its begin to its end."""
        return self.program.events(self.now + 10 * MS)

    def finished(self) -> Machine:
        """With the idle time told: between the first and the last execution."""
        work = sorted(
            (each for stream in self.streams for each in stream.work), key=lambda w: w.start
        )
        idle, reach = self.truth[Measure.GPU_IDLE], work[0].end
        for each in work[1:]:
            if each.start > reach:
                self._idle(idle, reach, each)
            reach = max(reach, each.end)
        return self

    def _submit(self, stream: Stream, line: int, kernel: int, duration: int, held: int) -> Work:
        launched, event = self.now, stream.waits_for
        previous = stream.work[-1].end if stream.work else 0
        start = max(held + LATENCY_NS, previous, event)
        work = Work(line, kernel, launched, start, start + duration)
        since = max(launched, previous)
        by_event = max(min(event, start) - since, 0)
        queue = self.truth[Measure.GPU_QUEUE]
        queue[Leaf.WAITS_FOR_EVENT, line, kernel] += by_event
        queue[Leaf.LAUNCH_LATENCY, line, kernel] += start - since - by_event
        self.truth[Measure.GPU_TIME][Leaf.KERNEL, line, kernel] += duration
        stream.work.append(work)
        stream.waits_for = 0
        return work

    def _write(self, row: Any, until: int, stream: Stream, work: Work, **fields: Any) -> None:
        self.program.kernel(
            work.launched,
            work.start,
            work.end,
            stack=work.line,
            name=work.kernel,
            device=DEVICE,
            stream_id=stream.id,
            **fields,
        )
        returned = bool(row["flags"][0] & CallFlag.RETURNED)
        self.program.calls[-1] = (until if returned else work.launched, row)
        record = self.program.records[-2][1]
        record["end_ns"] = until - 200
        self.program.records[-2] = (until, record)

    def _hold_back(self, stream: Stream, line: int, begin: int, until: int) -> None:
        row = np.zeros(1, EXECUTION)
        row["kind"], row["detail"] = GpuKind.OVERHEAD, 6
        row["start_ns"], row["end_ns"] = begin, until
        row["tgid"], row["process_start_ns"] = PROCESS.tgid, PROCESS.start_ns
        self.program.records.append((until, row))
        wait = self.truth[Measure.GPU_WAIT]
        ran = 0
        # The queue is full until the last of these has ended; its kernels run one after the other.
        for work in stream.work[-QUEUE - 4 : -QUEUE]:
            piece = max(min(until, work.end) - max(begin, work.start), 0)
            wait[Leaf.KERNEL, line, work.kernel] += piece
            ran += piece
        wait[Leaf.QUEUE_FULL, line, NONE] += until - begin - ran

    def _waited(self, line: int, begin: int, until: int, work: Iterable[Work]) -> None:
        """Piece by piece between all times at which something begins or ends."""
        mine = [each for each in work if each.end > begin]
        last = max((each.end for each in mine), default=begin)
        bounds = {begin, until, last} | {
            t for w in mine for t in (w.start, w.end) if begin < t < until
        }
        truth = self.truth[Measure.GPU_WAIT]
        ordered = sorted(bounds)
        for at, after in pairwise(ordered):
            running = [each for each in mine if each.start <= at < each.end]
            if running:
                longest = max(running, key=lambda each: each.end)
                truth[Leaf.KERNEL, line, longest.kernel] += after - at
            else:
                truth[Leaf.GPU_IDLE if at < last else Leaf.DRIVER, line, NONE] += after - at
        self._did.append((Leaf.DRIVER_CALL, line, begin, until))

    def _idle(self, idle: Counter[Key], begin: int, ended_by: Work) -> None:
        rest = ended_by.start - begin
        for leaf, line, start, end in self._did:
            piece = max(min(end, ended_by.start) - max(start, begin), 0)
            idle[leaf, line, NONE] += piece
            rest -= piece
        idle[Leaf.NO_SAMPLE, ended_by.line, NONE] += rest

    def _thread(self, kind: Kind, line: int, at: int, until: int | None = None) -> None:
        row = np.zeros(1, wire.CALL)
        row["kind"], row["start_ns"], row["stack_hash"][:, 0] = kind, at, line
        row["tgid"] = row["tid"] = PROCESS.tgid
        row["process_start_ns"] = PROCESS.start_ns
        if until is not None:
            row["end_ns"], row["flags"] = until, CallFlag.RETURNED
        self.program.calls.append((at if until is None else until, row))


LAUNCH, ITEM, COPY, SLEEP, LOOP, EVENT = 10, 20, 30, 40, 50, 60
"""Lines."""
GEMM, RELU = 1, 2
"""Kernels."""


def item_each_step(steps: int = 100) -> Machine:
    """`.item()` a step: two kernels of 1 ms in all, a copy of 2 µs, and a wait for it."""
    machine = Machine()
    stream = machine.stream()
    for _ in range(steps):
        machine.launch(stream, LAUNCH, GEMM, 700 * US)
        machine.launch(stream, LAUNCH, RELU, 300 * US)
        machine.copy(stream, ITEM, 2 * US, pinned=True, api="cuMemcpyDtoHAsync")
        machine.synchronise(ITEM, stream)
        machine.compute(LOOP, 50 * US)
    return machine.finished()


def unpinned_copy(steps: int = 100) -> Machine:
    """Each step copies from pageable memory, and so waits for the kernel of the step before."""
    machine = Machine()
    stream = machine.stream()
    for _ in range(steps):
        machine.copy(stream, COPY, 500 * US, pinned=False)
        machine.launch(stream, LAUNCH, GEMM, 1 * MS)
    machine.synchronise(ITEM, stream)
    return machine.finished()


def sleep_between_steps(steps: int = 100) -> Machine:
    """Each step ends with a synchronise and 5 ms of sleep."""
    machine = Machine()
    stream = machine.stream()
    for _ in range(steps):
        machine.launch(stream, LAUNCH, GEMM, 1 * MS)
        machine.synchronise(ITEM)
        machine.sleep(SLEEP, 5 * MS)
    return machine.finished()


def python_between_steps(steps: int = 300) -> Machine:
    """Each step ends with a synchronise and 5 ms of a loop in Python."""
    machine = Machine()
    stream = machine.stream()
    for _ in range(steps):
        machine.launch(stream, LAUNCH, GEMM, 1 * MS)
        machine.synchronise(ITEM)
        machine.compute(LOOP, 5 * MS)
    return machine.finished()


def launches_without_synchronise(launches: int = 5_000) -> Machine:
    """Kernels of 1 ms, and one synchronise at the end."""
    machine = Machine()
    stream = machine.stream()
    for _ in range(launches):
        machine.launch(stream, LAUNCH, GEMM, 1 * MS)
    machine.synchronise(ITEM)
    return machine.finished()


def two_streams(steps: int = 100) -> Machine:
    """Kernels of 2 ms and of 3 ms that overlap, and a wait for both."""
    machine = Machine()
    first, second = machine.stream(), machine.stream()
    for _ in range(steps):
        machine.launch(first, LAUNCH, GEMM, 2 * MS)
        machine.launch(second, LAUNCH, RELU, 3 * MS)
        machine.synchronise(ITEM)
    return machine.finished()


def copy_awaited_through_event(steps: int = 100) -> Machine:
    """A copy on a second stream; the first one waits for it through an event, and the thread for the first one."""
    machine = Machine()
    first, second = machine.stream(), machine.stream()
    for _ in range(steps):
        machine.copy(second, COPY, 800 * US, pinned=True)
        machine.wait_for(first, second, EVENT)
        machine.launch(first, LAUNCH, GEMM, 1 * MS)
        machine.synchronise(ITEM, first)
    return machine.finished()


ALL: Final = (
    item_each_step,
    unpinned_copy,
    sleep_between_steps,
    python_between_steps,
    launches_without_synchronise,
    two_streams,
    copy_awaited_through_event,
)
