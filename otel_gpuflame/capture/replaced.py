"""Processes that executed another program: which calls are the old one's, and which the new one's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.bpf.decode import ProcessChange
from otel_gpuflame.capture.describe import Attributes
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray


@dataclass(frozen=True, slots=True)
class Replaced:
    """A report of BPF, and how the program is described that is gone."""

    change: ProcessChange
    former: Attributes

    def before(self, rows: CallArray) -> NDArray[np.bool_]:
        """Calls that the process made before it executed another program."""
        before: NDArray[np.bool_] = self._own(rows) & (rows["start_ns"] < self.change.time_ns)
        return before

    def after(self, rows: CallArray) -> NDArray[np.bool_]:
        """Calls of the new program."""
        after: NDArray[np.bool_] = self._own(rows) & (rows["start_ns"] >= self.change.time_ns)
        return after

    def _own(self, rows: CallArray) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = rows["tgid"] == self.change.process.tgid
        found &= rows["process_start_ns"] == self.change.process.start_ns
        return found


class ReplacedPrograms:
    """Programs that were replaced in this round: their last calls may only come with the next one.

    The drain takes the ring of processes further than that of calls.
    """

    def __init__(self) -> None:
        self._fresh: list[Replaced] = []
        self._held_back: CallArray = np.empty(0, wire.CALL)

    def add(self, replaced: Replaced) -> None:
        """BPF has just reported it."""
        self._fresh.append(replaced)

    def take(self) -> list[Replaced]:
        """All that was added since the last time."""
        taken, self._fresh = self._fresh, []
        return taken

    def formers(self) -> dict[ProcessKey, Attributes]:
        """How the programs are described whose calls are handed out in this round: those before the first exec."""
        formers: dict[ProcessKey, Attributes] = {}
        for replaced in self._fresh:
            formers.setdefault(replaced.change.process, replaced.former)
        return formers

    @property
    def pids(self) -> set[int]:
        """Processes whose new program waits for the next round."""
        return {replaced.change.process.tgid for replaced in self._fresh}

    def join(self, data: NDArray[np.uint8]) -> CallArray:
        """Calls that were held back, then those in `data`."""
        # Joined as bytes: numpy copies records field by field, which takes thirty times as long.
        joined = np.concatenate((self._held_back.view(np.uint8), data))
        rows: CallArray = joined.view(wire.CALL)
        return rows

    def hold_back(self, rows: CallArray) -> CallArray:
        """Keep calls of new programs for the next round, when all calls of those before them are through."""
        if not self._fresh:
            self._held_back = np.empty(0, wire.CALL)
            return rows
        is_new = np.zeros(len(rows), bool)
        for replaced in self._fresh:
            is_new |= replaced.after(rows)
        self._held_back = rows[is_new]
        return rows[~is_new]
