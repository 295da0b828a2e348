"""Divides what a batch did among its members: an estimate, in which nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.profile.model import AttributeSet, Bundle, Link, Profile
from otel_gpuflame.profile.sample_types import ESTIMATED_ATTRIBUTE, ESTIMATED_SCOPE

_NO_LINK: Final = -1
_ROUNDING: Final = 1e-9
"""By so much the shares of a whole batch may miss one."""

_Number = TypeVar("_Number", np.int64, np.float64)


class Member(NamedTuple):
    """A span that a batch worked for, and its part of the batch: 0 to 1."""

    link: Link
    share: float


def split_batches(
    bundles: Iterable[Bundle], members: Mapping[Link, Sequence[Member]]
) -> list[Bundle]:
    """Samples of batches become samples of their members, in bundles of the estimates' scope beside the exact ones.

    For each sample type the total stays as it was. What is left when the shares of a batch sum to less than one, as
    with members that were not traced, has no link.

    Args:
        bundles: as they were aggregated.
        members: by the link of the batch's span. Shares are not negative and sum to at most one.
    """
    result: list[Bundle] = []
    for bundle in bundles:
        batches = {i: members[link] for i, link in enumerate(bundle.links) if link in members}
        if not batches:
            result.append(bundle)
            continue
        kept = [_rows(each, ~np.isin(each.link, list(batches))) for each in bundle.profiles]
        result.append(replace(bundle, profiles=tuple(kept)))
        result.append(_divided(bundle, batches))
    return result


def _divided(bundle: Bundle, batches: Mapping[int, Sequence[Member]]) -> Bundle:
    """A bundle of estimates with what the batches did."""
    links = {link: index for index, link in enumerate(bundle.links)}
    targets: dict[int, list[int]] = {}
    for batch, its in batches.items():
        targets[batch] = [links.setdefault(member.link, len(links)) for member in its]
    profiles = [_divide(profile, batches, targets) for profile in bundle.profiles]
    return replace(
        bundle,
        scope=ESTIMATED_SCOPE,
        links=tuple(links),
        attribute_sets=tuple(_estimated(each) for each in bundle.attribute_sets),
        profiles=tuple(profiles),
        waits=(),
        kernels=(),
        kernel_executions=0,
        startup_idle=(),
        idle_gaps=(),
        long_idle=(),
    )


def _estimated(attributes: AttributeSet) -> AttributeSet:
    # The empty set is the first by agreement.
    marked = {**dict(attributes), ESTIMATED_ATTRIBUTE: "true"}
    return tuple(sorted(marked.items())) if attributes else attributes


def _divide(
    profile: Profile, batches: Mapping[int, Sequence[Member]], targets: Mapping[int, list[int]]
) -> Profile:
    keys, amounts = [np.empty((3, 0), np.int32)], [np.empty(0)]
    for batch, members in batches.items():
        rows = _rows(profile, profile.link == batch)
        parts = _parts([member.share for member in members])
        for link, part in zip([*targets[batch], _NO_LINK], parts, strict=True):
            links = np.full(len(rows.value), link, np.int32)
            keys.append(np.stack([rows.stack, rows.attributes, links]))
            amounts.append(rows.value * part)
    whole = _rows(profile, np.isin(profile.link, list(batches)))
    stacks = np.stack([whole.stack, whole.attributes])
    _, totals = _sums(stacks, whole.value)
    unique, amount = _sums(np.concatenate(keys, axis=1), np.concatenate(amounts))
    value = _rounded(unique[:2], amount, totals)
    stack, attributes, link = unique
    divided = replace(profile, stack=stack, link=link, attributes=attributes, value=value)
    return _rows(divided, value != 0)


def _parts(shares: Sequence[float]) -> NDArray[np.float64]:
    """The members' parts and what is left; they sum to one, also where the shares do not."""
    ends = np.minimum(np.cumsum([0.0, *shares]), 1.0)
    if np.isclose(ends[-1], 1.0, rtol=0, atol=_ROUNDING):
        ends[-1] = 1.0
    return np.diff(ends, append=1.0)


def _sums(
    keys: NDArray[np.int32], values: NDArray[_Number]
) -> tuple[NDArray[np.int32], NDArray[_Number]]:
    """Distinct columns of `keys` in their order, and the sum of the values of each."""
    unique, row = np.unique(keys, axis=1, return_inverse=True)
    sums = np.zeros(unique.shape[1], values.dtype)
    np.add.at(sums, row.reshape(-1), values)
    return unique, sums


def _rounded(
    stacks: NDArray[np.int32], amount: NDArray[np.float64], totals: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Whole numbers that sum to the total of each stack: each is off by less than one.

    The amounts of a stack are cut at their rounded running sums, over all batches: what a request had in many steps
    is rounded once.
    """
    value = np.zeros(len(amount), np.int64)
    changes = np.flatnonzero(np.any(np.diff(stacks, axis=1) != 0, axis=0)) + 1
    bounds = [0, *changes.tolist(), len(amount)] if len(amount) else [0]
    for (begin, end), total in zip(pairwise(bounds), totals.tolist(), strict=True):
        cuts = np.rint(np.cumsum(amount[begin:end])).astype(np.int64)
        cuts = np.minimum(np.maximum.accumulate(cuts), total)
        cuts[-1] = total
        value[begin:end] = np.diff(cuts, prepend=0)
    return value


def _rows(profile: Profile, wanted: NDArray[np.bool_]) -> Profile:
    return replace(
        profile,
        stack=profile.stack[wanted],
        link=profile.link[wanted],
        attributes=profile.attributes[wanted],
        value=profile.value[wanted],
    )
