"""Rates of processes: exact ones of an interval, estimates of a stratum, and never both for the same calls."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from otel_gpuflame.events.records import Event, SamplingWindow, Watermark
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.rates import ProcessRates, Rates
from tests.unit.profile.builders import (
    OTHER,
    PROCESS,
    START_NS,
    STEP,
    UNIX_OFFSET_NS,
    batch,
    call,
    counters,
    target_event,
    usual,
)

SECOND_NS = 1_000_000_000
PPB = 1_000_000_000


def sampling(
    start_s: float, end_s: float, *, share: float = 1.0, with_waits: bool = False
) -> SamplingWindow:
    """A stratum that is covered from its start, as far as `share` goes. Seconds since the start."""
    start_ns = START_NS + round(start_s * SECOND_NS)
    end_ns = START_NS + round(end_s * SECOND_NS)
    return SamplingWindow(
        stratum_start_ns=start_ns,
        stratum_end_ns=end_ns,
        open_ns=start_ns,
        close_ns=start_ns + round((end_ns - start_ns) * share),
        probability_ppb=round(share * PPB),
        with_waits=with_waits,
    )


def at(seconds: float) -> int:
    """A time after the start."""
    return START_NS + round(seconds * SECOND_NS)


class Table:
    """Intervals of two seconds, as the live table has them."""

    def __init__(self) -> None:
        self.rates = Rates(UNIX_OFFSET_NS)
        self.aggregator = Aggregator(
            AggregateOptions(window_ns=2 * SECOND_NS, span_link=None, sampled=True)
        )
        self.feed(*usual(), target_event(OTHER, "serve"))

    def feed(self, *events: Event) -> list[Bundle]:
        """Take in events; sampling windows go to the rates too."""
        bundles = []
        for event in events:
            bundles += self.aggregator.feed(event)
            if isinstance(event, SamplingWindow):
                self.rates.open_window(event)
        return bundles

    def reach(self, seconds: float, targets: Iterable[tuple[int, str]] = ()) -> list[ProcessRates]:
        """Everything up to then is complete; rates of the interval that ends there."""
        bundles = self.feed(Watermark(at(seconds)))
        self.rates.add_estimates(bundles, at(seconds))
        end_unix_ns = at(seconds) + UNIX_OFFSET_NS
        self.rates.close_interval(b for b in bundles if b.window.end_unix_ns == end_unix_ns)
        return self.rates.rows(targets)


def test_waits_copies_and_launches_are_told_apart() -> None:
    """Each kind of call counts where it belongs, a second; the line is where it waited most."""
    table = Table()
    table.feed(
        sampling(0, 2),
        batch(
            *[call("cuLaunchKernel", start_ns=at(0.5)) for _ in range(6)],
            call("cuGraphLaunch", start_ns=at(0.5)),
            call("cuMemsetD8Async", start_ns=at(0.5)),
            call("cuMemcpyDtoH", start_ns=at(0.5), bytes=4_000, duration_ns=SECOND_NS // 2),
            call("cuStreamSynchronize", start_ns=at(1), duration_ns=SECOND_NS // 2),
        ),
    )

    (row,) = table.reach(2)

    assert (row.pid, row.service, row.is_estimated) == (PROCESS.tgid, "train", False)
    assert (row.launches, row.copies, row.copied_bytes) == (3.5, 0.5, 2_000)
    assert row.wait == pytest.approx(0.5)
    assert row.top_wait is not None
    assert (row.top_wait.frame, row.top_wait.value) == (STEP, SECOND_NS)


def test_every_interval_stands_for_itself() -> None:
    """What happened in one interval is gone in the next; targets without activity stay in the table."""
    table = Table()
    table.feed(batch(call("cuStreamSynchronize", start_ns=at(1), duration_ns=5)))
    table.reach(2)

    assert table.reach(4) == []
    (row,) = table.reach(6, [(PROCESS.tgid, "train")])
    assert (row.wait, row.launches, row.top_wait) == (0, 0, None)


def test_who_waits_most_comes_first() -> None:
    """Then who launches most."""
    table = Table()
    table.feed(
        sampling(0, 2),
        batch(
            call("cuLaunchKernel", start_ns=at(0.5)),
            call("cuStreamSynchronize", process=OTHER, start_ns=at(1), duration_ns=9),
        ),
    )

    rows = table.reach(2, [(1, "idle")])

    assert [row.service for row in rows] == ["serve", "train", "idle"]


def test_launches_are_scaled_when_sampled() -> None:
    """A tenth of the stratum saw 4 launches: 40 in 4 s, until the next stratum is complete."""
    table = Table()
    table.feed(
        sampling(0, 4, share=0.1),
        batch(*[call("cuLaunchKernel", start_ns=at(0.1)) for _ in range(4)]),
    )
    assert not table.rates.is_settled
    table.reach(2)
    assert not table.rates.is_settled

    (row,) = table.reach(4, [(PROCESS.tgid, "train")])

    assert table.rates.is_settled
    assert (row.launches, row.is_estimated) == (10, True)
    table.feed(sampling(4, 8, share=0.1))
    assert [r.launches for r in table.reach(6, [(PROCESS.tgid, "train")])] == [10]
    assert [r.launches for r in table.reach(8, [(PROCESS.tgid, "train")])] == [0]


def test_windowed_waits_are_estimates() -> None:
    """And are told to be; waits that are always captured are exact beside estimated launches."""
    for with_waits, wait_s in ((True, 0.5), (False, 0.1)):
        table = Table()
        wait = call("cuStreamSynchronize", start_ns=at(0.1), duration_ns=SECOND_NS // 5)
        table.feed(sampling(0, 2, share=0.2, with_waits=with_waits))
        table.feed(batch(call("cuLaunchKernel", start_ns=at(0.1)), wait))
        (row,) = table.reach(2, [(PROCESS.tgid, "train")])
        assert row.wait == pytest.approx(wait_s)
        assert (row.is_estimated, row.wait_is_estimated) == (True, with_waits)


def test_estimates_and_exact_values_add_up() -> None:
    """Graph launches are always captured, kernel launches in windows."""
    table = Table()
    table.feed(
        sampling(0, 2, share=0.5),
        batch(call("cuLaunchKernel", start_ns=at(0.1)), call("cuGraphLaunch", start_ns=at(1.5))),
    )

    (row,) = table.reach(2)

    assert row.launches == 1 + 0.5


def test_estimates_end_where_everything_is_captured() -> None:
    """When the next stratum is captured as a whole, the last estimate must not be added to its exact values."""
    table = Table()
    table.feed(
        sampling(0, 2, share=0.1),
        batch(*[call("cuLaunchKernel", start_ns=at(0.1)) for _ in range(4)]),
    )
    table.reach(2)
    table.feed(sampling(2, 12), batch(call("cuLaunchKernel", start_ns=at(3))))

    (row,) = table.reach(4)

    assert (row.launches, row.is_estimated) == (0.5, False)


def test_nothing_is_settled_before_a_window() -> None:
    """Without any window nothing is known of launches; with all captured it is known at once."""
    table = Table()
    assert not table.rates.is_settled
    table.feed(sampling(0, 10))
    assert table.rates.is_settled


def test_lost_calls_are_not_taken_for_launches() -> None:
    """What did not arrive has no driver call: it is for the line about the host."""
    table = Table()
    table.feed(
        sampling(0, 2),
        batch(call("cuLaunchKernel", start_ns=at(1))),
        counters(launch={"seen": 9, "sent": 1, "ring_full": 8}),
    )

    (row,) = table.reach(2)

    assert row.launches == 0.5
