"""What the CPU did while a device had nothing to do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.activities import overlaps
from otel_gpuflame.correlate.gpu.attribute import Part, attributions, part
from otel_gpuflame.correlate.gpu.coverage import GapParts, UnknownArray, cut_gaps
from otel_gpuflame.correlate.gpu.keys import Index, sum_by
from otel_gpuflame.correlate.gpu.launched import cut_at_launches
from otel_gpuflame.correlate.gpu.rows import JoinedArray
from otel_gpuflame.correlate.gpu.samples import NOTHING, Carried, gaps_told, told_by_samples
from otel_gpuflame.correlate.gpu.spans import Spans, idle_spans
from otel_gpuflame.correlate.gpu.timeline import Gaps
from otel_gpuflame.events.attributions import ATTRIBUTION, AttributionArray, Leaf, Measure
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind


@dataclass(frozen=True, slots=True)
class Idle:
    """Rows of `ATTRIBUTION`. Σ `idle_ns` + Σ `unknown_ns`, which has that of both edges, is that of the gaps."""

    rows: AttributionArray
    idle_ns: int
    unknown_ns: int
    carried: Carried
    """For the next gaps of these devices."""


def explain_idle(
    gaps: Gaps,
    executions: JoinedArray,
    calls: CallArray,
    unknown: UnknownArray,
    carried: Carried = NOTHING,
    *,
    is_from_start: bool = False,
) -> Idle:
    """`gpu_idle` of `gaps`, by what the thread that ended each did during it.

    `calls`: samples, times off the CPU and calls with a duration, of all threads, in any order; others do no harm.
    Times off the CPU and in driver calls are exact. The rest is spread over the thread's CPU samples during its gaps
    on that device (`told_by_samples`); what is then left stands under the launch that ended the gap, as does what came
    after that launch: [launch latency].
    `carried`: what the gaps before these left over. `is_from_start`: nothing ran before the first execution.
    """
    parts = cut_gaps(gaps, unknown, is_from_start=is_from_start)
    known = np.flatnonzero(parts.leaf == 0)
    unsure = np.flatnonzero(parts.leaf)
    lost_ns = (parts.end_ns - parts.start_ns)[unsure].astype(np.int64)
    rows = _unknown(gaps, parts, unsure, lost_ns)
    cut = cut_at_launches(gaps, parts, known, executions)
    spans, did = idle_spans(gaps, cut.parts, cut.known, executions, calls)
    length = (spans.end_ns - spans.start_ns).astype(np.int64)
    activities = did.activities
    pairs, value = overlaps(activities, spans.thread, spans.start_ns, spans.end_ns, did.threads)
    busy = sum_by(pairs.owner, value, len(length))
    found = [
        rows,
        cut.rows,
        _active(spans, pairs.owner, did.calls, activities.row[pairs.item], value),
    ]
    sampled, carried = told_by_samples(spans, length - busy, did, executions, carried)
    found += sampled
    told = attributions(found)
    told["sampled_ns"] = told["time_ns"]
    return Idle(told, int(length.sum()) + cut.after_ns, int(lost_ns.sum()), carried)


def _unknown(gaps: Gaps, parts: GapParts, unsure: Index, value_ns: NDArray[np.int64]) -> Part:
    return part(
        np.zeros(len(unsure), ATTRIBUTION),
        time_ns=parts.start_ns[unsure],
        value_ns=value_ns,
        measure=Measure.GPU_IDLE,
        leaf=parts.leaf[unsure],
        device=gaps.device[parts.gap[unsure]],
    )


def _active(
    spans: Spans, owner: Index, calls: CallArray, row: Index, value_ns: NDArray[np.int64]
) -> Part:
    is_off = calls["kind"][row] == Kind.OFF_CPU
    return part(
        calls,
        row,
        time_ns=np.maximum(spans.start_ns[owner], calls["start_ns"][row]),
        value_ns=value_ns,
        measure=Measure.GPU_IDLE,
        leaf=np.where(is_off, Leaf.OFF_CPU, Leaf.DRIVER_CALL),
        leaf_api=np.where(is_off, 0, calls["api"][row]),
        gaps=gaps_told(value_ns, spans, owner),
        device=spans.device[owner],
    )
