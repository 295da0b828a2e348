"""Which calls count as they are, which by their stratum, and which not at all."""

from __future__ import annotations

import numpy as np

from otel_gpuflame.events.records import CallArray, SamplingWindow, Watermark
from otel_gpuflame.events.windowed import WindowedWhereFrequent
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from otel_gpuflame.profile.sample_types import ESTIMATED_SCOPE
from otel_gpuflame.profile.strata import Strata
from tests.unit.profile.builders import UNIX_OFFSET_NS, batch, call, usual
from tests.unit.profile.test_rates import at, sampling

STRATUM_NS = 1_000
PROBABILITY_PPB = 300_000_000


def stratum(
    number: int, *, with_waits: bool = True, with_graph_launches: bool = False
) -> SamplingWindow:
    """Strata of 1,000 ns follow each other; the window of each is from 100 to 400 ns after its start."""
    start_ns = number * STRATUM_NS
    return SamplingWindow(
        stratum_start_ns=start_ns,
        stratum_end_ns=start_ns + STRATUM_NS,
        open_ns=start_ns + 100,
        close_ns=start_ns + 400,
        probability_ppb=PROBABILITY_PPB,
        with_waits=with_waits,
        with_graph_launches=with_graph_launches,
    )


def waits(*starts_ns: int) -> CallArray:
    """Waits that began then."""
    return np.concatenate(
        [call("cuStreamSynchronize", start_ns=start_ns, duration_ns=5) for start_ns in starts_ns]
    )


def graph_launches(*starts_ns: int) -> CallArray:
    """Launches of graphs that began then."""
    return np.concatenate([call("cuGraphLaunch", start_ns=start_ns) for start_ns in starts_ns])


def starts(rows: CallArray) -> list[int]:
    """When they began."""
    return [int(start_ns) for start_ns in rows["start_ns"]]


def test_a_windowed_wait_that_ends_after_its_stratum_counts_nowhere() -> None:
    """It would count as it is beside an estimate that stands for all waits of its stratum."""
    strata = Strata()
    strata.open(stratum(1, with_waits=False))
    strata.open(stratum(2))
    assert [each.number for each in strata.complete_until(3_000)] == [1, 2]
    exact, sampled, outside = strata.split(waits(1_200, 2_200, 2_900, 3_100))
    assert starts(exact) == [1_200, 3_100]
    assert sampled == []
    assert starts(outside) == [2_200, 2_900]


def test_a_windowed_wait_counts_by_the_stratum_in_which_it_began() -> None:
    """Also when the next one has begun, as long as its own is not complete."""
    strata = Strata()
    strata.open(stratum(2))
    strata.open(stratum(3))
    exact, sampled, outside = strata.split(waits(2_200, 2_900, 3_200))
    assert starts(exact) == []
    assert [(each.number, starts(rows)) for each, rows in sampled] == [(1, [2_200]), (2, [3_200])]
    assert starts(outside) == [2_900]


def test_launches_of_graphs_count_by_their_stratum_where_they_are_windowed() -> None:
    """And as they are where they are not; whatever is the case of waits."""
    strata = Strata()
    for number in (1, 2, 3):
        strata.open(stratum(number, with_waits=number == 1, with_graph_launches=number == 2))
    exact, sampled, outside = strata.split(graph_launches(1_200, 1_900, 2_200, 2_900, 3_900))
    assert starts(exact) == [1_200, 1_900, 3_900]
    assert [(each.number, starts(rows)) for each, rows in sampled] == [(2, [2_200])]
    assert starts(outside) == [2_900]
    exact, sampled, _ = strata.split(waits(1_200, 2_200, 2_900))
    assert starts(exact) == [2_200, 2_900]
    assert [(each.number, starts(rows)) for each, rows in sampled] == [(1, [1_200])]


def test_a_launch_of_a_graph_that_comes_when_its_stratum_is_complete_counts_nowhere() -> None:
    """As with any launch: the estimate of that stratum stands for it."""
    strata = Strata()
    strata.open(stratum(1, with_graph_launches=True))
    strata.open(stratum(2))
    strata.complete_until(2_000)
    exact, sampled, outside = strata.split(graph_launches(1_200, 2_200))
    assert (starts(exact), sampled, starts(outside)) == ([2_200], [], [1_200])


def test_strata_in_a_row_are_one_stretch_of_time() -> None:
    """However many there were, the first is remembered; what lies between two stretches is in none."""
    windowed = WindowedWhereFrequent()
    for number in (*range(100), *range(200, 210)):
        windowed.note(stratum(number))
    began_ns = waits(0, 99_999, 100_000, 199_999, 200_000, 209_999, 210_000)
    assert windowed.among(began_ns).tolist() == [True, True, False, False, True, True, False]
    launches = call("cuLaunchKernel", start_ns=500)
    assert not windowed.among(launches).any()


def test_a_stratum_that_the_end_of_the_capture_cuts_off_ends_there() -> None:
    """Its profile would be of a time that is still to come, ten minutes long for what took one."""
    aggregator = Aggregator(AggregateOptions(sampled=True))
    for event in (
        *usual(),
        sampling(0, 600, share=0.1),
        batch(call("cuLaunchKernel", start_ns=at(1))),
        Watermark(at(60)),
    ):
        assert not aggregator.feed(event)
    (bundle,) = aggregator.finish()
    assert bundle.scope == ESTIMATED_SCOPE
    window = bundle.window
    assert (window.start_unix_ns, window.end_unix_ns) == (
        at(0) + UNIX_OFFSET_NS,
        at(60) + UNIX_OFFSET_NS,
    )
