"""Until when the gaps of each device have been told.

A gap is told when it has ended, since only then it is known who let the device wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.idle import explain_idle
from otel_gpuflame.correlate.gpu.keys import Index, Times
from otel_gpuflame.correlate.gpu.processes import FOREVER
from otel_gpuflame.correlate.gpu.rows import JOINED, JoinedArray, concatenate
from otel_gpuflame.correlate.gpu.samples import NOTHING, Carried
from otel_gpuflame.correlate.gpu.timeline import busy_on, find_gaps
from otel_gpuflame.correlate.gpu.unknown import Unknown
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import AttributionArray
from otel_gpuflame.events.executions import NO_DEVICE
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag, Kind

_MAX_CALLS: Final = 1 << 18
"""38 MB of what threads did in gaps that have not ended. Of a longer gap the beginning stands under no sample."""
_NONE: Final = np.empty(0, JOINED)


class Begins(NamedTuple):
    """Since when processes are captured: all, and those that had given their devices work before."""

    all_ns: Mapping[ProcessKey, int]
    partial_ns: Mapping[ProcessKey, int]


@dataclass(slots=True)
class _Device:
    """`told_ns`: everything before has been told. `rows`: executions that reach beyond it, and the one before.

    `users`: processes that use it, and are captured; `all_users`: those that did so before too. `left_ns`: until when
    those that have left were captured. `is_from_start`: the first of them gave it nothing to do before they were
    captured.
    """

    told_ns: int
    rows: JoinedArray = field(default_factory=lambda: _NONE)
    carried: Carried = NOTHING
    users: set[ProcessKey] = field(default_factory=set)
    all_users: set[ProcessKey] = field(default_factory=set)
    left_ns: int = 0
    is_from_start: bool = True


class _Executions:
    """Executions of a device that were kept, and new ones. They are not put together: most of them end no gap."""

    def __init__(self, kept: JoinedArray, new: JoinedArray) -> None:
        self._kept, self._new = kept, new
        self._starts_ns, self._ends_ns = (
            np.concatenate((kept[name], new[name])) for name in ("start_ns", "end_ns")
        )

    def times(self, until_ns: int) -> tuple[Times, Times, Index]:
        """Starts, ends and places, by time, of those that had begun by `until_ns`."""
        starts, ends = self._starts_ns, self._ends_ns
        places = np.arange(len(starts))
        in_order = starts[1:] > starts[:-1]
        if not in_order.all():
            places = np.lexsort((ends, starts))
            starts, ends = starts[places], ends[places]
        past = int(np.searchsorted(starts, np.uint64(max(until_ns, 0)), "right"))
        return starts[:past], ends[:past], places[:past]

    def with_places(self, places: Index) -> tuple[JoinedArray, Index]:
        """Rows in which those at some places are found, and where."""
        first = len(self._kept)
        if not (places < first).any():
            # Rows are long, and nearly all are new: nothing is copied.
            return self._new, places - first
        return self.take(places), np.arange(len(places))

    def take(self, places: NDArray[np.intp]) -> JoinedArray:
        """Those at some places, in this order."""
        is_new = places >= len(self._kept)
        parts = [self._kept.take(places[~is_new]), self._new.take(places[is_new] - len(self._kept))]
        if not len(parts[0]):
            return parts[1]
        order = np.argsort(np.concatenate((np.flatnonzero(~is_new), np.flatnonzero(is_new))))
        return concatenate(parts, JOINED).take(order)

    def beyond(self, until_ns: int, last_ns: int) -> JoinedArray:
        """Those that begin or end later than `until_ns`, and those that ended last before."""
        ends, starts = self._ends_ns, self._starts_ns
        return self.take(
            np.flatnonzero((ends > until_ns) | (ends == last_ns) | (starts > until_ns))
        )


class Idleness:
    """Devices that captured processes use, and what threads did lately."""

    def __init__(self) -> None:
        self.unknown = Unknown()
        self._devices: dict[int, _Device] = {}
        self._calls: list[CallArray] = []

    def add_calls(self, rows: CallArray) -> None:
        """What threads of captured processes did, in any order."""
        takes_time = (rows["kind"] == Kind.CPU_SAMPLE) | ((rows["flags"] & CallFlag.RETURNED) != 0)
        chosen = np.flatnonzero(takes_time)
        if len(chosen):
            self._calls.append(rows.take(chosen))

    def tell(
        self,
        executions: JoinedArray,
        begins: Begins,
        until_ns: int,
        open_ns: Mapping[int, int],
    ) -> list[AttributionArray]:
        """Idle times of gaps that ended by `until_ns`. `executions` are new, and ended by then.

        `open_ns`: when the earliest execution began that ended later, by device.
        """
        self._note_users(executions, begins)
        told = []
        for number, device in self._devices.items():
            first, past = np.searchsorted(executions["device"], (number, number + 1))
            until = min(until_ns, open_ns.get(number, FOREVER))
            told.append(self._tell(number, device, executions[first:past], until))
        self._tidy(until_ns)
        return told

    def leave(self, process: ProcessKey, end_ns: int) -> list[AttributionArray]:
        """A process is no longer captured; devices that no other one uses are told until then."""
        told = []
        for number, device in tuple(self._devices.items()):
            if process in device.users:
                device.users.discard(process)
                # Whoever leaves last need not be the one that was captured for longest.
                device.left_ns = max(device.left_ns, end_ns)
            if not device.users:
                told.append(self._tell(number, device, _NONE, device.left_ns, is_last=True))
                del self._devices[number]
        self._tidy(end_ns)
        return told

    def _note_users(self, executions: JoinedArray, begins: Begins) -> None:
        """Who uses what: told by the first of neighbours that say the same."""
        names = ("device", "tgid", "process_start_ns")
        is_new = np.ones(len(executions), np.bool_)
        is_new[1:] = False
        for name in names:
            is_new[1:] |= executions[name][1:] != executions[name][:-1]
        pairs = {tuple(row) for row in executions[list(names)][is_new].tolist()}
        users = []
        for number, tgid, start_ns in pairs:
            process = ProcessKey(tgid, start_ns)
            begin_ns = begins.all_ns.get(process, FOREVER)
            if number != NO_DEVICE and begin_ns != FOREVER:
                users.append((begin_ns, number, process))
        # A device is known from when the first of its users is captured.
        for begin_ns, number, process in sorted(users):
            device = self._devices.setdefault(number, _Device(begin_ns))
            device.is_from_start &= process not in begins.partial_ns
            device.users.add(process)
            device.all_users.add(process)

    def _tell(
        self,
        number: int,
        device: _Device,
        executions: JoinedArray,
        until_ns: int,
        *,
        is_last: bool = False,
    ) -> AttributionArray:
        rows = _Executions(device.rows, executions)
        starts, ends, at = rows.times(until_ns)
        last_ns = int(ends.max(initial=0))
        if not is_last:
            # The gap after the last execution has not ended.
            until_ns = min(until_ns, last_ns)
        begin_ns = device.told_ns
        until_ns = max(until_ns, begin_ns)
        devices = np.array([number], np.uint32)
        gaps, _ = find_gaps(busy_on(number, starts, ends), devices, begin_ns, until_ns)
        device.told_ns = until_ns
        device.rows = rows.beyond(until_ns, last_ns)
        # Only those that ended a gap matter from here on.
        has_ended = gaps.ended_by >= 0
        enders, found = rows.with_places(at[gaps.ended_by[has_ended]])
        places = np.full(len(has_ended), -1, np.intp)
        places[has_ended] = found
        calls = self._calls_in(begin_ns, until_ns)
        unknown = self.unknown.on(number, device.all_users)
        gaps = replace(gaps, ended_by=places)
        told = explain_idle(
            gaps, enders, calls, unknown, device.carried, is_from_start=device.is_from_start
        )
        device.carried = told.carried
        return told.rows

    def _calls_in(self, begin_ns: int, end_ns: int) -> CallArray:
        self._calls = [concatenate(self._calls, wire.CALL)]
        rows = self._calls[0]
        inside = np.maximum(rows["start_ns"], rows["end_ns"]) >= begin_ns
        return rows.take(np.flatnonzero(inside & (rows["start_ns"] < end_ns)))

    def _tidy(self, until_ns: int) -> None:
        """Let go of what lies before all that has not been told.

        Before the first execution on a device nothing is told by calls; those after `until_ns` may follow one.
        """
        told_ns = min((each.told_ns for each in self._devices.values()), default=until_ns)
        rows = concatenate(self._calls, wire.CALL)
        is_kept = np.maximum(rows["start_ns"], rows["end_ns"]) > told_ns
        self._calls = [rows.take(np.flatnonzero(is_kept)[-_MAX_CALLS:])]
        self.unknown.forget(told_ns)
