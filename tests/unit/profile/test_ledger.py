"""The books of a capture."""

from __future__ import annotations

from otel_gpuflame.events import wire
from otel_gpuflame.profile.ledger import (
    CALL_KINDS,
    EVENT_KINDS,
    LOSSES,
    SOURCE_DROPS,
    THREAD_KINDS,
    Account,
    Ledger,
)
from tests.unit.profile.builders import counters


def test_kinds_and_reasons_are_those_of_the_kernel_interface() -> None:
    """Every kind of call has an account; every outcome but seen and sent is a reason to be dropped."""
    assert CALL_KINDS == (
        "launch",
        "graph_launch",
        "copy",
        "set",
        "wait",
        "event_record",
        "stream_wait",
        "free",
    )
    assert THREAD_KINDS == ("cpu_sample", "off_cpu", "driver")
    assert (*CALL_KINDS, *THREAD_KINDS, "execution") == EVENT_KINDS
    assert {"seen", "sent", *SOURCE_DROPS} == {o.name.lower() for o in wire.Outcome}
    assert set(SOURCE_DROPS) - set(LOSSES) == {"nested"}


def test_running_totals_replace_earlier_ones() -> None:
    """Counters are totals, not differences."""
    ledger = Ledger()
    ledger.take_source(counters(launch={"seen": 5, "ring_full": 1}))
    ledger.take_source(counters(launch={"seen": 9}))
    ledger.profiled["launch"] = 7
    (account,) = ledger.accounts()
    assert account == Account("launch", 9, 7, (("ring_full", 1),), 1)
    assert ledger.source_count("launch", "seen") == 9
    assert ledger.source_count("copy", "seen") == 0


def test_without_counters_seen_is_what_arrived() -> None:
    """A capture whose counters were cut off knows only what it has."""
    ledger = Ledger()
    ledger.profiled["copy"] = 3
    assert ledger.accounts() == (Account("copy", 3, 3, (), 0),)


def test_counters_older_than_the_last_calls_leave_nothing_pending() -> None:
    """In a capture that was cut off between counters and calls, nothing is pending below zero."""
    ledger = Ledger()
    ledger.take_source(counters(launch={"seen": 5, "nested": 1}))
    ledger.profiled["launch"] = 8
    assert ledger.accounts() == (Account("launch", 9, 8, (("nested", 1),), 0),)


def test_nested_calls_are_dropped_and_not_lost() -> None:
    """A call inside another one is covered by it; every other reason is a loss."""
    ledger = Ledger()
    every = dict.fromkeys(SOURCE_DROPS, 10)
    ledger.take_source(counters(wait={"seen": 100, **every}))
    (account,) = ledger.accounts()
    assert account.lost == 10 * (len(SOURCE_DROPS) - 1)
    assert sum(n for _, n in account.dropped) == 10 * len(SOURCE_DROPS)


def test_kinds_that_did_not_occur_have_no_account() -> None:
    """Only what was seen is listed, in the order of the kinds."""
    ledger = Ledger()
    assert ledger.accounts() == ()
    ledger.profiled.update({"free": 1, "launch": 1})
    assert [account.kind for account in ledger.accounts()] == ["launch", "free"]


def test_records_that_never_came_belong_to_the_books_of_executions() -> None:
    """The correlation has not seen them: they come on top, however often both sides say what they know."""
    ledger = Ledger()
    for _ in range(2):
        ledger.take_source(counters(execution={"seen": 999, "ring_full": 3, "cupti_dropped": 2}))
        ledger.take_executions(seen=10, profiled=7, dropped={"duplicate": 1})
    (account,) = ledger.accounts()
    assert (account.seen, account.profiled, account.lost, account.pending) == (15, 7, 5, 2)
