"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from otel_gpuflame.cli.share import share
from otel_gpuflame.correlate.spans import SpanLink

budget = click.option(
    "--budget",
    metavar="SHARE",
    callback=share,
    default="1%",
    show_default=True,
    help="Share of a target's throughput that capture may cost.",
)
duty = click.option(
    "--duty",
    metavar="SHARE",
    callback=share,
    help="Share of the time in which launches are captured.  [default: what the budget allows]",
)
protocol = click.option(
    "--protocol",
    type=click.Choice(["grpc", "http/protobuf"]),
    help="Of --endpoint.  [default: OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc]",
)
span_link = click.option(
    "--span-link",
    type=click.Choice([mode.value for mode in SpanLink]),
    default=SpanLink.LOCAL_ROOT.value,
    show_default=True,
    help="Link samples to the request's first span in the process, or to the innermost one.",
)


def rows(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """-n, --top: parameter `limit`."""
    return click.option(
        "-n",
        "--top",
        "limit",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="Rows of each table.",
    )
