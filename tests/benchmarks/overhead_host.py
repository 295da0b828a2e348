"""The capturing side of gpu_agent_overhead.py, a process of its own as the agent is. Its argument: options as JSON."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Final

from otel_gpuflame.capture.live import LiveOptions
from otel_gpuflame.capture.windows import BudgetOptions
from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events.capture_writer import CaptureWriter
from otel_gpuflame.events.records import Event, SamplingWindow
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from tests.benchmarks.overhead_blocks import NS, Blocks, HostOptions, Sending, tell
from tests.benchmarks.overhead_direct import Direct
from tests.benchmarks.switched_capture import SwitchedCapture
from tests.benchmarks.system_call_cost import added_ns, calls_per_s

AGENT_STEP_NS: Final = 100_000_000
AGENT_POLL_NS: Final = 10_000_000
SYSTEM_CALL_ROUNDS: Final = 12
RECORD_STEP_NS: Final = 50_000_000
"""As in pipeline/agent.py and pipeline/recording.py."""


def agent_parts(options: HostOptions) -> None:
    """Always-on probes beside nothing, then windows beside always-on probes."""
    live = LiveOptions(
        host_wide=True,
        budget=BudgetOptions(),
        cpu=True,
        driver=True,
        gpu=options.gpu,
        poll_ns=AGENT_POLL_NS,
    )
    aggregator = CorrelatingAggregator(
        AggregateOptions(window_ns=10 * NS, span_link=SpanLink.LOCAL_ROOT, sampled=True)
    )
    sending = Sending(options.endpoint)

    def take(events: Iterable[Event]) -> None:
        for event in events:
            sending.hold(aggregator.feed(event))

    with SwitchedCapture(live) as capture:
        tell_load(capture)
        take([capture.start_event()])
        _warm_up(capture, take)
        capture.settle()
        if options.rare_s > 0:
            tell(
                "system_calls",
                per_s=calls_per_s(options.pid, 1.0),
                added_ns=added_ns(
                    capture.attach_tracepoints, capture.detach_tracepoints, SYSTEM_CALL_ROUNDS
                ),
            )
        capture.detach()
        rare = Blocks("rare", capture, take, step_ns=AGENT_STEP_NS)
        rare.drain()
        rare.run(
            options.rare_s,
            options.block_ns,
            (capture.attach, capture.detach),
            begin=sending.send,
            is_done=sending.is_idle,
        )
        capture.attach()

        def begin_window() -> None:
            take([_stratum(2 * options.block_ns)])
            sending.send()

        Blocks("window", capture, take, step_ns=AGENT_STEP_NS, off_captures=True).run(
            options.window_s,
            options.block_ns,
            (capture.open, capture.close_window),
            begin=begin_window,
            is_done=sending.is_idle,
        )
        take(capture.finish())
    sending.hold(aggregator.finish())
    sending.send()
    sending.close()


def tell_load(capture: SwitchedCapture) -> None:
    """What is attached to what."""
    tell(
        "load",
        loader=capture.report.loader,
        missing=sorted(capture.report.missing),
        libraries=[
            [str(each.path), len(each.points), sum(p.windowed for p in each.points)]
            for each in capture.attachments.libraries
        ],
    )


def _warm_up(capture: SwitchedCapture, take: Callable[[Iterable[Event]], None]) -> None:
    """See all stacks once: whoever starts is not in steady state. Windows are open."""
    capture.open()
    take([_stratum(2 * NS)])
    _capture(capture, take, 2 * NS)
    capture.close_window()


def _capture(
    capture: SwitchedCapture, take: Callable[[Iterable[Event]], None], length_ns: int
) -> None:
    end_ns = time.monotonic_ns() + length_ns
    while time.monotonic_ns() < end_ns:
        take(capture.step(AGENT_STEP_NS))


def _stratum(length_ns: int) -> SamplingWindow:
    """A window that begins now."""
    now_ns = time.monotonic_ns()
    return SamplingWindow(now_ns, now_ns + 2 * length_ns, now_ns, now_ns + length_ns, NS // 2)


def record_part(options: HostOptions) -> None:
    """Everything, into a file, beside nothing: as `record --pid` does it."""
    live = LiveOptions(pids=(options.pid,), cpu=True, driver=True)
    aggregator = Aggregator(AggregateOptions(window_ns=None, span_link=None))
    with tempfile.TemporaryFile(buffering=0) as sink, SwitchedCapture(live) as capture:
        writer = CaptureWriter(sink, created={})

        def take(events: Iterable[Event]) -> None:
            for event in events:
                writer.write(event)
                aggregator.feed(event)

        take([capture.start_event()])
        blocks = Blocks("record", capture, take, step_ns=RECORD_STEP_NS)
        _capture(capture, take, NS)
        capture.settle()
        capture.detach()
        blocks.drain()
        blocks.run(options.record_s, options.block_ns, (capture.attach, capture.detach))
        take(capture.finish())
        writer.close()


def main() -> None:
    """All parts, one after the other."""
    logging.basicConfig(level=logging.INFO, format="host: %(message)s", stream=sys.stderr)
    options = HostOptions(**json.loads(sys.argv[1]))
    tell("options", **asdict(options))
    if options.direct_s > 0:
        Direct(options).run()
    if options.rare_s > 0 or options.window_s > 0:
        agent_parts(options)
    if options.record_s > 0:
        record_part(options)


if __name__ == "__main__":
    main()
