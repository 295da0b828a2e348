"""Wiring: the only package that knows all stages, and the only one that starts threads."""

from otel_gpuflame.pipeline.agent import AgentControl, AgentOptions, run_agent
from otel_gpuflame.pipeline.recording import RecordOptions, RecordResult, record
from otel_gpuflame.pipeline.replaying import ReplayResult, SendSummary, replay, send_capture

__all__ = [
    "AgentControl",
    "AgentOptions",
    "RecordOptions",
    "RecordResult",
    "ReplayResult",
    "SendSummary",
    "record",
    "replay",
    "run_agent",
    "send_capture",
]
