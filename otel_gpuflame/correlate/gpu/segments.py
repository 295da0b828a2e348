"""Which execution is of which launch, by order, between two moments at which both sides are known to agree.

On an H200, CUPTI 13.0 recorded launches only where a library calls the driver itself: not those of the CUDA runtime,
which are 19 of 20 in PyTorch. Its correlation ids count calls, so that executions sorted by them are in the order of
launches. In a stretch in which both sides have equally many of one signature (kind, kernel, size), the first belongs to
the first, the second to the second. Where the numbers differ, since some were captured into a graph or lost, nobody can
tell, and nothing is said: no launch is better than a wrong one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.match import Mask, Positions, Times

TOGETHER_NS: Final = 50_000
"""Two threads that enter the driver within this time may get their ids in either order."""

Signatures = NDArray[np.uint64]


class Launched(NamedTuple):
    """Launches of one stretch, in the order of their entry."""

    signatures: Signatures
    times_ns: Times
    threads: NDArray[np.uint64]


class Executed(NamedTuple):
    """First executions of the launches of the same stretch, in the order of their ids."""

    signatures: Signatures
    times_ns: Times


class Pairs(NamedTuple):
    """Places of launches and of their executions, and how many executions were left out."""

    launch: Positions
    execution: Positions
    ambiguous: int


def pair(launches: Launched, executions: Executed) -> Pairs:
    """Pair what cannot be confused: signatures that both sides have equally often, each launch before its execution."""
    of_launches = _ranked(launches.signatures)
    of_executions = _ranked(executions.signatures)
    same = len(of_launches) == len(of_executions) and np.array_equal(
        launches.signatures[of_launches], executions.signatures[of_executions]
    )
    if not same:
        kept = _equally_often(launches.signatures, executions.signatures)
        of_launches = of_launches[np.isin(launches.signatures[of_launches], kept)]
        of_executions = of_executions[np.isin(executions.signatures[of_executions], kept)]
    certain = ~_confusable(launches, of_launches)
    certain &= _begun(launches, executions, of_launches, of_executions)
    return Pairs(
        of_launches[certain],
        of_executions[certain],
        len(executions.signatures) - int(np.count_nonzero(certain)),
    )


def _ranked(signatures: Signatures) -> Positions:
    """An order by signature, and by place among equal ones."""
    return np.argsort(signatures, kind="stable")


def _equally_often(left: Signatures, right: Signatures) -> Signatures:
    ours, our_counts = np.unique(left, return_counts=True)
    theirs, their_counts = np.unique(right, return_counts=True)
    both, in_ours, in_theirs = np.intersect1d(ours, theirs, return_indices=True)
    equal: Signatures = both[our_counts[in_ours] == their_counts[in_theirs]]
    return equal


def _confusable(launches: Launched, order: Positions) -> Mask:
    """Neighbours of one signature that two threads made at the same time."""
    found = np.zeros(len(order), np.bool_)
    signatures, times = launches.signatures[order], launches.times_ns[order]
    threads = launches.threads[order]
    close = signatures[1:] == signatures[:-1]
    close &= (threads[1:] != threads[:-1]) & (times[1:] - times[:-1] < TOGETHER_NS)
    found[1:] |= close
    found[:-1] |= close
    return found


def _begun(
    launches: Launched, executions: Executed, of_launches: Positions, of_executions: Positions
) -> Mask:
    """Of signatures of which any execution began before its launch, no pair is right."""
    begun: Mask = launches.times_ns[of_launches] <= executions.times_ns[of_executions]
    if begun.all():
        return begun
    wrong = np.unique(launches.signatures[of_launches[~begun]])
    return ~np.isin(launches.signatures[of_launches], wrong)
