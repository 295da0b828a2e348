"""Events in, closed windows out. The one stateful part of the pure core: it knows no clock, only event time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.groups import Groups, concatenate, group
from otel_gpuflame.correlate.repeats import fold_repeats
from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events.attributions import AttributionArray, Attributions, StackPairs
from otel_gpuflame.events.device_errors import DeviceErrors
from otel_gpuflame.events.device_metrics import DeviceMetrics
from otel_gpuflame.events.executions import (
    Devices,
    ExecutionArray,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import (
    CallArray,
    Calls,
    CaptureStart,
    Event,
    Names,
    ProcessesEnded,
    SamplingWindow,
    SourceCounters,
    Stacks,
    StacksForgotten,
    Targets,
    Watermark,
)
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.attribution_columns import add_attributions, attribution_columns
from otel_gpuflame.profile.call_columns import add_calls, call_columns, count_calls, submissions
from otel_gpuflame.profile.call_estimates import call_bundles
from otel_gpuflame.profile.execution_estimates import ExecutionEstimates
from otel_gpuflame.profile.execution_strata import ExecutionStrata, ExecutionStratum
from otel_gpuflame.profile.kernels import find_kernels, kernel_columns, kernel_uses
from otel_gpuflame.profile.known import NOBODY, UNKNOWN_TARGET, Known
from otel_gpuflame.profile.ledger import EXECUTION_KIND, Ledger
from otel_gpuflame.profile.link_counts import LinkCounts
from otel_gpuflame.profile.linked_spans import LinkedSpans
from otel_gpuflame.profile.losses import Losses
from otel_gpuflame.profile.model import Bundle, Window
from otel_gpuflame.profile.samples import SampleTable
from otel_gpuflame.profile.strata import Strata, Stratum
from otel_gpuflame.profile.windows import OpenWindow, Windows

_ROWS_AT_ONCE: Final = 1 << 17
"""Larger batches are cut: columns of a million calls take 100 MB and do not fit into any cache."""
_END_OF_TIME: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class AggregateOptions:
    """`window_ns` None: one window over the whole capture. `span_link` None: samples without links, few of them."""

    window_ns: int | None = 10_000_000_000
    span_link: SpanLink | None = SpanLink.LOCAL_ROOT
    sampled: bool = False
    """Calls that return at once, and executions, come only in windows announced by `SamplingWindow`, and are scaled."""
    most_spans: int | None = None
    """So many spans of a process are linked in a window; None: all. Samples of others have no link."""


class Aggregator:
    """Feed it every event in order; it returns the bundles of the windows that an event closes."""

    def __init__(self, options: AggregateOptions | None = None) -> None:
        self._options = options or AggregateOptions()
        self.ledger = Ledger()
        self._windows = Windows(self._options.window_ns, self.ledger)
        self._known = Known()
        self._strata = Strata()
        self._executions = ExecutionStrata()
        self._execution_estimates = ExecutionEstimates(self._known)
        self._losses = Losses(self.ledger)
        self._links = LinkCounts(self._options.most_spans, self.ledger)
        self._first_call_ns = _END_OF_TIME

    def feed(self, event: Event) -> list[Bundle]:
        """Take in one event; bundles of windows that it closed, oldest first."""
        return list(self._take(event) or ())

    def finish(self) -> list[Bundle]:
        """Close every window; losses that became known after the last one get a window of their own."""
        if self._windows.is_empty and self._losses.new():
            self._windows.open_at_end()
        until_ns = self._windows.last_ns
        bundles = [b for each in self._windows.close_all() for b in self._bundles(*each)]
        return bundles + list(self._close_strata(_END_OF_TIME, until_ns))

    @property
    def executions_held(self) -> int:
        """Executions that wait for the end of their stratum."""
        return self._executions.held

    @singledispatchmethod
    def _take(self, event: Event) -> Iterable[Bundle] | None:
        raise TypeError(f"not an event: {type(event).__name__}")

    @_take.register
    def _(self, event: CaptureStart) -> None:
        self._windows.begin(event)

    @_take.register
    def _(self, event: Stacks) -> None:
        self._known.add_stacks(event.stacks)

    @_take.register
    def _(self, event: StackPairs) -> None:
        self._known.add_pairs(event.pairs)

    @_take.register
    def _(self, event: Names) -> None:
        self._known.add_names(event.names, self._strata.opened)

    @_take.register
    def _(self, event: Targets) -> None:
        self._known.add_targets(event.targets)

    @_take.register
    def _(self, event: Devices) -> None:
        self._known.devices.add(event.devices)

    @_take.register
    def _(self, event: ProcessesEnded) -> None:
        self._known.end(event.processes, self._strata.opened)

    @_take.register
    def _(self, event: StacksForgotten) -> None:
        self._known.end_stacks(event.keys, self._strata.opened)

    @_take.register
    def _(self, event: SamplingWindow) -> None:
        self._strata.open(event)
        self._executions.open(event)

    @_take.register
    def _(self, event: SourceCounters) -> None:
        self.ledger.take_source(event)
        self._windows.note(event.time_ns)

    @_take.register
    def _(self, event: Watermark) -> Iterable[Bundle]:
        count, closing = self._windows.close_until(event.time_ns)
        bundles = [b for each in closing for b in self._bundles(*each)]
        if self._options.window_ns is None:
            return ()
        bundles += self._close_strata(event.time_ns, event.time_ns)
        self._known.closed(count, min(self._strata.oldest, self._executions.oldest))
        return bundles

    @_take.register
    def _(self, event: Calls) -> None:
        rows = event.rows
        self._note_first(rows)
        if self._options.sampled:
            rows = self._take_sampled(rows)
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[begin : begin + _ROWS_AT_ONCE]
            # The end of a call that has one, else its start.
            times_ns = np.maximum(part["start_ns"], part["end_ns"]).astype(np.int64)
            for window, selected in self._windows.place(times_ns):
                self._note_calls(window, part[selected], times_ns[selected])
                for groups in self._groups(part[selected], window.spans):
                    window.calls.add(groups)

    @_take.register
    def _(self, event: Attributions) -> None:
        rows = self._attributions_sampled(event.rows) if self._options.sampled else event.rows
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[begin : begin + _ROWS_AT_ONCE]
            for window, selected in self._windows.place(part["time_ns"].astype(np.int64)):
                groups = self._attribution_groups(part[selected], window.spans)
                window.attributions.add(groups)

    @_take.register
    def _(self, event: Executions) -> None:
        """Only for the shapes of kernels: what executions mean for stacks comes as attributions."""
        rows = self._executions_sampled(event.rows) if self._options.sampled else event.rows
        kernels = find_kernels(rows)
        for begin in range(0, len(kernels), _ROWS_AT_ONCE):
            part = kernels[begin : begin + _ROWS_AT_ONCE]
            for window, selected in self._windows.place(part["end_ns"].astype(np.int64)):
                window.kernels.add(self._kernel_groups(part[selected]))

    @_take.register
    def _(self, event: ExecutionsBegin) -> None:
        self._executions.begin(event)

    @_take.register
    def _(self, event: ExecutionsEnd) -> None:
        self._executions.end(event)
        if event.incomplete:
            reason = event.incomplete.replace("_", " ")
            self.ledger.remarks[f"times of a process's executions are incomplete: {reason}"] += 1

    @_take.register(ExecutionWatermark)
    @_take.register(DeviceMetrics)
    @_take.register(DeviceErrors)
    def _(self, event: Event) -> None:
        """Nothing here depends on these."""

    def _note_calls(self, window: OpenWindow, rows: CallArray, ends_ns: NDArray[np.int64]) -> None:
        """Note when each process made its first and last driver call."""
        is_call = rows["kind"] <= Kind.FREE
        if not is_call.any():
            return
        starts_ns, tgids = rows["start_ns"].astype(np.int64), rows["tgid"]
        is_alone = tgids.min() == tgids.max()
        for tgid in tgids[:1].tolist() if is_alone else np.unique(tgids[is_call]).tolist():
            mine = is_call if is_alone else is_call & (tgids == tgid)
            process_start_ns = int(rows["process_start_ns"][int(mine.argmax())])
            process_id = self._known.process_id(ProcessKey(tgid, process_start_ns))
            window.note_calls(process_id, starts_ns[mine], ends_ns[mine])

    def _note_first(self, rows: CallArray) -> None:
        """Calls come about in order: looking for the first one ends with the first batch that has some."""
        if self._first_call_ns == _END_OF_TIME:
            starts_ns = rows["start_ns"][rows["kind"] <= Kind.FREE]
            self._first_call_ns = int(starts_ns.min(initial=_END_OF_TIME))

    def _groups(self, rows: CallArray, spans: LinkedSpans) -> Iterator[Groups]:
        """Calls as sums by everything that tells samples apart. `spans`: of the window that they are in."""
        link = self._options.span_link
        for part, counts in fold_repeats(rows):
            count_calls(part, counts, self.ledger)
            groups = self._known.resolve(group(*call_columns(part, counts, link, self.ledger)))
            yield groups if link is None else self._links.calls(part, counts, groups, spans)

    def _take_sampled(self, rows: CallArray) -> CallArray:
        """Put sampled calls into their strata; returns the calls that count as they are.

        What lies outside of a window was only seen because probes do not come and go at once.
        """
        exact, sampled, outside = self._strata.split(rows)
        for kind, count in zip(*np.unique(outside["kind"], return_counts=True), strict=True):
            self.ledger.dropped[Kind(kind).name.lower(), "outside_window"] += int(count)
        for stratum, inside in sampled:
            stratum.parts.extend(self._groups(inside, stratum.spans))
        return exact

    def _attributions_sampled(self, rows: AttributionArray) -> AttributionArray:
        """Put what comes from windows into its stratum; returns what counts as it is."""
        rows, waits = self._strata.split_waits(rows)
        for waited, some in waits:
            waited.waits.append(self._attribution_groups(some, waited.spans))
        assigned = self._executions.assign(rows)
        for interval, some in assigned.inside:
            interval.attributions.add(self._attribution_groups(some, interval.spans))
        for stratum, some in assigned.nobodys:
            stratum.nobodys.add(self._attribution_groups(some, LinkedSpans()))
        return assigned.exact

    def _executions_sampled(self, rows: ExecutionArray) -> ExecutionArray:
        exact = rows[:0]
        for interval, some in self._executions.note(rows):
            if interval is None:
                exact = some
            elif len(kernels := find_kernels(some)):
                interval.kernels.add(self._kernel_groups(kernels))
        return exact

    def _attribution_groups(self, rows: AttributionArray, spans: LinkedSpans) -> Groups:
        link = self._options.span_link
        columns = attribution_columns(rows, link, self.ledger, self._first_call_ns)
        groups = self._known.resolve(group(*columns))
        return groups if link is None else self._links.attributions(rows, groups, spans)

    def _kernel_groups(self, kernels: ExecutionArray) -> Groups:
        return self._known.resolve(group(*kernel_columns(kernels)))

    def _close_strata(self, time_ns: int, until_ns: int) -> Iterator[Bundle]:
        """Estimates of strata that are complete by `time_ns`; the capture goes on until `until_ns` at least."""
        complete = self._strata.complete_until(time_ns)
        for stratum in (each for each in complete if not each.is_whole):
            yield from self._estimates(stratum, until_ns)
        for each in self._executions.tell_until(time_ns):
            yield from self._execution_bundles(each, until_ns)
        for reason, count in self._executions.left_out.items():
            self.ledger.dropped[EXECUTION_KIND, reason] = count

    def _execution_bundles(self, stratum: ExecutionStratum, until_ns: int) -> Iterable[Bundle]:
        offset_ns = self._windows.unix_offset_ns
        if offset_ns is None or not stratum.intervals:
            return ()
        window = _unix_window(stratum.window, offset_ns, until_ns)
        return self._execution_estimates.bundles(stratum, window, until_ns)

    def _estimates(self, stratum: Stratum, until_ns: int) -> Iterator[Bundle]:
        offset_ns = self._windows.unix_offset_ns
        if not stratum.parts or offset_ns is None:
            self._strata.note_total(stratum, 0)
            return
        window = _unix_window(stratum.window, offset_ns, until_ns)
        groups = concatenate(stratum.parts)
        executions = self._executions.stratum_of(stratum.window)
        if executions is not None and executions.intervals:
            executions.launches = groups
        estimate = self._strata.note_total(stratum, submissions(groups))
        waits = concatenate(stratum.waits) if stratum.waits else None
        yield from call_bundles(
            groups, waits, stratum.scale, estimate, window=window, known=self._known
        )

    def _bundles(self, unix_window: Window, window: OpenWindow) -> Iterator[Bundle]:
        tables: dict[int, SampleTable] = {}
        for key, sums in window.calls.items():
            add_calls(_table(tables, key), key, sums, self._known)
        nobodys = []
        for key, sums in window.attributions.items():
            if key[0] >> 32 == NOBODY:
                nobodys.append((key, sums))
            else:
                add_attributions(_table(tables, key), key, sums, self._known)
        for process_id, uses in kernel_uses(window.kernels.items(), self._known).items():
            tables.setdefault(process_id, SampleTable()).note_kernels(*uses)
        # What is nobody's, as idle time of a device of which not all is known, goes to the only process there is.
        owner = next(iter(tables)) if len(tables) == 1 else NOBODY
        for key, sums in nobodys:
            add_attributions(tables.setdefault(owner, SampleTable()), key, sums, self._known)
        self._losses.add(tables)
        resources = self._known.resources()
        offset_ns = self._windows.unix_offset_ns or 0
        for process_id, table in sorted(tables.items()):
            resource = resources.get(process_id, UNKNOWN_TARGET)
            used = window.used(process_id, unix_window, offset_ns)
            yield table.bundle(resource, unix_window, used=used, is_windowed=self._options.sampled)


def _unix_window(window: SamplingWindow, offset_ns: int, until_ns: int) -> Window:
    """The stratum, as far as it got: the end of the capture cuts the last one off, up to ten minutes before its own."""
    end_ns = min(window.stratum_end_ns, max(until_ns, window.open_ns + 1))
    return Window(window.stratum_start_ns + offset_ns, end_ns + offset_ns)


def _table(tables: dict[int, SampleTable], key: list[int]) -> SampleTable:
    return tables.setdefault(key[0] >> 32, SampleTable())
