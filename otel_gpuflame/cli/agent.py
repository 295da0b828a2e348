"""`otel-gpuflame agent`."""

from __future__ import annotations

import os
import signal
from types import FrameType

import click

from otel_gpuflame.cli import flags
from otel_gpuflame.cli.destination import destination, logs_destination, metrics_destination
from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.export.options import SelfTelemetryOptions, metric_interval_s
from otel_gpuflame.pipeline import AgentControl, AgentOptions, run_agent

_NS = 1_000_000_000


@click.command(
    epilog="""\b
Examples:
  sudo otel-gpuflame agent
  sudo otel-gpuflame agent --endpoint http://collector:4317 --budget 0.5% --no-self-telemetry
  sudo OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 otel-gpuflame agent --protocol http/protobuf
Signals: SIGUSR1 switches capture off, SIGUSR2 on, SIGTERM sends what is left and ends."""
)
@click.option(
    "--endpoint",
    help="OTLP endpoint.  [default: OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT, "
    "localhost:4317 for gRPC, localhost:4318 for HTTP]",
)
@flags.protocol
@click.option(
    "--window",
    "window_s",
    type=click.FloatRange(1, 3600),
    default=10,
    show_default=True,
    help="Seconds that one profile covers.",
)
@flags.budget
@flags.duty
@click.option(
    "--unwind/--no-unwind",
    default=False,
    show_default=True,
    help="Whole native stacks of code without frame pointers, by unwind tables: not measured beside a GPU yet.",
)
@click.option(
    "--cpu/--no-cpu",
    default=True,
    show_default=True,
    help="Also a CPU profile of the targets: 99 samples a second, and waits off the CPU of 1 ms and more.",
)
@click.option(
    "--driver/--no-driver",
    default=True,
    show_default=True,
    help="Also the targets' system calls on GPU devices.",
)
@click.option(
    "--gpu/--no-gpu",
    default=True,
    show_default=True,
    help="Also when devices executed what they were given, in the same windows as launches, of processes that were "
    "started with our library (otel-gpuflame env).",
)
@flags.span_link
@click.option(
    "--max-spans",
    "most_spans",
    type=click.IntRange(0),
    default=2000,
    show_default=True,
    help="So many spans of a process are linked in a window, those that come first; 0: none. What others did "
    "has no link, and is counted (otel_gpuflame.events, reason too_many).",
)
@click.option(
    "--span-attributes",
    is_flag=True,
    help="Also give samples the ids of their span as text, trace_id and span_id, for backends that do not read links "
    "(Parca). Backends that index attributes, as Pyroscope, get a series for each span.",
)
@click.option(
    "--shutdown",
    "shutdown_s",
    type=click.FloatRange(0),
    default=10,
    show_default=True,
    help="Seconds to send what is left when told to stop.",
)
@click.option(
    "--self-telemetry/--no-self-telemetry",
    default=True,
    show_default=True,
    help="Send metrics about the agent and about GPU waits and launches of each service to the same endpoint.",
)
@click.option(
    "--findings",
    is_flag=True,
    help="Send log events that say why time is lost, where, and what helps, to the same endpoint.",
)
def agent(
    *,
    endpoint: str | None,
    protocol: str | None,
    window_s: float,
    budget: float,
    duty: float | None,
    unwind: bool,
    cpu: bool,
    driver: bool,
    gpu: bool,
    span_link: str,
    most_spans: int,
    span_attributes: bool,
    shutdown_s: float,
    self_telemetry: bool,
    findings: bool,
) -> None:
    """Profile every process of this host that uses a GPU library, and send OTLP profiles to a Collector.

    Waits and launches of graphs are always captured, unless a program makes hundreds a second. Other launches and
    executions are captured in windows, as much as the budget allows, and scaled; estimates come in the scope
    otel_gpuflame/estimated. Needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH,
    CAP_CHECKPOINT_RESTORE).
    """
    control = AgentControl()
    _handle_signals(control)
    options = AgentOptions(
        destination=destination(os.environ, endpoint, protocol),
        window_ns=round(window_s * _NS),
        budget=budget,
        duty=duty,
        unwind=unwind,
        cpu=cpu,
        driver=driver,
        gpu=gpu,
        span_link=SpanLink(span_link),
        most_spans=most_spans,
        span_attributes=span_attributes,
        shutdown_s=shutdown_s,
        self_telemetry=_self_telemetry(endpoint, protocol) if self_telemetry else None,
        findings=logs_destination(os.environ, endpoint, protocol) if findings else None,
    )
    run_agent(options, control)


def _self_telemetry(endpoint: str | None, protocol: str | None) -> SelfTelemetryOptions | None:
    if os.environ.get("OTEL_METRICS_EXPORTER", "").strip().lower() == "none":
        return None
    return SelfTelemetryOptions(
        destination=metrics_destination(os.environ, endpoint, protocol),
        interval_s=metric_interval_s(os.environ),
    )


def _handle_signals(control: AgentControl) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        control.stop.set()

    def switch_off(_number: int, _frame: FrameType | None) -> None:
        control.enabled = False

    def switch_on(_number: int, _frame: FrameType | None) -> None:
        control.enabled = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGUSR1, switch_off)
    signal.signal(signal.SIGUSR2, switch_on)
