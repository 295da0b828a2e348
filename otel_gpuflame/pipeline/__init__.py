"""Wiring: the only package that knows all stages, and the only one that starts threads."""

from otel_gpuflame.pipeline.agent import AgentControl, AgentOptions, run_agent
from otel_gpuflame.pipeline.recording import RecordOptions, RecordResult, record
from otel_gpuflame.pipeline.replaying import (
    ReplayResult,
    Sending,
    SendSummary,
    replay,
    send_capture,
    shift_ns,
)
from otel_gpuflame.pipeline.watching import HostView, WatchOptions, watch

__all__ = [
    "AgentControl",
    "AgentOptions",
    "HostView",
    "RecordOptions",
    "RecordResult",
    "ReplayResult",
    "SendSummary",
    "Sending",
    "WatchOptions",
    "record",
    "replay",
    "run_agent",
    "send_capture",
    "shift_ns",
    "watch",
]
