"""What a probed launch costs: nanoseconds a launch without probes, with probes for others, and recorded.

One process launches in a loop on the fake driver; we open and close the product's capture window around its blocks, in
the order A B C C B A, so that the machine's moods hit all three alike. The ring is emptied by the drain meanwhile, and
after each recorded block every launch must have arrived: a full ring would make the probe look cheap.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf.decode import decode_stack
from otel_gpuflame.capture.bpf.drain import split_records
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.events import wire
from tests.benchmarks import figures, launching
from tests.benchmarks.figures import Figure, figure
from tests.benchmarks.launching import Launcher

ROUNDS: Final = 12
BLOCK_NS: Final = 50_000_000
PYTHON_DEPTH: Final = 20
_CALLS, _STACKS = 0, 1
_CALIBRATION: Final = 2_000
BARE, FOREIGN, RECORDED = "bare", "probed for others", "recorded"
SPANLESS: Final = "recorded without its span"
"""Only asked for by bench_span_read: the record is not looked for."""
_STATES: Final = (BARE, FOREIGN, RECORDED)


class Session:
    """Probes around one target. `opening_ns` and `closing_ns` are the times to open and to close a window."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._kernel = CaptureKernel()
        self._drain = self._kernel.open_drain()
        self._attachments = Attachments(self._kernel.uprobes, in_windows=True)
        self._key = launcher.pid.to_bytes(4, "little")
        self._layout = self._find_target()
        self._stacks: list[bytes] = []
        self.with_span = 0
        """Launches of the last block that had a span."""
        self.opening_ns: list[float] = []
        self.closing_ns: list[float] = []
        self._drain.start()

    def _find_target(self) -> bytes:
        """Have the product look at the target; what it tells BPF about it."""
        targets = Targets(self._kernel, self._attachments)
        now_ns = time.monotonic_ns()
        targets.add(self._launcher.pid, now_ns)
        targets.look(now_ns)
        layout = self._kernel.targets.get(self._key)
        if layout is None or not self._attachments.libraries:
            raise RuntimeError("the target or its driver library was not found")
        return layout

    def block(self, state: str, count: int) -> float:
        """Nanoseconds a launch over `count` launches in a state."""
        if state is FOREIGN:
            self._kernel.targets.delete(self._key)
        elif state is SPANLESS:
            self._kernel.targets.set(self._key, _without_span(self._layout))
        if state is not BARE:
            self.opening_ns.append(_timed(self._attachments.open_window))
        elapsed_ns = self._launcher.launch(count)
        if state is not BARE:
            self.closing_ns.append(_timed(self._attachments.close_window))
        self._kernel.targets.set(self._key, self._layout)
        self._check(count if state in (RECORDED, SPANLESS) else 0)
        return elapsed_ns / count

    def check_stacks(self, python_frames: int) -> None:
        """All launches came from one place, with so many Python frames."""
        stacks = [stack for record in self._stacks if (stack := decode_stack(record)) is not None]
        depths = [len(stack.python) for stack in stacks]
        if depths != [python_frames]:
            raise RuntimeError(f"Python frames of the stacks: {depths}, not [{python_frames}]")

    def close(self) -> None:
        """Detach and free."""
        self._drain.close()
        self._attachments.close()
        self._kernel.close()

    def _check(self, expected: int) -> None:
        self._drain.swap(0)
        calls = self._drain.data(_CALLS).view(wire.CALL)
        arrived = len(calls)
        self.with_span = int(((calls["flags"] & wire.CallFlag.HAS_SPAN) != 0).sum())
        self._stacks += split_records(self._drain.data(_STACKS))
        if arrived != expected:
            raise RuntimeError(f"{arrived} calls arrived instead of {expected}")


def measure() -> list[Figure]:
    """The three targets, one after the other."""
    found: list[Figure] = []
    switches: list[tuple[list[float], list[float]]] = []
    for name, command, frames in (
        ("C", launching.compiled_loop(), 0),
        (f"Python, {PYTHON_DEPTH} frames", launching.python_loop(PYTHON_DEPTH), PYTHON_DEPTH),
        (
            f"Python, {PYTHON_DEPTH} frames, span",
            launching.python_loop(PYTHON_DEPTH, "--span"),
            PYTHON_DEPTH,
        ),
    ):
        with launching.launcher(*command) as launcher:
            launcher.launch(1)
            session = Session(launcher)
            try:
                found += _compare(name, session)
                session.check_stacks(frames)
            finally:
                session.close()
            switches.append((session.opening_ns, session.closing_ns))
    opening, closing = ([ns / 1e6 for each in switches for ns in each[i]] for i in (0, 1))
    return [
        *found,
        figure("opening a window", opening, "ms"),
        figure("closing a window", closing, "ms"),
    ]


def _compare(name: str, session: Session) -> list[Figure]:
    counts = {state: _calls_a_block(session, state) for state in _STATES}
    times: dict[str, list[float]] = {state: [] for state in _STATES}
    for _ in range(ROUNDS):
        # The two blocks of a state in a round count as one, so that a drift within the round cancels out.
        halves = [
            {state: session.block(state, counts[state]) for state in order}
            for order in (_STATES, _STATES[::-1])
        ]
        for state in _STATES:
            times[state].append(statistics.fmean(half[state] for half in halves))
    return [
        figure(f"{name}: bare call", times[BARE], "ns"),
        figure(f"{name}: added for a foreign process", _differences(times, FOREIGN), "ns"),
        figure(f"{name}: added when recorded", _differences(times, RECORDED), "ns"),
        figure(
            f"{name}: recorded over bare",
            [on / off for off, on in zip(times[BARE], times[RECORDED], strict=True)],
            "ratio",
        ),
    ]


def _differences(times: dict[str, list[float]], state: str) -> Sequence[float]:
    return [on - off for off, on in zip(times[BARE], times[state], strict=True)]


def _calls_a_block(session: Session, state: str) -> int:
    return max(_CALIBRATION, int(BLOCK_NS / session.block(state, _CALIBRATION)))


def _without_span(layout: bytes) -> bytes:
    value = np.frombuffer(layout, wire.TARGET).copy()
    value["has_span"] = 0
    return value.tobytes()


def _timed(work: Callable[[], None]) -> float:
    begin_ns = time.monotonic_ns()
    work()
    return time.monotonic_ns() - begin_ns


if __name__ == "__main__":
    figures.main(measure)
