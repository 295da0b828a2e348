"""`otel-gpuflame top`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from otel_gpuflame.cli import flags
from otel_gpuflame.cli.top_table import view_json, view_table
from otel_gpuflame.cli.usage import excludes
from otel_gpuflame.pipeline import HostView, WatchOptions, watch

_NS: Final = 1_000_000_000
_WIDTH_WITHOUT_TERMINAL: Final = 160
_LINES_AROUND: Final = 4
"""Title, header, the line for the rest, and the cursor."""


@click.command(
    epilog="""\b
Examples:
  sudo otel-gpuflame top
  sudo otel-gpuflame top --interval 5 --budget 0.5%
  sudo otel-gpuflame top --once
  sudo otel-gpuflame top --json | jq -c '.processes[] | select(.gpu_wait_s_per_s > 0.5)'"""
)
@click.option(
    "-i",
    "--interval",
    "interval_s",
    type=click.FloatRange(0.5, 600),
    default=2,
    show_default=True,
    help="Seconds that one table covers.",
)
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each interval.")
@flags.budget
@flags.duty
@click.option(
    "-n",
    "--rows",
    "limit",
    type=click.IntRange(1),
    help="Processes to show.  [default: what fits; all where there is no terminal]",
)
def top(
    *,
    interval_s: float,
    once: bool,
    as_json: bool,
    budget: float,
    duty: float | None,
    limit: int | None,
) -> None:
    """Show which processes of this host wait for the GPU, how much, and where.

    Captures as the agent does, and sends nothing. Numbers marked ~ are estimates from sampling windows: launches and
    copies, and waits of programs that wait hundreds of times a second. … means that the first window is not over;
    --once waits for it. Needs what the agent needs.
    """
    excludes("--rows", "--json")
    stop = _stop_on_signals()
    options = WatchOptions(
        interval_ns=round(interval_s * _NS), budget=budget, duty=duty, settle=once
    )
    views = watch(options, stop.is_set)
    if as_json:
        for view in _until(views, once):
            click.echo(json.dumps(view_json(view)))
        return
    _show(_until(views, once), limit, is_live=not once)


def _until(views: Iterator[HostView], once: bool) -> Iterator[HostView]:
    for view in views:
        yield view
        if once:
            return


def _show(views: Iterator[HostView], limit: int | None, *, is_live: bool) -> None:
    """A table that is replaced on a terminal; elsewhere one below the other."""
    console = Console(highlight=False)
    if not console.is_terminal:
        width = None if os.environ.get("COLUMNS") else _WIDTH_WITHOUT_TERMINAL
        console = Console(highlight=False, width=width)
        for view in views:
            console.print(view_table(view, limit or sys.maxsize, console.width))
            sys.stdout.flush()
        return
    if not is_live:
        for view in views:
            console.print(view_table(view, limit or sys.maxsize, console.width))
        return
    with Live(Text("…"), console=console, auto_refresh=False, transient=False) as live:
        for view in views:
            fitting = max(console.height - _LINES_AROUND, 1)
            shown = view_table(view, min(limit or fitting, fitting), console.width)
            live.update(shown, refresh=True)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop
