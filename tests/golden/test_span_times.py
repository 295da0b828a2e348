"""A recording of an H200 with spans put into its calls: what `replay --traces` writes to spans sums to the totals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from click.testing import CliRunner
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.cli.main import cli
from otel_gpuflame.events import wire
from otel_gpuflame.events.capture_writer import CaptureWriter
from otel_gpuflame.events.records import CallArray, Calls
from otel_gpuflame.events.wire import CallFlag
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.sample_types import GPU_TIME, GPU_WAIT
from tests.integration.collector.sink import OtlpSink
from tests.otlp_json import as_otlp_json

ORIGINAL: Final = Path(__file__).parent / "captures" / "h200_gpu_inference.ogfcap"
TRACE, BATCH_TRACE = bytes([0xA] * 16), bytes([0xB] * 16)
FIRST, PART, SECOND, BATCH, LOST, UNSAMPLED = (bytes([number] * 8) for number in range(1, 7))
ROOTS: Final = {FIRST: FIRST, PART: FIRST, SECOND: SECOND, BATCH: BATCH, LOST: LOST}
TURNS: Final = (FIRST, PART, None, BATCH, SECOND, LOST, UNSAMPLED, PART)
"""Whose turn it is, from one hundred of calls to the next; None: nobody's. LOST is in no file of traces."""
SHARES: Final = {PART: 0.25, SECOND: 0.6}
"""Of the batch. The rest was a member's that was not traced."""
SAMPLE_TYPES: Final = {"gpu.time_ns": GPU_TIME, "gpu.wait_ns": GPU_WAIT}


def marked(rows: CallArray, done: int) -> CallArray:
    """Calls with spans; `done` calls came before them."""
    rows = rows.copy()
    for index, row in enumerate(rows):
        span = TURNS[(done + index) // 100 % len(TURNS)]
        if span is None:
            continue
        row["trace_id"] = np.frombuffer(BATCH_TRACE if span == BATCH else TRACE, np.uint8)
        row["span_id"] = np.frombuffer(span, np.uint8)
        row["flags"] |= CallFlag.HAS_SPAN
        if span != UNSAMPLED:
            row["flags"] |= CallFlag.SPAN_SAMPLED | CallFlag.HAS_LOCAL_ROOT
            row["local_root_span_id"] = np.frombuffer(ROOTS[span], np.uint8)
    return rows


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The capture with spans, its traces, and the unix times between which it was recorded."""

    capture: Path
    traces: Path
    start_ns: int
    end_ns: int


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Made of the original, so that executions find the launches that they had on the device."""
    folder = tmp_path_factory.mktemp("spans")
    capture, traces, done = folder / "spans.ogfcap", folder / "traces.json", 0
    with ReplaySource(ORIGINAL, call_dtype=wire.CALL) as source, capture.open("wb") as file:
        writer = CaptureWriter(file, created={})
        for event in source.events():
            if isinstance(event, Calls):
                writer.write(Calls(marked(event.rows, done)))
                done += len(event.rows)
            else:
                writer.write(event)
        writer.close()
    window = replay(ORIGINAL, AggregateOptions(window_ns=None)).bundles[0].window
    start_ns, end_ns = window.start_unix_ns, window.end_unix_ns
    traces.write_text(json.dumps(as_otlp_json(json_format.MessageToDict(spans(start_ns, end_ns)))))
    return Recorded(capture=capture, traces=traces, start_ns=start_ns, end_ns=end_ns)


def spans(start_ns: int, end_ns: int) -> ExportTraceServiceRequest:
    """Two requests, of which the first has a part and begins as long before the capture as this takes; a batch."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for span_id, parent in ((FIRST, b""), (PART, FIRST), (SECOND, b"remote 1"), (BATCH, b"")):
        span = scope.spans.add(
            name="gpu.batch" if span_id == BATCH else "request",
            trace_id=BATCH_TRACE if span_id == BATCH else TRACE,
            span_id=span_id,
            parent_span_id=parent,
            kind=Span.SPAN_KIND_SERVER,
            start_time_unix_nano=2 * start_ns - end_ns if span_id == FIRST else start_ns,
            end_time_unix_nano=end_ns,
        )
        if span_id == BATCH:
            for member, share in SHARES.items():
                link = span.links.add(trace_id=TRACE, span_id=member)
                link.attributes.add(key="gpu.batch.share").value.double_value = share
    return request


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What arrived: attributes by span, and the samples of times by span, b"" for none."""

    spans: dict[bytes, dict[str, Any]]
    profiles: dict[str, Counter[bytes]]
    estimated: Counter[str]
    """What of it was in the scope of estimates."""


@pytest.fixture(scope="module", params=["local_root", "active"])
def mode(request: pytest.FixtureRequest) -> str:
    """What profiles are linked to. Spans say the same with both."""
    return str(request.param)


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "split"])
def is_split(request: pytest.FixtureRequest) -> bool:
    """Whether batches are divided."""
    return bool(request.param)


@pytest.fixture(scope="module")
def sent(recorded: Recorded, mode: str, is_split: bool) -> Iterator[Sent]:
    """One run of the command against a backend."""
    with OtlpSink() as sink:
        arguments = ["--traces", recorded.traces, "--endpoint", sink.http_endpoint]
        arguments += ["--protocol", "http/protobuf", "--span-link", mode]
        arguments += ["--batch-split"] * is_split
        command = ["replay", str(recorded.capture), *map(str, arguments)]
        result = CliRunner().invoke(cli, command, env={"OTEL_EXPORTER_OTLP_TIMEOUT": "60000"})
        assert result.exit_code == 0, result.output
        yield received(sink)


def received(sink: OtlpSink) -> Sent:
    """Decode it all."""
    found = Sent(spans={}, profiles={name: Counter() for name in SAMPLE_TYPES}, estimated=Counter())
    names = {sample_type.type: name for name, sample_type in SAMPLE_TYPES.items()}
    for each in sink.received:
        if each.signal == "traces":
            for span in each.traces.resource_spans[0].scope_spans[0].spans:
                values = {pair.key: pair.value for pair in span.attributes}
                found.spans[span.span_id] = {
                    key: getattr(value, str(value.WhichOneof("value")))
                    for key, value in values.items()
                }
            continue
        tables = each.profiles.dictionary
        for of_resource in each.profiles.resource_profiles:
            for scope in of_resource.scope_profiles:
                for profile in scope.profiles:
                    name = names.get(tables.string_table[profile.sample_type.type_strindex])
                    if name is None:
                        continue
                    for sample in profile.samples:
                        span_id = tables.link_table[sample.link_index].span_id
                        found.profiles[name][span_id] += sample.values[0]
                        if scope.scope.name.endswith("/estimated"):
                            found.estimated[name] += sample.values[0]
    return found


def total(name: str) -> int:
    """Of the recording before spans were put into it."""
    (bundle,) = replay(ORIGINAL, AggregateOptions(window_ns=None)).bundles
    return next(p.total for p in bundle.profiles if p.sample_type == SAMPLE_TYPES[name])


@pytest.mark.parametrize("name", SAMPLE_TYPES)
def test_spans_and_what_has_none_are_the_total(sent: Sent, name: str, mode: str) -> None:
    """Nothing is lost or counted twice, also with shares of batches: exact to the nanosecond."""
    on_spans = sum(attributes.get(name, 0) for attributes in sent.spans.values())
    rest = sent.profiles[name][b""] + sent.profiles[name][LOST]
    assert sent.profiles[name][LOST] > 0
    assert on_spans > 0
    assert on_spans + rest == total(name)
    by_mode = {
        span_id: attributes.get(name if mode == "active" else name.replace("gpu", "gpu.request"), 0)
        for span_id, attributes in sent.spans.items()
    }
    # And each says what its own profile has.
    linked = sent.profiles[name] - Counter({b"": 1 << 62, LOST: 1 << 62})
    assert +Counter(by_mode) == linked


@pytest.mark.parametrize("name", SAMPLE_TYPES)
def test_a_request_has_its_parts_time(sent: Sent, name: str) -> None:
    """On local roots only: their own and that of the spans below, batches' shares included."""
    request_name = name.replace("gpu", "gpu.request")
    for span_id, attributes in sent.spans.items():
        below = [each for each, root in ROOTS.items() if root == span_id and each in sent.spans]
        expected = sum(sent.spans[each].get(name, 0) for each in below)
        # Each share is rounded where it lands: by span, and by request.
        assert attributes.get(request_name, 0) == pytest.approx(expected, abs=len(below) * 500)
    assert sent.spans[FIRST][request_name] > sent.spans[FIRST][name]


def test_shares_of_batches_are_marked(sent: Sent, is_split: bool) -> None:
    """Members say that a part is an estimate; the batch says what there was to divide."""
    estimated = {span_id for span_id, values in sent.spans.items() if values.get("gpu.estimated")}
    if not is_split:
        assert estimated == set()
        assert sent.estimated.total() == 0
        assert "gpu.batch.time_ns" not in sent.spans[BATCH]
        return
    assert estimated == {PART, SECOND, FIRST}  # The first has its part's, in the whole request.
    for name in SAMPLE_TYPES:
        assert name not in sent.spans[BATCH]
        divided_name = name.replace("gpu", "gpu.batch")
        assert sent.spans[BATCH][divided_name] == sent.estimated[name] > 0


def test_spans_that_were_not_recorded_whole_say_so(sent: Sent) -> None:
    """Of the first request one half was before the recording."""
    assert sent.spans[FIRST]["gpu.coverage"] == pytest.approx(0.5)
    assert sent.spans[PART]["gpu.coverage"] == 1
