"""Which stream a handle means, what an event stands for, and so what each wait waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from otel_gpuflame.correlate.gpu import streams
from otel_gpuflame.correlate.gpu.legacy import remember
from otel_gpuflame.correlate.gpu.marks import keep_marks
from otel_gpuflame.correlate.gpu.scopes import REFUTED_FROM_NS
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.apis import Blocking
from otel_gpuflame.events.attributions import NoLaunch
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.unit.correlate.gpu.scene import (
    MAIN,
    OTHER_PROCESS,
    PROCESS,
    SECOND,
    A,
    B,
    C,
    Scene,
    record,
)

LATE = 1_000 + int(REFUTED_FROM_NS)
"""End of work that was going on when a wait until 1,000 was over."""
PER_THREAD = {"stream": 2, "stream_id": 21}


def _two_streams(scene: Scene) -> None:
    """1 on A and 2 on B, both asked for before 100."""
    scene.run(1, 10, 20, 900, stream=A)
    scene.run(2, 15, 25, 800, stream=B)


def _context(scene: Scene) -> None:
    _two_streams(scene)
    scene.run(3, 150, 950, 990, stream=A, tid=SECOND)
    scene.run(4, 10, 20, 900, stream=C, context_id=2, tid=SECOND)
    scene.run(5, 10, 20, 900, tgid=OTHER_PROCESS)
    scene.call("cuCtxSynchronize", 100, 1_000)


def _context_of_other_thread(scene: Scene) -> None:
    _context(scene)
    scene.rows[-1]["tid"] = SECOND


def _context_of_idle_thread(scene: Scene) -> None:
    _two_streams(scene)
    scene.call("cuCtxSynchronize", 100, 1_000, tid=SECOND)


def _context_not_known(scene: Scene) -> None:
    scene.run(1, 10, 20, 900, stream=A)
    scene.run(2, 10, 20, LATE + 1, stream=B, context_id=2, tid=SECOND)
    scene.run(3, 10, 20, LATE, stream=C, context_id=2, tid=SECOND)
    scene.call("cuCtxSynchronize", 100, 1_000, tid=102)


def _stream(scene: Scene) -> None:
    _two_streams(scene)
    scene.run(3, 150, 950, 990, stream=A, tid=SECOND)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _stream_of_other_thread(scene: Scene) -> None:
    _two_streams(scene)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=B, tid=SECOND)


def _unused_stream(scene: Scene) -> None:
    _two_streams(scene)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=C)


def _same_handle_in_other_process(scene: Scene) -> None:
    _two_streams(scene)
    scene.run(3, 10, 20, 900, stream=A, tgid=OTHER_PROCESS)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A, tgid=OTHER_PROCESS)


def _handle_used_again(scene: Scene) -> None:
    """The program destroys a stream, and the next one gets the same handle."""
    scene.run(1, 10, 20, 45, stream=A, stream_id=13)
    scene.call("cuStreamSynchronize", 40, 50, stream=A)
    scene.run(2, 60, 70, 900, stream=A, stream_id=27)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _event(scene: Scene) -> None:
    scene.run(1, 10, 20, 500, stream=A)
    scene.call("cuEventRecord", 30, object=7, stream=A)
    scene.run(2, 40, 500, 900, stream=A)
    scene.call("cuEventSynchronize", 100, 1_000, object=7)


def _event_recorded_again(scene: Scene) -> None:
    scene.call("cuEventRecord", 5, object=7, stream=B)
    _event(scene)
    scene.call("cuEventRecord", 200, object=7, stream=A)


def _event_recorded_by_other_thread(scene: Scene) -> None:
    scene.run(1, 10, 20, 500, stream=A)
    scene.run(2, 20, 500, 900, stream=A, tid=SECOND)
    scene.call("cuEventRecordWithFlags", 30, object=7, stream=A, tid=SECOND)
    scene.run(3, 40, 900, 950, stream=A)
    scene.call("cuEventSynchronize", 100, 1_000, object=7)


def _event_of_other_process(scene: Scene) -> None:
    _event(scene)
    scene.run(3, 10, 20, 900, tgid=OTHER_PROCESS, stream=A)
    scene.call("cuEventSynchronize", 100, 1_000, object=7, tgid=OTHER_PROCESS)


def _event_not_seen(scene: Scene) -> None:
    """What went on afterwards was not waited for; what had ended may have been."""
    scene.run(1, 10, 20, 500, stream=A)
    scene.run(2, 11, 500, LATE + 1, stream=A)
    scene.run(3, 12, 20, LATE, stream=B)
    scene.call("cuEventSynchronize", 100, 1_000, object=7)


def _event_before_any_work(scene: Scene) -> None:
    scene.call("cuEventRecord", 5, object=7, stream=A)
    scene.run(1, 10, 20, 900, stream=A)
    scene.call("cuEventSynchronize", 100, 1_000, object=7)


def _stream_wait(scene: Scene) -> None:
    """A waits for what B had to do at 30: who waits for A waits for that."""
    scene.run(1, 10, 20, 500, stream=B)
    scene.call("cuEventRecord", 30, object=7, stream=B)
    scene.run(2, 35, 500, 900, stream=B)
    scene.call("cuStreamWaitEvent", 40, object=7, stream=A)
    scene.run(3, 50, 500, 950, stream=A)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _stream_wait_before_record_of_event(scene: Scene) -> None:
    _stream_wait(scene)
    scene.call("cuEventRecord", 45, object=7, stream=B)


def _stream_wait_after_the_event_waited_for(scene: Scene) -> None:
    scene.run(1, 10, 20, 500, stream=B)
    scene.call("cuEventRecord", 30, object=7, stream=B)
    scene.run(3, 32, 40, 90, stream=A)
    scene.call("cuEventRecord", 35, object=8, stream=A)
    scene.call("cuStreamWaitEvent", 40, object=7, stream=A)
    scene.call("cuEventSynchronize", 60, 100, object=8)


def _chain_of_stream_waits(scene: Scene) -> None:
    scene.run(1, 10, 20, 300, stream=C)
    scene.call("cuEventRecord", 12, object=7, stream=C)
    scene.run(9, 13, 300, 310, stream=C)
    scene.call("cuStreamWaitEvent", 14, object=7, stream=B)
    scene.run(2, 16, 320, 500, stream=B)
    scene.call("cuEventRecord", 18, object=8, stream=B)
    scene.call("cuStreamWaitEvent", 20, object=8, stream=A)
    scene.run(3, 22, 500, 900, stream=A)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _streams_that_wait_for_each_other(scene: Scene) -> None:
    for step in range(20):
        at, start = 10 + 40 * step, 1_000 + 40 * step
        scene.run(2 * step + 1, at, start, start + 9, stream=A)
        scene.call("cuEventRecord", at + 10, object=7, stream=A)
        scene.call("cuStreamWaitEvent", at + 12, object=7, stream=B)
        scene.run(2 * step + 2, at + 20, start + 20, start + 29, stream=B)
        scene.call("cuEventRecord", at + 30, object=8, stream=B)
        scene.call("cuStreamWaitEvent", at + 32, object=8, stream=A)
    scene.call("cuStreamSynchronize", 900, 2_000, stream=B)


def _stream_wait_after_all_work(scene: Scene) -> None:
    """A has nothing to do but to wait: who waits for A waits for that all the same."""
    scene.run(1, 10, 20, 900, stream=B)
    scene.run(2, 11, 20, 30, stream=A)
    scene.call("cuEventRecord", 40, object=7, stream=B)
    scene.call("cuStreamWaitEvent", 50, object=7, stream=A)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _stream_wait_that_is_over(scene: Scene) -> None:
    """What A did since shows that it no longer waits, whatever B does now."""
    scene.run(1, 10, 20, 30, stream=B)
    scene.call("cuEventRecord", 12, object=7, stream=B)
    scene.call("cuStreamWaitEvent", 14, object=7, stream=A)
    scene.run(2, 16, 40, 50, stream=A)
    scene.run(3, 60, 70, 900, stream=B)
    scene.run(4, 65, 70, 800, stream=A)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _stream_wait_for_unseen_event(scene: Scene) -> None:
    _two_streams(scene)
    scene.call("cuStreamWaitEvent", 12, object=9, stream=A)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _legacy_stream(scene: Scene) -> None:
    """A was never seen to run beside the default stream: it may depend on it."""
    scene.run(1, 10, 20, 300)
    scene.run(2, 12, 300, 900, stream=A)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=0)


def _legacy_stream_by_its_name(scene: Scene) -> None:
    _legacy_stream(scene)
    scene.rows[-1]["stream"] = streams.LEGACY_STREAM


def _legacy_stream_of_other_thread(scene: Scene) -> None:
    _legacy_stream(scene)
    scene.run(3, 15, 900, 910, stream=B, tid=SECOND)
    scene.rows[-1]["tid"] = SECOND


def _stream_behind_the_legacy_stream(scene: Scene) -> None:
    """What comes on A after work of the default stream waits for it."""
    scene.run(1, 10, 20, 300)
    scene.run(2, 12, 300, 900, stream=A)
    scene.run(3, 14, 900, 950)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _stream_through_the_legacy_stream(scene: Scene) -> None:
    """B waits for A, as the default stream comes between them."""
    scene.run(1, 10, 20, 300, stream=A)
    scene.run(2, 12, 300, 500)
    scene.run(3, 14, 500, 900, stream=B)
    scene.run(4, 16, 500, 900, stream=A)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=B)


def _independent_stream(scene: Scene) -> None:
    """A ran beside the default stream: they do not synchronise."""
    scene.run(9, 1, 2, 5_000, stream=A)
    scene.run(8, 1, 2, 5_000)
    scene.run(1, 5_010, 5_020, 5_300)
    scene.run(2, 5_012, 5_020, 5_900, stream=A)
    scene.call("cuStreamSynchronize", 5_100, 6_000, stream=0)
    scene.call("cuStreamSynchronize", 5_100, 6_000, stream=A)


def _wait_that_shows_independence(scene: Scene) -> None:
    """The wait is over while A runs on: it did not wait for A."""
    scene.run(1, 10, 20, 900)
    scene.run(2, 12, 900, LATE + 1, stream=A)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=0)


def _per_thread_streams(scene: Scene) -> None:
    scene.run(1, 10, 20, 900, stream=2, stream_id=21)
    scene.run(2, 10, 20, 900, stream=2, stream_id=22, tid=SECOND)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=2)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=2, tid=SECOND)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=2, tid=102)


def _compiled_for_per_thread_streams(scene: Scene) -> None:
    """Handle 0 means a stream for each thread."""
    scene.run(1, 10, 20, 900, stream=0, stream_id=21)
    scene.run(2, 10, 20, 900, stream=0, stream_id=22, tid=SECOND)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=0)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=0, tid=SECOND)


def _default_streams_of_two_contexts(scene: Scene) -> None:
    scene.run(1, 10, 20, 900, stream=0, context_id=1, stream_id=7)
    scene.run(2, 10, 20, 900, stream=0, context_id=2, stream_id=7, tid=SECOND)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=0)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=0, tid=SECOND)


def _thread_that_changes_its_context(scene: Scene) -> None:
    scene.run(1, 10, 20, 900, context_id=1)
    scene.run(2, 200, 210, 900, context_id=2)
    scene.call("cuCtxSynchronize", 100, 1_000)
    scene.call("cuCtxSynchronize", 300, 1_000)


def _copy(scene: Scene) -> None:
    scene.run(1, 10, 20, 500, stream=A)
    scene.run(2, 15, 20, 990, stream=B)
    scene.run(3, 100, 500, 900, stream=A, api="cuMemcpyDtoHAsync")
    scene.run(4, 110, 950, 960, stream=A, tid=SECOND)
    scene.call("cuMemcpyDtoHAsync", 100, 1_000, stream=A)


def _synchronous_copy(scene: Scene) -> None:
    """It has no stream argument, and runs on the default stream."""
    scene.run(1, 10, 20, 500)
    scene.run(3, 100, 500, 900, api="cuMemcpyDtoH")
    scene.run(4, 110, 950, 960, tid=SECOND)
    scene.call("cuMemcpyDtoH", 100, 1_000)


def _copy_on_per_thread_stream(scene: Scene) -> None:
    """The copy itself says where it ran."""
    scene.run(1, 10, 20, 500)
    scene.run(2, 15, 500, 600, stream=0, stream_id=21)
    scene.run(3, 100, 600, 900, api="cuMemcpyDtoH", stream_id=21)
    scene.call("cuMemcpyDtoH", 100, 1_000)


def _copy_without_record(scene: Scene) -> None:
    _two_streams(scene)
    scene.call("cuMemcpyHtoDAsync", 100, 1_000, stream=A)


def _free(scene: Scene) -> None:
    _two_streams(scene)
    scene.run(3, 12, 20, 900, stream=C, context_id=2, tid=SECOND)
    scene.run(4, 12, 20, 900, context_id=3, device=1, tid=102)
    scene.run(5, 150, 950, 960, stream=A, tid=SECOND)
    scene.call("cuMemFree", 100, 1_000, object=0x7000)
    scene.call("cuMemFreeHost", 100, 1_000, object=0x8000)


def _graph(scene: Scene) -> None:
    """Branches of a graph run on streams of their own: all belong to where it was launched."""
    scene.run(9, 1, 2, 3, stream=A)
    graph = {"api": "cuGraphLaunch", "stream": A, "graph_id": 5}
    scene.run(1, 10, 20, 300, **graph)
    scene.run(2, 10, 30, 900, stream_id=31, **graph)
    scene.run(3, 10, 20, 900, stream=B)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _only_graphs(scene: Scene) -> None:
    graph = {"api": "cuGraphLaunch", "stream": A, "graph_id": 5}
    scene.run(1, 10, 20, 300, **graph)
    scene.run(2, 10, 30, 900, stream_id=31, **graph)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _without_launch(scene: Scene) -> None:
    """What ran before something that was waited for was waited for; what came later had ended when the wait did."""
    lost = {"stream_id": 13, "no_launch": NoLaunch.NO_PROBE}
    scene.run(1, 0, 20, 120, **lost)
    scene.run(2, 0, 150, 200, **lost)
    scene.run(3, 90, 200, 900, stream=A)
    scene.run(4, 0, 910, 920, **lost)
    scene.run(5, 0, 930, LATE + 1, **lost)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _no_launch_known(scene: Scene) -> None:
    """What had ended when the wait returned was waited for, as far as anyone can know."""
    lost = {"stream_id": 13, "no_launch": NoLaunch.NO_LAUNCH_RECORD}
    scene.run(1, 0, 20, 120, **lost)
    scene.run(2, 0, 150, LATE, **lost)
    scene.run(3, 0, LATE, LATE + 100, **lost)
    scene.call("cuCtxSynchronize", 100, 1_000)


def _some_launches_known(scene: Scene) -> None:
    """Up to the first that was launched later; what went on after the wait is not in it either."""
    lost = {"stream_id": 13, "no_launch": NoLaunch.NO_LAUNCH_RECORD}
    scene.run(1, 10, 20, 90, stream=A)
    scene.run(2, 20, 95, 150, stream=A)
    scene.run(3, 0, 150, 200, **lost)
    scene.run(4, 0, 200, 300, **lost)
    scene.run(5, 310, 320, 400, stream=A, tid=SECOND)
    scene.run(6, 0, 400, 500, **lost)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=A)


def _some_launches_known_after_an_event(scene: Scene) -> None:
    """What was launched by the time of the record is known or begun: nothing is added."""
    _some_launches_known(scene)
    scene.rows.clear()
    scene.call("cuEventRecord", 97, object=7, stream=A)
    scene.call("cuEventSynchronize", 100, 1_000, object=7)


def _stream_without_known_launches(scene: Scene) -> None:
    """A's handle is known; B's is not, and so B may be either of the two streams that have no handle."""
    scene.run(1, 10, 20, 900, stream=A)
    scene.run(2, 0, 20, 900, stream_id=31, no_launch=NoLaunch.NO_LAUNCH_RECORD)
    scene.run(3, 0, 20, LATE + 1, stream_id=32, no_launch=NoLaunch.NO_LAUNCH_RECORD)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=B)


def _queue(scene: Scene) -> None:
    scene.run(1, 10, 20, 500, stream=A, api="clEnqueueNDRangeKernel")
    scene.run(2, 10, 20, 900, stream=B, api="clEnqueueNDRangeKernel", tid=SECOND)
    scene.call("clFinish", 100, 1_000, stream=A)


def _queue_read(scene: Scene) -> None:
    scene.run(1, 10, 20, 500, stream=A, api="clEnqueueNDRangeKernel")
    scene.run(2, 100, 500, 900, stream=A, api="clEnqueueReadBuffer")
    scene.call("clEnqueueReadBuffer", 100, 1_000, stream=A)


def _queue_events(scene: Scene) -> None:
    scene.run(1, 10, 20, 500, stream=A, api="clEnqueueNDRangeKernel")
    scene.run(2, 11, 500, LATE + 1, stream=A, api="clEnqueueNDRangeKernel")
    scene.call("clWaitForEvents", 100, 1_000)


@dataclass(frozen=True)
class Case:
    """What was done, and the executions that each wait waits for."""

    happened: Callable[[Scene], None]
    expected: list[set[int]]


TABLE = [
    Case(_context, [{1, 2}]),
    Case(_context_of_other_thread, [{4}]),
    Case(_context_of_idle_thread, [{1, 2}]),
    Case(_context_not_known, [{1, 3}]),
    Case(_stream, [{1}]),
    Case(_stream_of_other_thread, [{2}]),
    Case(_unused_stream, [set()]),
    Case(_same_handle_in_other_process, [{3}]),
    Case(_handle_used_again, [{1}, {2}]),
    Case(_event, [{1}]),
    Case(_event_recorded_again, [{1}]),
    Case(_event_recorded_by_other_thread, [{1, 2}]),
    Case(_event_of_other_process, [{1}, {3}]),
    Case(_event_not_seen, [{1, 3}]),
    Case(_event_before_any_work, [set()]),
    Case(_stream_wait, [{1, 3}]),
    Case(_stream_wait_before_record_of_event, [{1, 3}]),
    Case(_stream_wait_after_the_event_waited_for, [{3}]),
    Case(_chain_of_stream_waits, [{1, 2, 3}]),
    Case(_streams_that_wait_for_each_other, [set(range(1, 41))]),
    Case(_stream_wait_after_all_work, [{1}]),
    Case(_stream_wait_that_is_over, [{4}]),
    Case(_stream_wait_for_unseen_event, [{1}]),
    Case(_legacy_stream, [{1, 2}]),
    Case(_legacy_stream_by_its_name, [{1, 2}]),
    Case(_legacy_stream_of_other_thread, [{1, 2, 3}]),
    Case(_stream_behind_the_legacy_stream, [{1, 2}]),
    Case(_stream_through_the_legacy_stream, [{1, 2, 3}]),
    Case(_independent_stream, [{1}, {2}]),
    Case(_wait_that_shows_independence, [{1}]),
    Case(_per_thread_streams, [{1}, {2}, set()]),
    Case(_compiled_for_per_thread_streams, [{1}, {2}]),
    Case(_default_streams_of_two_contexts, [{1}, {2}]),
    Case(_thread_that_changes_its_context, [{1}, {2}]),
    Case(_copy, [{1, 3}]),
    Case(_synchronous_copy, [{1, 3}]),
    Case(_copy_on_per_thread_stream, [{2, 3}]),
    Case(_copy_without_record, [{1}]),
    Case(_free, [{1, 2, 3}, {1, 2, 3}]),
    Case(_graph, [{1, 2}]),
    Case(_only_graphs, [{1, 2}]),
    Case(_without_launch, [{1, 2, 3, 4}]),
    Case(_no_launch_known, [{1, 2}]),
    Case(_some_launches_known, [{2, 3, 4}]),
    Case(_some_launches_known_after_an_event, [{2}]),
    Case(_stream_without_known_launches, [{2}]),
    Case(_queue, [{1}]),
    Case(_queue_read, [{1, 2}]),
    Case(_queue_events, [{1}]),
]


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.happened.__name__.strip("_"))
def test_what_a_wait_waits_for(case: Case) -> None:
    """A wait waits for the work that its stream, event, context or device had to do when it was called."""
    scene = Scene()
    case.happened(scene)
    assert scene.waited_for() == case.expected


def test_the_table_covers_every_way_of_waiting() -> None:
    """Every API that always waits, and a copy of each kind, is in the table above."""
    covered = set()
    for case in TABLE:
        scene = Scene()
        case.happened(scene)
        covered |= set(scene.waits()["api"].tolist())
    synchronise = {api.id for api in apis.ALL if api.kind in (Kind.WAIT, Kind.FREE)}
    copies = {apis.BY_ID[each].blocking for each in covered if apis.BY_ID[each].kind is Kind.COPY}
    assert synchronise <= covered
    assert copies == {Blocking.ALWAYS, Blocking.BY_DURATION, Blocking.BY_ARGUMENT}


@pytest.mark.parametrize(
    ("happened", "counts"),
    [
        (_stream, (0, 0, 0, 0)),
        (_unused_stream, (1, 0, 0, 0)),
        (_event_not_seen, (0, 1, 0, 0)),
        (_context_not_known, (0, 0, 1, 1)),
        (_wait_that_shows_independence, (0, 0, 0, 1)),
        (_event_before_any_work, (0, 0, 0, 0)),
    ],
)
def test_what_is_not_certain_is_counted(
    happened: Callable[[Scene], None], counts: tuple[int, int, int, int]
) -> None:
    """Unknown streams, events and contexts, and streams that a wait cannot have waited for, have counters."""
    scene = Scene()
    happened(scene)
    found = scene.scopes()[0].counts
    assert counts == (
        found.unknown_stream,
        found.unknown_event,
        found.unknown_context,
        found.refuted,
    )


def test_stream_waits_for_unseen_events_are_counted() -> None:
    """A stream wait whose event was recorded out of sight adds nothing, and is counted."""
    scene = Scene()
    _stream_wait_for_unseen_event(scene)
    assert scene.arranged().marks.unknown_event == 1


def test_independence_is_remembered() -> None:
    """A stream that once ran beside the default stream is independent in later work too."""
    scene = Scene()
    scene.run(9, 1, 2, 5_000, stream=A)
    scene.run(8, 1, 2, 5_000)
    known = scene.arranged()
    table = remember(known.table, known.work, known.defaults)
    assert len(table.independent) == 1
    later = Scene(before=table)
    _legacy_stream(later)
    assert later.waited_for() == [{1}]
    again = later.arranged()
    assert len(remember(again.table, again.work, again.defaults).independent) == 1


def test_touching_the_default_stream_shows_nothing() -> None:
    """Overlaps of a microsecond are within what times are exact to."""
    scene = Scene()
    scene.run(9, 1, 2, 5_000, stream=A)
    scene.run(8, 1, 4_000, 9_000)
    known = scene.arranged()
    assert not len(remember(known.table, known.work, known.defaults).independent)


def test_meanings_outlive_the_work_that_told_them() -> None:
    """A handle learnt from earlier executions still has its stream when only later ones are at hand."""
    scene = Scene()
    _two_streams(scene)
    later = Scene(before=scene.arranged().table)
    later.run(3, 200, 210, 900, stream=0, stream_id=14, tid=SECOND, no_launch=NoLaunch.NO_PROBE)
    later.call("cuStreamSynchronize", 300, 1_000, stream=B)
    assert later.waited_for() == [{3}]


def test_a_table_keeps_changes_only() -> None:
    """A thousand launches that say the same leave one row for the handle and one for the thread."""
    scene = Scene()
    for name in range(1, 1_001):
        scene.run(name, 10 * name, 10 * name + 2, 10 * name + 5, stream=(A, B)[name % 2])
    assert len(scene.arranged().table.meanings) == 3


def test_a_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more meanings than there is room for the oldest go, and are counted."""
    monkeypatch.setattr(streams, "_MAX_MEANINGS", 10)
    scene = Scene()
    for name in range(1, 21):
        scene.run(name, 10 * name, 10 * name + 2, 10 * name + 5, stream=name << 12, stream_id=name)
    table = scene.arranged().table
    assert len(table.meanings) == 10
    assert table.forgotten == 11
    assert set(table.meanings["time_ns"].tolist()) == {10 * name for name in range(11, 21)}


def test_ended_processes_are_forgotten() -> None:
    """Nothing of a process stays, and nothing of another one goes."""
    scene = Scene()
    _same_handle_in_other_process(scene)
    known = scene.arranged()
    table = streams.forget(known.table, PROCESS, PROCESS)
    assert set(table.meanings["tgid"].tolist()) == {OTHER_PROCESS}
    assert streams.forget(table, OTHER_PROCESS, PROCESS + 1).meanings is not None
    assert len(streams.forget(table, OTHER_PROCESS, PROCESS + 1).meanings) == len(table.meanings)


def test_synchronisation_records_teach_streams() -> None:
    """A stream that only ever launched out of sight is learnt from CUPTI's record inside the wait."""
    scene = Scene()
    scene.run(1, 0, 20, 900, stream_id=31, no_launch=NoLaunch.NO_PROBE)
    scene.run(2, 0, 20, 900, stream_id=32, no_launch=NoLaunch.NO_PROBE)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=C)
    assert scene.waited_for() == [{1, 2}]
    sync = record(GpuKind.SYNC, 3, 110, 990, context_id=1, stream_id=31)
    scene.before = streams.learn_from_waits(streams.EMPTY, sync, scene.waits())
    assert scene.waited_for() == [{1}]


def test_context_synchronisation_records_teach_contexts() -> None:
    """CUPTI's record of a context synchronise says in which context its thread works."""
    scene = Scene()
    _context_not_known(scene)
    sync = record(GpuKind.SYNC, 4, 110, 990, context_id=1, stream_id=0xFFFFFFFF)
    scene.before = streams.learn_from_waits(streams.EMPTY, sync, scene.waits())
    assert scene.waited_for() == [{1}]


def test_a_record_tells_the_context_of_the_wait_that_it_lies_in() -> None:
    """A thread that synchronises one device after the other launches nothing in between."""
    scene = Scene()
    scene.run(1, 0, 20, 900, stream=B, context_id=2, device=1)
    scene.run(2, 50, 60, 90, stream=A)
    scene.call("cuCtxSynchronize", 100, 1_000)
    assert scene.waited_for() == [set()]
    sync = record(GpuKind.SYNC, 4, 110, 990, context_id=2, stream_id=0xFFFFFFFF)
    scene.before = streams.learn_from_waits(streams.EMPTY, sync, scene.waits())
    assert scene.waited_for() == [{1}]


@pytest.mark.parametrize(
    ("tgid", "start", "end", "detail"),
    [
        (PROCESS, 99, 990, 3),
        (PROCESS, 110, 1_001, 3),
        (OTHER_PROCESS, 110, 990, 3),
        (PROCESS, 110, 990, 4),
    ],
)
def test_records_outside_of_a_wait_teach_nothing(
    tgid: int, start: int, end: int, detail: int
) -> None:
    """A record counts only if it lies inside a wait of its kind and process."""
    scene = Scene()
    scene.call("cuStreamSynchronize", 100, 1_000, stream=C)
    sync = record(GpuKind.SYNC, detail, start, end, stream_id=31, tgid=tgid, process_start_ns=tgid)
    assert not len(streams.learn_from_waits(streams.EMPTY, sync, scene.waits()).meanings)


def test_records_inside_waits_of_two_threads_teach_nothing() -> None:
    """Where two threads were waiting it is not known whose the record is."""
    scene = Scene()
    scene.call("cuStreamSynchronize", 100, 1_000, stream=C)
    scene.call("cuStreamSynchronize", 100, 1_000, stream=B, tid=SECOND)
    sync = record(GpuKind.SYNC, 3, 110, 990, stream_id=31)
    assert not len(streams.learn_from_waits(streams.EMPTY, sync, scene.waits()).meanings)


def test_marks_that_later_ones_replaced_can_go() -> None:
    """Of records of one event before a time the last stays, as do all after it; and each stream wait likewise."""
    scene = Scene()
    for at in (10, 20, 30, 50, 60):
        scene.call("cuEventRecord", at, object=7, stream=A)
        scene.call("cuStreamWaitEvent", at + 1, object=7, stream=B)
    scene.call("cuEventRecord", 5, object=8, stream=A)
    kept = keep_marks(scene.calls(), 40)
    assert sorted(kept["start_ns"].tolist()) == [5, 30, 31, 50, 51, 60, 61]


def test_nothing_happened() -> None:
    """Without executions or calls nothing is known, and nothing fails."""
    assert Scene().waited_for() == []
    scene = Scene()
    for api in (
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuEventSynchronize",
        "cuMemFree",
        "cuMemcpy",
    ):
        scene.call(api, 10, 20)
    assert scene.waited_for() == [set()] * 5
    empty = np.zeros(0, wire.CALL)
    assert not len(keep_marks(empty, 5))


def test_threads_are_told_apart_by_process() -> None:
    """Thread numbers are of the host, but a context number is of its process."""
    scene = Scene()
    scene.run(1, 10, 20, 900, context_id=1, tid=MAIN)
    scene.run(2, 10, 20, 900, context_id=1, tgid=OTHER_PROCESS, tid=OTHER_PROCESS)
    scene.call("cuCtxSynchronize", 100, 1_000, tgid=OTHER_PROCESS, tid=OTHER_PROCESS)
    assert scene.waited_for() == [{2}]
