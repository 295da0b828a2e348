"""A training loop that waits for the GPU once a step, to look at in a flame graph.

One transformer layer is trained with AdamW on random data. `log_loss()` calls `.item()`, which
waits until the GPU has finished the step: the classic reason why a GPU idles between steps. Where
OpenTelemetry is installed, each step is a span, and a trace of its own.
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
from pathlib import Path
from typing import Any

EXAMPLES = """\
examples:
  python examples/train_step.py --steps 500              on the GPU
  python examples/train_step.py --device cpu --steps 20  without one
  python examples/train_step.py --batch 256 --layers 4   enough work to keep a large GPU busy
  python examples/train_step.py --no-loss                without the wait in log_loss()
  sudo otel-gpuflame record -o train.ogfcap -- python examples/train_step.py --traces traces.json
"""

NO_TORCH = "train_step.py: torch (PyTorch) is not installed: pip install torch"
NO_CUDA = "train_step.py: torch finds no CUDA device; use --device cpu to run without one"

WIDTH = 512
HEADS = 8
FEED_FORWARD = 2048
SEQUENCE = 128

SpanFactory = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Model, optimiser and one batch of shape (batch, SEQUENCE, WIDTH)."""

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


def make_trainer(torch: Any, device: str, layers: int, batch: int) -> Trainer:
    """Build the model on the device; the same numbers in every run."""
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(NO_CUDA)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, FEED_FORWARD, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    shape = (batch, SEQUENCE, WIDTH)
    return Trainer(
        torch=torch,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        batch=torch.randn(shape, device=device),
        target=torch.randn(shape, device=device),
        device=device,
    )


def start_tracing(traces: Path | None) -> SpanFactory:
    """A factory of spans named train_step, of empty contexts where OpenTelemetry is missing."""
    try:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    except ImportError as error:
        if traces is not None:
            sys.exit(f"train_step.py: --traces needs opentelemetry-sdk: {error}")
        return contextlib.nullcontext
    provider = TracerProvider(resource=Resource.create({"service.name": "train_step"}))
    publish_spans(provider)
    if traces is not None:
        write_spans(provider, traces)
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("train_step")
    return lambda: tracer.start_as_current_span("train_step")


def publish_spans(provider: Any) -> None:
    """Let a profiler see which span is active, where otel_gpuflame is installed."""
    try:
        from otel_gpuflame.instrument import GpuflameSpanProcessor, install  # noqa: PLC0415
    except ImportError:
        return
    provider.add_span_processor(GpuflameSpanProcessor())
    install()


def write_spans(provider: Any, traces: Path) -> None:
    """Have spans written to a file, all of them by the end of the program."""
    sys.path.append(str(Path(__file__).parent / "inference"))
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from traces_file import TracesFile  # noqa: PLC0415

    provider.add_span_processor(BatchSpanProcessor(TracesFile(traces)))


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
    parser.add_argument("--batch", type=int, default=32, help="sequences a step (default 32)")
    parser.add_argument("--no-loss", action="store_true", help="do not fetch the loss every step")
    parser.add_argument("--traces", type=Path, help="write spans to this file, as OTLP JSON")
    options = parser.parse_args()
    if min(options.steps, options.layers, options.batch) < 1 or options.warmup < 0:
        parser.error("--steps, --layers and --batch must be at least 1, --warmup at least 0")
    return options


def main() -> None:
    """Train and print the rate."""
    options = options_from_command_line()
    trainer = make_trainer(import_torch(), options.device, options.layers, options.batch)
    span = start_tracing(options.traces)
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
