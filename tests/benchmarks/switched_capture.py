"""The live source with a switch: its probes are attached and detached together, while what it has loaded stays.

Tracepoints of system calls and of processes stay attached: to detach them takes 0.4 s, and what they cost is measured
apart (system_call_cost.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from typing import Final

from otel_gpuflame.capture.bpf.detaching import detach_together
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.programs import CPU_SAMPLER
from otel_gpuflame.capture.live import LiveCapture
from otel_gpuflame.events.wire_gpu import LibraryState
from tests.integration.inject.region import Region

_SWITCHED: Final = {CPU_SAMPLER: "samples", "on_switch": "off_cpu"}
_LIBRARY_LIMIT_S: Final = 10.0
_LIBRARY_PAUSE_S: Final = 0.001
_AUTOGRAD: Final = (Program.BACKWARD, Program.NODE)
CALLS: Final = "calls"
AUTOGRAD: Final = "autograd"
APART: Final = (CALLS, AUTOGRAD, *_SWITCHED.values())
"""What is always on: probes of the driver, the probe on backward passes, CPU samples, thread switches."""


class SwitchedCapture(LiveCapture):
    """Windows open and close when told, not by a budget. Everything is attached when the `with` block begins."""

    program = 0
    """The pid whose library is waited for; others on the host may end at any time."""

    def __enter__(self) -> SwitchedCapture:
        self.probing.control = None
        super().__enter__()
        self._lasting: list[int] = []
        return self

    @property
    def kernel(self) -> CaptureKernel:
        """What is loaded; the benchmarks do without BCC."""
        assert isinstance(self._kernel, CaptureKernel)
        return self._kernel

    def settle(self) -> None:
        """Detach what `attach` attaches, for the first time; tracepoints stay."""
        self.kernel.detach()
        self.attach_tracepoints()

    def attach_tracepoints(self) -> None:
        """Those that stay."""
        self._attach_optional(switched=False)
        self._lasting = list(self.kernel.object._links)

    def detach_tracepoints(self) -> None:
        """While nothing else is attached."""
        self.kernel.object.detach()

    def attach(self, only: Collection[str] = APART) -> None:
        """Attach what is always on, or `only` some of it: with a budget all but launches, without one everything."""
        self._attach_optional(switched=True, only=only)
        for attached in self.attachments._table:
            points = [
                point
                for point in attached.library.points
                if not self.attachments.is_windowed(point)
                and (AUTOGRAD if point.program in _AUTOGRAD else CALLS) in only
            ]
            if points:
                self.kernel.uprobes.attach(attached.key, attached.path, points)

    def open(self) -> None:
        """Open a window that lasts until it is closed."""
        self.probing.open_window()
        self.record(None)

    def record(self, close_ns: int | None) -> None:
        """As the agent does it; returns when the library in `program` does record."""
        self.probing.record(close_ns)
        self._wait_for_library(LibraryState.CAPTURING, is_wanted=True)

    def end_records(self) -> None:
        """Returns when it records no more."""
        self._devices.stop_recording()
        self._wait_for_library(LibraryState.CAPTURING, is_wanted=False)

    def close_window(self) -> None:
        """Windowed probes are gone, and no library records any more."""
        self.probing.close_window()
        self.end_records()

    def _wait_for_library(self, state: LibraryState, *, is_wanted: bool) -> None:
        """Raises RuntimeError where it does not come to that."""
        until_s = time.monotonic() + _LIBRARY_LIMIT_S
        if self.program not in self._devices.record_costs():
            return
        region = Region(self.program)
        while (region.state == state) is not is_wanted:
            if time.monotonic() > until_s:
                raise RuntimeError(f"the library in the program is {region.state.name}")
            time.sleep(_LIBRARY_PAUSE_S)

    def detach(self) -> None:
        """Detach what `attach` attaches."""
        links = [link for link in self.kernel.object._links if link not in self._lasting]
        destroy = self.kernel.object._destroy
        detach_together(
            [self.kernel.uprobes.detach_all, *(partial(destroy, link) for link in links)]
        )

    def _attach_optional(self, *, switched: bool, only: Collection[str] = APART) -> None:
        for program in self.kernel._optional():
            is_there = program.name not in self.kernel.report.missing
            part = _SWITCHED.get(program.name)
            if is_there and (part is not None) is switched and (part is None or part in only):
                self.kernel._attach(program)
