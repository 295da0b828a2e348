"""The agent itself at its defaults, switched on and off for whole cycles: what it chooses, and what that costs."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from otel_gpuflame.cli.destination import destination, metrics_destination
from otel_gpuflame.export.options import SelfTelemetryOptions, metric_interval_s
from otel_gpuflame.pipeline import AgentControl, AgentOptions
from otel_gpuflame.pipeline.agent import Agent
from tests.benchmarks.overhead_blocks import NS, HostOptions, tell
from tests.benchmarks.process_cost import cost_of, family

_OFF_NS: Final = 4 * NS


class Direct:
    """The agent itself at its defaults, switched on and off for whole cycles."""

    def __init__(self, options: HostOptions) -> None:
        self._control = AgentControl(enabled=False)
        self._agent = Agent(
            AgentOptions(
                destination=destination({}, options.endpoint, None),
                gpu=options.gpu,
                self_telemetry=SelfTelemetryOptions(
                    destination=metrics_destination({}, options.endpoint, None),
                    interval_s=metric_interval_s({}),
                ),
            ),
            self._control,
        )
        self._thread = threading.Thread(target=self._agent.run)
        self._pid = options.pid
        self._on_ns = round(options.direct_on_s * NS)
        cycles = (options.direct_s * NS - _OFF_NS) // (self._on_ns + _OFF_NS)
        self._cycles = max(int(cycles), 1)

    def run(self) -> None:
        """Off, and then on and off in turn."""
        self._thread.start()
        self._stay("off_before", 0, _OFF_NS)
        for cycle in range(self._cycles):
            self._control.enabled = True
            self._stay("on", cycle, self._on_ns)
            if not self._control.enabled:
                tell("killed", cycle=cycle)
            self._control.enabled = False
            self._stay("off_after", cycle, _OFF_NS)
        self._control.stop.set()
        self._thread.join(30)

    def _stay(self, role: str, cycle: int, length_ns: int) -> None:
        start_ns, cpu_s = time.monotonic_ns(), self._cpu_s()
        while time.monotonic_ns() < start_ns + length_ns:
            time.sleep(0.25)
            capture = self._agent.snapshot().capture
            if role == "on" and capture.is_capturing:
                tell(
                    "choice",
                    cycle=cycle,
                    since_ns=time.monotonic_ns() - start_ns,
                    duty=capture.duty,
                    switch_ns=capture.switch_ns,
                    overhead=max(
                        (o.share for o in capture.overheads if o.pid == self._pid), default=0.0
                    ),
                )
        tell(
            "block",
            part="direct",
            unit=cycle,
            role=role,
            start_ns=start_ns,
            end_ns=time.monotonic_ns(),
            cpu_s=self._cpu_s() - cpu_s,
        )

    def _cpu_s(self) -> float:
        """CPU time of this process, which is the agent here, and of those that it has started."""
        return sum(cost_of(pid).cpu_s for pid in family(os.getpid()))
