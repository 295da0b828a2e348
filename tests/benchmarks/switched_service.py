"""Target: the example service, in which span publication is switched off and on by lines on standard input.

Run on the fake driver: python -m tests.benchmarks.switched_service, after which it says its port as the service does.
Each line is answered with the process's CPU time in nanoseconds, from before the switch: "on", "off", or anything else
to leave it.
"""

from __future__ import annotations

import contextvars
import ctypes
import gc
import runpy
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import process_time_ns
from typing import Any

from opentelemetry import trace
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext as Runtime

INFERENCE = Path(__file__).parents[2] / "examples" / "inference"


class Publication:
    """The methods that publication replaces, and the SDK's processors: without it, and with it."""

    def __init__(self) -> None:
        self._without = Runtime.attach, Runtime.detach, contextvars.Context.run
        self._with: tuple[Any, Any, Any] | None = None
        self._processors: tuple[object, ...] = ()
        (self._methods_of_context,) = gc.get_referents(contextvars.Context.__dict__)

    def switch(self, *, on: bool) -> None:
        """Between two requests. The service must have installed it before the first call."""
        processors = trace.get_tracer_provider()._active_span_processor  # type: ignore[attr-defined]
        if self._with is None:
            self._with = Runtime.attach, Runtime.detach, contextvars.Context.run
            self._processors = processors._span_processors
            if self._with == self._without or not self._processors:
                sys.exit("span publication is off: make -C otel_gpuflame/native")
        attach, detach, run = self._with if on else self._without
        Runtime.attach, Runtime.detach = attach, detach  # type: ignore[method-assign]
        self._methods_of_context["run"] = run
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(contextvars.Context))
        processors._span_processors = self._processors if on else ()


def obey(publication: Publication) -> None:
    """Until standard input ends."""
    for line in sys.stdin:
        print(process_time_ns(), flush=True)
        if line.strip() in ("on", "off"):
            publication.switch(on=line.strip() == "on")


def without_delay(create: Callable[..., socket.socket]) -> Callable[..., socket.socket]:
    """Else the second half of each answer waits 40 ms until the caller has acknowledged the first."""

    def created(*arguments: Any, **options: Any) -> socket.socket:
        listener = create(*arguments, **options)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener

    return created


def main() -> None:
    """Serve as the example does."""
    socket.create_server = without_delay(socket.create_server)
    # Without: its calls into Python's Context are seen in places that cannot be switched.
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    threading.Thread(target=obey, args=(Publication(),), daemon=True).start()
    sys.path.insert(0, str(INFERENCE))
    sys.argv = ["serve.py", "--device", "driver", "--port", "0"]
    runpy.run_path(str(INFERENCE / "serve.py"), run_name="__main__")


if __name__ == "__main__":
    main()
