"""The capturing side of gpu_agent_overhead.py, a process of its own as the agent is. Its argument: options as JSON."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.live import LiveOptions
from otel_gpuflame.capture.live.probing import Probing
from otel_gpuflame.capture.windows import BudgetOptions
from otel_gpuflame.cli.destination import destination
from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events.records import Event, SamplingWindow
from otel_gpuflame.pipeline import AgentOptions
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.pipeline.recording import Recorder
from otel_gpuflame.profile.aggregate import AggregateOptions
from tests.benchmarks.overhead_blocks import NS, Blocks, HostOptions, Sending, tell
from tests.benchmarks.overhead_direct import Direct
from tests.benchmarks.profiler_switch import ProfilerSwitch
from tests.benchmarks.program_statistics import program_statistics
from tests.benchmarks.switched_capture import APART, SwitchedCapture
from tests.benchmarks.system_call_cost import added_ns, calls_per_s

AGENT_STEP_NS: Final = 100_000_000
AGENT_POLL_NS: Final = 10_000_000
AGENT_WINDOW_NS: Final = 10 * NS
SYSTEM_CALL_ROUNDS: Final = 12
PROGRAMS_NS: Final = 5 * NS
RECORD_STEP_NS: Final = 50_000_000
"""As in pipeline/agent.py and pipeline/recording.py."""


def agent_parts(options: HostOptions) -> None:
    """Always-on probes beside nothing, then windows beside always-on probes."""
    agent = AgentOptions(destination=destination({}, options.endpoint, None))
    live = LiveOptions(
        host_wide=True,
        budget=BudgetOptions(),
        unwind=agent.unwind,
        cpu=agent.cpu,
        driver=agent.driver,
        gpu=options.gpu,
        poll_ns=AGENT_POLL_NS,
    )
    aggregator = CorrelatingAggregator(
        AggregateOptions(window_ns=AGENT_WINDOW_NS, span_link=SpanLink.LOCAL_ROOT, sampled=True)
    )
    sending = Sending(options.endpoint, AGENT_WINDOW_NS)

    def take(events: Iterable[Event]) -> None:
        for event in events:
            sending.hold(aggregator.feed(event))

    with SwitchedCapture(live) as capture:
        capture.program = options.pid
        tell_load(capture)
        take([capture.start_event()])
        _warm_up(capture, take)
        tell(
            "arranged",
            waits_are_windowed=capture.probing.waits_are_windowed,
            graph_launches_are_windowed=capture.probing.graph_launches_are_windowed,
        )
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
            begin=partial(sending.send_after, 2 * options.block_ns),
            is_done=sending.is_idle,
        )
        if options.apart_s > 0:
            each_apart(options, capture, take)
        capture.attach()

        def begin_window() -> None:
            take([_stratum(2 * options.block_ns, capture.probing)])
            sending.send_after(2 * options.block_ns)

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


def each_apart(
    options: HostOptions, capture: SwitchedCapture, take: Callable[[Iterable[Event]], None]
) -> None:
    """Each of what is always on beside nothing, unit by unit in turn, and no probe at all; then what programs take."""
    parts: dict[str, tuple[str, ...]] = {"nothing": (), **{part: (part,) for part in APART}}
    blocks = {part: Blocks(f"apart {part}", capture, take, step_ns=AGENT_STEP_NS) for part in parts}
    end_ns = time.monotonic_ns() + round(options.apart_s * NS)
    while time.monotonic_ns() < end_ns:
        for part, only in parts.items():
            blocks[part].unit(options.block_ns, (partial(capture.attach, only), capture.detach))
    capture.attach()
    with program_statistics(capture.kernel.object) as statistics:
        before = statistics()
        _capture(capture, take, PROGRAMS_NS)
        after = statistics()
    tell(
        "programs",
        seconds=PROGRAMS_NS / NS,
        **{
            name: [now - earlier for now, earlier in zip(after[name], before[name], strict=True)]
            for name in after
        },
    )
    capture.detach()
    blocks["nothing"].drain()


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
    """See all stacks once: whoever starts is not in steady state. Windows are open.

    Then choose what is always on, as the agent does when it has seen a stratum: from calls between windows, since
    a program is slower while one is open.
    """
    capture.open()
    take([_stratum(2 * NS)])
    _capture(capture, take, 2 * NS)
    capture.close_window()
    capture.probing.choose_always_on(time.monotonic_ns())
    _capture(capture, take, NS)
    capture.probing.choose_always_on(time.monotonic_ns())


def _capture(
    capture: SwitchedCapture, take: Callable[[Iterable[Event]], None], length_ns: int
) -> None:
    end_ns = time.monotonic_ns() + length_ns
    while time.monotonic_ns() < end_ns:
        take(capture.step(AGENT_STEP_NS))


def _stratum(length_ns: int, probing: Probing | None = None) -> SamplingWindow:
    """A window that begins now. `probing`: in which there is what is windowed at present."""
    now_ns = time.monotonic_ns()
    end_ns, close_ns = now_ns + 2 * length_ns, now_ns + length_ns
    return SamplingWindow(
        *(now_ns, end_ns, now_ns, close_ns, NS // 2),
        with_waits=probing is not None and probing.waits_are_windowed,
        with_graph_launches=probing is not None and probing.graph_launches_are_windowed,
    )


def record_part(options: HostOptions) -> None:
    """Everything, into a file, beside nothing: as `record --pid` does it."""
    live = LiveOptions(pids=(options.pid,), unwind=True, cpu=True, driver=True, gpu=options.gpu)
    with tempfile.TemporaryFile(buffering=0) as sink, SwitchedCapture(live) as capture:
        capture.program = options.pid
        recorder = Recorder(sink, {})
        recorder.take([capture.start_event()])
        blocks = Blocks("record", capture, recorder.take, step_ns=RECORD_STEP_NS)
        _capture(capture, recorder.take, NS)

        def turn_on() -> None:
            capture.attach()
            capture.record(None)

        def turn_off() -> None:
            capture.end_records()
            capture.detach()

        capture.end_records()
        capture.settle()
        capture.detach()
        blocks.drain()
        blocks.run(options.record_s, options.block_ns, (turn_on, turn_off))
        recorder.take(capture.finish())
        recorder.close()


def executions_part(options: HostOptions) -> None:
    """Records of executions, made in the program and taken by us, beside none; no probe at either time."""
    live = LiveOptions(pids=(options.pid,), gpu=True)
    with SwitchedCapture(live) as capture:
        capture.program = options.pid
        _capture(capture, _forget, NS)
        capture.end_records()
        capture.settle()
        capture.detach()
        blocks = Blocks("executions", capture, _forget, step_ns=RECORD_STEP_NS)
        switch = (partial(capture.record, None), capture.end_records)
        blocks.run(options.executions_s, options.block_ns, switch)


def profiler_part(options: HostOptions) -> None:
    """torch.profiler in the program, for CUDA alone, beside nothing. We only switch it."""
    switch = ProfilerSwitch(Path(options.profiler_switch))
    turn_on, turn_off = (partial(switch.turn, on=on) for on in (True, False))
    # The first time it loads what it needs.
    turn_on()
    turn_off()
    with SwitchedCapture(LiveOptions()) as capture:
        blocks = Blocks("profiler", capture, _forget, step_ns=RECORD_STEP_NS)
        blocks.run(options.profiler_s, options.block_ns, (turn_on, turn_off))


def _forget(_events: Iterable[Event]) -> None:
    """For captures of which nothing is wanted."""


def main() -> None:
    """All parts, one after the other."""
    logging.basicConfig(level=logging.INFO, format="host: %(message)s", stream=sys.stderr)
    options = HostOptions(**json.loads(sys.argv[1]))
    tell("options", **asdict(options))
    if options.direct_s > 0:
        Direct(options).run()
    if options.rare_s > 0 or options.window_s > 0 or options.apart_s > 0:
        agent_parts(options)
    if options.record_s > 0:
        record_part(options)
    if options.executions_s > 0:
        executions_part(options)
    # Last: it takes CUPTI from our library.
    if options.profiler_s > 0:
        profiler_part(options)


if __name__ == "__main__":
    main()
