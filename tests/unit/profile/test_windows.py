"""Windows close by watermarks, in event time."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import StackKey
from otel_gpuflame.events.records import CallArray, Calls, CaptureStart, Watermark
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from otel_gpuflame.profile.top import total
from tests.unit.profile.builders import (
    START,
    START_NS,
    UNIX_OFFSET_NS,
    batch,
    call,
    counters,
    leaves,
    run,
    target_event,
    usual,
)

WINDOW_NS = 1_000
OPTIONS = AggregateOptions(window_ns=WINDOW_NS)


def launch(at_ns: int) -> CallArray:
    """A launch this long after the start."""
    return call("cuLaunchKernel", start_ns=START_NS + at_ns)


def windowed() -> Aggregator:
    """An aggregator that has had everything but calls."""
    aggregator = Aggregator(OPTIONS)
    for event in usual():
        aggregator.feed(event)
    return aggregator


def starts(bundles: list[Bundle]) -> list[int]:
    """Starts of windows, in nanoseconds after the start of the capture."""
    return [b.window.start_unix_ns - UNIX_OFFSET_NS - START_NS for b in bundles]


@pytest.mark.parametrize(
    ("watermark_ns", "closed"),
    [(0, []), (999, []), (1_000, [0]), (1_999, [0]), (2_000, [0, 1_000]), (9_000, [0, 1_000])],
)
def test_a_watermark_closes_the_windows_before_it(watermark_ns: int, closed: list[int]) -> None:
    """A window closes when the source is complete up to its end, not a nanosecond earlier."""
    aggregator = windowed()
    aggregator.feed(batch(launch(5), launch(1_500)))
    assert starts(aggregator.feed(Watermark(START_NS + watermark_ns))) == closed
    assert starts(aggregator.finish()) == [s for s in (0, 1_000) if s not in closed]


def test_a_late_call_goes_to_the_open_window_and_is_remarked() -> None:
    """What arrives after its window has closed is counted in the oldest open one, and said to be late."""
    aggregator = windowed()
    aggregator.feed(batch(launch(5)))
    (first,) = aggregator.feed(Watermark(START_NS + 1_000))
    aggregator.feed(batch(launch(6), launch(7), launch(1_200)))
    (second,) = aggregator.finish()
    assert [total([b], GPU_LAUNCH) for b in (first, second)] == [1, 3]
    assert starts([second]) == [1_000]
    assert aggregator.ledger.remarks["late for their window"] == 2
    assert aggregator.ledger.accounts()[0].profiled == 4


def test_watermarks_that_go_back_reopen_nothing() -> None:
    """A watermark older than the last one changes nothing: closed windows stay closed."""
    aggregator = windowed()
    aggregator.feed(Watermark(START_NS + 2_000))
    aggregator.feed(Watermark(START_NS + 500))
    aggregator.feed(batch(launch(600)))
    assert starts(aggregator.finish()) == [2_000]
    assert aggregator.ledger.remarks["late for their window"] == 1


def test_a_call_belongs_to_the_window_in_which_it_returned() -> None:
    """A wait that spans a border is counted whole, where it ended."""
    aggregator = windowed()
    aggregator.feed(batch(call("cuCtxSynchronize", start_ns=START_NS + 900, duration_ns=500)))
    (bundle,) = aggregator.finish()
    assert starts([bundle]) == [1_000]
    assert total([bundle], GPU_WAIT) == 500


def test_calls_without_return_belong_to_the_window_in_which_they_began() -> None:
    """A call that has no end time is counted by its start."""
    aggregator = windowed()
    aggregator.feed(batch(launch(900)))
    assert starts(aggregator.finish()) == [0]


def test_windows_without_calls_are_not_given() -> None:
    """Between two windows with calls there may be a gap."""
    bundles, _ = run([*usual(), batch(launch(5), launch(4_500))], OPTIONS)
    assert starts(bundles) == [0, 4_000]


def test_one_window_has_the_bounds_of_the_capture() -> None:
    """Without a window length the window lasts from the start to the last thing known."""
    (bundle,) = run([*usual(), batch(launch(5)), Watermark(START_NS + 70)])[0]
    assert starts([bundle]) == [0]
    assert bundle.window.duration_ns == 70


def test_one_window_covers_calls_after_the_last_watermark() -> None:
    """The end of a window is exclusive, so it lies after the last call."""
    (bundle,) = run([*usual(), Watermark(START_NS + 3), batch(launch(5))])[0]
    assert bundle.window.duration_ns == 6


def test_without_a_start_event_the_window_is_that_of_the_calls() -> None:
    """A capture that does not say when it began still gives a window, in monotonic time."""
    (bundle,) = run([batch(launch(5), launch(9))])[0]
    assert bundle.window.start_unix_ns == START_NS + 5
    assert bundle.window.end_unix_ns == START_NS + 10


def test_the_start_event_moves_windows_to_unix_time() -> None:
    """Everything is shifted by the offset of the start event, and by nothing else."""
    moved = CaptureStart(START_NS, UNIX_OFFSET_NS + 12_345, ())
    (bundle,) = run([moved, target_event(), batch(launch(5))], OPTIONS)[0]
    assert starts([bundle]) == [12_345]


def test_nothing_gives_no_bundle() -> None:
    """An empty capture, and one with empty batches only, give nothing."""
    assert run([])[0] == []
    assert run([START, Calls(np.zeros(0, wire.CALL)), counters()])[0] == []


def test_what_is_no_event_is_refused() -> None:
    """A foreign object is a mistake of the programmer, and named."""
    with pytest.raises(TypeError, match="not an event: str"):
        Aggregator().feed("call")  # type: ignore[arg-type]


def test_many_distinct_groups_are_merged_on_the_way() -> None:
    """Totals stay exact when a window holds so many groups that they are merged before it closes."""
    rows = np.repeat(launch(5), 60_000)
    rows["stack_hash"][:, 1] = np.arange(60_000)
    bundles, aggregator = run([*usual(), *(Calls(rows) for _ in range(6))])
    assert total(bundles, GPU_LAUNCH) == 360_000
    assert aggregator.ledger.profiled["launch"] == 360_000


def test_losses_show_in_the_window_in_which_they_became_known() -> None:
    """`[lost: …]` holds what was lost since the window before, once, and by reason."""
    aggregator = windowed()
    aggregator.feed(batch(launch(5)))
    aggregator.feed(counters(launch={"seen": 4, "ring_full": 3}))
    first = aggregator.feed(Watermark(START_NS + 1_000))
    aggregator.feed(batch(launch(1_005)))
    aggregator.feed(counters(launch={"seen": 7, "ring_full": 4}, copy={"seen": 1, "no_return": 1}))
    second = aggregator.finish()
    assert leaves(first, GPU_LAUNCH) == {"[kernel of unknown name]": 1, "[lost: ring full]": 3}
    assert leaves(second, GPU_LAUNCH) == {
        "[kernel of unknown name]": 1,
        "[lost: ring full]": 1,
        "[lost: no return]": 1,
    }


def test_losses_known_only_at_the_end_are_shown() -> None:
    """Counters that come when all windows are closed still end up in a profile."""
    aggregator = windowed()
    aggregator.feed(batch(launch(5)))
    aggregator.feed(Watermark(START_NS + 1_000))
    aggregator.feed(counters(START_NS + 2_500, launch={"seen": 3, "ring_full": 2}))
    bundles = aggregator.finish()
    assert leaves(bundles, GPU_LAUNCH) == {"[lost: ring full]": 2}
    assert starts(bundles) == [2_000]


def test_a_capture_in_which_everything_was_lost_says_so() -> None:
    """Without a single delivered call, the loss is the profile."""
    bundles, _ = run([START, counters(launch={"seen": 9, "ring_full": 9})])
    assert leaves(bundles, GPU_LAUNCH) == {"[lost: ring full]": 9}


@pytest.mark.parametrize("kind", ["wait", "free", "event_record", "stream_wait", "stack", "name"])
def test_only_submissions_are_lost_launches(kind: str) -> None:
    """What gives the GPU no work is in the ledger when it is lost, and not in `gpu_launch`."""
    bundles, _ = run([*usual(), batch(launch(5)), counters(**{kind: {"ring_full": 5}})])
    assert total(bundles, GPU_LAUNCH) == 1


def test_nested_calls_are_not_lost() -> None:
    """A call inside another one is covered by it."""
    bundles, _ = run([*usual(), batch(launch(5)), counters(copy={"seen": 2, "nested": 2})])
    assert leaves(bundles, GPU_LAUNCH) == {"[kernel of unknown name]": 1}


@pytest.mark.parametrize(
    ("key", "mark"),
    [
        (StackKey(5, 6), "[no stack: lost on the way]"),
        (StackKey(0, 5), "[no stack: lost on the way]"),
        (StackKey(0, 0), "[no stack: no room to take one]"),
    ],
)
def test_calls_without_a_stack_say_why(key: StackKey, mark: str) -> None:
    """A stack that did not come, and one that was never taken, have different marks at the root."""
    bundles, _ = run([*usual(), batch(call("cuLaunchKernel", key=key))])
    (bundle,) = bundles
    (stack,) = bundle.stacks
    assert [bundle.frames[i].name for i in stack] == [
        mark,
        "cuLaunchKernel",
        "[kernel of unknown name]",
    ]
