"""The live source with a switch: its probes are attached and detached as a whole, while what it has loaded stays."""

from __future__ import annotations

from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.live import LiveCapture
from otel_gpuflame.capture.windows import WindowControl


class SwitchedCapture(LiveCapture):
    """Windows open and close when told, not by a budget. Everything is attached when the `with` block begins."""

    def __enter__(self) -> SwitchedCapture:
        super().__enter__()
        return self

    def attach(self) -> None:
        """Attach what is always on: with a budget all but launches, without one everything."""
        assert isinstance(self._kernel, CaptureKernel)
        self._kernel._attach_optional()
        for attached in self.attachments._attached.values():
            points = [
                point
                for point in attached.library.points
                if not (point.windowed and self._options.budget)
            ]
            self._kernel.uprobes.attach(attached.library.key, attached.path, points)

    def detach(self) -> None:
        """Detach everything."""
        self._kernel.detach()

    def _window_control(self) -> WindowControl | None:
        return None
