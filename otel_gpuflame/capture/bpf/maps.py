"""The maps that all capture programs share, whoever has loaded them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import numpy as np

from otel_gpuflame.capture.bpf.backend import MIB, RingSizes
from otel_gpuflame.capture.bpf.drain import POLL_NS, Drain, Ring
from otel_gpuflame.capture.bpf.libbpf import BpfMap
from otel_gpuflame.capture.bpf.library import load_library
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import StackKey
from otel_gpuflame.events.records import LossCount

_OUTCOMES: Final = 8


class PerCpuCounters:
    """An array of counters that each CPU has its own of."""

    def __init__(self, counters: BpfMap) -> None:
        self._counters = counters

    def total(self, index: int) -> int:
        """Over all CPUs."""
        raw = self._counters.get(index.to_bytes(4, "little"))
        return int(np.frombuffer(raw, "<u8").sum()) if raw else 0


class CaptureMaps:
    """Typed access to the maps. `map_fd` gives the descriptor of a map by its name in the C source."""

    def __init__(self, map_fd: Callable[[str], int], rings: RingSizes) -> None:
        self._library = load_library()
        self._map_fd = map_fd
        self._rings = rings
        self.targets = self.map("targets", wire.TARGET.itemsize)
        self.costs = self.map("costs", wire.COST.itemsize)
        self._seen_stacks = self.map("seen_stacks", 1)
        self._counters = self.per_cpu("counters")

    def map(self, name: str, value_size: int) -> BpfMap:
        """A map by name. KeyError if there is none."""
        return BpfMap(self._library, self._map_fd(name), value_size=value_size)

    def per_cpu(self, name: str) -> PerCpuCounters:
        """A map of counters by name. KeyError if there is none."""
        cpus = int(self._library.libbpf_num_possible_cpus())
        return PerCpuCounters(self.map(name, 8 * cpus))

    def open_drain(self, poll_ns: int = POLL_NS) -> Drain:
        """See `CaptureBackend.open_drain`."""
        sizes = self._rings
        return Drain(
            [
                Ring(self._map_fd("calls"), sizes.calls, wire.CALL.itemsize, 256 * MIB),
                Ring(self._map_fd("stacks"), sizes.stacks, 0, 128 * MIB),
                Ring(self._map_fd("names"), sizes.names, 0, 32 * MIB),
                Ring(self._map_fd("processes"), sizes.processes, 0, 32 * MIB),
            ],
            poll_ns=poll_ns,
        )

    def watch_host(self) -> None:
        """From now on whoever hits a probe becomes a target; we ourselves never do."""
        settings = np.zeros(1, wire.SETTINGS)
        settings["host_wide"] = 1
        settings["own_tgid"] = os.getpid()
        self.map("settings", wire.SETTINGS.itemsize).set(bytes(4), settings.tobytes())

    def cost_of(self, pid: int) -> tuple[int, int] | None:
        """See `CaptureBackend.cost_of`."""
        raw = self.costs.get(pid.to_bytes(4, "little"))
        if raw is None:
            return None
        cost = np.frombuffer(raw, wire.COST)[0]
        return int(cost["hits"]), int(cost["program_ns"])

    def passes_of(self, pid: int) -> int:
        """See `CaptureBackend.passes_of`."""
        raw = self.costs.get(pid.to_bytes(4, "little"))
        return 0 if raw is None else int(np.frombuffer(raw, wire.COST)[0]["passes"])

    def forget_stack(self, key: StackKey) -> None:
        """See `CaptureBackend.forget_stack`."""
        self._seen_stacks.delete(np.array(key, "<u8").tobytes())

    def counters(self) -> list[LossCount]:
        """See `CaptureBackend.counters`."""
        counts = []
        for kind in wire.Kind:
            for outcome in wire.Outcome:
                total = self._counters.total(kind * _OUTCOMES + outcome)
                if total:
                    counts.append(LossCount(kind.name.lower(), outcome.name.lower(), total))
        return counts
