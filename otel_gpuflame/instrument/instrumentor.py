# SPDX-License-Identifier: Apache-2.0
"""What ``opentelemetry-instrument`` loads: the entry point ``opentelemetry_instrumentor``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry import trace

from otel_gpuflame.instrument.hook import INSTALLATION
from otel_gpuflame.instrument.processor import GpuflameSpanProcessor


class GpuflameInstrumentor:
    """Publishes spans and the resource to GPU profilers.

    It has the methods of ``opentelemetry.instrumentation.instrumentor.BaseInstrumentor``, but does
    not derive from it, so that the application need not have that package.
    """

    _extended: list[trace.TracerProvider] = []  # noqa: RUF012 - of the process, as the hooks are

    def instrument(self, **options: Any) -> bool:
        """Installs, and adds a ``GpuflameSpanProcessor`` to the SDK if there is one. Never raises.

        Args:
            options: ``tracer_provider``, else the global one is used. Others are for other
                instrumentors, as is usual.

        Returns:
            Whether spans are published. If not, one warning in the log says why.
        """
        provider = options.get("tracer_provider") or trace.get_tracer_provider()
        add = getattr(provider, "add_span_processor", None)
        if add is not None and not any(known is provider for known in self._extended):
            self._extended.append(provider)
            add(GpuflameSpanProcessor())
        return INSTALLATION.install(getattr(provider, "resource", None))

    def uninstrument(self, **_: Any) -> None:
        """Stops publishing. The processor stays; it changes nothing any more but marks roots."""
        INSTALLATION.uninstall()

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing in particular is instrumented."""
        return ()
