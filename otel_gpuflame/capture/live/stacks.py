"""Stacks of the live source: each is resolved once, asked for again where it got lost, and let go when it grows old."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.bpf.decode import ProcessChange, decode_stack
from otel_gpuflame.capture.bpf.drain import split_records
from otel_gpuflame.capture.bpf.unwind_maps import UnwindMaps
from otel_gpuflame.capture.distinct import DistinctPairs
from otel_gpuflame.capture.known_stacks import KnownStacks
from otel_gpuflame.capture.unwinding.feeder import TableFeeder
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey, StackKey
from otel_gpuflame.events.records import CallArray, LossCount, Stacks, StacksForgotten
from otel_gpuflame.symbolize.elf_files import ElfFiles
from otel_gpuflame.symbolize.raw import RawStack
from otel_gpuflame.symbolize.symbolizer import Symbolizer


class LiveStacks:
    """Owns which stacks are known, the symbols of processes, and the thread that makes unwind tables.

    `maps`: where those tables go; None where stacks are walked without. `send_again` has BPF send a stack with its next
    use.
    """

    def __init__(
        self,
        proc: Path,
        files: ElfFiles,
        maps: UnwindMaps | None,
        send_again: Callable[[StackKey], None],
    ) -> None:
        self._symbolizer = Symbolizer(proc, files)
        self._tables = TableFeeder(maps, proc) if maps is not None else None
        self._send_again = send_again
        self._known = KnownStacks()
        self._seen = DistinctPairs()
        self._lost = 0
        self.undecodable = 0
        """Records that are no stacks."""

    def start(self) -> None:
        """Make tables from now on."""
        if self._tables is not None:
            self._tables.start()

    def close(self) -> None:
        """Make no more tables. Safe to call twice."""
        if self._tables is not None:
            self._tables.close()

    def follow(self, change: ProcessChange) -> None:
        """A process has mapped code, executed another program or ended."""
        if change.change is not wire.ProcessChange.EXIT:
            self._symbolizer.refresh(change.process)
        if self._tables is None:
            return
        if change.change in (wire.ProcessChange.EXIT, wire.ProcessChange.EXEC):
            self._tables.forget(change.process)
        else:
            self._tables.changed(change.process)

    def prepare(self, process: ProcessKey) -> None:
        """Read what its first stack needs."""
        self._symbolizer.prepare(process)
        if self._tables is not None:
            self._tables.want(process, ())

    def events(self, data: NDArray[np.uint8]) -> Iterator[Stacks]:
        """Stacks that are new, out of the ring's `data`."""
        raws = [raw for record in split_records(data) if (raw := self._new(record)) is not None]
        if raws:
            yield Stacks(tuple(self._symbolizer.resolve_all(raws)))

    def ask_for_lost(self, rows: CallArray) -> None:
        """Have BPF send again the stacks that calls refer to and that did not come."""
        pairs = self._seen.among(rows["stack_hash"][:, 0], rows["stack_hash"][:, 1])
        for key in self._known.unknown(StackKey(*pair) for pair in pairs):
            self._lost += 1
            self._send_again(key)

    def let_go(self) -> Iterator[StacksForgotten]:
        """Keep what is known bounded: a stack that is let go comes again with its next use."""
        keys = self._known.let_go()
        self._seen.forget(keys)
        for key in keys:
            self._send_again(key)
        if keys:
            yield StacksForgotten(keys)

    def forget(self, process: ProcessKey) -> None:
        """The process has ended, and its last calls are through."""
        self._symbolizer.forget(process)
        self._seen.forget(self._known.forget(process))

    def counters(self) -> list[LossCount]:
        """Running totals: stacks that got lost, and what became of addresses."""
        counts = [LossCount("stack", "lost", self._lost)]
        found = self._symbolizer.counters().items()
        counts += [LossCount("symbolize", name, count) for name, count in found]
        return counts + (self._tables.counters() if self._tables is not None else [])

    def _new(self, record: bytes) -> RawStack | None:
        raw = decode_stack(record)
        if raw is None:
            self.undecodable += 1
            return None
        if raw.key in self._known:
            return None
        self._known.add(raw.key, raw.process)
        if raw.lacks_table and self._tables is not None:
            self._tables.want(raw.process, raw.native)
        return raw
