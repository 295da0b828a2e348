# SPDX-License-Identifier: Apache-2.0
"""A recorded service, sent through the shipped Collector configuration: its traces into Jaeger, its profiles into the
Pyroscope double, and both into a sink that keeps what the backends get.

The recording is of 12 requests to `examples/inference/serve.py`, as it was when it needed no PyTorch, on the fake
driver and the fake CUPTI, a kernel being 0.2 ms long, by `record --no-cpu --no-driver --pid`; the traces are what it
wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData
from opentelemetry.sdk.trace import ReadableSpan

from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.export.recorded_traces import read_traces
from otel_gpuflame.pipeline import replay as run_replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import GPU_WAIT
from otel_gpuflame.profile.top import total
from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.fakes.pyroscope.store import StoredProfile
from tests.integration.collector.collector import RunningCollector
from tests.integration.collector.jaeger_store import RunningJaeger
from tests.integration.collector.pyroscope_collector import (
    PYROSCOPE_OVERLAY,
    ROOT,
    replay,
    shipped_collector,
)
from tests.integration.collector.resolve import ResolvedProfile, resolve_profiles
from tests.integration.collector.sink import OtlpSink

CAPTURES = ROOT / "tests" / "golden" / "captures"
CAPTURE, TRACES = CAPTURES / "inference_spans.ogfcap", CAPTURES / "inference_spans.traces.json"
SERVICE, REQUESTS, STEPS = "inference", 12, 6
SINK_OVERLAY = {
    "exporters": {"otlp_http/sink": {"endpoint": "${env:SINK_HTTP}"}},
    "service": {
        "pipelines": {
            "profiles": {"exporters": ["otlp_http/profiles", "otlp_http/sink"]},
            "traces": {"exporters": ["otlp_grpc/traces", "otlp_http/sink"]},
        }
    },
}
"""What the backends get is kept too."""
Ids = tuple[str, str]
"""Trace and span, in hexadecimal."""


class Stored(NamedTuple):
    """A span as Jaeger has it, with the attributes of its resource."""

    resource: dict[str, str]
    span: Span

    def attributes(self) -> dict[str, str]:
        """Of the resource, then its own: the order in which Grafana sees them."""
        return self.resource | {a.key: a.value.string_value for a in self.span.attributes}

    def number(self, key: str) -> int:
        """An attribute of the span that is one."""
        return next(a.value.int_value for a in self.span.attributes if a.key == key)


class Sent(NamedTuple):
    """Where the recording has arrived."""

    jaeger: RunningJaeger
    sink: OtlpSink
    pyroscope: PyroscopeDouble
    spans: dict[Ids, Stored]
    """All spans of Jaeger."""


def recorded() -> dict[Ids, ReadableSpan]:
    """The spans of the file, with the times of the recording."""
    spans = read_traces(TRACES)
    return {(f"{s.context.trace_id:032x}", f"{s.context.span_id:016x}"): s for s in spans}


def bundles(link: SpanLink = SpanLink.LOCAL_ROOT) -> list[Bundle]:
    """The recording in one window."""
    return list(run_replay(CAPTURE, AggregateOptions(window_ns=None, span_link=link)).bundles)


def stored(trace: TracesData) -> dict[Ids, Stored]:
    """The spans of an answer."""
    return {
        (span.trace_id.hex(), span.span_id.hex()): Stored(
            {a.key: a.value.string_value for a in of_resource.resource.attributes}, span
        )
        for of_resource in trace.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    }


@contextmanager
def sent_recording(collector_binary: Path, jaeger_binary: Path, folder: Path) -> Iterator[Sent]:
    """Sent once, by the command line of the README, and arrived whole; `folder` is for a configuration."""
    overlay = folder / "sink.yaml"
    overlay.write_text(yaml.safe_dump(SINK_OVERLAY))
    waited_ns = total(bundles(), GPU_WAIT)

    def has_all_waits(profiles: tuple[StoredProfile, ...]) -> bool:
        kept = [p for p in profiles if p.profile_type.sample_type == GPU_WAIT.type]
        return sum(sample.value for p in kept for sample in p.samples) == waited_ns

    with (
        RunningJaeger(jaeger_binary) as jaeger,
        OtlpSink() as sink,
        PyroscopeDouble() as pyroscope,
        shipped_collector(
            collector_binary,
            pyroscope,
            overlays=(PYROSCOPE_OVERLAY, overlay),
            traces_endpoint=jaeger.otlp_grpc_endpoint,
            more_env={"SINK_HTTP": sink.http_endpoint},
        ) as collector,
    ):
        requests = send(collector)
        pyroscope.store.wait_until(has_all_waits, timeout_s=300)
        expected: dict[str, set[Ids]] = {}
        for ids in recorded():
            expected.setdefault(ids[0], set()).add(ids)
        spans: dict[Ids, Stored] = {}
        for trace_id, of_trace in expected.items():
            found = jaeger.wait_for(trace_id, lambda t, e=of_trace: stored(t).keys() >= e)
            spans |= stored(found)
        sink.wait_for(requests, where=lambda received: received.signal == "profiles")
        yield Sent(jaeger, sink, pyroscope, spans)


def send(collector: RunningCollector) -> int:
    """Profiles and traces, over gRPC as by default; returns in how many requests the profiles went."""
    said = replay(
        "--traces", str(TRACES), "--endpoint", f"http://{collector.grpc_endpoint}", capture=CAPTURE
    )
    assert f"{len(recorded())} of {len(recorded())} spans sent" in said
    requests = re.search(r"(\d+) of \1 requests accepted", said)
    assert requests is not None, said
    return int(requests[1])


def profiles_at_the_sink(sink: OtlpSink) -> list[ResolvedProfile]:
    """All that came out of the Collector."""
    return [
        profile
        for received in sink.received
        if received.signal == "profiles"
        for profile in resolve_profiles(received.profiles)
    ]


def spans_at_the_sink(sink: OtlpSink) -> list[Span]:
    """Likewise."""
    return [
        span
        for received in sink.wait_for(1, where=lambda received: received.signal == "traces")
        for of_resource in received.traces.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]
