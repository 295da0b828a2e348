"""The live source: what happens on this host now, as events.

`source` is the round, and wires the others: `options` says what is wanted, `probing` owns the windows and what is
always on, `processes` applies what BPF reports of processes, `stacks` resolves stacks, `descriptions` says who calls,
`naming` says what is called, `device_side` asks devices.
"""

from otel_gpuflame.capture.live.options import LiveOptions
from otel_gpuflame.capture.live.source import LiveCapture

__all__ = ["LiveCapture", "LiveOptions"]
