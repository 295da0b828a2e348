"""Recordings of the GPU side on an H200, beside what torch.profiler said of other runs of the same programs.

Made by tests/integration/gpu/make_captures.py. In these, CUPTI recorded launches only where libraries call the driver
themselves.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.correlate.gpu.inferred import InferredLaunches
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.executions import ExecutionArray, Executions, name_handle
from otel_gpuflame.events.frames import FrameKind
from otel_gpuflame.events.records import Calls, Event, Names
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.pipeline import ReplayResult, replay
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.sample_types import GPU_TIME, GPU_WAIT

CAPTURES: Final = Path(__file__).parent / "captures"
NAMES: Final = ("train", "graph", "inference")
PROFILED: Final[dict[str, Any]] = json.loads((CAPTURES / "torch_profiler.json").read_text())
SPIN: Final = "spin_kernel"
"""Launched by the programs before the case begins, to measure the device's clock: not in torch.profiler's counts."""
NODES: Final = 192
"""Of the graph in the recording of one; its capture is what launches kernels last."""
LOW_HALF: Final = 0xFFFFFFFF


class Recording:
    """One capture, and its replay."""

    def __init__(self, name: str) -> None:
        path = CAPTURES / f"h200_gpu_{name}.ogfcap"
        with ReplaySource(path, call_dtype=wire.CALL) as source:
            self.events: list[Event] = list(source.events())
        self.result: ReplayResult = replay(path, AggregateOptions(window_ns=None))
        rows: ExecutionArray = np.concatenate(
            [event.rows for event in self.events if isinstance(event, Executions)]
        )
        self.executions = rows[np.isin(rows["kind"], [GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET])]
        self.names = {
            each.handle: each.name
            for event in self.events
            if isinstance(event, Names)
            for each in event.names
        }

    def samples(self, sample_type: Any) -> list[tuple[list[Any], int]]:
        """Stacks, root first, and values of a sample type."""
        found = []
        for bundle in self.result.bundles:
            (profile,) = [p for p in bundle.profiles if p.sample_type == sample_type]
            for stack, value in zip(profile.stack.tolist(), profile.value.tolist(), strict=True):
                found.append(([bundle.frames[i] for i in bundle.stacks[stack]], value))
        return found


@pytest.fixture(scope="module", params=NAMES)
def recording(request: pytest.FixtureRequest) -> Recording:
    """Each of them."""
    return Recording(request.param)


@pytest.fixture(scope="module", params=["train", "graph"])
def profiled(request: pytest.FixtureRequest) -> tuple[Recording, dict[str, Any]]:
    """Those of which torch.profiler has a run too."""
    return Recording(request.param), PROFILED[request.param]


def test_every_execution_has_its_launch(recording: Recording) -> None:
    """All are under the call that asked for them: none without, none dropped, none left."""
    (account,) = [a for a in recording.result.ledger.accounts() if a.kind == "execution"]
    assert account.seen == account.profiled == len(recording.executions)
    assert (account.dropped, account.pending) == ((), 0)
    assert not [text for text in recording.result.ledger.remarks if "without a stack" in text]


def test_gpu_time_is_the_time_of_the_executions(recording: Recording) -> None:
    """To the nanosecond."""
    durations = recording.executions["end_ns"] - recording.executions["start_ns"]
    assert sum(value for _, value in recording.samples(GPU_TIME)) == int(durations.sum())


def test_kernels_are_under_the_launch_of_that_kernel(recording: Recording) -> None:
    """Per kernel: as much time as its executions took, under stacks with Python frames and the driver call."""
    expected: Counter[str] = Counter()
    for row in recording.executions[recording.executions["kind"] == GpuKind.KERNEL]:
        expected[recording.names[int(row["name"])]] += int(row["end_ns"] - row["start_ns"])
    found: Counter[str] = Counter()
    for frames, value in recording.samples(GPU_TIME):
        if frames[-1].kind is FrameKind.GPU:
            found[frames[-1].system_name or frames[-1].name] += value
            assert frames[-2].name in {"cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch"}
    assert found == expected


def test_kernels_are_as_many_as_torch_profiler_counts(
    profiled: tuple[Recording, dict[str, Any]],
) -> None:
    """Kernels, copies and sets, each."""
    recording, truth = profiled
    rows = recording.executions
    names = [recording.names.get(handle, "") for handle in rows["name"].tolist()]
    is_spin = np.array([SPIN in name for name in names])
    counts = Counter(GpuKind(kind).name for kind in rows["kind"][~is_spin].tolist())
    assert counts["KERNEL"] == truth["counts"]["kernel"]
    assert counts["COPY"] == truth["counts"].get("gpu_memcpy", 0)
    assert counts["SET"] == truth["counts"].get("gpu_memset", 0)


def test_time_is_that_of_torch_profiler(profiled: tuple[Recording, dict[str, Any]]) -> None:
    """In total within 1 %, although it was another run; the device's clock differs a little."""
    recording, truth = profiled
    ours_ns = sum(
        value for frames, value in recording.samples(GPU_TIME) if SPIN not in frames[-1].name
    )
    assert ours_ns / 1e3 == pytest.approx(sum(truth["times_us"].values()), rel=0.01)


def test_waits_lose_no_nanosecond_by_being_explained(recording: Recording) -> None:
    """Σ of the pieces by what ran meanwhile is Σ of the calls' durations."""
    rows = np.concatenate([e.rows for e in recording.events if isinstance(e, Calls)])
    waits = rows[np.isin(rows["kind"], [wire.Kind.WAIT, wire.Kind.FREE])]
    certain = int((waits["end_ns"] - waits["start_ns"]).sum())
    total = sum(value for _, value in recording.samples(GPU_WAIT))
    # Copies that wait, and launches that are held back, come on top.
    assert total >= certain


def found_by_order(events: list[Event]) -> dict[int, tuple[int, int]]:
    """Correlation id -> (thread, entry) of launches, from a recording without CUPTI's own records of them."""
    stage = InferredLaunches()
    inferred = []
    for event in events:
        if isinstance(event, Executions):
            rest = event.rows[event.rows["kind"] != GpuKind.API]
            inferred += stage.feed(Executions(rest))
        else:
            inferred += stage.feed(event)
    inferred += stage.finish()
    return {
        int(row["correlation_id"]): (int(row["thread_pointer"]) & LOW_HALF, int(row["start_ns"]))
        for event in inferred
        if isinstance(event, Executions)
        for row in _of_kind(event.rows, GpuKind.API)
    }


@pytest.mark.parametrize(("name", "without"), [("train", 0), ("graph", 2), ("inference", 0)])
def test_order_says_the_same_of_a_program_that_had_named_its_kernels_before(
    name: str, without: int
) -> None:
    """Without the names that the program gave, as where capture begins later, each launch has the same execution.

    But for two kernels before the capture, which no synchronisation parts from what was captured.
    """
    events = Recording(name).events
    ours = [
        Names(tuple(each for each in event.names if each.handle >= name_handle(0)))
        if isinstance(event, Names)
        else event
        for event in events
    ]
    truth, found = found_by_order(events), found_by_order(ours)
    assert found.items() <= truth.items()
    assert len(found) == len(truth) - without


def test_order_says_what_cupti_recorded() -> None:
    """Launches found by order alone are those that CUPTI has records of: 200 of 200, and all others besides."""
    events = Recording("train").events
    recorded = [_of_kind(e.rows, GpuKind.API) for e in events if isinstance(e, Executions)]
    found = found_by_order(events)
    calls = np.concatenate([e.rows for e in events if isinstance(e, Calls)])
    launches = calls[np.isin(calls["kind"], [int(kind) for kind in apis.SUBMISSIONS])]
    threads = launches["thread_pointer"] & np.uint64(LOW_HALF)
    rows = np.concatenate(recorded)
    assert len(rows) == 200
    for row in rows:
        mine = launches[
            (threads == row["thread_pointer"]) & (launches["start_ns"] <= row["start_ns"])
        ]
        truth = (int(row["thread_pointer"]), int(mine["start_ns"].max()))
        assert found[int(row["correlation_id"])] == truth
    assert len(found) == len(launches)


def with_capture(events: list[Event]) -> list[Event]:
    """The recording of a graph as it would be with probes on begin and end of its capture, which came later."""
    calls = np.concatenate([event.rows for event in events if isinstance(event, Calls)])
    launches = np.sort(calls[calls["kind"] == wire.Kind.LAUNCH], order="start_ns")
    captured = launches[-NODES:]
    first_ns, last_ns = (int(captured["start_ns"][place]) for place in (0, -1))
    turns = captured[:2].copy()
    turns["start_ns"] = first_ns - 1, last_ns + 1
    turns["api"] = [apis.BY_NAME[f"cuStream{which}Capture"].id for which in ("Begin", "End")]
    turns["kind"], turns["object"] = wire.Kind.EVENT_RECORD, 0
    result: list[Event] = []
    for event in events:
        if isinstance(event, Calls):
            starts_ns = event.rows["start_ns"]
            has = [(starts_ns == first_ns).any(), (starts_ns == last_ns).any()]
            event = Calls(np.concatenate([event.rows, turns[has]]))  # noqa: PLW2901
        result.append(event)
    return result


def test_a_graph_without_probes_on_its_capture_stands_under_its_launch() -> None:
    """This recording is older than they are: nothing is estimated."""
    remarks = Recording("graph").result.ledger.remarks
    assert not [text for text in remarks if "captured launch" in text]


def test_nodes_of_a_graph_stand_under_the_lines_that_launched_them() -> None:
    """With begin and end of the capture put in: each of 9,600 node executions, and Σ is the same."""
    recording = Recording("graph")
    aggregator = CorrelatingAggregator(AggregateOptions(window_ns=None))
    bundles = [b for event in with_capture(recording.events) for b in aggregator.feed(event)]
    recording.result.bundles[:] = bundles + aggregator.finish()
    remarks, dropped = aggregator.ledger.remarks, aggregator.ledger.dropped
    (estimated,) = [n for text, n in remarks.items() if "captured launch" in text]
    assert (estimated, dropped["launch", "captured"]) == (50 * NODES, NODES)
    samples = recording.samples(GPU_TIME)
    durations = recording.executions["end_ns"] - recording.executions["start_ns"]
    assert sum(value for _, value in samples) == int(durations.sum())
    functions: Counter[str] = Counter()
    for frames, value in samples:
        texts = [frame.name for frame in frames]
        if "cuGraphLaunch" in texts:
            place = texts.index("cuGraphLaunch")
            assert texts[place + 1] == "[captured at, estimated]"
            assert texts[-2] in {"cuLaunchKernel", "cuLaunchKernelEx"}
            assert "CUDAGraph.replay" in texts[:place]
            functions[_innermost_python(frames[place + 2 :])] += value
    assert set(functions) == {"make_token.<locals>.token", "rms_norm", "silu"}


def _innermost_python(frames: list[Any]) -> str:
    return str([frame.name for frame in frames if frame.kind is FrameKind.PYTHON][-1])


def _of_kind(rows: ExecutionArray, kind: GpuKind) -> ExecutionArray:
    return rows[rows["kind"] == kind]
