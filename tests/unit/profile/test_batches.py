"""What a batch did is divided among its members, and nothing is lost or made up."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile.batches import Member, split_batches
from otel_gpuflame.profile.model import Bundle, Link, Profile, ValueType, Window
from otel_gpuflame.profile.sample_types import ESTIMATED_SCOPE, GPU_LAUNCH, GPU_WAIT, SCOPE

SERVICE = (("service.name", "inference"),)
ESTIMATED = (("otel_gpuflame.estimated", "true"), *SERVICE)
BATCH, OTHER_BATCH, FIRST, SECOND, THIRD = (
    Link(bytes([number] * 16), bytes([number] * 8)) for number in range(1, 6)
)
LINKS = (BATCH, OTHER_BATCH, FIRST)
Row = tuple[int, int, int]
"""Stack, link, value."""


def profile(sample_type: ValueType, rows: list[Row]) -> Profile:
    """All with the service's attributes."""
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    stack, link = columns[:2].astype(np.int32)
    attributes = np.ones(len(rows), np.int32)
    return Profile(sample_type, stack, link, attributes, columns[2].copy())


def bundle(*profiles: Profile) -> Bundle:
    """Two stacks, and links to two batches and a request."""
    return Bundle(
        resource=SERVICE,
        scope=SCOPE,
        window=Window(0, 10),
        frames=(Frame(FrameKind.PYTHON, "a"), Frame(FrameKind.PYTHON, "b")),
        stacks=((0,), (1,)),
        links=LINKS,
        attribute_sets=((), SERVICE),
        profiles=profiles,
    )


def values(of: Bundle) -> Counter[tuple[str, int, Link | None]]:
    """By sample type, stack and link; each may be there once."""
    found: Counter[tuple[str, int, Link | None]] = Counter()
    for each in of.profiles:
        for stack, link, value in zip(
            each.stack.tolist(), each.link.tolist(), each.value.tolist(), strict=True
        ):
            key = each.sample_type.type, stack, of.links[link] if link >= 0 else None
            assert key not in found
            found[key] = value
    return found


def test_members_get_their_shares_beside_the_exact_rest() -> None:
    """In a bundle of estimates, marked on each sample; other samples stay where they are."""
    rows = [(0, 0, 100), (1, 0, 7), (0, 2, 5), (1, -1, 9)]
    exact, estimated = split_batches(
        [bundle(profile(GPU_LAUNCH, rows))], {BATCH: [Member(FIRST, 0.25), Member(SECOND, 0.75)]}
    )
    assert (exact.scope, estimated.scope) == (SCOPE, ESTIMATED_SCOPE)
    assert values(exact) == {("gpu_launch", 0, FIRST): 5, ("gpu_launch", 1, None): 9}
    assert values(estimated) == {
        ("gpu_launch", 0, FIRST): 25,
        ("gpu_launch", 0, SECOND): 75,
        ("gpu_launch", 1, FIRST): 2,
        ("gpu_launch", 1, SECOND): 5,
    }
    (divided,) = estimated.profiles
    assert {estimated.attribute_sets[index] for index in divided.attributes} == {ESTIMATED}
    assert estimated.attribute_sets[0] == ()


def test_a_request_in_many_batches_has_one_row_a_stack() -> None:
    """Steps of continuous batching are added up."""
    rows = [(0, 0, 10), (0, 1, 30)]
    _, estimated = split_batches(
        [bundle(profile(GPU_WAIT, rows))],
        {BATCH: [Member(FIRST, 1.0)], OTHER_BATCH: [Member(FIRST, 0.5), Member(THIRD, 0.5)]},
    )
    assert values(estimated) == {("gpu_wait", 0, FIRST): 25, ("gpu_wait", 0, THIRD): 15}


def test_what_no_member_had_has_no_link() -> None:
    """The share of a request that was not traced is nobody's, and a batch without members too."""
    _, estimated = split_batches(
        [bundle(profile(GPU_WAIT, [(0, 0, 10), (1, 1, 3)]))],
        {BATCH: [Member(FIRST, 0.4)], OTHER_BATCH: []},
    )
    assert values(estimated) == {
        ("gpu_wait", 0, FIRST): 4,
        ("gpu_wait", 0, None): 6,
        ("gpu_wait", 1, None): 3,
    }


def test_without_batches_nothing_changes() -> None:
    """The same objects."""
    usual = bundle(profile(GPU_WAIT, [(0, 2, 10)]))
    (same,) = split_batches([usual], {THIRD: [Member(FIRST, 1.0)]})
    assert same is usual


@pytest.mark.parametrize("count", range(1, 17))
def test_even_shares_differ_by_one_at_most(count: int) -> None:
    """Batches of 1 to 16."""
    members = [Member(Link(bytes(16), bytes([n + 1] * 8)), 1 / count) for n in range(count)]
    rows = [(0, 0, 1_000_003)]
    _, estimated = split_batches([bundle(profile(GPU_WAIT, rows))], {BATCH: members})
    parts = list(values(estimated).values())
    assert sum(parts) == 1_000_003
    assert len(parts) == count
    assert max(parts) - min(parts) <= 1


@given(
    st.lists(st.integers(0, 1 << 62), min_size=1, max_size=5),
    st.lists(st.floats(0, 1), max_size=8),
)
def test_totals_stay_whatever_the_shares(amounts: list[int], shares: list[float]) -> None:
    """Also where shares sum to more than one, as a file may say: no value is negative, none is lost."""
    amounts = [amount // len(amounts) for amount in amounts]
    rows = [(index % 2, 0, amount) for index, amount in enumerate(amounts[:2])]
    members = [Member(Link(bytes(16), bytes([n + 1] * 8)), s) for n, s in enumerate(shares)]
    split = split_batches([bundle(profile(GPU_WAIT, rows))], {BATCH: members})
    parts = [value for each in split for value in values(each).values()]
    assert sum(parts) == sum(amounts[:2])
    assert all(part >= 0 for part in parts)
