"""Nothing is lost or made up between events and profiles, for any order of events."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import (
    CPU_SAMPLES,
    GPU_COPY,
    GPU_DRIVER,
    GPU_LAUNCH,
    GPU_WAIT,
    OFF_CPU,
)
from otel_gpuflame.profile.top import total
from tests.unit.profile.builders import START_NS, UNIX_OFFSET_NS, run
from tests.unit.profile.history import OPERATIONS, WINDOW_NS, WINDOWS, Operation, events

WINDOW_OPTIONS = [AggregateOptions(window_ns=None), AggregateOptions(window_ns=WINDOW_NS)]
EXAMPLES = settings(max_examples=150, deadline=None)
CUTS = st.frozensets(st.integers(0, 49))


def everything(bundles: list[Bundle]) -> Counter[Any]:
    """Every value under all that identifies it; equal samples of several bundles are added up."""
    found: Counter[Any] = Counter()
    for bundle in bundles:
        for profile in bundle.profiles:
            columns = zip(
                profile.stack.tolist(), profile.link.tolist(), profile.value.tolist(), strict=True
            )
            for stack, link, value in columns:
                frames = tuple(bundle.frames[i] for i in bundle.stacks[stack])
                span = bundle.links[link] if link >= 0 else None
                key = (bundle.window, bundle.resource, profile.sample_type, frames, span)
                found[key] += value
    return found


@pytest.mark.parametrize("options", WINDOW_OPTIONS, ids=["one window", "windows"])
@EXAMPLES
@given(operations=OPERATIONS, cuts=CUTS)
def test_books_balance(
    options: AggregateOptions, operations: list[Operation], cuts: frozenset[int]
) -> None:
    """For each kind seen = profiled + dropped + pending, each as the history has it."""
    history, expected = events(operations, cuts=cuts)
    _, aggregator = run(history, options)
    accounts = aggregator.ledger.accounts()
    assert {account.kind: account.seen for account in accounts} == dict(expected.seen)
    for account in accounts:
        dropped = sum(count for _, count in account.dropped)
        assert account.seen == account.profiled + dropped + account.pending
        assert account.profiled == expected.profiled[account.kind]
        assert account.pending == expected.pending[account.kind]
        assert {(account.kind, reason): n for reason, n in account.dropped} == {
            key: n for key, n in expected.dropped.items() if key[0] == account.kind
        }
    remarks = aggregator.ledger.remarks
    assert remarks["calls of unknown kind"] == expected.unknown_kinds
    assert remarks["inverted times"] == expected.inverted
    assert remarks["impossible copy sizes, taken as 0"] == expected.impossible


@pytest.mark.parametrize("options", WINDOW_OPTIONS, ids=["one window", "windows"])
@EXAMPLES
@given(operations=OPERATIONS, cuts=CUTS)
def test_totals_are_those_of_the_calls(
    options: AggregateOptions, operations: list[Operation], cuts: frozenset[int]
) -> None:
    """Over all windows: launches and CPU samples, delivered or lost, are counted; bytes and times are their sums."""
    history, expected = events(operations, cuts=cuts)
    bundles, _ = run(history, options)
    assert total(bundles, GPU_LAUNCH) == expected.submissions + expected.lost_submissions
    assert total(bundles, GPU_COPY) == expected.copied_bytes
    assert total(bundles, GPU_WAIT) == expected.waited_ns
    assert total(bundles, CPU_SAMPLES) == expected.cpu_samples + expected.lost_cpu_samples
    assert total(bundles, OFF_CPU) == expected.off_cpu_ns
    assert total(bundles, GPU_DRIVER) == expected.driver_ns


@pytest.mark.parametrize("options", WINDOW_OPTIONS, ids=["one window", "windows"])
@EXAMPLES
@given(operations=OPERATIONS, one=CUTS, other=CUTS)
def test_batch_boundaries_do_not_matter(
    options: AggregateOptions,
    operations: list[Operation],
    one: frozenset[int],
    other: frozenset[int],
) -> None:
    """However the same calls are cut into batches, the same samples come out of the same windows."""
    first, aggregator_of_first = run(events(operations, cuts=one)[0], options)
    second, aggregator_of_second = run(events(operations, cuts=other)[0], options)
    assert everything(first) == everything(second)
    ledgers = [a.ledger for a in (aggregator_of_first, aggregator_of_second)]
    assert +ledgers[0].remarks == +ledgers[1].remarks
    assert ledgers[0].accounts() == ledgers[1].accounts()


@EXAMPLES
@given(operations=OPERATIONS)
def test_windows_lie_on_the_grid(operations: list[Operation]) -> None:
    """Windows start at multiples of their length after the start; none is given twice to a target."""
    bundles, _ = run(events(operations, cuts=frozenset())[0], WINDOW_OPTIONS[1])
    for bundle in bundles:
        offset_ns = bundle.window.start_unix_ns - UNIX_OFFSET_NS - START_NS
        assert offset_ns % WINDOW_NS == 0
        assert 0 <= offset_ns <= WINDOWS * WINDOW_NS
        assert bundle.window.duration_ns == WINDOW_NS


@EXAMPLES
@given(operations=OPERATIONS)
def test_samples_are_well_formed(operations: list[Operation]) -> None:
    """Each (stack, link) occurs once in a profile, refers to what exists, and has a value above 0."""
    bundles, _ = run(events(operations, cuts=frozenset())[0], WINDOW_OPTIONS[1])
    for bundle in bundles:
        for profile in bundle.profiles:
            identities = list(zip(profile.stack.tolist(), profile.link.tolist(), strict=True))
            assert len(set(identities)) == len(identities)
            assert all(0 <= stack < len(bundle.stacks) for stack, _ in identities)
            assert all(-1 <= link < len(bundle.links) for _, link in identities)
            assert (profile.value > 0).all()
