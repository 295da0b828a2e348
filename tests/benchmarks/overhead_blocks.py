"""Units off-on-on-off of one capture. What is told of them are edges, one a line (overhead_edges.py)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from otel_gpuflame.cli.destination import destination
from otel_gpuflame.events.records import Event
from otel_gpuflame.export import open_exporter
from otel_gpuflame.export.delivery import Delivery
from otel_gpuflame.pipeline.encoding import EncodingProcess
from otel_gpuflame.profile.model import Bundle
from tests.benchmarks.switched_capture import SwitchedCapture

NS: Final = 1_000_000_000
GUARD_NS: Final = 20_000_000
"""After a switch: what it delays is counted as its cost, not as that of the state."""
_DELIVERY_LIMIT_NS: Final = 2 * NS


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """Seconds are those of a part of the measurement; 0 leaves it out."""

    pid: int
    endpoint: str
    block_ns: int
    direct_s: float
    direct_on_s: float
    """Of a cycle of `direct`: loading, the first stratum of 2 s, and the next ones."""
    rare_s: float
    window_s: float
    record_s: float
    apart_s: float = 0.0
    """Each of what is always on by itself, in turn."""
    gpu: bool = False
    """Windows and recordings have executions, too."""
    executions_s: float = 0.0
    """Records of executions alone, without a probe."""
    profiler_s: float = 0.0
    """torch.profiler in the program."""
    profiler_switch: str = ""
    """The file that switches it."""


def tell(kind: str, **facts: Any) -> None:
    """One edge."""
    print(json.dumps({"kind": kind, **facts}), flush=True)


class Sending:
    """Profiles go the agent's way, encoding process included, but only while what costs is being measured.

    As often as the agent's do: once in `every_ns` of capture.
    """

    def __init__(self, endpoint: str, every_ns: int) -> None:
        self._every_ns = every_ns
        self._captured_ns = 0
        self._encode = EncodingProcess()
        self._delivery = Delivery(
            open_exporter(destination({}, endpoint, None)), encode=self._encode
        )
        self._thread = threading.Thread(target=self._delivery.run, daemon=True)
        self._thread.start()
        self._held: list[Bundle] = []

    def hold(self, bundles: Iterable[Bundle]) -> None:
        """Keep for later."""
        self._held += bundles

    def send_after(self, captured_ns: int) -> None:
        """So much longer was captured: queue all that was kept, if it is time."""
        self._captured_ns += captured_ns
        if self._captured_ns >= self._every_ns:
            self._captured_ns = 0
            self.send()

    def send(self) -> None:
        """Queue all that was kept."""
        for bundle in self._held:
            self._delivery.put(bundle)
        self._held = []

    def is_idle(self) -> bool:
        """Whether everything has been encoded and sent."""
        return not self._delivery.counts().waiting

    def close(self) -> None:
        """Send the rest."""
        self._delivery.close(10)
        self._thread.join(12)
        self._encode.close()


class Blocks:
    """Runs units off-on-on-off of one capture and tells their edges.

    `take` gets the events of states with capture: those that are on, and where `off_captures` the others too.
    """

    def __init__(
        self,
        part: str,
        capture: SwitchedCapture,
        take: Callable[[Iterable[Event]], None],
        *,
        step_ns: int,
        off_captures: bool = False,
    ) -> None:
        self._part, self._capture, self._take = part, capture, take
        self._step_ns, self._off_captures = step_ns, off_captures
        self._unit = 0

    def run(
        self,
        seconds: float,
        block_ns: int,
        switch: tuple[Callable[[], None], Callable[[], None]],
        *,
        begin: Callable[[], None] = lambda: None,
        is_done: Callable[[], bool] = lambda: True,
    ) -> None:
        """Whole units for so many seconds. `switch` turns on and off; `begin` is called when an on block begins.

        An on block lasts until what it began `is_done`.
        """
        end_ns = time.monotonic_ns() + round(seconds * NS)
        while time.monotonic_ns() < end_ns:
            self.unit(block_ns, switch, begin=begin, is_done=is_done)

    def unit(
        self,
        block_ns: int,
        switch: tuple[Callable[[], None], Callable[[], None]],
        *,
        begin: Callable[[], None] = lambda: None,
        is_done: Callable[[], bool] = lambda: True,
    ) -> None:
        """One unit, as `run`."""
        turn_on, turn_off = switch
        self.block("off_before", block_ns)
        self._switch("on", turn_on)
        begin()
        self.block("on", 2 * block_ns, is_done)
        self._switch("off", turn_off)
        if not self._off_captures:
            self.drain()
        self.block("off_after", block_ns)
        self._unit += 1

    def block(self, role: str, length_ns: int, is_done: Callable[[], bool] = lambda: True) -> None:
        """Stay in a state."""
        costs_before = self._capture.probing.costs()
        start_ns = time.monotonic_ns()
        self._stay(role, start_ns + length_ns)
        limit_ns = time.monotonic_ns() + _DELIVERY_LIMIT_NS
        while not is_done() and time.monotonic_ns() < limit_ns:
            self._stay(role, time.monotonic_ns() + GUARD_NS)
        end_ns = time.monotonic_ns()
        costs = self._capture.probing.costs()
        self._tell("block", role, (start_ns, end_ns), costs_before=costs_before, costs=costs)

    def drain(self) -> None:
        """Handle what detached probes have left."""
        for _ in range(2):
            self._take(self._capture.step(GUARD_NS))

    def _switch(self, role: str, work: Callable[[], None]) -> None:
        start_ns = time.monotonic_ns()
        work()
        end_ns = time.monotonic_ns()
        self._stay(role, end_ns + GUARD_NS)
        self._tell("switch", role, (start_ns, end_ns), guard_end_ns=end_ns + GUARD_NS)

    def _stay(self, role: str, until_ns: int) -> None:
        while (left_ns := until_ns - time.monotonic_ns()) > 0:
            if role == "on" or self._off_captures:
                self._take(self._capture.step(min(self._step_ns, left_ns)))
            else:
                time.sleep(left_ns / NS)

    def _tell(self, kind: str, role: str, times_ns: tuple[int, int], **more: Any) -> None:
        start_ns, end_ns = times_ns
        place = {"part": self._part, "unit": self._unit, "role": role}
        tell(kind, **place, start_ns=start_ns, end_ns=end_ns, **more)
