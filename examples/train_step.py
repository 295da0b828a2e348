"""A training loop that waits for the GPU once a step, to look at in a flame graph.

One transformer layer is trained with AdamW on random data. `log_loss()` calls `.item()`, which
waits until the GPU has finished the step: the classic reason why a GPU idles between steps. Where
OpenTelemetry is installed, each step is a span.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

EXAMPLES = """\
examples:
  python examples/train_step.py --steps 500              on the GPU
  python examples/train_step.py --device cpu --steps 20  without one
  python examples/train_step.py --layers 6 --no-loss     without the wait in log_loss()
"""

NO_TORCH = "train_step.py: torch (PyTorch) is not installed: pip install torch"
NO_CUDA = "train_step.py: torch finds no CUDA device; use --device cpu to run without one"

WIDTH = 512
HEADS = 8
FEED_FORWARD = 2048
BATCH = 32
SEQUENCE = 128

SpanFactory = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Model, optimiser and one batch of shape (BATCH, SEQUENCE, WIDTH)."""

    torch: Any
    model: Any
    optimizer: Any
    batch: Any
    target: Any
    device: str

    def step(self) -> Any:
        """Forward, backward, update; returns the loss, still on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.torch.nn.functional.mse_loss(self.model(self.batch), self.target)
        loss.backward()
        self.optimizer.step()
        return loss

    def synchronize(self) -> None:
        """Wait for all work of the device."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def import_torch() -> Any:
    """Import torch, or exit with the remedy."""
    try:
        import torch  # noqa: PLC0415 - --help must work without it
    except ImportError:
        sys.exit(NO_TORCH)
    return torch


def make_trainer(torch: Any, device: str, layers: int) -> Trainer:
    """Build the model on the device; the same numbers in every run."""
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(NO_CUDA)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, FEED_FORWARD, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    shape = (BATCH, SEQUENCE, WIDTH)
    return Trainer(
        torch=torch,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        batch=torch.randn(shape, device=device),
        target=torch.randn(shape, device=device),
        device=device,
    )


def start_tracing() -> SpanFactory:
    """A factory of spans named train_step, of empty contexts where OpenTelemetry is missing."""
    try:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    except ImportError:
        return contextlib.nullcontext
    trace.set_tracer_provider(TracerProvider())
    tracer = trace.get_tracer("train_step")
    publish_spans()
    return lambda: tracer.start_as_current_span("train_step")


def publish_spans() -> None:
    """Let a profiler see which span is active, where otel_gpuflame is installed."""
    try:
        from otel_gpuflame.instrument import install  # noqa: PLC0415
    except ImportError:
        return
    install()


def log_loss(loss: Any) -> float:
    """Fetch the loss from the device: this is where the program waits."""
    value: float = loss.item()
    return value


def train(trainer: Trainer, steps: int, span: SpanFactory, *, with_loss: bool) -> float:
    """Run the steps; returns the last loss."""
    last = float("nan")
    loss = None
    for _ in range(steps):
        with span():
            loss = trainer.step()
            if with_loss:
                last = log_loss(loss)
    return last if with_loss or loss is None else log_loss(loss)


def options_from_command_line() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200, help="measured steps (default 200)")
    parser.add_argument("--warmup", type=int, default=5, help="steps before them (default 5)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, default=1, help="transformer layers (default 1)")
    parser.add_argument("--no-loss", action="store_true", help="do not fetch the loss every step")
    options = parser.parse_args()
    if options.steps < 1 or options.warmup < 0 or options.layers < 1:
        parser.error("--steps and --layers must be at least 1, --warmup at least 0")
    return options


def main() -> None:
    """Train and print the rate."""
    options = options_from_command_line()
    trainer = make_trainer(import_torch(), options.device, options.layers)
    span = start_tracing()
    print(f"pid {os.getpid()}", flush=True)
    with_loss = not options.no_loss
    train(trainer, options.warmup, span, with_loss=with_loss)
    trainer.synchronize()
    begin = time.perf_counter()
    loss = train(trainer, options.steps, span, with_loss=with_loss)
    trainer.synchronize()
    rate = options.steps / (time.perf_counter() - begin)
    print(f"{rate:.1f} steps/s, loss {loss:.4f}")


if __name__ == "__main__":
    main()
