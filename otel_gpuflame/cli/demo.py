"""`otel-gpuflame demo`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from otel_gpuflame.cli import flags
from otel_gpuflame.cli.device_table import print_devices
from otel_gpuflame.cli.findings import print_findings
from otel_gpuflame.cli.outputs import write_html, write_pprof
from otel_gpuflame.cli.slowest_request import print_slowest_request, slowest_request
from otel_gpuflame.cli.tables import human, print_ledger, print_summary, say
from otel_gpuflame.errors import CaptureFileError, ConfigError
from otel_gpuflame.export.recorded_traces import read_traces
from otel_gpuflame.findings.find import find
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions

_NAME: Final = "h200_service.ogfcap"
"""Its traces lie beside it, in a file of OTLP JSON with the same stem."""


@click.command(
    epilog="""\b
Examples:
  otel-gpuflame demo
  otel-gpuflame demo -o /tmp/demo -n 20"""
)
@click.option(
    "-o",
    "--output",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default="out",
    show_default=True,
    help="Directory for demo.pb.gz, demo.html and demo_span.html.",
)
@flags.rows(5)
def demo(directory: Path, limit: int) -> None:
    """Replay the bundled recording of an inference service with PyTorch on an H200. Needs no GPU and no root."""
    _make(directory)
    capture = _bundled_capture()
    traces = capture.with_suffix(".json")
    result = replay(capture, AggregateOptions(window_ns=None))
    console = Console(highlight=False)
    say(console, f"{capture.name}: {result.created.get('target', 'unknown target')}\n")
    print_summary(console, result.bundles, limit)
    print_devices(console, result.devices, limit)
    print_ledger(console, result.ledger)
    say(console, "")
    print_findings(console, find(result.bundles))
    slow = slowest_request(result.bundles, read_traces(traces)) if traces.is_file() else None
    if slow is not None:
        say(console, "")
        print_slowest_request(console, slow)
    pprof, html, span = (directory / f"demo{end}" for end in (".pb.gz", ".html", "_span.html"))
    size = write_html(html, result.bundles, "An inference service on an H200")
    say(console, f"\n{html}: {human(size, 'bytes')}, open it in a browser")
    if slow is not None:
        size = write_html(span, slow.bundles, f"{slow.span.name} {slow.span_id.hex()}")
        say(console, f"{span}: {human(size, 'bytes')}, the slowest request alone")
    command = f"go tool pprof -symbolize=none -top {shlex.quote(str(pprof))}"
    size = write_pprof(pprof, result.bundles)
    say(console, f"{pprof}: {human(size, 'bytes')}, or: {command}")


def _make(directory: Path) -> None:
    """Before the work: whoever cannot write there learns it at once."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make the directory {directory}: {error.strerror}; give another one with -o"
        ) from error


def _bundled_capture() -> Path:
    """In a checkout it lies under examples/, in an installed package beside the code."""
    package = Path(__file__).parents[1]
    for directory in (package.parent / "examples" / "captures", package / "_artifacts"):
        if (directory / _NAME).is_file():
            return directory / _NAME
    raise CaptureFileError(
        f"the bundled recording {_NAME} is missing: run from a checkout of the repository"
    )
