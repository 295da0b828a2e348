# SPDX-License-Identifier: Apache-2.0
"""The live source inside the test process, for settings that the command line does not have."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from otel_gpuflame.capture.bpf.backend import Loader, RingSizes
from otel_gpuflame.capture.bpf.drain import LIBRARY as DRAIN_LIBRARY
from otel_gpuflame.capture.bpf.drain import Drain
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.capture.libraries import file_offset_of
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.events import wire
from otel_gpuflame.events.records import Event
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from otel_gpuflame.profile.ledger import Ledger
from otel_gpuflame.profile.model import Bundle
from tests.fakes.steps import STAYS
from tests.integration.bpf.recording import Capture, Truth
from tests.integration.bpf.session import running

_SWEEP_NS = 0
"""Sweep at once, in this thread: whatever was sent before arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What came out of a live capture."""

    capture: Capture
    bundles: list[Bundle]
    ledger: Ledger
    truth: Truth


def capture_held(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    rings: RingSizes | None = None,
    libraries: tuple[Path, ...] = (),
    loader: Loader = Loader.LIBBPF,
) -> Live:
    """Capture a program that holds, from then to its end.

    It stays after each line until all that it did has been read. Where the drain is kept from starting, nothing leaves
    the rings before that.
    """
    aggregator = Aggregator(AggregateOptions(window_ns=None))
    with running(command, {**environment, STAYS: "1"}) as target:
        assert target.truth()["ready"] is True
        options = LiveOptions(
            pids=(target.process.pid,),
            libraries=libraries,
            rings=rings or RingSizes(),
            loader=loader,
            # A table that comes in between makes another stack of an equal one.
            unwind=False,
        )
        with LiveCapture(options) as live:
            events: list[Event] = [live.start_event()]
            target.go()
            heard = 1
            while target.says_more_than(heard):
                heard += 1
                events += live.step(_SWEEP_NS)
                target.go()
            events += live.finish()
        assert target.finish() == 0, target.stderr.text()
    bundles = [bundle for event in events for bundle in aggregator.feed(event)]
    bundles += aggregator.finish()
    truth: Truth = json.loads(target.stdout.text().splitlines()[-1])
    return Live(capture=Capture(events), bundles=bundles, ledger=aggregator.ledger, truth=truth)


@dataclass(slots=True)
class OwnCalls:
    """Probes on a function of our own process, so that a test makes the calls itself."""

    kernel: CaptureKernel
    drain: Drain
    made: int = field(default=0)

    @classmethod
    def start(cls, kernel: CaptureKernel) -> OwnCalls:
        """Probe `ogf_drain_malformed`, which nothing calls by itself."""
        offset = file_offset_of(DRAIN_LIBRARY, "ogf_drain_malformed")
        assert offset is not None
        cookie = wire.Kind.LAUNCH << wire.CookieShift.KIND
        kernel.uprobes.attach("own", DRAIN_LIBRARY, [ProbePoint(Program.CALL, offset, cookie)])
        kernel.targets.set(os.getpid().to_bytes(4, "little"), bytes(wire.TARGET.itemsize))
        return cls(kernel, kernel.open_drain())

    def call(self, times: int) -> None:
        """Make calls, all from one line."""
        for _ in range(times):
            self.drain.malformed(0)
        self.made += times
