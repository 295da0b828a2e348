"""Which kernels handles mean that a program had looked up before capture began: told from the order of what they ran.

A service that was running when we came names none of its kernels any more: on an H200, all 10,224 launches of one had
handles without a name. Between two moments at which both sides agree, with as many launches as executions, the first is
of the first, the second of the second. A handle means one kernel: so where each has run the same kernel at all of its
places, order is right and the names are known from then on; where one has not, nothing is learned.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.match import Mask, Times
from otel_gpuflame.correlate.gpu.segments import TOGETHER_NS

Numbers = NDArray[np.uint64]


class LaunchedKernels(NamedTuple):
    """Launches of kernels in the order of their entry."""

    handles: Numbers
    kernels: Numbers
    """What each handle is known to mean (`kernel_numbers`), 0 where it is not."""
    times_ns: Times
    threads: Numbers


class ExecutedKernels(NamedTuple):
    """Kernels that were launched in the same stretch, in the order of their ids."""

    kernels: Numbers
    times_ns: Times


class Learned(NamedTuple):
    """Handles with the kernels that they mean, and those that were taken to mean others."""

    handles: Numbers
    kernels: Numbers
    doubtful: Numbers


_NOTHING = Learned(*(np.empty(0, np.uint64) for _ in range(3)))


def learn_by_order(launches: LaunchedKernels, executions: ExecutedKernels) -> Learned:
    """What a whole stretch tells; nothing where both sides cannot be the same launches."""
    if len(launches.handles) != len(executions.kernels):
        return _NOTHING
    if bool((executions.times_ns < launches.times_ns).any()):
        return _NOTHING
    certain = ~_near_another_thread(launches) & (executions.kernels != 0)
    is_known = launches.kernels != 0
    differs = certain & is_known & (launches.kernels != executions.kernels)
    if differs.any():
        return _NOTHING._replace(doubtful=np.unique(launches.handles[differs]))
    places = np.flatnonzero(certain & ~is_known)
    handles, firsts, which = np.unique(
        launches.handles[places], return_index=True, return_inverse=True
    )
    kernels = executions.kernels[places][firsts]
    if bool((kernels[which] != executions.kernels[places]).any()):
        return _NOTHING
    return _NOTHING._replace(handles=handles, kernels=kernels)


def _near_another_thread(launches: LaunchedKernels) -> Mask:
    """Launches that may have another place: another thread entered the driver within TOGETHER_NS."""
    threads, times_ns = launches.threads, launches.times_ns
    begins = np.flatnonzero(threads[1:] != threads[:-1]) + 1
    if not len(begins):
        return np.zeros(len(threads), np.bool_)
    # Runs of one thread: the nearest launches of others are the last before a run, and the first after it.
    run = np.searchsorted(begins, np.arange(len(threads)), side="right")
    before = times_ns[begins[np.maximum(run - 1, 0)] - 1]
    after = times_ns[begins[np.minimum(run, len(begins) - 1)]]
    near: Mask = (run > 0) & (times_ns - before < TOGETHER_NS)
    near |= (run < len(begins)) & (after - times_ns < TOGETHER_NS)
    return near
