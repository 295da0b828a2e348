"""Target program: two threads that train at once on one GPU, each in a type of number of its own.

Kernels on float64 have `double` in their names, so a kernel's name tells whose it is. One thread's pass has another
pass inside (reentrant checkpoints). Each step is a span. Prints the truth as a JSON line. `--device cpu` tries it out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

STEPS = 40
WIDTH = 256


def make_layers(device: str, number: torch.dtype) -> list[torch.nn.Module]:
    """Some layers in a row."""
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()).to(device, number)
        for _ in range(4)
    ]


def forward_double(layers: list[torch.nn.Module], batch: torch.Tensor) -> torch.Tensor:
    """Each layer is computed again in the backward pass, by a pass of its own."""
    for layer in layers:
        batch = checkpoint(layer, batch, use_reentrant=True)
    return (batch * batch).mean()


def forward_float(layers: list[torch.nn.Module], batch: torch.Tensor) -> torch.Tensor:
    """The usual way."""
    for layer in layers:
        batch = layer(batch)
    return (batch * batch).mean()


def backward_double(loss: torch.Tensor) -> None:
    """The line under which all backward kernels of this thread must be."""
    loss.backward()


def backward_float(loss: torch.Tensor) -> None:
    """The same for the other thread."""
    loss.backward()


def train_double(step: Step) -> None:
    """One thread."""
    step.run(torch.float64, forward_double, backward_double)


def train_float(step: Step) -> None:
    """The other thread."""
    step.run(torch.float32, forward_float, backward_float)


class Step:
    """What both threads do, in step with each other so that their passes overlap."""

    def __init__(self, device: str, steps: int) -> None:
        self.device = device
        self.steps = steps
        self.together = threading.Barrier(2)
        self.spans: dict[str, list[str]] = {"train_double": [], "train_float": []}
        self.tids: list[int] = []
        self.errors: list[str] = []
        self.tracer = start_tracing()

    def run(
        self,
        number: torch.dtype,
        forward: Callable[[list[torch.nn.Module], torch.Tensor], torch.Tensor],
        backward: Callable[[torch.Tensor], None],
    ) -> None:
        """All steps of one thread."""
        name = "train_double" if number is torch.float64 else "train_float"
        self.tids.append(threading.get_native_id())
        try:
            layers = make_layers(self.device, number)
            batch = torch.ones(64, WIDTH, device=self.device, dtype=number, requires_grad=True)
            for _ in range(self.steps):
                with self.span(name):
                    loss = forward(layers, batch)
                    self.together.wait()
                    backward(loss)
            loss.item()
        except BaseException as error:
            self.errors.append(repr(error))
            self.together.abort()

    @contextlib.contextmanager
    def span(self, name: str) -> Any:
        """A span, where OpenTelemetry is installed."""
        if self.tracer is None:
            yield
            return
        with self.tracer.start_as_current_span(name) as span:
            self.spans[name].append(f"{span.get_span_context().span_id:016x}")
            yield


def start_tracing() -> Any:
    """A tracer whose spans are published; None without OpenTelemetry."""
    try:
        from opentelemetry import trace  # noqa: PLC0415 - may be missing
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

        from otel_gpuflame.instrument import install  # noqa: PLC0415
    except ImportError:
        return None
    trace.set_tracer_provider(TracerProvider())
    return trace.get_tracer(__name__) if install() else None


def main() -> None:
    """Train, and say whose the spans are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    if options.device == "cuda":
        torch.cuda.init()
    step = Step(options.device, options.steps)
    threads = [threading.Thread(target=each, args=(step,)) for each in (train_double, train_float)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    truth = {"spans": step.spans, "tids": step.tids, "errors": step.errors}
    print(json.dumps({**truth, "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
