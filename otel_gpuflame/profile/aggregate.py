"""Events in, closed windows out. The one stateful part of the pure core: it knows no clock, only event time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatchmethod

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.groups import Groups, concatenate, group, runs
from otel_gpuflame.correlate.repeats import fold_repeats
from otel_gpuflame.correlate.spans import SpanLink, link_columns
from otel_gpuflame.correlate.threads import find_thread_times
from otel_gpuflame.correlate.waits import find_waits
from otel_gpuflame.events import apis
from otel_gpuflame.events.frames import Frame, ProcessKey, Stack, StackKey
from otel_gpuflame.events.records import (
    CallArray,
    Calls,
    CaptureStart,
    Event,
    HandleName,
    Names,
    ProcessesEnded,
    SamplingWindow,
    SourceCounters,
    Stacks,
    StacksForgotten,
    Targets,
    Watermark,
)
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.ledger import EVENT_KINDS, LOSSES, Ledger
from otel_gpuflame.profile.model import AttributeSet, Bundle, Link, ValueType, Window
from otel_gpuflame.profile.retention import Retention
from otel_gpuflame.profile.sample_types import (
    CPU_SAMPLES,
    ESTIMATED_SCOPE,
    GPU_COPY,
    GPU_LAUNCH,
    GPU_WAIT,
    PROBABILITY_ATTRIBUTE,
    RELATIVE_ERROR_ATTRIBUTE,
)
from otel_gpuflame.profile.samples import SampleTable
from otel_gpuflame.profile.strata import Strata, Stratum
from otel_gpuflame.profile.thread_samples import THREAD_KINDS, ThreadKey, add_thread_time

_COMPACT_FROM_ROWS = 1 << 18
"""Groups of several batches are merged when this many have come together: 18 MiB."""
_MAX_COPY_BYTES = 1 << 48
"""More than a program can have mapped: the driver refuses such a copy, and sums of such sizes leave 64 bits."""
_NO_GROUPS = Groups(np.empty((0, 7), np.uint64), np.empty((0, 3), np.int64))
_ROWS_AT_ONCE = 1 << 17
"""Larger batches are cut: columns of a million calls take 100 MB and do not fit into any cache."""
_TGID_SHIFT = np.uint64(32)
_BELOW_TGID = np.uint64(0xFFFFFFFF)
_KIND_SHIFT, _BYTE = np.uint64(24), np.uint64(0xFF)
_COUNTED_KINDS = {
    GPU_LAUNCH: [kind.name.lower() for kind in apis.SUBMISSIONS],
    CPU_SAMPLES: [Kind.CPU_SAMPLE.name.lower()],
}
"""Kinds of which each lost one has a known value: 1."""
_IS_SUBMISSION = np.isin(np.arange(256), [int(kind) for kind in apis.SUBMISSIONS])
_END_OF_TIME = 1 << 62
_UNKNOWN_TARGET: AttributeSet = (("service.name", "unknown_service"),)


@dataclass(frozen=True, slots=True)
class AggregateOptions:
    """`window_ns` None: one window over the whole capture. `span_link` None: samples without links, few of them."""

    window_ns: int | None = 10_000_000_000
    span_link: SpanLink | None = SpanLink.LOCAL_ROOT
    sampled: bool = False
    """Calls that return at once come only in windows announced by `SamplingWindow`, and are scaled."""


@dataclass(slots=True)
class _OpenWindow:
    """Groups of a window that has not closed, by target where known at the end."""

    parts: list[Groups] = field(default_factory=list)
    rows: int = 0
    compact_from_rows: int = _COMPACT_FROM_ROWS
    first_ns: int = 0
    last_ns: int = 0

    def add(self, groups: Groups) -> None:
        self.parts.append(groups)
        self.rows += len(groups)
        if self.rows > self.compact_from_rows and len(self.parts) > 1:
            self.parts = [concatenate(self.parts)]
            self.rows = len(self.parts[0])
            # Where nearly all groups are distinct, merging at each batch would sort all of them each time.
            self.compact_from_rows = max(_COMPACT_FROM_ROWS, 2 * self.rows)


class Aggregator:
    """Feed it every event in order; it returns the bundles of the windows that an event closes."""

    def __init__(self, options: AggregateOptions | None = None) -> None:
        self._options = options or AggregateOptions()
        self.ledger = Ledger()
        self._start: CaptureStart | None = None
        self._windows: dict[int, _OpenWindow] = {}
        self._closed_before = 0
        self._last_ns = 0
        self._stacks: dict[StackKey, Stack] = {}
        self._stack_keys: dict[ProcessKey, set[StackKey]] = {}
        self._names: dict[int, HandleName] = {}
        self._name_count = 0
        self._name_ids: dict[tuple[ProcessKey, int], int] = {}
        self._processes: dict[ProcessKey, int] = {}
        self._process_count = 0
        self._retention: Retention[ProcessKey] = Retention()
        self._stack_retention: Retention[StackKey] = Retention()
        self._strata = Strata()
        self._resources: dict[ProcessKey, AttributeSet] = {}
        self._former: dict[ProcessKey, dict[int, AttributeSet]] = {}
        """Of programs that their process has replaced by another one, by the id that their calls have."""
        self._lost_exported: Counter[tuple[ValueType, str]] = Counter()

    def feed(self, event: Event) -> list[Bundle]:
        """Take in one event; bundles of windows that it closed, oldest first."""
        return list(self._take(event) or ())

    def finish(self) -> list[Bundle]:
        """Close every window; losses that became known after the last one get a window of their own."""
        if not self._windows and self._new_losses():
            index = max(self._closed_before, self._window_index(self._last_ns))
            self._windows[index] = _OpenWindow([_NO_GROUPS], first_ns=self._last_ns)
        bundles = list(self._close_before(max(self._windows, default=-1) + 1))
        return bundles + list(self._close_strata(_END_OF_TIME))

    @singledispatchmethod
    def _take(self, event: Event) -> Iterable[Bundle] | None:
        raise TypeError(f"not an event: {type(event).__name__}")

    @_take.register
    def _(self, event: CaptureStart) -> None:
        self._start = event
        self._last_ns = max(self._last_ns, event.time_ns)

    @_take.register
    def _(self, event: Stacks) -> None:
        for stack in event.stacks:
            self._stack_keys.setdefault(stack.process, set()).add(stack.key)
            self._stacks[stack.key] = stack
            if stack.key in self._stack_retention:
                self._stack_retention.lives(stack.key)

    @_take.register
    def _(self, event: Names) -> None:
        for name in event.names:
            self._name_ids[name.process, name.handle] = self._name_count
            self._names[self._name_count] = name
            self._name_count += 1

    @_take.register
    def _(self, event: Targets) -> None:
        for target in event.targets:
            if target.process in self._retention:
                self._replace(target.process)
            self._resources[target.process] = target.attributes

    @_take.register
    def _(self, event: ProcessesEnded) -> None:
        self._retention.ended(event.processes, self._strata.scaled)

    @_take.register
    def _(self, event: StacksForgotten) -> None:
        self._stack_retention.ended(event.keys, self._strata.scaled)

    @_take.register
    def _(self, event: SamplingWindow) -> None:
        self._strata.open(event)

    @_take.register
    def _(self, event: SourceCounters) -> None:
        self.ledger.take_source(event)
        self._last_ns = max(self._last_ns, event.time_ns)

    @_take.register
    def _(self, event: Watermark) -> Iterable[Bundle]:
        self._last_ns = max(self._last_ns, event.time_ns)
        if self._options.window_ns is None:
            return ()
        index = self._window_index(event.time_ns)
        closed = max(index - self._closed_before, 0)
        bundles = list(self._close_before(index))
        self._forget(self._retention.closed(windows=closed))
        self._forget_stacks(self._stack_retention.closed(windows=closed))
        return bundles + list(self._close_strata(event.time_ns))

    @_take.register
    def _(self, event: Calls) -> None:
        rows = event.rows
        if self._options.sampled:
            rows = self._take_sampled(rows)
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            self._add_calls(rows[begin : begin + _ROWS_AT_ONCE])

    def _add_calls(self, rows: CallArray) -> None:
        """Put calls that count as they are into their windows."""
        # The end of a call that has one, else its start.
        times_ns = np.maximum(rows["start_ns"], rows["end_ns"]).astype(np.int64)
        for index, selected in self._by_window(times_ns):
            window = self._windows.setdefault(index, _OpenWindow(first_ns=int(times_ns[0])))
            for groups in self._groups(rows[selected]):
                window.add(groups)
            window.first_ns = min(window.first_ns, int(times_ns[selected].min()))
            window.last_ns = max(window.last_ns, int(times_ns[selected].max()))

    def _groups(self, rows: CallArray) -> Iterator[Groups]:
        """Calls as sums by everything that tells samples apart."""
        for part, counts in fold_repeats(rows):
            self._count(part, counts)
            keys, values = self._columns(part, counts)
            yield self._resolve(group(keys, values))

    def _take_sampled(self, rows: CallArray) -> CallArray:
        """Put sampled calls into their strata; returns the calls that count as they are.

        What lies outside of a window was only seen because probes do not come and go at once.
        """
        exact, sampled, outside = self._strata.split(rows)
        for kind, count in zip(*np.unique(outside["kind"], return_counts=True), strict=True):
            self.ledger.dropped[Kind(kind).name.lower(), "outside_window"] += int(count)
        for stratum, inside in sampled:
            stratum.parts.extend(self._groups(inside))
        return exact

    def _close_strata(self, time_ns: int) -> Iterator[Bundle]:
        complete = self._strata.complete_until(time_ns)
        closing = [stratum for stratum in complete if not stratum.is_whole]
        for stratum in closing:
            yield from self._estimates(stratum)
        self._forget(self._retention.closed(strata=len(closing)))
        self._forget_stacks(self._stack_retention.closed(strata=len(closing)))

    def _estimates(self, stratum: Stratum) -> Iterator[Bundle]:
        if not stratum.parts or self._start is None:
            self._strata.note_total(stratum, 0)
            return
        offset_ns = self._start.unix_offset_ns
        window = Window(
            stratum.window.stratum_start_ns + offset_ns, stratum.window.stratum_end_ns + offset_ns
        )
        groups = concatenate(stratum.parts)
        estimate = self._strata.note_total(stratum, int(groups.sums[:, 0].sum()))
        attributes: AttributeSet = (
            (PROBABILITY_ATTRIBUTE, f"{1 / stratum.scale:.6g}"),
            (RELATIVE_ERROR_ATTRIBUTE, f"{estimate.relative_error:.3g}"),
        )
        tables = self._tables(groups, stratum.scale)
        resources = self._resources_by_id()
        for process_id, table in sorted(tables.items()):
            resource = resources.get(process_id, _UNKNOWN_TARGET)
            yield table.bundle(resource, window, ESTIMATED_SCOPE, attributes)

    def _replace(self, process: ProcessKey) -> None:
        """The process executed another program: calls until now belong to the one before."""
        self._retention.lives(process)
        process_id = self._processes.pop(process, None)
        if process_id is not None:
            former = self._resources.get(process, _UNKNOWN_TARGET)
            self._former.setdefault(process, {})[process_id] = former

    def _forget(self, processes: Sequence[ProcessKey]) -> None:
        """Free what is known of processes that no open window can refer to."""
        if not processes:
            return
        for process in processes:
            self._resources.pop(process, None)
            self._processes.pop(process, None)
            self._former.pop(process, None)
            for key in self._stack_keys.pop(process, ()):
                self._stacks.pop(key, None)
        gone = set(processes)
        for owner, handle in [key for key in self._name_ids if key[0] in gone]:
            del self._names[self._name_ids.pop((owner, handle))]

    def _forget_stacks(self, keys: Sequence[StackKey]) -> None:
        for key in keys:
            stack = self._stacks.pop(key, None)
            if stack is not None and stack.process in self._stack_keys:
                self._stack_keys[stack.process].discard(key)

    def _count(self, rows: CallArray, counts: NDArray[np.int64]) -> None:
        # Sums of whole numbers, exact in floating point.
        for kind, count in enumerate(np.bincount(rows["kind"], counts).astype(np.int64).tolist()):
            if not count:
                continue
            name = Kind(kind).name.lower() if kind in set(Kind) else f"kind {kind}"
            if name in EVENT_KINDS:
                self.ledger.profiled[name] += count
            else:
                self.ledger.remarks["calls of unknown kind"] += count
        unreadable = (rows["flags"] & CallFlag.ARGS_UNREADABLE) != 0
        self.ledger.remarks["arguments unreadable"] += int(counts[unreadable].sum())

    def _columns(
        self, rows: CallArray, counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Columns of calls that were made `counts` times each.

        Keys: tgid|kind|api|mode, process start, kernel handle or driver command, stack (2), link (3).

        Values: submissions or samples, copied bytes, nanoseconds waited, off the CPU or in the device driver.
        """
        waits = find_waits(rows)
        self.ledger.remarks["inverted times"] += waits.inverted
        kinds = rows["kind"]
        keys = np.empty((8, len(rows)), np.uint64).T
        keys[:, 0] = rows["tgid"].astype(np.uint64) << _TGID_SHIFT
        keys[:, 0] |= kinds.astype(np.uint64) << _KIND_SHIFT
        keys[:, 0] |= rows["api"].astype(np.uint64) << np.uint64(8) | waits.mode
        keys[:, 1] = rows["process_start_ns"]
        keys[:, 2] = np.where(kinds == Kind.LAUNCH, rows["object"], 0)
        keys[:, 3:5] = rows["stack_hash"]
        keys[:, 5:8] = 0
        if self._options.span_link is not None:
            keys[:, 5:8] = link_columns(rows, self._options.span_link)
        values = np.empty((3, len(rows)), np.int64).T
        values[:, 0] = _IS_SUBMISSION[kinds]
        is_copy = kinds == Kind.COPY
        possible = rows["bytes"] <= _MAX_COPY_BYTES
        self.ledger.remarks["impossible copy sizes, taken as 0"] += int(
            counts[is_copy & ~possible].sum()
        )
        values[:, 1] = np.where(is_copy & possible, rows["bytes"], 0)
        values[:, 2] = waits.duration_ns
        threads = find_thread_times(rows)
        if threads is not None:
            keys[threads.rows, 0] = keys[threads.rows, 0] & ~_BYTE | threads.mode
            keys[threads.rows, 2] = threads.subject
            values[threads.rows, 0] = threads.count
            values[threads.rows, 2] = threads.duration_ns
        values *= counts[:, None]
        return keys, values

    def _resolve(self, groups: Groups) -> Groups:
        """Replace process and handle by what they mean now: a handle may mean another kernel later.

        Done once for each distinct (process, handle): small batches have nearly as many groups as calls.
        """
        keys = groups.keys
        meanings = keys[:, :3].copy(order="K")
        meanings[:, 0] >>= _TGID_SHIFT
        order, starts = runs(meanings)
        process_ids = np.empty(len(starts), np.uint64)
        name_ids = np.empty(len(starts), np.uint64)
        for run, (tgid, start_ns, handle) in enumerate(meanings[order[starts]].tolist()):
            process = ProcessKey(tgid, start_ns)
            process_ids[run] = self._process_id(process)
            name_ids[run] = self._name_ids.get((process, handle), -1) + 1 if handle else 0
        lengths = np.diff(np.append(starts, len(keys)))
        resolved = np.empty((7, len(keys)), np.uint64).T
        resolved[order, 0] = np.repeat(process_ids << _TGID_SHIFT, lengths)
        resolved[order, 1] = np.repeat(name_ids, lengths)
        resolved[:, 0] |= keys[:, 0] & _BELOW_TGID
        # A command of a device driver means the same whenever and wherever it is given.
        is_command = keys[:, 0] >> _KIND_SHIFT & _BYTE == Kind.DRIVER
        resolved[is_command, 1] = keys[is_command, 2]
        resolved[:, 2:] = keys[:, 3:]
        return Groups(resolved, groups.sums)

    def _process_id(self, process: ProcessKey) -> int:
        found = self._processes.get(process)
        if found is None:
            found = self._processes[process] = self._process_count
            self._process_count += 1
        return found

    def _resources_by_id(self) -> dict[int, AttributeSet]:
        resources = {
            process_id: self._resources.get(process, _UNKNOWN_TARGET)
            for process, process_id in self._processes.items()
        }
        for former in self._former.values():
            resources |= former
        return resources

    def _by_window(
        self, times_ns: NDArray[np.int64]
    ) -> Iterator[tuple[int, slice | NDArray[np.bool_]]]:
        everything = slice(None)
        if self._options.window_ns is None or self._start is None:
            yield 0, everything
            return
        first, last = (
            self._window_index(int(times_ns.min())),
            self._window_index(int(times_ns.max())),
        )
        if self._closed_before <= first == last:
            yield first, everything
            return
        indexes = (times_ns - self._start.time_ns) // self._options.window_ns
        late = indexes < self._closed_before
        if late.any():
            self.ledger.remarks["late for their window"] += int(late.sum())
            indexes = np.maximum(indexes, self._closed_before)
        for index in np.unique(indexes).tolist():
            yield index, indexes == index

    def _window_index(self, time_ns: int) -> int:
        if self._start is None or self._options.window_ns is None:
            return 0
        return (time_ns - self._start.time_ns) // self._options.window_ns

    def _close_before(self, index: int) -> Iterator[Bundle]:
        self._closed_before = max(self._closed_before, index)
        closing = sorted(i for i in self._windows if i < index)
        for each in closing:
            yield from self._bundles(self._unix_window(each), self._windows.pop(each))

    def _unix_window(self, index: int) -> Window:
        """Bounds in unix time; a capture without a start event, or one window, has the bounds of its events."""
        start = self._start
        window_ns = self._options.window_ns
        if start is not None and window_ns is not None:
            begin_ns = start.time_ns + index * window_ns
            return Window(
                begin_ns + start.unix_offset_ns, begin_ns + window_ns + start.unix_offset_ns
            )
        window = self._windows[index]
        offset_ns = start.unix_offset_ns if start else 0
        begin_ns = start.time_ns if start else window.first_ns
        end_ns = max(self._last_ns, window.last_ns + 1, begin_ns + 1)
        return Window(begin_ns + offset_ns, end_ns + offset_ns)

    def _bundles(self, unix_window: Window, window: _OpenWindow) -> Iterator[Bundle]:
        tables = self._tables(concatenate(window.parts), scale=1)
        self._add_lost(tables)
        resources = self._resources_by_id()
        for process_id, table in sorted(tables.items()):
            yield table.bundle(resources.get(process_id, _UNKNOWN_TARGET), unix_window)

    def _tables(self, groups: Groups, scale: float) -> dict[int, SampleTable]:
        """Samples by process id; values times `scale`, rounded to whole units where that is not 1."""
        tables: dict[int, SampleTable] = {}
        for key, sums in zip(groups.keys.tolist(), groups.sums.tolist(), strict=True):
            table = tables.setdefault(key[0] >> 32, SampleTable())
            self._add(table, key, sums if scale == 1 else [round(s * scale) for s in sums])
        return tables

    def _add(self, table: SampleTable, key: list[int], sums: list[int]) -> None:
        api_id, mode = key[0] >> 8 & 0xFFFF, key[0] & 0xFF
        submissions, copied_bytes, waited_ns = sums
        kind = key[0] >> 24 & 0xFF
        no_stack = labels.NO_STACK_OFF_CPU if kind == Kind.OFF_CPU else labels.NO_STACK_TAKEN
        base = self._base(table, StackKey(key[2], key[3]), no_stack)
        link = _link(key[4:7])
        if kind in THREAD_KINDS:
            thread_key = ThreadKey(kind, api_id, mode, key[1])
            add_thread_time(table, thread_key, base, link, submissions or waited_ns)
            return
        call = table.indexes((labels.call_frame(api_id),))
        if waited_ns:
            stack = base + call + table.indexes((labels.wait_frame(mode),))
            table.add(GPU_WAIT, stack, link, waited_ns)
        if submissions:
            name = self._names[key[1] - 1] if key[1] else None
            stack = base + call + table.indexes((labels.work_frame(api_id, name),))
            table.add(GPU_LAUNCH, stack, link, submissions)
            table.add(GPU_COPY, stack, link, copied_bytes)

    def _base(self, table: SampleTable, key: StackKey, none_taken: Frame) -> tuple[int, ...]:
        stack = self._stacks.get(key)
        if stack is not None:
            return table.base(key, stack.frames)
        return table.indexes((labels.NO_STACK if any(key) else none_taken,))

    def _add_lost(self, tables: dict[int, SampleTable]) -> None:
        """What is counted and did not arrive, in the window in which that became known."""
        new = self._new_losses()
        if not new:
            return
        self._lost_exported += new
        owner = next(iter(tables)) if len(tables) == 1 else self._process_count
        table = tables.setdefault(owner, SampleTable())
        for (sample_type, reason), count in sorted(new.items()):
            table.add(sample_type, table.indexes((labels.lost_frame(reason),)), None, count)

    def _new_losses(self) -> Counter[tuple[ValueType, str]]:
        """Submissions and CPU samples lost at the source since the last window, by reason."""
        known = Counter(
            {
                (sample_type, reason): sum(self.ledger.source_count(k, reason) for k in kinds)
                for sample_type, kinds in _COUNTED_KINDS.items()
                for reason in LOSSES
            }
        )
        return known - self._lost_exported


def _link(words: list[int]) -> Link | None:
    if not words[2]:
        return None
    trace = words[0].to_bytes(8, "little") + words[1].to_bytes(8, "little")
    return Link(trace, words[2].to_bytes(8, "little"))
