"""Both sides of one process between two cuts: paired in order, and the records that follow from it."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.cuts import Cut
from otel_gpuflame.correlate.gpu.match import claim
from otel_gpuflame.correlate.gpu.rows import concatenate
from otel_gpuflame.correlate.gpu.segments import Executed, Launched, pair
from otel_gpuflame.correlate.gpu.signatures import Signatures
from otel_gpuflame.correlate.gpu.undecided import Undecided, parts
from otel_gpuflame.events import wire
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag
from otel_gpuflame.events.wire_gpu import GpuKind

_THREAD: Final = np.uint64(0xFFFFFFFF)
"""CUPTI has room for this part of pthread_self()."""


class Stretch:
    """Both sides of one process in order, from the last cut on."""

    def __init__(
        self,
        key: ProcessKey,
        process: Undecided,
        until_ns: int,
        signatures: Signatures,
        counts: Counter[str],
    ) -> None:
        self._key, self._process = key, process
        self._signatures, self._counts = signatures, counts
        calls = concatenate(process.calls, wire.CALL)
        self._calls = calls.take(np.argsort(calls["start_ns"], kind="stable"))
        self._starts_ns = self._calls["start_ns"].astype(np.int64)
        works = concatenate(process.executions, EXECUTION)
        ids = process.counted_ids(works)
        order = np.lexsort((works["start_ns"], ids))
        self._works, self._ids = works.take(order), ids[order]
        self._recorded = concatenate(process.recorded, EXECUTION)
        self._has_record = np.isin(self._works["correlation_id"], self._recorded["correlation_id"])
        self._is_claimed = _claimed(self._calls, self._recorded)
        self._until_ns = until_ns
        self._call, self._work = 0, 0
        self.found: list[ExecutionArray] = []

    def close_at(self, cut: Cut) -> None:
        """Everything before the cut belongs together."""
        calls_end = int(np.searchsorted(self._starts_ns, cut.time_ns))
        works_end = int(np.searchsorted(self._ids, cut.id))
        self._close(max(calls_end, self._call), max(works_end, self._work))

    def close_if_equal(self) -> None:
        """Where no cut has come: as many executions, in the order of ids, as there are launches, of the same kinds."""
        calls_end = int(np.searchsorted(self._starts_ns, self._until_ns))
        calls = np.arange(self._call, calls_end)
        calls = calls[~self._is_claimed[calls]]
        places = self._firsts(self._work, len(self._works))
        if not len(calls) or len(places) < len(calls):
            return
        theirs = self._signatures.of_executions(self._key, self._works.take(places))
        ours = self._signatures.of_calls(self._key, self._calls.take(calls))
        if np.array_equal(np.sort(ours), np.sort(theirs[: len(calls)])):
            last = places[len(calls) - 1]
            self._close(calls_end, int(np.searchsorted(self._ids, self._ids[last], side="right")))

    def keep_the_rest(self) -> None:
        """What has not been closed waits for the next step."""
        process = self._process
        process.calls = parts(self._calls[self._call :])
        process.executions = parts(self._works[self._work :])
        left = np.isin(
            self._recorded["correlation_id"], self._works["correlation_id"][self._work :]
        )
        left |= self._recorded["start_ns"] >= self._until_ns
        process.recorded = parts(self._recorded, left)
        if self._work:
            process.base_id = int(self._works["correlation_id"][self._work - 1])

    def _firsts(self, begin: int, end: int) -> NDArray[np.intp]:
        """Places of the first execution of each launch that has no record."""
        ids = self._ids[begin:end]
        is_first = np.ones(len(ids), np.bool_)
        is_first[1:] = ids[1:] != ids[:-1]
        return begin + np.flatnonzero(is_first & ~self._has_record[begin:end])

    def _close(self, calls_end: int, works_end: int) -> None:
        calls = np.arange(self._call, calls_end)
        calls = calls[~self._is_claimed[calls]]
        places = self._firsts(self._work, works_end)
        self._call, self._work = calls_end, works_end
        launches, works = self._calls.take(calls), self._works.take(places)
        if not self._process.is_lossy:
            self._signatures.learn_by_order(self._key, launches, works)
        pairs = pair(
            Launched(
                self._signatures.of_calls(self._key, launches),
                launches["start_ns"].astype(np.int64),
                launches["thread_pointer"],
            ),
            Executed(
                self._signatures.of_executions(self._key, works),
                works["start_ns"].astype(np.int64),
            ),
        )
        self._counts["inferred"] += len(pairs.launch)
        self._counts["ambiguous"] += pairs.ambiguous
        self._counts["without_execution"] += max(len(launches) - len(works), 0)
        self.found.append(_records(launches.take(pairs.launch), works.take(pairs.execution)))


def _claimed(calls: CallArray, recorded: ExecutionArray) -> NDArray[np.bool_]:
    """Calls of which CUPTI has a record: for certain, by thread and time."""
    starts_ns = calls["start_ns"].astype(np.int64)
    ends_ns = calls["end_ns"].astype(np.int64)
    returned = ((calls["flags"] & CallFlag.RETURNED) != 0) & (ends_ns >= starts_ns)
    claims = claim(
        (recorded["thread_pointer"] & _THREAD, recorded["start_ns"].astype(np.int64)),
        (calls["thread_pointer"] & _THREAD, starts_ns),
        np.where(returned, ends_ns, np.iinfo(np.int64).max),
        np.ones(len(calls), np.bool_),
    )
    claimed = np.zeros(len(calls), np.bool_)
    claimed[claims.call[claims.call >= 0]] = True
    return claimed


def _records(launches: CallArray, executions: ExecutionArray) -> ExecutionArray:
    """Rows of kind API: made in that thread, at the entry of that call."""
    rows = np.zeros(len(launches), EXECUTION)
    starts_ns = launches["start_ns"]
    has_end = (launches["flags"] & CallFlag.RETURNED) != 0
    rows["kind"] = GpuKind.API
    rows["start_ns"] = starts_ns
    rows["end_ns"] = np.where(has_end, np.maximum(launches["end_ns"], starts_ns), starts_ns)
    rows["thread_pointer"] = launches["thread_pointer"]
    rows["tgid"] = launches["tgid"]
    rows["process_start_ns"] = launches["process_start_ns"]
    for name in ("correlation_id", "context_id", "stream_id", "device"):
        rows[name] = executions[name]
    return rows
