"""How much of the devices' time, and of the time waited for them, belongs to each span."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from otel_gpuflame.profile.model import Bundle, Link
from otel_gpuflame.profile.sample_types import ESTIMATED_SCOPE, GPU_TIME, GPU_WAIT

_NO_LINK: Final = -1


class SpanTime(NamedTuple):
    """Nanoseconds of execution and of waiting."""

    time_ns: int = 0
    wait_ns: int = 0
    is_estimated: bool = False
    """Whether a part of it is an estimate, as a share of a batch."""

    def plus(self, other: SpanTime) -> SpanTime:
        """The sum."""
        return SpanTime(
            self.time_ns + other.time_ns,
            self.wait_ns + other.wait_ns,
            self.is_estimated or other.is_estimated,
        )


def span_times(bundles: Iterable[Bundle]) -> dict[Link | None, SpanTime]:
    """By link; None: what belongs to no span. All together are the totals of `gpu_time` and `gpu_wait`, exactly."""
    times: dict[Link | None, SpanTime] = {}
    for bundle in bundles:
        is_estimated = bundle.scope == ESTIMATED_SCOPE
        for profile in bundle.profiles:
            if profile.sample_type not in (GPU_TIME, GPU_WAIT):
                continue
            links, row = np.unique(profile.link, return_inverse=True)
            sums = np.zeros(len(links), np.int64)
            np.add.at(sums, row.reshape(-1), profile.value)
            for index, value in zip(links.tolist(), sums.tolist(), strict=True):
                link = None if index == _NO_LINK else bundle.links[index]
                is_time = profile.sample_type == GPU_TIME
                more = SpanTime(value, 0) if is_time else SpanTime(0, value)
                found = times.get(link, SpanTime())
                times[link] = found.plus(more._replace(is_estimated=is_estimated))
    return times
