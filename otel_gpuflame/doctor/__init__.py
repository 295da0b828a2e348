"""Runs the checks of this host, of one target, and of the receiver."""

from otel_gpuflame.capture.checks.result import Check, Status
from otel_gpuflame.doctor.run import has_failed, run_checks

__all__ = ["Check", "Status", "has_failed", "run_checks"]
