"""What is kept of processes that ended or became another program, and for how long."""

from __future__ import annotations

from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import ProcessesEnded, SamplingWindow, Stacks, Watermark
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.retention import Retention
from tests.held import held
from tests.unit.profile.builders import (
    OTHER,
    PROCESS,
    STACK,
    START,
    START_NS,
    batch,
    call,
    name_event,
    target_event,
)

SECOND = 1_000_000_000
PPB = 1_000_000_000


def sampled() -> Aggregator:
    """As in the agent, with windows of two seconds."""
    aggregator = Aggregator(AggregateOptions(window_ns=2 * SECOND, sampled=True))
    aggregator.feed(START)
    return aggregator


def whole_stratum(start_ns: int, end_ns: int) -> SamplingWindow:
    """A stratum that is captured from its beginning to its end."""
    return SamplingWindow(start_ns, end_ns, start_ns, end_ns, PPB)


def launches(bundles: list[Bundle]) -> dict[object, int]:
    """Totals by service."""
    return {
        dict(bundle.resource)["service.name"]: sum(p.total for p in bundle.profiles)
        for bundle in bundles
    }


def test_calls_before_exec_keep_their_service() -> None:
    """Within one window, calls before and after exec are of two services."""
    aggregator = Aggregator(AggregateOptions(window_ns=None))
    for event in (
        START,
        target_event(PROCESS, "before"),
        batch(call("cuLaunchKernel"), call("cuLaunchKernel")),
        ProcessesEnded((PROCESS,)),
        target_event(PROCESS, "after"),
        batch(call("cuLaunchKernel")),
    ):
        aggregator.feed(event)
    assert launches(aggregator.finish()) == {"before": 2, "after": 1}


def test_a_new_description_of_a_living_process_holds_for_the_whole_window() -> None:
    """A resource that is published late names what the same program did before."""
    aggregator = Aggregator(AggregateOptions(window_ns=None))
    for event in (
        START,
        target_event(PROCESS, "python"),
        batch(call("cuLaunchKernel")),
        target_event(PROCESS, "checkout"),
        batch(call("cuLaunchKernel")),
    ):
        aggregator.feed(event)
    assert launches(aggregator.finish()) == {"checkout": 2}


def test_a_process_goes_after_two_windows_and_its_strata() -> None:
    """Windows may be longer than strata or shorter: both must have closed, in whatever order."""
    retention = Retention()
    retention.ended([PROCESS], 4)
    retention.ended([OTHER], 3)
    assert retention.closed(1, oldest=4) == []
    assert retention.closed(1, oldest=4) == [OTHER]
    assert PROCESS in retention
    assert retention.closed(0, oldest=4) == []
    assert retention.closed(0, oldest=5) == [PROCESS]
    assert PROCESS not in retention


def test_ended_processes_are_forgotten_where_all_is_captured() -> None:
    """A stratum without scaling keeps nothing to itself, and may last for ten minutes: nobody waits for its end."""
    aggregator = sampled()
    aggregator.feed(whole_stratum(START_NS, START_NS + 600 * SECOND))
    for number in range(20):
        start_ns = START_NS + number * SECOND
        process = ProcessKey(100 + number, 5)
        aggregator.feed(target_event(process, "short"))
        aggregator.feed(Stacks((STACK,)))
        aggregator.feed(batch(call("cuLaunchKernel", process=process, start_ns=start_ns)))
        aggregator.feed(ProcessesEnded((process,)))
        aggregator.feed(Watermark(start_ns + SECOND))
    assert len(aggregator._known._resources) <= 6
    assert len(aggregator._known._processes) <= 6


def test_a_late_call_of_a_whole_stratum_is_counted() -> None:
    """A thread that lost the CPU before it could send its call does not lose the call."""
    aggregator = sampled()
    aggregator.feed(target_event())
    aggregator.feed(whole_stratum(START_NS, START_NS + SECOND))
    aggregator.feed(whole_stratum(START_NS + SECOND, START_NS + 2 * SECOND))
    aggregator.feed(Watermark(START_NS + SECOND + SECOND // 2))
    aggregator.feed(batch(call("cuLaunchKernel", start_ns=START_NS + SECOND - 1)))
    assert launches(aggregator.finish()) == {"train": 1}
    assert aggregator.ledger.dropped.total() == 0


def test_names_that_a_handle_had_go() -> None:
    """A module that is loaded again takes the handles of the one before: names go when windows have closed."""
    aggregator = sampled()
    aggregator.feed(whole_stratum(START_NS, START_NS + 600 * SECOND))
    aggregator.feed(target_event(PROCESS, "reloads"))
    texts = [f"kernel_{number}_of_a_module" for number in range(200)]
    most = 0
    for number in range(len(texts)):
        start_ns = START_NS + number * SECOND
        aggregator.feed(name_event(0xA0, texts[number], time_ns=start_ns))
        aggregator.feed(batch(call("cuLaunchKernel", object=0xA0, start_ns=start_ns)))
        bundles = aggregator.feed(Watermark(start_ns + SECOND))
        shown = {frame.name for bundle in bundles for frame in bundle.frames}
        if bundles:
            assert {texts[number - 1], texts[number]} & shown
        del bundles, shown
        labels.readable_kernel_name.cache_clear()
        most = max(most, held(texts))
    assert most <= 10
    aggregator.feed(ProcessesEnded((PROCESS,)))
    for number in range(4):
        aggregator.feed(Watermark(START_NS + (len(texts) + 4 * number) * SECOND))
    labels.readable_kernel_name.cache_clear()
    assert held(texts) == 0


def test_names_beyond_what_a_process_may_have_go_and_those_in_use_stay() -> None:
    """New handles without end, each with a long name: what is used is shown by name all the same."""
    aggregator = sampled()
    aggregator.feed(whole_stratum(START_NS, START_NS + 600 * SECOND))
    aggregator.feed(target_event(PROCESS, "loads"))
    aggregator.feed(name_event(1, "gemm"))
    texts = [f"{number:04x}" * 4_000 for number in range(6_000)]
    shown: set[str] = set()
    for number in range(len(texts)):
        start_ns = START_NS + number * SECOND // 100
        aggregator.feed(name_event(100 + number, texts[number], time_ns=start_ns))
        if number % 100 == 0:
            aggregator.feed(batch(call("cuLaunchKernel", object=1, start_ns=start_ns)))
            bundles = aggregator.feed(Watermark(start_ns))
            shown |= {frame.name for bundle in bundles for frame in bundle.frames}
    assert held(texts) <= (64 << 20) // 16_000 + 500
    assert "gemm" in shown
    assert labels.UNNAMED_KERNEL.name not in shown
