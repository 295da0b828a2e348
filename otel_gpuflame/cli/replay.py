"""`otel-gpuflame replay`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from otel_gpuflame.cli import flags
from otel_gpuflame.cli.destination import destination, traces_destination
from otel_gpuflame.cli.device_table import print_devices, print_faults
from otel_gpuflame.cli.findings import print_findings, print_findings_json
from otel_gpuflame.cli.outputs import write_folded, write_html, write_pprof
from otel_gpuflame.cli.replay_traces import send_traces
from otel_gpuflame.cli.tables import human, print_ledger, print_summary, say
from otel_gpuflame.cli.usage import needs
from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.export.options import OtlpOptions
from otel_gpuflame.export.recorded_batches import batch_members
from otel_gpuflame.export.recorded_traces import read_traces
from otel_gpuflame.findings.find import find
from otel_gpuflame.findings.model import Finding
from otel_gpuflame.pipeline import ReplayResult, Sending, send_capture, shift_ns
from otel_gpuflame.pipeline import replay as run_replay
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.batches import split_batches
from otel_gpuflame.profile.select import only_span

_SENT_WINDOW_NS = 10_000_000_000
_SPAN_ID_BYTES = 8


def _span_id(_ctx: click.Context, _option: click.Parameter, value: str | None) -> bytes | None:
    """A callback and not a click type, since these became generic in a version newer than we ask for."""
    if value is None:
        return None
    try:
        span_id = bytes.fromhex(value)
    except ValueError:
        span_id = b""
    if len(span_id) != _SPAN_ID_BYTES or not any(span_id):
        raise click.BadParameter(f"{value!r} is not a span id: 16 hexadecimal digits, not all zero")
    return span_id


@click.command(
    epilog="""\b
Examples:
  otel-gpuflame replay train.ogfcap
  otel-gpuflame replay train.ogfcap --pprof train.pb.gz --html train.html
  otel-gpuflame replay train.ogfcap --span-id 00f067aa0ba902b7 --html step.html
  otel-gpuflame replay train.ogfcap --folded - --sample-type gpu_launch | head
  otel-gpuflame replay train.ogfcap --findings --json | jq '.findings[] | {rule, file, line, lost_ns}'
  otel-gpuflame replay train.ogfcap --endpoint http://127.0.0.1:4318 --protocol http/protobuf
  otel-gpuflame replay service.ogfcap --traces traces.json --endpoint http://127.0.0.1:4317"""
)
@click.argument("capture", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--pprof", type=click.Path(path_type=Path, dir_okay=False), help="Write pprof (gzip)."
)
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a flame graph."
)
@click.option(
    "--folded",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Write folded stacks of --sample-type; - for standard output.",
)
@click.option(
    "--sample-type",
    type=click.Choice([t.type for t in sample_types.SHOWN]),
    default=sample_types.HEADLINE.type,
    show_default=True,
    help="Sample type of --folded.",
)
@click.option("--span-id", metavar="HEX", callback=_span_id, help="Only what belongs to this span.")
@flags.span_link
@click.option("--endpoint", help="Send OTLP profiles to this Collector or backend.")
@flags.protocol
@click.option(
    "--span-attributes",
    is_flag=True,
    help="Send samples with the ids of their span as text too, trace_id and span_id: for backends that do not read "
    "links (Parca).",
)
@click.option("--keep-times", is_flag=True, help="Send with recorded times instead of ending now.")
@click.option(
    "--traces",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Send traces from this file of OTLP JSON beside the profiles that link to them, their times moved alike; "
    "spans get gpu.time_ns and gpu.wait_ns.",
)
@click.option(
    "--batch-split",
    is_flag=True,
    help="Divide what batches did among their members, by the shares in --traces: estimates.",
)
@click.option("--findings", is_flag=True, help="Say why time is lost, where, and what helps.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Findings as JSON, to standard output, tables to standard error.",
)
@flags.rows(10)
def replay(
    *,
    capture: Path,
    pprof: Path | None,
    html: Path | None,
    folded: Path | None,
    sample_type: str,
    span_id: bytes | None,
    span_link: str,
    endpoint: str | None,
    protocol: str | None,
    span_attributes: bool,
    keep_times: bool,
    traces: Path | None,
    batch_split: bool,
    findings: bool,
    as_json: bool,
    limit: int,
) -> None:
    """Make profiles from a capture file, exactly as they would have been made live.

    Headers, TLS, timeout and compression of --endpoint come from OTEL_EXPORTER_OTLP_PROFILES_* or
    OTEL_EXPORTER_OTLP_* variables.
    """
    _check_options()
    to_stdout = folded is not None and str(folded) == "-"
    _check_findings(findings=findings, as_json=as_json, span=span_id, to_stdout=to_stdout)
    _check_sending(endpoint=endpoint, span=span_id, traces=traces, is_split=batch_split)
    if batch_split and pprof is not None:
        raise click.UsageError("--pprof has no place for estimates: leave out --batch-split")
    recorded = [] if traces is None else read_traces(traces)
    link = SpanLink(span_link)
    result = run_replay(capture, AggregateOptions(window_ns=None, span_link=link))
    is_root = link is SpanLink.LOCAL_ROOT
    members = batch_members(recorded, by_local_root=is_root) if batch_split else {}
    bundles = split_batches(result.bundles, members)
    if span_id is not None:
        bundles = only_span(bundles, span_id)
    if span_id is not None and not bundles:
        raise CaptureFileError(
            f"no sample belongs to span {span_id.hex()} with --span-link {span_link}; "
            "spans of the capture are listed in the page that --html writes"
        )
    # Tables would spoil what a pipe expects.
    console = Console(highlight=False, stderr=to_stdout or as_json)
    print_summary(console, bundles, limit)
    print_devices(console, result.devices, limit)
    print_faults(console, result.faults)
    print_ledger(console, result.ledger)
    if findings:
        _print_findings(console, find(result.bundles), as_json=as_json)
    _warn(result)
    if pprof is not None:
        say(console, f"{pprof}: {human(write_pprof(pprof, bundles), 'bytes')}")
    if html is not None:
        title = capture.name if span_id is None else f"{capture.name} · span {span_id.hex()}"
        say(console, f"{html}: {human(write_html(html, bundles, title), 'bytes')}")
    if folded is not None:
        write_folded(folded, bundles, sample_types.by_name(sample_type))
    if endpoint is not None:
        windows = AggregateOptions(window_ns=_SENT_WINDOW_NS, span_link=link)
        end_unix_ns = None if keep_times else time.time_ns()
        to = destination(os.environ, endpoint, protocol)
        what = Sending(end_unix_ns=end_unix_ns, members=members, span_attributes=span_attributes)
        _send(console, capture, windows, to, what)
        if traces is not None:
            by_ns = 0 if end_unix_ns is None else shift_ns(capture, end_unix_ns)
            to = traces_destination(os.environ, endpoint, protocol)
            send_traces(console, capture, recorded, to, by_ns=by_ns, is_split=batch_split)


def _send(
    console: Console,
    capture: Path,
    windows: AggregateOptions,
    options: OtlpOptions,
    what: Sending,
) -> None:
    """Send all windows; exits with 1 if anything was not accepted."""
    summary = send_capture(capture, windows, options, what)
    for message in summary.messages:
        click.echo(f"warning: {message}" if summary.failed == 0 else f"error: {message}", err=True)
    say(
        console,
        f"{options.endpoint} ({options.protocol}): {summary.accepted} of {summary.requests} requests accepted, "
        f"{human(summary.size_bytes, 'bytes')} before compression",
    )
    if summary.failed:
        sys.exit(1)


def _check_options() -> None:
    needs("--sample-type", "--folded")
    needs("--span-link", "--span-id", "--pprof", "--html", "--endpoint", "--batch-split")
    needs("--protocol", "--endpoint")
    needs("--keep-times", "--endpoint")
    needs("--span-attributes", "--endpoint")


def _check_sending(
    *, endpoint: str | None, span: bytes | None, traces: Path | None, is_split: bool
) -> None:
    if endpoint is not None and span is not None:
        raise click.UsageError("--endpoint sends the whole capture: leave out --span-id")
    if is_split and traces is None:
        raise click.UsageError("--batch-split needs the members of batches: give --traces too")
    if traces is not None and endpoint is None and not is_split:
        raise click.UsageError("--traces are sent or split by: give --endpoint or --batch-split")


def _check_findings(*, findings: bool, as_json: bool, span: bytes | None, to_stdout: bool) -> None:
    if as_json and not findings:
        raise click.UsageError("--json is about findings: give --findings too")
    if as_json and to_stdout:
        raise click.UsageError("--json and --folded - both write to standard output")
    if findings and span is not None:
        raise click.UsageError("findings are about whole programs: leave out --span-id")


def _print_findings(console: Console, found: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        print_findings_json(found)
    else:
        say(console, "")
        print_findings(console, found)


def _warn(result: ReplayResult) -> None:
    if result.damage:
        click.echo(f"warning: {result.damage}; what came before it was used", err=True)
    for kind, count in result.skipped_blocks.items():
        click.echo(
            f"warning: {count} blocks of unknown kind {kind} skipped: a newer version wrote them",
            err=True,
        )
