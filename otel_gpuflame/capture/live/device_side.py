"""What devices say: when they executed what they were given, their counters, and their errors."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from otel_gpuflame.capture.bpf.decode import ProcessChange, RawXid
from otel_gpuflame.capture.cupti.cost import GUARD_NS, RECORD_NS, SHORTEST_NS, SWITCH_NS
from otel_gpuflame.capture.cupti.source import GpuSource
from otel_gpuflame.capture.device_counters import DeviceCounters, metric_events
from otel_gpuflame.capture.device_errors import error_events
from otel_gpuflame.capture.host_devices import HostDevices
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, Event, LossCount


class DeviceSide:
    """Each part may be missing: `gpu` where executions are not wanted, `counters` where nobody reads any.

    `devices` are numbered by both parts. `counters` belong to whoever made them.
    """

    def __init__(
        self, gpu: GpuSource | None, counters: DeviceCounters | None, devices: HostDevices
    ) -> None:
        self._gpu = gpu
        self._counters = counters
        self._devices = devices

    def start(self, *, in_windows: bool) -> None:
        """From now on. After the probes: an execution belongs to a launch that they have seen."""
        if self._counters is not None:
            # What was read before this capture is not its own.
            self._counters.take()
        if self._gpu is not None:
            if not in_windows:
                self._gpu.begin(time.monotonic_ns())
            self._gpu.start()

    def look(self, pids: Collection[int]) -> None:
        """Find what processes give away of their executions: these live, others are gone."""
        if self._gpu is not None:
            self._gpu.look(pids, time.monotonic_ns())

    def next_look_ns(self) -> int | None:
        """When there is something to look at soon; None where there is not."""
        return None if self._gpu is None else self._gpu.next_look_ns()

    def follow(self, change: ProcessChange, now_ns: int) -> None:
        """BPF has reported a change of a process."""
        if self._gpu is not None:
            self._gpu.follow(change, now_ns)

    def know(self, process: ProcessKey) -> None:
        """The pid of `process` means it, from now on."""
        if self._gpu is not None:
            self._gpu.know(process)

    def forget(self, process: ProcessKey) -> None:
        """The process has ended."""
        if self._gpu is not None:
            self._gpu.forget(process)

    def without_cupti(self, rows: CallArray) -> CallArray:
        """Calls of the driver. Those of CUPTI are for this side alone, which alone has them probed."""
        if self._gpu is None:
            return rows
        is_cupti = rows["kind"] == wire.Kind.CUPTI
        if not is_cupti.any():
            return rows
        self._gpu.observe(rows[is_cupti])
        # As bytes: numpy copies records field by field, which takes thirty times as long.
        others: CallArray = rows.view(f"V{rows.itemsize}")[~is_cupti].view(wire.CALL)
        return others

    def events(self, pids: Collection[int], xids: list[RawXid]) -> Iterator[Event]:
        """After the calls, which tell who the processes are. Executions first: they tell whose work it may be."""
        if self._gpu is not None:
            self.look(pids)
            yield from self._gpu.step(time.monotonic_ns())
        if self._counters is not None:
            yield from metric_events(self._counters.take(), self._devices)
        yield from error_events(xids, self._counters, self._devices)

    def record(self, close_ns: int | None) -> None:
        """Have libraries in programs record until `close_ns` (None: until `stop_recording`), once probes are attached.

        They close by themselves, a little before: so probes see every launch that is recorded, however late we are.
        """
        if self._gpu is None:
            return
        now_ns = time.monotonic_ns()
        if close_ns is None:
            self._gpu.begin(now_ns)
        elif now_ns + SHORTEST_NS <= close_ns - GUARD_NS:
            self._gpu.begin(now_ns, close_ns - GUARD_NS)

    @property
    def is_idle(self) -> bool:
        """Whether no process records or has records that are still to come."""
        return self._gpu is None or self._gpu.is_idle

    def stop_recording(self) -> None:
        """Have them record nothing more; what they have recorded still comes."""
        if self._gpu is not None:
            self._gpu.finish()

    def record_costs(self) -> dict[int, int]:
        """Nanoseconds that records of executions have cost each target by pid, running totals."""
        if self._gpu is None:
            return {}
        return {pid: count * RECORD_NS for pid, count in self._gpu.records().items()}

    def record_switch_ns(self) -> int:
        """What it stalls a target to begin and to end recording, besides what probes take; 0 where none records."""
        return SWITCH_NS if self._gpu is not None and self._gpu.records() else 0

    def ask_for_last(self) -> None:
        """Capture ends: have devices tell what is left, executions until `is_idle`."""
        if self._counters is not None:
            self._counters.ask()
        self.stop_recording()

    def wait_for_counters(self) -> None:
        """Until they have come, or it takes too long."""
        if self._counters is not None:
            self._counters.wait_for_answer()

    def close(self) -> list[Event]:
        """Let go of everything; returns what is left. Safe to call twice."""
        return [] if self._gpu is None else self._gpu.close(time.monotonic_ns())

    def losses(self) -> list[LossCount]:
        """Running totals."""
        counts = [] if self._gpu is None else self._gpu.counters()
        if self._counters is not None:
            counts.append(LossCount("device_metric", "unreadable", self._counters.failures))
        return counts
