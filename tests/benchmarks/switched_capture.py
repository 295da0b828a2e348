"""The live source with a switch: its probes are attached and detached together, while what it has loaded stays.

Tracepoints of system calls and of processes stay attached: to detach them takes 0.4 s, and what they cost is measured
apart (system_call_cost.py).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from otel_gpuflame.capture.bpf.detaching import detach_together
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.bpf.programs import CPU_SAMPLER
from otel_gpuflame.capture.live import LiveCapture
from otel_gpuflame.capture.windows import WindowControl

_SWITCHED: Final = (CPU_SAMPLER, "on_switch")


class SwitchedCapture(LiveCapture):
    """Windows open and close when told, not by a budget. Everything is attached when the `with` block begins."""

    def __enter__(self) -> SwitchedCapture:
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

    def attach(self) -> None:
        """Attach what is always on: with a budget all but launches, without one everything."""
        self._attach_optional(switched=True)
        for attached in self.attachments._attached.values():
            points = [
                point
                for point in attached.library.points
                if not (point.windowed and self._options.budget)
            ]
            self.kernel.uprobes.attach(attached.library.key, attached.path, points)

    def open(self) -> None:
        """Open a window that lasts until it is closed."""
        self.open_window()
        self.record(None)

    def detach(self) -> None:
        """Detach what `attach` attaches."""
        links = [link for link in self.kernel.object._links if link not in self._lasting]
        destroy = self.kernel.object._destroy
        detach_together(
            [self.kernel.uprobes.detach_all, *(partial(destroy, link) for link in links)]
        )

    def _attach_optional(self, *, switched: bool) -> None:
        for program in self.kernel._optional():
            is_there = program.name not in self.kernel.report.missing
            if is_there and (program.name in _SWITCHED) is switched:
                self.kernel._attach(program)

    def _window_control(self) -> WindowControl | None:
        return None
