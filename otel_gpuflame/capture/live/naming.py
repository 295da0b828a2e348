"""What is called: handles of GPU functions get their names before calls that use them are handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.bpf.decode import decode_name
from otel_gpuflame.capture.bpf.drain import split_records
from otel_gpuflame.capture.names import LearnedNames, NameTable
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, Calls, LossCount, Names

_MAX_BATCH: Final = 1 << 16
"""Calls in one event. Larger batches leave the processor's caches, and whoever has fallen behind must not become
slower: with whole buffers of 1.8 million, 1,000,000 calls/s could not be held."""


class LiveNames:
    """Owns the names of handles, in each process. `readable` demangles one."""

    def __init__(self, readable: Callable[[str], str]) -> None:
        self._table = NameTable(readable)
        self.undecodable = 0
        """Records that are no names."""

    def learn(self, data: NDArray[np.uint8]) -> LearnedNames:
        """Names out of the ring's `data`."""
        records = split_records(data)
        names = [name for record in records if (name := decode_name(record)) is not None]
        self.undecodable += len(records) - len(names)
        return self._table.learn(names)

    def counters(self) -> list[LossCount]:
        """Running totals: answers about kernels that had got their names before the capture began, and names that had
        to go for others of their process.
        """
        return [
            LossCount("name", "unresolved", self._table.unresolved_aliases),
            LossCount("name", "forgotten", self._table.forgotten),
        ]

    def forget(self, process: ProcessKey) -> None:
        """The process has ended, or executes another program."""
        self._table.forget(process)


def named_calls(rows: CallArray, names: LearnedNames) -> Iterator[Names | Calls]:
    """Calls in batches, each after the names that it refers to."""
    if names.fresh:
        yield Names(names.fresh)
    # Calls made before a handle got another name keep the old one.
    for renamed in names.renamed:
        before = rows["start_ns"] < renamed.time_ns
        if before.any():
            yield Calls(rows[before])
            rows = rows[~before]
        yield Names((renamed,))
    for start in range(0, len(rows), _MAX_BATCH):
        yield Calls(rows[start : start + _MAX_BATCH])
