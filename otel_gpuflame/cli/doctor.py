"""`otel-gpuflame doctor`."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from otel_gpuflame.capture import checks
from otel_gpuflame.capture.checks import Check, Status

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


@click.command(
    epilog="""\b
Examples:
  sudo otel-gpuflame doctor
  sudo otel-gpuflame doctor --json | jq '.checks[] | select(.status != "ok")'"""
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def doctor(as_json: bool) -> None:
    """Try everything that capture needs on this host, and name the remedy for what fails.

    Ends with 0 if capture can work, 1 if not.
    """
    results = [check() for check in checks.ALL]
    failed = any(result.status is Status.FAIL for result in results)
    if as_json:
        click.echo(
            json.dumps({"ok": not failed, "checks": [_as_json(r) for r in results]}, indent=2)
        )
    else:
        _print(results)
    sys.exit(1 if failed else 0)


def _as_json(result: Check) -> dict[str, str]:
    return {
        "name": result.name,
        "status": result.status.value,
        "detail": result.detail,
        "remedy": result.remedy,
    }


def _print(results: list[Check]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for result in results:
        style = _STYLES[result.status]
        table.add_row(
            f"[{style}]{result.status.value}[/]", escape(result.name), escape(result.detail)
        )
        if result.remedy and result.status is not Status.OK:
            table.add_row("", "", f"[{style}]→ {escape(result.remedy)}[/]")
    Console(highlight=False).print(table)
