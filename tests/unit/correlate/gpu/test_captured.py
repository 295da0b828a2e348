"""Launches that were captured into graphs: which they are, and which node of a graph stands for which of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, permutations
from typing import Final

import numpy as np
import pytest

from otel_gpuflame.correlate.gpu.captured import CapturedLaunches
from otel_gpuflame.correlate.gpu.correlator import GpuCorrelator
from otel_gpuflame.correlate.gpu.graph_nodes import GraphNodes
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.attributions import Attributions, Measure, StackPairs
from otel_gpuflame.events.executions import (
    EXECUTION,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
    name_handle,
)
from otel_gpuflame.events.frames import ProcessKey, StackKey
from otel_gpuflame.events.records import (
    CallArray,
    Calls,
    Event,
    HandleName,
    Names,
    ProcessesEnded,
    Watermark,
)
from tests.held import held
from tests.unit.correlate.gpu.traffic import (
    OTHER,
    PROCESS,
    SECOND,
    THREAD,
    call,
    executed,
    launched,
)

MS: Final = 1_000_000
REPLAY_STACK: Final = 900
GRAPH: Final = 3
STREAM, FORKED, FREE_STREAM = 0x7F10, 0x7F20, 0x7F30
EVENT, OTHER_EVENT = 0xE1, 0xE2
LETTERS: Final = "abcd"


def names(process: ProcessKey = PROCESS) -> Names:
    """Each kernel by the program's handle and by CUPTI's text."""
    found = []
    for index, letter in enumerate(LETTERS):
        found.append(HandleName(process, 0, ord(letter), f"kernel_{letter}"))
        found.append(HandleName(process, 0, name_handle(64 * index), f"kernel_{letter}"))
    return Names(tuple(found))


class Scene:
    """Calls one after the other, a microsecond apart; launches have stacks 1, 2, 3 …"""

    def __init__(self, process: ProcessKey = PROCESS) -> None:
        self._process = process
        self._stacks = count(1)
        self.calls: list[CallArray] = []

    def _add(self, row: CallArray) -> Scene:
        row["start_ns"] = MS + 1_000 * len(self.calls)
        self.calls.append(row)
        return self

    def begin(
        self, stream: int = STREAM, api: str = "cuStreamBeginCapture", thread: int = THREAD
    ) -> Scene:
        """A capture begins."""
        return self._add(call(0, 0, api=api, stream=stream, thread=thread, process=self._process))

    def end(self, stream: int = STREAM, thread: int = THREAD) -> Scene:
        """It ends."""
        api = "cuStreamEndCapture"
        return self._add(call(0, 0, api=api, stream=stream, thread=thread, process=self._process))

    def launch(self, letters: str, stream: int = STREAM, thread: int = THREAD) -> Scene:
        """One launch for each letter."""
        for letter in letters:
            fields = {"object": ord(letter), "stream": stream, "thread": thread}
            self._add(call(next(self._stacks), 0, process=self._process, **fields))
        return self

    def copy(self) -> Scene:
        """A copy on the stream."""
        return self._add(call(next(self._stacks), 0, api="cuMemcpyAsync", stream=STREAM))

    def record(self, event: int, stream: int) -> Scene:
        """An event is recorded."""
        return self._add(call(0, 0, api="cuEventRecord", object=event, stream=stream))

    def synchronize(self, stream: int | None, thread: int = THREAD) -> Scene:
        """A thread waits for a stream, or for all."""
        api = "cuCtxSynchronize" if stream is None else "cuStreamSynchronize"
        return self._add(call(0, 0, api=api, stream=stream or 0, thread=thread))

    def wait(self, stream: int, event: int) -> Scene:
        """A stream is told to wait for it."""
        return self._add(call(0, 0, api="cuStreamWaitEvent", object=event, stream=stream))


def kept(scene: Scene, batches: int = 1) -> tuple[list[int], CapturedLaunches]:
    """Stacks of the submissions that go on, and the stage."""
    stage = CapturedLaunches(GraphNodes())
    stage.feed(names())
    rows = np.concatenate(scene.calls)
    out: list[Event] = []
    for part in np.array_split(rows, batches):
        out += stage.feed(Calls(part))
    given = np.concatenate([np.empty(0, wire.CALL), *(e.rows for e in out if isinstance(e, Calls))])
    is_work = np.isin(given["kind"], [int(kind) for kind in apis.SUBMISSIONS])
    return given["stack_hash"][:, 0][is_work].tolist(), stage


@pytest.mark.parametrize("batches", [1, 3, 100])
@pytest.mark.parametrize(
    ("scene", "goes_on"),
    [
        (Scene().launch("a").begin().launch("bc").end().launch("d"), [1, 4]),
        (Scene().begin(api="cuStreamBeginCaptureToGraph").launch("a").end(), []),
        # Copies and sets are nodes too.
        (Scene().begin().launch("a").copy().end().copy(), [3]),
        # Another stream, and another thread on it, are not captured; another thread on the stream is.
        (Scene().begin().launch("a", FREE_STREAM).launch("b").end(), [1]),
        (Scene().begin().launch("a", FREE_STREAM, SECOND).launch("b", STREAM, SECOND).end(), [1]),
        # A stream joins by waiting for an event of the capture, and not by waiting for another one.
        (
            Scene()
            .begin()
            .launch("a")
            .record(EVENT, STREAM)
            .wait(FORKED, EVENT)
            .launch("b", FORKED)
            .record(OTHER_EVENT, FREE_STREAM)
            .wait(FREE_STREAM, OTHER_EVENT)
            .launch("c", FREE_STREAM)
            .end()
            .launch("d", FORKED),
            [3, 4],
        ),
        # What forked off a forked stream.
        (
            Scene()
            .begin()
            .record(EVENT, STREAM)
            .wait(FORKED, EVENT)
            .record(OTHER_EVENT, FORKED)
            .wait(FREE_STREAM, OTHER_EVENT)
            .launch("a", FREE_STREAM)
            .end(),
            [],
        ),
        # The default stream of a thread is another one in each.
        (Scene().begin(2).launch("a", 2, SECOND).launch("b", 2).end(2), [1]),
        (Scene().begin(2).end(2, SECOND).launch("a", 2).end(2).launch("b", 2), [2]),
        # Two at a time.
        (
            Scene()
            .begin()
            .begin(FORKED)
            .launch("a")
            .launch("b", FORKED)
            .end(FORKED)
            .launch("c", FORKED)
            .launch("d")
            .end(),
            [3],
        ),
        # A stream that is captured cannot be waited for: the begin had failed. Others can.
        (Scene().begin().launch("a").synchronize(STREAM).launch("b").end(), [2]),
        (Scene().begin().launch("a").synchronize(FREE_STREAM).launch("b").end(), []),
        (Scene().begin().launch("a").synchronize(None).launch("b").end(), [2]),
        (Scene().begin().launch("a").synchronize(None, SECOND).launch("b").end(), []),
        # Ends without a begin, and begins without an end.
        (Scene().end().launch("a").begin().launch("b"), [1]),
        (Scene().begin().launch("a").begin().launch("b").end().launch("c"), [3]),
    ],
)
def test_which_launches_are_captured(scene: Scene, goes_on: list[int], batches: int) -> None:
    """However the calls are batched; captured ones are counted, by kind."""
    found, stage = kept(scene, batches)
    assert found == goes_on
    work = [row for row in scene.calls if row["kind"][0] in apis.SUBMISSIONS]
    assert stage.captured.total() == len(work) - len(goes_on)


def test_calls_of_other_processes_go_on() -> None:
    """On a stream with the same handle."""
    scene, other = Scene().begin().launch("ab").end(), Scene(OTHER).launch("cd")
    rows = np.concatenate([*scene.calls, *other.calls])
    (event,) = CapturedLaunches(GraphNodes()).feed(Calls(rows))
    assert isinstance(event, Calls)
    of_other = event.rows[event.rows["tgid"] == OTHER.tgid]
    assert len(of_other) == 2
    assert len(event.rows) == 2 + 2


def test_without_captures_events_pass_as_they_are() -> None:
    """Recordings of before the probes: nothing is looked for, and the very same events go on."""
    nodes = GraphNodes()
    stage = CapturedLaunches(nodes)
    events: list[Event] = [
        ExecutionsBegin(PROCESS, 0),
        Calls(np.concatenate(Scene().launch("ab").calls)),
        Executions(replay("ab", 7, MS)),
        ExecutionWatermark(PROCESS, 9 * MS),
        ExecutionsEnd(PROCESS, 9 * MS),
    ]
    for event in events:
        (out,) = stage.feed(event)
        assert out is event
    stage.finish()
    assert not stage.counts


def replay(
    letters: str,
    id_: int,
    start: int,
    *,
    graph: int = GRAPH,
    nodes: Sequence[int] = (),
    starts: Sequence[int] = (),
) -> np.ndarray:
    """Executions of one launch of a graph; `nodes` and `starts`: their order, by default that of the letters."""
    rows = []
    for place, letter in enumerate(letters):
        at = start + 1_000 * (starts[place] if starts else place)
        node = nodes[place] if nodes else place
        handle = name_handle(64 * LETTERS.index(letter))
        rows.append(
            executed(
                id_, at, at + 500, name=handle, graph_id=graph, graph_node_id=(graph << 32) + node
            )
        )
    return np.concatenate(rows) if rows else np.empty(0, EXECUTION)


class Outcome:
    """What becomes of captures and replays in both stages."""

    def __init__(self, scene: Scene, *replays: np.ndarray, extra: Iterable[Event] = ()) -> None:
        nodes = GraphNodes()
        self.stage = CapturedLaunches(nodes)
        correlator = GpuCorrelator(nodes=nodes)
        at = 500 * MS
        launches = [
            call(REPLAY_STACK, at + i * MS, api="cuGraphLaunch", stream=STREAM)
            for i in range(len(replays))
        ]
        records = [
            launched(int(r["correlation_id"][0]), at + i * MS + 10, at + i * MS + 20)
            for i, r in enumerate(replays)
        ]
        events: list[Event] = [
            names(),
            Calls(np.concatenate(scene.calls)),
            *extra,
            ExecutionsBegin(PROCESS, 400 * MS),
            Calls(np.concatenate(launches)),
            *(Executions(rows) for rows in (*records, *replays)),
            ExecutionWatermark(PROCESS, 900 * MS),
            Watermark(2_000 * MS),
            ExecutionsEnd(PROCESS, 1_000 * MS),
            Watermark(4_000 * MS),
        ]
        out: list[Event] = []
        for event in events:
            for given in self.stage.feed(event):
                out += correlator.feed(given)
        self.stage.finish()
        out += correlator.finish()
        self.pairs = {p.key: p for e in out if isinstance(e, StackPairs) for p in e.pairs}
        told = np.concatenate([e.rows for e in out if isinstance(e, Attributions)])
        self.time = told[told["measure"] == Measure.GPU_TIME]
        self.rest = told[told["measure"] != Measure.GPU_TIME]

    def inner(self) -> list[int | None]:
        """The captured launch's stack of each execution, by start; None: it stands under its graph's launch alone."""
        found: list[int | None] = []
        for row in np.sort(self.time, order="time_ns"):
            pair = self.pairs.get(StackKey(*row["stack_hash"].tolist()))
            if pair is None:
                assert row["stack_hash"][0] == REPLAY_STACK
                assert row["api"] == apis.BY_NAME["cuGraphLaunch"].id
            else:
                assert (pair.outer, pair.api) == (
                    StackKey(REPLAY_STACK, 0),
                    apis.BY_NAME["cuGraphLaunch"].id,
                )
                assert row["api"] == apis.BY_NAME["cuLaunchKernel"].id
            found.append(None if pair is None else pair.inner.high)
        return found


REPLAYED_NS: Final = 600 * MS
CAPTURED: Final = "abca"


@pytest.mark.parametrize("order", list(permutations(range(4)))[::3])
def test_nodes_are_the_launches_in_their_place(order: tuple[int, ...]) -> None:
    """Nodes are numbered as they were made; whatever order they ran in, and their records came in."""
    scene = Scene().begin().launch(CAPTURED).end()
    rows = replay(CAPTURED, 7, REPLAYED_NS, starts=order)
    found = Outcome(scene, rows.take(order)).inner()
    assert found == [1 + order.index(place) for place in range(4)]


def test_nodes_that_are_numbered_otherwise_are_found_by_when_they_ran() -> None:
    """On one stream they run as they were launched."""
    scene = Scene().begin().launch("abc").end()
    rows = replay("abc", 7, REPLAYED_NS, nodes=(2, 1, 0))
    assert Outcome(scene, rows).inner() == [1, 2, 3]


def test_every_replay_has_them() -> None:
    """Also those that come after it was decided, with as many stacks as there are launches."""
    scene = Scene().begin().launch("ab").end()
    replays = [replay("ab", 7 + i, REPLAYED_NS + i * MS) for i in range(5)]
    outcome = Outcome(scene, *replays)
    assert outcome.inner() == [1, 2] * 5
    assert len(outcome.pairs) == 2
    assert outcome.stage.counts == {"matched": 1}


def test_time_is_kept_and_only_time_is_refined() -> None:
    """Σ of `gpu_time` is the same; queueing and idling stand under the launch of the graph."""
    scene = Scene().begin().launch("ab").end()
    outcome = Outcome(scene, replay("ab", 7, REPLAYED_NS))
    assert int(outcome.time["value_ns"].sum()) == 2 * 500
    assert set(outcome.rest["stack_hash"][:, 0].tolist()) <= {0, REPLAY_STACK}


@pytest.mark.parametrize(
    "replayed",
    ["ab", "abcd", "acb", "abd", "bca"],
    ids=["fewer", "more", "other order", "other kernel", "rotated"],
)
def test_other_sequences_are_not_taken_for_it(replayed: str) -> None:
    """Then all nodes stand under the launch of the graph, as without probes."""
    outcome = Outcome(Scene().begin().launch("abc").end(), replay(replayed, 7, REPLAYED_NS))
    assert outcome.inner() == [None] * len(replayed)
    assert outcome.pairs == {}


def test_a_replay_that_was_cut_off_is_tried_again() -> None:
    """A window may begin within one: the next one decides, for those too that came in between."""
    scene = Scene().begin().launch("abc").end()
    cut, whole = replay("abc", 7, REPLAYED_NS)[1:], replay("abc", 8, REPLAYED_NS + MS)
    nodes = GraphNodes()
    stage = CapturedLaunches(nodes)
    for event in (names(), Calls(np.concatenate(scene.calls)), ExecutionsBegin(PROCESS, 0)):
        stage.feed(event)
    for rows in (cut, whole):
        stage.feed(Executions(rows))
        stage.feed(ExecutionWatermark(PROCESS, int(rows["start_ns"].max())))
    assert stage.counts == {"matched": 1}


def test_batches_that_end_within_replays_do_not_matter() -> None:
    """Whoever looks at the first replay of each batch sees none that is whole."""
    scene = Scene().begin().launch("abc").end()
    stage = CapturedLaunches(GraphNodes())
    for event in (names(), Calls(np.concatenate(scene.calls)), ExecutionsBegin(PROCESS, 0)):
        stage.feed(event)
    rows = np.concatenate(
        [replay("abc", 7 + number, REPLAYED_NS + number * MS) for number in range(30)]
    )
    for first in range(1, len(rows), 12):
        batch = rows[first : first + 12]
        stage.feed(Executions(batch))
        stage.feed(ExecutionWatermark(PROCESS, int(batch["start_ns"].max()) + 1))
    assert stage.counts == {"matched": 1}


def test_what_matches_no_capture_is_given_up() -> None:
    """And counted, once."""
    nodes = GraphNodes()
    stage = CapturedLaunches(nodes)
    scene = Scene().begin().launch("abc").end()
    for event in (names(), Calls(np.concatenate(scene.calls)), ExecutionsBegin(PROCESS, 0)):
        stage.feed(event)
    for number in range(20):
        rows = replay("ab", 7 + number, REPLAYED_NS + number * MS)
        stage.feed(Executions(rows))
        stage.feed(ExecutionWatermark(PROCESS, int(rows["end_ns"].max())))
    assert stage.counts == {"unmatched": 1}


def test_captures_with_the_same_kernels_from_elsewhere_are_ambiguous() -> None:
    """Nobody can tell which of them the graph is; from the same lines it does not matter."""
    twice = Scene().begin().launch("ab").end().begin().launch("ab").end()
    outcome = Outcome(twice, replay("ab", 7, REPLAYED_NS))
    assert outcome.inner() == [None, None]
    assert outcome.stage.counts == {"ambiguous": 1}
    again = Scene().begin().launch("ab").end().begin().launch("ab").end()
    for row, stack in zip(again.calls[5:7], (1, 2), strict=True):
        row["stack_hash"][:, 0] = stack
    assert Outcome(again, replay("ab", 7, REPLAYED_NS)).inner() == [1, 2]


def test_several_graphs_have_their_own() -> None:
    """By their kernels."""
    scene = Scene().begin().launch("ab").end().begin().launch("cd").end()
    first = replay("cd", 7, REPLAYED_NS, graph=4)
    second = replay("ab", 8, REPLAYED_NS + MS, graph=9)
    assert Outcome(scene, first, second).inner() == [3, 4, 1, 2]


def test_copies_of_a_graph_are_no_kernels() -> None:
    """Kernels are compared with kernels; what else a graph does stands under its launch."""
    scene = Scene().begin().launch("a").copy().launch("b").end()
    assert Outcome(scene, replay("ab", 7, REPLAYED_NS)).inner() == [1, 3]


def test_an_ended_process_is_forgotten() -> None:
    """The pid may mean another program, whose graphs have the same numbers."""
    scene = Scene().begin().launch("ab").end()
    outcome = Outcome(
        scene, replay("ab", 7, REPLAYED_NS), extra=[ProcessesEnded((PROCESS,)), names()]
    )
    assert outcome.inner() == [None, None]


def test_kernels_without_a_name_are_like_no_other() -> None:
    """Two handles of which nothing is known may be anything."""
    nodes = GraphNodes()
    stage = CapturedLaunches(nodes)
    scene = Scene().begin().launch("ab").end()
    for event in (
        Calls(np.concatenate(scene.calls)),
        ExecutionsBegin(PROCESS, 0),
        Executions(replay("ab", 7, REPLAYED_NS)),
        ExecutionsEnd(PROCESS, 900 * MS),
    ):
        stage.feed(event)
    assert "matched" not in stage.counts


def test_names_go_with_the_last_process_that_has_them() -> None:
    """Services that compile kernels have new names in each process; an agent sees thousands of these."""
    stage = CapturedLaunches(GraphNodes())
    texts = [f"kernel_{number}_of_its_own" for number in range(500)]
    shared = ["".join(["kernel", "_of_all"])]
    for number in range(len(texts)):
        process = ProcessKey(1000 + number, 5)
        own = HandleName(process, 0, 1, texts[number])
        stage.feed(Names((own, HandleName(process, 0, 2, shared[0]))))
        del own
        if number:
            stage.feed(ProcessesEnded((ProcessKey(999 + number, 5),)))
    assert held(texts) == 1
    stage.feed(ProcessesEnded((process,)))
    assert held(texts) == 0
    assert held(shared) == 0


def test_names_of_a_process_that_loads_modules_for_days_go() -> None:
    """Each module takes the handles of the one before; names are swept when there are twice as many as are had."""
    stage = CapturedLaunches(GraphNodes())
    texts = [f"kernel_{number}_of_a_module" for number in range(20_000)]
    for number in range(len(texts)):
        stage.feed(Names((HandleName(PROCESS, number, number % 10, texts[number]),)))
    assert held(texts) < 5_000


def test_a_name_that_was_captured_is_kept_though_no_handle_has_it() -> None:
    """A graph of a module that was loaded again runs what was captured: it is found by the names of then."""
    nodes = GraphNodes()
    stage = CapturedLaunches(nodes)
    stage.feed(Names((HandleName(PROCESS, 0, ord("a"), "kernel_a"),)))
    scene = Scene().begin().launch("a").end()
    stage.feed(Calls(np.concatenate(scene.calls)))
    stage.feed(Names((HandleName(PROCESS, 1, ord("a"), "another"),)))
    stage.feed(Names((HandleName(OTHER, 0, 1, "of another process"),)))
    stage.feed(ProcessesEnded((OTHER,)))
    stage.feed(names())
    stage.feed(Executions(replay("a", 7, 500 * MS)))
    stage.finish()
    assert stage.counts["matched"] == 1
