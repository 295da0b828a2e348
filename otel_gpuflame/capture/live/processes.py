"""What BPF reports of processes, applied to everything that knows processes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.bpf.decode import decode_process
from otel_gpuflame.capture.bpf.drain import split_records
from otel_gpuflame.capture.live.device_side import DeviceSide
from otel_gpuflame.capture.live.naming import LiveNames
from otel_gpuflame.capture.live.stacks import LiveStacks
from otel_gpuflame.capture.replaced import Replaced, ReplacedPrograms
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey


class ProcessReports:
    """Owns which processes have changed in this round."""

    def __init__(
        self,
        targets: Targets,
        replaced: ReplacedPrograms,
        stacks: LiveStacks,
        names: LiveNames,
        devices: DeviceSide,
    ) -> None:
        self._targets = targets
        self._replaced = replaced
        self._stacks = stacks
        self._names = names
        self._devices = devices
        self._changed: set[ProcessKey] = set()
        self.undecodable = 0
        """Records that are no reports."""

    @property
    def any_changed(self) -> bool:
        """Whether some process has, and so is to be looked at soon."""
        return bool(self._changed)

    def apply(self, data: NDArray[np.uint8], now_ns: int) -> list[ProcessKey]:
        """Apply the reports in the ring's `data`; returns processes that ended, whose last stacks are still to come."""
        ended = []
        self._changed.clear()
        for record in split_records(data):
            change = decode_process(record)
            if change is None:
                self.undecodable += 1
                continue
            former = self._targets.apply(change, now_ns)
            self._devices.follow(change, now_ns)
            self._stacks.follow(change)
            if change.change is wire.ProcessChange.EXIT:
                ended.append(change.process)
                continue
            if former is not None:
                self._names.forget(change.process)
                self._replaced.add(Replaced(change, former))
            self._changed.add(change.process)
        self._targets.attend(now_ns)
        return ended

    def prepare_stacks(self) -> None:
        """Read what stacks of changed processes need: the first one finds all ready."""
        for process in self._changed:
            if self._targets.uses_gpu_library(process.tgid):
                self._stacks.prepare(process)
