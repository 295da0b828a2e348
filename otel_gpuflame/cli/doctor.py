"""`otel-gpuflame doctor`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from otel_gpuflame.cli import flags
from otel_gpuflame.cli.destination import destination
from otel_gpuflame.doctor import Check, Status, has_failed, run_checks
from otel_gpuflame.export.options import OtlpOptions

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red", Status.SKIP: "dim"}
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@click.command(
    epilog="""\b
Examples:
  sudo otel-gpuflame doctor
  sudo otel-gpuflame doctor --pid 4242
  sudo otel-gpuflame doctor --endpoint http://127.0.0.1:4317
  sudo otel-gpuflame doctor --json | jq '.checks[] | select(.status == "warn" or .status == "fail")'"""
)
@click.option("-p", "--pid", type=click.IntRange(1), help="Also check this process as a target.")
@click.option(
    "--endpoint",
    help="Also send one small profile there.  [default: OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT, "
    "OTEL_EXPORTER_OTLP_ENDPOINT, if one is set]",
)
@flags.protocol
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def doctor(*, pid: int | None, endpoint: str | None, protocol: str | None, as_json: bool) -> None:
    """Try everything that capture needs on this host, and name the remedy for what fails.

    Every right is tried by an operation that it guards. The profile that is sent belongs to a service called
    otel_gpuflame.doctor. Ends with 0 if capture can work and what was asked for does, 1 if not.
    """
    results = list(run_checks(pid=pid, receiver=_receiver(endpoint, protocol)))
    failed = has_failed(results)
    if as_json:
        click.echo(
            json.dumps({"ok": not failed, "checks": [_as_json(r) for r in results]}, indent=2)
        )
    else:
        _print(results)
    sys.exit(1 if failed else 0)


def _receiver(endpoint: str | None, protocol: str | None) -> OtlpOptions | None:
    """Where to send, if anybody said so."""
    if endpoint is None and not any(os.environ.get(name) for name in _ENDPOINTS):
        if protocol is not None:
            raise click.UsageError(
                f"--protocol without an endpoint would do nothing: give --endpoint, or set {_ENDPOINTS[1]}"
            )
        return None
    return destination(os.environ, endpoint, protocol)


def _as_json(result: Check) -> dict[str, str]:
    return {
        "name": result.name,
        "status": result.status.value,
        "detail": result.detail,
        "remedy": result.remedy,
    }


def _print(results: Iterable[Check]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for result in results:
        style = _STYLES[result.status]
        table.add_row(
            f"[{style}]{result.status.value}[/]", escape(result.name), escape(result.detail)
        )
        if result.remedy:
            table.add_row("", "", f"[{style}]→ {escape(result.remedy)}[/]")
    Console(highlight=False).print(table)
