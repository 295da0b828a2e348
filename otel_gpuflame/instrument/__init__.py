# SPDX-License-Identifier: Apache-2.0
"""Runs inside the application: publishes each thread's active span where a profiler can read it.

The span goes into the thread-context record of OTEP 4947 (``libogf_context.so``); a reader outside
of the process takes it from there. Needs the OpenTelemetry API only and nothing of the agent.

What a thread publishes follows it from one ``contextvars.Context`` to the next: through tasks of
asyncio, uvloop and Trio, callbacks and pools. In a process that uses gevent or eventlet, whose
threads change requests unseen, nothing is published.
"""

from __future__ import annotations

from otel_gpuflame.instrument.batching import batch
from otel_gpuflame.instrument.hook import INSTALLATION
from otel_gpuflame.instrument.instrumentor import GpuflameInstrumentor
from otel_gpuflame.instrument.processor import GpuflameSpanProcessor

__all__ = ["GpuflameInstrumentor", "GpuflameSpanProcessor", "batch", "install", "uninstall"]


def install() -> bool:
    """Starts to publish the spans that become current from now on, in every thread.

    May be called at any time and more than once. Never raises.

    Returns:
        Whether spans are published. If not, one warning in the log says why.
    """
    return INSTALLATION.install()


def uninstall() -> None:
    """Stops publishing. The calling thread's record is cleared now, any other at its next switch.

    Only a thread itself may write its record, so the hooks stay in place, inert, to do that.
    """
    INSTALLATION.uninstall()
