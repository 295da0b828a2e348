# SPDX-License-Identifier: Apache-2.0
"""`replay --traces`: recorded traces arrive beside the profiles that link to them, at the same times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_gpuflame.cli.main import cli
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from tests.integration.collector.sink import OtlpSink
from tests.integration.collector.sink_types import Reply
from tests.otlp_json import as_otlp_json

CAPTURE = Path(__file__).resolve().parents[3] / "examples" / "captures" / "h200_train.ogfcap"
BATCH_TRACE, MEMBER_TRACE, OTHER_TRACE = (bytes([number] * 16) for number in (0xB, 0xC, 0xD))
MINUTE_NS = 60_000_000_000
ADDED = ["gpu.wait_ns", "gpu.request.wait_ns", "gpu.coverage"]
"""What a span gets that the recording links to. It has no times of executions."""
WITH_SPAN = '{"resourceSpans": [{"scopeSpans": [{"spans": [{%s}]}]}]}'
FLAGS = 0x100
"""Whether the parent is remote is known. The SDK sends no other flag."""


@pytest.fixture(scope="module")
def linked() -> tuple[bytes, bytes, int]:
    """Trace and span id that the recording links to, and the unix time at which it starts."""
    (bundle,) = replay(CAPTURE, AggregateOptions(window_ns=None)).bundles
    link = bundle.links[0]
    return link.trace_id, link.span_id, bundle.window.start_unix_ns


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """A backend that keeps what it gets."""
    with OtlpSink() as running:
        yield running


def requests(trace_id: bytes, span_id: bytes, start_ns: int) -> list[ExportTraceServiceRequest]:
    """A request with everything that spans can have; a batch's member; a trace that no profile links to."""
    full = ExportTraceServiceRequest()
    of_resource = full.resource_spans.add(schema_url="https://example.org/resource")
    of_resource.resource.attributes.add(key="service.name").value.string_value = "inference"
    scope = of_resource.scope_spans.add(schema_url="https://example.org/scope")
    scope.scope.name, scope.scope.version = "service", "1.2"
    server = scope.spans.add(
        name="POST /infer",
        trace_id=trace_id,
        span_id=span_id,
        trace_state="vendor=1",
        flags=FLAGS,
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + 7,
    )
    server.attributes.add(key="text").value.string_value = "ü"
    server.attributes.add(key="flag").value.bool_value = True
    server.attributes.add(key="count").value.int_value = -(1 << 60)
    server.attributes.add(key="ratio").value.double_value = 0.25
    for word in ("a", "b"):
        server.attributes.add(key=word).value.array_value.values.add().string_value = word
    server.status.code, server.status.message = 2, "failed"
    event = server.events.add(name="retry", time_unix_nano=start_ns + 3)
    event.attributes.add(key="attempt").value.int_value = 2
    link = server.links.add(trace_id=MEMBER_TRACE, span_id=b"memberid", flags=FLAGS)
    link.attributes.add(key="gpu.batch.share").value.double_value = 0.5
    scope.spans.add(
        name="child",
        trace_id=trace_id,
        span_id=b"child id",
        parent_span_id=span_id,
        flags=FLAGS,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start_ns + 1,
        end_time_unix_nano=start_ns + 2,
    )
    return [full, *(small(trace, start_ns) for trace in (MEMBER_TRACE, OTHER_TRACE))]


def small(trace_id: bytes, start_ns: int) -> ExportTraceServiceRequest:
    """A request with one span."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.scope.name = "service"
    scope.spans.add(
        name="request",
        trace_id=trace_id,
        span_id=b"memberid",
        flags=FLAGS,
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + 1,
    )
    return request


@pytest.fixture
def traces(linked: tuple[bytes, bytes, int], tmp_path: Path) -> Path:
    """The requests as the Collector's `file` exporter writes them: one a line."""
    path = tmp_path / "traces.json"
    lines = [json_format.MessageToDict(request) for request in requests(*linked)]
    path.write_text("".join(json.dumps(as_otlp_json(line)) + "\n" for line in lines) + "\n")
    return path


def run(*arguments: object) -> Result:
    """The command, without settings of the caller."""
    return CliRunner().invoke(
        cli,
        ["replay", str(CAPTURE), *map(str, arguments)],
        env={"OTEL_EXPORTER_OTLP_TIMEOUT": "60000"},
    )


def spans_of(sink: OtlpSink) -> dict[bytes, tuple[Any, Any, Span]]:
    """What arrived, by trace and span id."""
    return {
        span.trace_id + span.span_id: (of_resource.resource, of_scope.scope, span)
        for received in sink.received
        if received.signal == "traces"
        for of_resource in received.traces.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    }


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_traces_arrive_as_they_were_with_the_times_of_their_profiles(
    protocol: str, sink: OtlpSink, traces: Path, linked: tuple[bytes, bytes, int]
) -> None:
    """All that a span has; moved by exactly what the profiles are moved by; members too, others not."""
    endpoint = f"http://{sink.grpc_endpoint}" if protocol == "grpc" else sink.http_endpoint
    result = run("--traces", traces, "--endpoint", endpoint, "--protocol", protocol)
    assert result.exit_code == 0, result.output
    assert "3 of 3 spans sent" in result.output
    arrived = spans_of(sink)
    sent = requests(*linked)
    (of_resource,) = sent[0].resource_spans
    server, child = of_resource.scope_spans[0].spans
    (member,) = sent[1].resource_spans[0].scope_spans[0].spans
    assert set(arrived) == {each.trace_id + each.span_id for each in (server, child, member)}

    starts_ns = [
        profile.time_unix_nano
        for received in sink.received
        if received.signal == "profiles"
        for of_profile in received.profiles.resource_profiles
        for scope in of_profile.scope_profiles
        for profile in scope.profiles
    ]
    moved_ns = min(starts_ns) - linked[2]
    assert moved_ns > MINUTE_NS
    for span in (server, child, member):
        span.start_time_unix_nano += moved_ns
        span.end_time_unix_nano += moved_ns
        for event in span.events:
            event.time_unix_nano += moved_ns
        span.status.SetInParent()  # The SDK always sends one.
        sent_span = arrived[span.trace_id + span.span_id][2]
        added = [pair for pair in sent_span.attributes if pair.key.startswith("gpu.")]
        assert [pair.key for pair in added] == (ADDED if span is server else [])
        for pair in added:
            sent_span.attributes.remove(pair)
        assert sent_span == span
    resource, scope, _ = arrived[server.trace_id + server.span_id]
    assert resource == of_resource.resource
    assert scope == of_resource.scope_spans[0].scope


def test_recorded_times_are_kept_on_request(
    sink: OtlpSink, traces: Path, linked: tuple[bytes, bytes, int]
) -> None:
    """With `--keep-times` nothing moves."""
    arguments = ("--endpoint", sink.http_endpoint, "--protocol", "http/protobuf", "--keep-times")
    assert run("--traces", traces, *arguments).exit_code == 0
    trace_id, span_id, start_ns = linked
    assert spans_of(sink)[trace_id + span_id][2].start_time_unix_nano == start_ns


def test_ids_of_spans_are_sent_as_text_on_request(
    sink: OtlpSink, linked: tuple[bytes, bytes, int]
) -> None:
    """Beside the links, which come in any case."""
    arguments = ("--endpoint", sink.http_endpoint, "--protocol", "http/protobuf")
    found = []
    for more in ((), ("--span-attributes",)):
        assert run(*arguments, *more).exit_code == 0
        tables = [each.profiles.dictionary for each in sink.received]
        assert any(link.span_id == linked[1] for each in tables for link in each.link_table)
        values = {pair.value.string_value for each in tables for pair in each.attribute_table}
        found.append({linked[0].hex(), linked[1].hex()} <= values)
    assert found == [False, True]


def test_a_receiver_that_takes_no_traces_is_an_error(sink: OtlpSink, traces: Path) -> None:
    """Profiles were sent; what became of the traces is said, and the status is 1."""
    arguments = ("--endpoint", sink.http_endpoint, "--protocol", "http/protobuf")
    assert run(*arguments).exit_code == 0
    profiles = len(sink.received)
    sink.script(*[Reply()] * profiles, Reply.invalid("no traces here"))
    result = run("--traces", traces, *arguments)
    assert result.exit_code == 1
    assert "0 of 3 spans sent" in result.output
    assert "error: traces: " in result.output


def test_kinds_and_codes_that_are_not_known_are_sent_as_unspecified_ones(
    sink: OtlpSink, traces: Path, linked: tuple[bytes, bytes, int]
) -> None:
    """Enumerations of protobuf are open: a newer producer may have a sixth kind, and a fourth code."""
    lines = [json.loads(line) for line in traces.read_text().splitlines() if line]
    span = lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span["kind"], span["status"] = 9, {"code": 7}
    traces.write_text("".join(json.dumps(line) + "\n" for line in lines))

    arguments = ("--endpoint", sink.http_endpoint, "--protocol", "http/protobuf")
    result = run("--traces", traces, *arguments)

    assert result.exit_code == 0, result.output
    assert "3 of 3 spans sent" in result.output
    sent = spans_of(sink)[linked[0] + linked[1]][2]
    assert sent.kind == Span.SPAN_KIND_INTERNAL
    assert sent.status.code == 0


def test_times_that_cannot_move_stay_at_the_end(
    sink: OtlpSink, traces: Path, linked: tuple[bytes, bytes, int]
) -> None:
    """What a producer writes for a span that has not ended may be the last nanosecond that there is."""
    lines = [json.loads(line) for line in traces.read_text().splitlines() if line]
    span = lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span["endTimeUnixNano"] = span["events"][0]["timeUnixNano"] = str(2**64 - 1)
    traces.write_text("".join(json.dumps(line) + "\n" for line in lines))

    arguments = ("--endpoint", sink.http_endpoint, "--protocol", "http/protobuf")
    result = run("--traces", traces, *arguments)

    assert result.exit_code == 0, result.output
    sent = spans_of(sink)[linked[0] + linked[1]][2]
    assert linked[2] < sent.start_time_unix_nano < sent.end_time_unix_nano == 2**64 - 1
    assert sent.events[0].time_unix_nano == 2**64 - 1


def test_a_file_without_a_trace_of_the_capture_says_so(sink: OtlpSink, tmp_path: Path) -> None:
    """Nothing is sent of traces that no profile links to."""
    path = tmp_path / "traces.json"
    line = as_otlp_json(json_format.MessageToDict(small(OTHER_TRACE, 1)))
    path.write_text(json.dumps(line))
    arguments = ("--endpoint", sink.http_endpoint, "--protocol", "http/protobuf")
    result = run("--traces", path, *arguments)
    assert result.exit_code == 0
    assert "no trace of the file has a profile" in result.output
    assert spans_of(sink) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "traces.json:1: not OTLP JSON"),
        ("[]", "traces.json:1: no traces in OTLP JSON"),
        ('{"resourceLogs": []}', "traces.json:1: no traces in OTLP JSON"),
        ('\n{"resourceSpans": 7}', "traces.json:2: not OTLP JSON"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz"}]}]}]}', "not OTLP JSON"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "abcd"}]}]}]}', "is no id"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": 7}]}]}]}', "is no id"),
        ('{"a": ' * 5000 + "1" + "}" * 5000, "not OTLP JSON"),
        (WITH_SPAN % f'"spanId": "{"7" * 32}"', "is no id"),
        (WITH_SPAN % f'"parentSpanId": "{"7" * 32}"', "is no id"),
        (WITH_SPAN % f'"traceId": "{"7" * 16}"', "is no id"),
        (WITH_SPAN % '"kind": Infinity', "traces.json:1: not OTLP JSON"),
        (WITH_SPAN % r'"status": "\ud800"', "traces.json:1: not OTLP JSON"),
        ("\udcff", "cannot read"),
    ],
)
def test_what_is_no_traces_file_is_refused_before_anything_is_sent(
    text: str, reason: str, sink: OtlpSink, tmp_path: Path
) -> None:
    """The message names file, line and cause."""
    path = tmp_path / "traces.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    result = run("--traces", path, "--endpoint", f"http://{sink.grpc_endpoint}")
    assert result.exit_code == 1
    assert reason in str(result.exception) + result.output
    assert sink.received == ()


def test_a_split_keeps_totals_and_shows_members(
    traces: Path, linked: tuple[bytes, bytes, int], tmp_path: Path
) -> None:
    """With the recorded span as a batch of two members, one of them not traced: half is the member's."""
    text = traces.read_text().replace("POST /infer", "gpu.batch")
    traces.write_text(text)
    flags = ("--traces", traces, "--batch-split", "--span-link", "active", "--folded")
    outputs = {}
    for span_id in (None, b"memberid", linked[1]):
        path = tmp_path / "stacks.folded"
        of_span = () if span_id is None else ("--span-id", span_id.hex())
        result = run(*flags, path, *of_span)
        outputs[span_id] = result.exit_code, folded_total(path) if result.exit_code == 0 else 0
    whole = run("--folded", tmp_path / "whole.folded")
    assert whole.exit_code == 0
    assert outputs[None] == (0, folded_total(tmp_path / "whole.folded"))
    before = run(
        "--folded", tmp_path / "one.folded", "--span-link", "active", "--span-id", linked[1].hex()
    )
    assert before.exit_code == 0
    batch_ns = folded_total(tmp_path / "one.folded")
    code, member_ns = outputs[b"memberid"]
    assert code == 0
    assert (
        abs(member_ns - batch_ns / 2) < len((tmp_path / "one.folded").read_text().splitlines()) + 1
    )
    # All that the batch did is its members' now, or nobody's.
    assert outputs[linked[1]] == (1, 0)


def folded_total(path: Path) -> int:
    """Sum of a file of folded stacks."""
    return sum(int(line.rpartition(" ")[2]) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--traces", "traces.json"), "give --endpoint or --batch-split"),
        (("--batch-split",), "give --traces too"),
        (("--span-attributes",), "give --endpoint too"),
        (("--batch-split", "--traces", "t.json", "--pprof", "p.pb.gz"), "leave out --batch-split"),
        (("--endpoint", "http://127.0.0.1:1", "--span-id", "0" * 15 + "1"), "leave out --span-id"),
    ],
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], reason: str) -> None:
    """A usage error, before the capture is read."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert reason in result.output
