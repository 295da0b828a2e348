"""Gaps cut where it is not known whether the device was idle."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.keys import Index, Times
from otel_gpuflame.correlate.gpu.timeline import Gaps
from otel_gpuflame.events.attributions import Leaf

UnknownArray: TypeAlias = NDArray[np.void]

UNKNOWN: Final[np.dtype[Any]] = np.dtype(
    [("start_ns", "<u8"), ("end_ns", "<u8"), ("device", "<u4"), ("leaf", "<u4")]
)
"""From `start_ns` to `end_ns` not everything on the device was captured: `leaf` is UNKNOWN_NOT_CAPTURED or
UNKNOWN_INCOMPLETE. Rows may overlap, in any order."""


class GapParts(NamedTuple):
    """Parts of gaps, which make up all of each; `leaf` 0: the device was idle, and something ended that."""

    gap: Index
    start_ns: Times
    end_ns: Times
    leaf: NDArray[np.uint8]


def cut_gaps(gaps: Gaps, unknown: UnknownArray, *, is_from_start: bool = False) -> GapParts:
    """Parts by what is known. Where both reasons hold, a process that was not captured is the reason.

    Before the first execution something may have been running that was begun before, unless the programs were captured
    from their start. What follows the last one was ended by nobody that we know.
    """
    whole = np.zeros(len(gaps.device), np.uint8)
    whole[gaps.ended_by < 0] = Leaf.AFTER_LAST
    whole[gaps.is_first] = Leaf.BEFORE_FIRST if is_from_start else Leaf.UNKNOWN_NOT_CAPTURED
    if not len(unknown):
        return GapParts(np.arange(len(whole)), gaps.start_ns, gaps.end_ns, whole)
    ends = (gaps.start_ns, gaps.end_ns)
    count = len(whole)
    times = np.concatenate([*ends, unknown["start_ns"], unknown["end_ns"]])
    device = np.concatenate([gaps.device, gaps.device, unknown["device"], unknown["device"]])
    real = unknown["end_ns"] > unknown["start_ns"]
    missing, broken = (
        (unknown["leaf"] == leaf) & real
        for leaf in (Leaf.UNKNOWN_NOT_CAPTURED, Leaf.UNKNOWN_INCOMPLETE)
    )
    steps = np.zeros((len(times), 3), np.int64)
    steps[:count, 0], steps[count : 2 * count, 0] = 1, -1
    for column, chosen in ((1, missing), (2, broken)):
        steps[2 * count :, column] = np.concatenate([chosen, -chosen.astype(np.int64)])
    order = np.lexsort((times, device))
    depth = np.cumsum(steps[order], axis=0)
    gap = np.cumsum((order < count).astype(np.intp)) - 1
    inside = np.flatnonzero((depth[:-1, 0] > 0) & (times[order[1:]] > times[order[:-1]]))
    leaf = whole[gap[inside]]
    is_broken = (depth[inside, 2] > 0) & (leaf != Leaf.UNKNOWN_NOT_CAPTURED)
    leaf[is_broken] = Leaf.UNKNOWN_INCOMPLETE
    leaf[depth[inside, 1] > 0] = Leaf.UNKNOWN_NOT_CAPTURED
    return GapParts(gap[inside], times[order[inside]], times[order[inside + 1]], leaf)
