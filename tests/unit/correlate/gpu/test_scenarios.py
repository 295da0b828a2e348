"""Programs of which it is known what they cost, from events of both sides to what the correlator says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.correlator import GpuCorrelator
from otel_gpuflame.events.attributions import AttributionArray, Leaf, Measure
from tests.unit.correlate.gpu import scenarios
from tests.unit.correlate.gpu.program import attributed
from tests.unit.correlate.gpu.scenarios import (
    COPY,
    GEMM,
    ITEM,
    LAUNCH,
    LOOP,
    MS,
    NONE,
    RELU,
    SLEEP,
    US,
    Key,
    Machine,
)

EDGES = {Leaf.BEFORE_FIRST, Leaf.AFTER_LAST}
UNKNOWN = {Leaf.UNKNOWN_NOT_CAPTURED, Leaf.UNKNOWN_INCOMPLETE}
BY_SAMPLES = {Leaf.ON_CPU, Leaf.NO_SAMPLE}


@cache
def correlated(scenario: Callable[[], Machine]) -> tuple[Machine, AttributionArray]:
    """The scenario, and all that is said of it."""
    machine, correlator = scenario(), GpuCorrelator()
    events = [out for event in machine.events() for out in correlator.feed(event)]
    return machine, attributed([*events, *correlator.finish()])


def values(rows: AttributionArray, measure: Measure) -> Counter[Key]:
    """Nanoseconds by leaf, line and kernel."""
    found: Counter[Key] = Counter()
    for row in rows[rows["measure"] == measure]:
        key = (Leaf(row["leaf"]), int(row["stack_hash"][0]), int(row["name"]))
        found[key] += int(row["value_ns"])
    return found


def found_and_true(
    scenario: Callable[[], Machine], measure: Measure
) -> tuple[Counter[Key], Counter[Key]]:
    """What is said, and what is true, without what is 0."""
    machine, rows = correlated(scenario)
    return values(rows, measure), +machine.truth[measure]


@pytest.mark.parametrize("measure", [Measure.GPU_TIME, Measure.GPU_WAIT, Measure.GPU_QUEUE])
@pytest.mark.parametrize("scenario", scenarios.ALL)
def test_times_are_exact(scenario: Callable[[], Machine], measure: Measure) -> None:
    """Device time, waits and queues are right to the nanosecond, each under its line, with its kernel or reason."""
    found, true = found_and_true(scenario, measure)
    assert found == true


@pytest.mark.parametrize("scenario", scenarios.ALL)
def test_idle_time_is_exact_but_for_what_samples_tell(scenario: Callable[[], Machine]) -> None:
    """Sleeps and driver calls are exact; samples and what has none are right in their sum."""
    found, true = found_and_true(scenario, Measure.GPU_IDLE)
    idle = Counter({key: value for key, value in found.items() if key[0] not in EDGES})
    for leaf in (Leaf.OFF_CPU, Leaf.DRIVER_CALL):
        assert {k: v for k, v in idle.items() if k[0] is leaf} == {
            k: v for k, v in true.items() if k[0] is leaf
        }
    assert idle.total() == true.total()


@pytest.mark.parametrize("scenario", scenarios.ALL)
def test_busy_idle_and_unknown_are_the_capture(scenario: Callable[[], Machine]) -> None:
    """From begin to end every nanosecond of the device is one of the three; no more than the edges are unknown."""
    machine, rows = correlated(scenario)
    found = values(rows, Measure.GPU_IDLE)
    work = sorted((each.start, each.end) for stream in machine.streams for each in stream.work)
    busy, reach = 0, 0
    for start, end in work:
        busy += max(end - max(start, reach), 0)
        reach = max(reach, end)
    assert busy + found.total() == machine.now + 10 * MS
    assert not {key[0] for key in found} & UNKNOWN
    unknown = sum(value for key, value in found.items() if key[0] in EDGES)
    assert unknown == work[0][0] + machine.now + 10 * MS - reach


def share(found: Counter[Key], *keys: Key) -> float:
    """What these make up of the whole."""
    return sum(found[key] for key in keys) / found.total()


def known_idle(scenario: Callable[[], Machine]) -> Counter[Key]:
    """Idle times without the edges."""
    found = found_and_true(scenario, Measure.GPU_IDLE)[0]
    return Counter({key: value for key, value in found.items() if key[0] not in EDGES})


def test_a_sleep_is_why_the_device_is_idle() -> None:
    """5 ms of sleep a step: idle time stands under the sleep."""
    assert share(known_idle(scenarios.sleep_between_steps), (Leaf.OFF_CPU, SLEEP, NONE)) > 0.99


def test_a_loop_in_python_is_why_the_device_is_idle() -> None:
    """5 ms of Python a step: idle time stands under the loop, as its samples say, within 5 % of the truth."""
    true = found_and_true(scenarios.python_between_steps, Measure.GPU_IDLE)[1]
    found = known_idle(scenarios.python_between_steps)[Leaf.ON_CPU, LOOP, NONE]
    assert found == pytest.approx(true[Leaf.ON_CPU, LOOP, NONE], rel=0.05)


def test_a_synchronise_each_step_waits_for_the_kernels() -> None:
    """`.item()` names the kernels that it waits for, and hardly anything else."""
    found = found_and_true(scenarios.item_each_step, Measure.GPU_WAIT)[0]
    assert share(found, (Leaf.KERNEL, ITEM, GEMM), (Leaf.KERNEL, ITEM, RELU)) > 0.98


def test_an_unpinned_copy_waits_for_the_kernel_before_it_and_for_itself() -> None:
    """Two thirds of its time it waits for the kernel of the step before, and a third for its own copy."""
    found = found_and_true(scenarios.unpinned_copy, Measure.GPU_WAIT)[0]
    assert share(found, (Leaf.KERNEL, COPY, GEMM)) == pytest.approx(2 / 3, rel=0.02)
    assert share(found, (Leaf.KERNEL, COPY, NONE)) == pytest.approx(1 / 3, rel=0.02)


def test_launches_that_are_held_back_wait_for_the_kernels() -> None:
    """Nearly all of the time of 5,000 kernels but the last 1,024 is spent in launches that are held back."""
    found = found_and_true(scenarios.launches_without_synchronise, Measure.GPU_WAIT)[0]
    assert found[Leaf.KERNEL, LAUNCH, GEMM] == pytest.approx(
        (5_000 - scenarios.QUEUE) * MS, rel=0.05
    )


def test_of_two_streams_the_one_that_ends_last_is_waited_for() -> None:
    """The wait for both names the longer kernel."""
    found = found_and_true(scenarios.two_streams, Measure.GPU_WAIT)[0]
    assert share(found, (Leaf.KERNEL, ITEM, RELU)) > 0.98


def test_who_waits_for_a_stream_waits_for_what_that_waits_for() -> None:
    """The wait for the first stream names the copy on the second one, and the kernel queues for the event."""
    wait = found_and_true(scenarios.copy_awaited_through_event, Measure.GPU_WAIT)[0]
    assert share(wait, (Leaf.KERNEL, ITEM, NONE)) == pytest.approx(0.44, rel=0.05)
    queue = found_and_true(scenarios.copy_awaited_through_event, Measure.GPU_QUEUE)[0]
    assert share(queue, (Leaf.WAITS_FOR_EVENT, LAUNCH, GEMM)) > 0.98


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["launch", "copy", "pinned", "stream", "context", "event", "sleep", "loop"]
        ),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(1, 400),
    ),
    max_size=40,
)


def _random_program(some: list[tuple[str, int, int, int]]) -> Machine:
    """Steps of (what, stream, other stream, how many microseconds)."""
    machine = Machine()
    streams = [machine.stream() for _ in range(3)]
    for stream in streams:
        machine.launch(stream, LAUNCH, GEMM, 1)
    for what, number, other, length in some:
        stream, line, duration = streams[number], LOOP + number, length * US
        if what == "launch":
            machine.launch(stream, line, 10 + length, duration)
        elif what in ("copy", "pinned"):
            machine.copy(stream, line, duration, pinned=what == "pinned")
        elif what == "event" and number != other:
            machine.wait_for(stream, streams[other], line)
        elif what in ("stream", "context"):
            machine.synchronise(line, *([stream] if what == "stream" else []))
        elif what == "sleep":
            machine.sleep(line, duration)
        else:
            machine.compute(line, duration)
    return machine.finished()


@settings(max_examples=60, deadline=None)
@given(steps)
def test_any_program_is_told_exactly(some: list[tuple[str, int, int, int]]) -> None:
    """For any mix of launches, copies, waits and events on three streams: all that is exact is the truth."""
    machine, correlator = _random_program(some), GpuCorrelator()
    events = [out for event in machine.events() for out in correlator.feed(event)]
    rows = attributed([*events, *correlator.finish()])
    for measure in (Measure.GPU_TIME, Measure.GPU_WAIT, Measure.GPU_QUEUE):
        assert values(rows, measure) == +machine.truth[measure]
    found = {k: v for k, v in values(rows, Measure.GPU_IDLE).items() if k[0] not in EDGES}
    true = +machine.truth[Measure.GPU_IDLE]
    assert sum(found.values()) == true.total()
    for leaf in (Leaf.OFF_CPU, Leaf.DRIVER_CALL):
        assert {k: v for k, v in found.items() if k[0] is leaf} == {
            k: v for k, v in true.items() if k[0] is leaf
        }
