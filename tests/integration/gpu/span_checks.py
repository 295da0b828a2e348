"""What a recording says of spans, held against the traces that the program itself wrote."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events import wire
from otel_gpuflame.events.executions import EXECUTION, Executions, ExecutionsEnd
from otel_gpuflame.events.records import Calls, CaptureStart
from otel_gpuflame.export.recorded_batches import batch_members
from otel_gpuflame.export.recorded_traces import read_traces
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.batches import split_batches
from otel_gpuflame.profile.model import Bundle, ValueType
from otel_gpuflame.profile.select import only_span
from otel_gpuflame.profile.top import top_leaves, total

ROOT: Final = Path(__file__).resolve().parents[3]
_WORK: Final = frozenset({"load_model", "warm_up", "prefill", "gpu.batch", "train_step"})
"""Spans in which the examples launch. No two of these overlap, so that the time of a launch tells its span."""
_SERVED: Final = frozenset({"prefill", "gpu.batch", "train_step"})
_WITHOUT: Final = "executions without a stack"
_TOLERANCE_NS: Final = 100_000
"""By which the two programs' readings of the clocks may differ."""
_MIN_SHARE_ON_SPANS: Final = 0.999
_CHECKED_BY_COMMAND: Final = 1
"""Each takes as long as a replay."""


class CheckError(Exception):
    """What the recording says is not so; the text has a line for each reason."""


def check(capture: Path, traces: Path) -> dict[str, Any]:
    """Figures of a recording.

    Raises:
        CheckError: a launch is on a span that it was not made in, too many are on none, nothing was executed, or
            the spans' parts of a total are not the total.
    """
    spans = read_traces(traces)
    wrong: list[str] = []
    figures: dict[str, Any] = {
        "spans": dict(Counter(span.name for span in spans)),
        "launches": _launches(capture, spans, wrong),
        "executions": _executions(capture, wrong),
    }
    for mode in (SpanLink.ACTIVE, SpanLink.LOCAL_ROOT):
        result = replay(capture, AggregateOptions(window_ns=None, span_link=mode))
        bundles = result.bundles
        figures[mode.value] = _sums(bundles, mode, spans, wrong)
        if without := {text: n for text, n in result.ledger.remarks.items() if _WITHOUT in text}:
            wrong.append(f"{mode.value}: {without}")
    # Of local roots, which are what the command shows.
    waits = top_leaves(bundles, sample_types.GPU_WAIT)
    figures["waited_for"] = [[row.frame.name[:80], row.value] for row in waits[:6]]
    figures["by_command"] = _by_command(capture, bundles, spans, wrong)
    if wrong:
        raise CheckError("\n".join([*wrong, f"figures: {figures}"]))
    return figures


def _launches(capture: Path, spans: Sequence[ReadableSpan], wrong: list[str]) -> dict[str, Any]:
    rows, offset_ns = _calls(capture)
    rows = np.sort(rows[rows["kind"] == wire.Kind.LAUNCH], order="start_ns")
    work = sorted((s for s in spans if s.name in _WORK), key=lambda s: s.start_time or 0)
    served = [span for span in work if span.name in _SERVED]
    if not len(rows) or not served:
        wrong.append(f"{len(rows)} launches and {len(served)} spans of work: nothing to compare")
        return {}
    times_ns = rows["start_ns"].astype(np.int64) + offset_ns
    linked = (rows["flags"] & wire.CallFlag.HAS_SPAN) != 0
    since = times_ns >= (served[0].start_time or 0)
    far_ns, stray = _distances(times_ns[linked], rows["span_id"][linked], work)
    serving, serving_on_a_span = int(since.sum()), int((since & linked).sum())
    figures = {
        "all": len(rows),
        "on_a_span": int(linked.sum()),
        "while_serving": serving,
        "while_serving_on_a_span": serving_on_a_span,
        "on_a_span_of_no_work": stray,
        "outside_their_span": int((far_ns > 0).sum()),
        "farthest_outside_ns": int(far_ns.max(initial=0)),
        "by_kind_of_span": _by_name(rows["span_id"][linked], work),
    }
    if (far_ns > _TOLERANCE_NS).any() or stray:
        wrong.append(f"launches on a span that they were not made in: {figures}")
    if serving_on_a_span < _MIN_SHARE_ON_SPANS * serving:
        wrong.append(f"too few launches on a span: {figures}")
    return figures


def _distances(
    times_ns: NDArray[np.int64], span_ids: NDArray[np.uint8], work: Sequence[ReadableSpan]
) -> tuple[NDArray[np.int64], int]:
    """How far each launch is outside of the time of its span, and how many have one that is not among these."""
    bounds = {_id(span): (span.start_time or 0, span.end_time or 0) for span in work}
    distances, stray = [], 0
    for time_ns, span_id in zip(times_ns.tolist(), span_ids, strict=True):
        begin_ns, end_ns = bounds.get(span_id.tobytes(), (None, None))
        if begin_ns is None or end_ns is None:
            stray += 1
        else:
            distances.append(max(begin_ns - time_ns, time_ns - end_ns, 0))
    return np.array(distances, np.int64), stray


def _by_name(span_ids: NDArray[np.uint8], work: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Launches by the name of the span: how many spans of that name, and the least and most of one."""
    counts = Counter(span_id.tobytes() for span_id in span_ids)
    named: dict[str, list[int]] = {}
    for span in work:
        named.setdefault(span.name, []).append(counts[_id(span)])
    return {
        name: {"spans": len(each), "least": min(each), "most": max(each), "all": sum(each)}
        for name, each in named.items()
    }


def _executions(capture: Path, wrong: list[str]) -> dict[str, Any]:
    rows, incomplete = [np.empty(0, EXECUTION)], []
    with ReplaySource(capture, call_dtype=wire.CALL) as source:
        for event in source.events():
            if isinstance(event, Executions):
                rows.append(event.rows)
            elif isinstance(event, ExecutionsEnd) and event.incomplete:
                incomplete.append(event.incomplete)
    count = len(np.concatenate(rows))
    if not count:
        wrong.append("no execution was recorded: is the injected library there, and CUPTI?")
    return {"records": count, "incomplete": incomplete}


def _sums(
    bundles: list[Bundle], mode: SpanLink, spans: Sequence[ReadableSpan], wrong: list[str]
) -> dict[str, Any]:
    """Totals, and what of them is on spans: the parts that `--span-id` shows."""
    members = batch_members(spans, by_local_root=mode is SpanLink.LOCAL_ROOT)
    divided = split_batches(bundles, members)
    ids = {link.span_id for bundle in bundles for link in bundle.links}
    parts = [only_span(bundles, span_id) for span_id in sorted(ids)]
    figures = {}
    for each in sample_types.ALL:
        whole, unlinked = total(bundles, each), _unlinked(bundles, each)
        of_spans = sum(total(part, each) for part in parts)
        if of_spans + unlinked != whole:
            wrong.append(f"{mode.value} {each.type}: {of_spans} + {unlinked} is not {whole}")
        if total(divided, each) != whole:
            wrong.append(f"{mode.value} {each.type}: {total(divided, each)} divided, of {whole}")
        if whole:
            left = _unlinked(divided, each)
            figures[each.type] = {
                "all": whole,
                "unlinked": unlinked,
                "unlinked_when_divided": left,
            }
    return {"spans": len(parts), **figures}


def _unlinked(bundles: Iterable[Bundle], sample_type: ValueType) -> int:
    profiles = (p for b in bundles for p in b.profiles if p.sample_type == sample_type)
    return sum(int(profile.value[profile.link < 0].sum()) for profile in profiles)


def _by_command(
    capture: Path, bundles: list[Bundle], spans: Sequence[ReadableSpan], wrong: list[str]
) -> dict[str, int]:
    """Launches of the slowest requests, or else steps, as `replay --span-id` counts them."""
    roots = [s for s in spans if s.kind is SpanKind.SERVER] or [
        s for s in spans if s.name in _SERVED
    ]
    roots.sort(key=lambda s: (s.start_time or 0) - (s.end_time or 0))
    counts = {}
    for span in roots[:_CHECKED_BY_COMMAND]:
        span_id = _id(span)
        expected = total(only_span(bundles, span_id), sample_types.GPU_LAUNCH)
        command = ["replay", str(capture), "--span-id", span_id.hex()]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "otel_gpuflame", *command),
                *("--folded", "-", "--sample-type", "gpu_launch"),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        found = sum(int(line.rpartition(" ")[2]) for line in done.stdout.splitlines())
        counts[f"{span.name} {span_id.hex()}"] = found
        if done.returncode or found != expected or not found:
            wrong.append(
                f"replay --span-id {span_id.hex()}: exit {done.returncode}, {found} launches for {expected}: "
                f"{done.stderr[-500:]}"
            )
    return counts


def _calls(capture: Path) -> tuple[NDArray[Any], int]:
    """All calls, and what to add to their times to get unix time."""
    rows, offset_ns = [np.empty(0, wire.CALL)], 0
    with ReplaySource(capture, call_dtype=wire.CALL) as source:
        for event in source.events():
            if isinstance(event, Calls):
                rows.append(event.rows)
            elif isinstance(event, CaptureStart):
                offset_ns = event.unix_offset_ns
        if source.damage is not None:
            raise CheckError(f"{capture} is damaged: {source.damage}")
    return np.concatenate(rows), offset_ns


def _id(span: ReadableSpan) -> bytes:
    span_id: int = span.context.span_id
    return span_id.to_bytes(8, "big")
