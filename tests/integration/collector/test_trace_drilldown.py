# SPDX-License-Identifier: Apache-2.0
"""From a trace to its GPU profiles: what Jaeger, the Pyroscope double and a sink got of one recording belongs together,
and a span that Jaeger has leads to the flame graph of that span.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.profile.sample_types import GPU_TIME, GPU_WAIT
from otel_gpuflame.profile.select import only_span
from otel_gpuflame.profile.top import total
from tests.integration.collector.build import BUILD_TIMEOUT_S
from tests.integration.collector.drilldown import (
    REQUESTS,
    SERVICE,
    STEPS,
    Ids,
    Sent,
    bundles,
    profiles_at_the_sink,
    recorded,
    sent_recording,
    spans_at_the_sink,
)
from tests.integration.collector.pyroscope_query import flame_graph, span_query

pytestmark = [pytest.mark.collector, pytest.mark.timeout(BUILD_TIMEOUT_S + 900)]

SHARE = "gpu.batch.share"
PROFILE_ID = "pyroscope.profile.id"


@pytest.fixture(scope="module")
def sent(
    collector_binary: Path, jaeger_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sent]:
    """One sending for all tests."""
    folder = tmp_path_factory.mktemp("drilldown")
    with sent_recording(collector_binary, jaeger_binary, folder) as everywhere:
        yield everywhere


def test_each_link_of_a_profile_is_a_span_that_jaeger_has(sent: Sent) -> None:
    """Requests and steps of the batching worker have profiles, and all of them are there to be clicked on."""
    links = {
        (sample.link.trace_id, sample.link.span_id)
        for profile in profiles_at_the_sink(sent.sink)
        for sample in profile.samples
        if sample.link is not None
    }
    roots = {
        ids for ids, each in sent.spans.items() if each.span.name in ("POST /infer", "gpu.batch")
    }
    assert links == roots
    assert len(roots) == REQUESTS + STEPS


def test_jaeger_has_the_traces_as_they_were_recorded(sent: Sent) -> None:
    """Same spans, same parents; a request's prompt is under it."""
    before = recorded()
    assert sent.spans.keys() == before.keys()
    for ids, each in sent.spans.items():
        parent = before[ids].parent
        assert each.span.name == before[ids].name
        assert each.span.parent_span_id.hex() == (f"{parent.span_id:016x}" if parent else "")
        assert each.resource["service.name"] == SERVICE
    prompts = [each.span for each in sent.spans.values() if each.span.name == "prefill"]
    assert len(prompts) == REQUESTS
    for prompt in prompts:
        parent_ids = prompt.trace_id.hex(), prompt.parent_span_id.hex()
        assert sent.spans[parent_ids].span.name == "POST /infer"


def test_spans_and_profiles_were_moved_by_the_same_time(sent: Sent) -> None:
    """To the nanosecond: otherwise a span's profile would not lie where Grafana looks for it."""
    before = recorded()
    moved_ns = {
        moved
        for ids, each in sent.spans.items()
        for moved in (
            each.span.start_time_unix_nano - before[ids].start_time,
            each.span.end_time_unix_nano - before[ids].end_time,
        )
    }
    starts_ns = [profile.start_unix_ns for profile in profiles_at_the_sink(sent.sink)]
    assert moved_ns == {min(starts_ns) - min(b.window.start_unix_ns for b in bundles())}
    assert min(moved_ns) > 0


def test_batches_are_linked_to_the_requests_that_they_served(sent: Sent) -> None:
    """In Jaeger each link of a step leads to a request that Jaeger has. This version keeps no attributes of links: the
    shares are looked at where the Collector sends them on.
    """
    before = recorded()
    members: set[Ids] = set()
    for ids, each in sent.spans.items():
        if each.span.name != "gpu.batch":
            continue
        linked = {(link.trace_id.hex(), link.span_id.hex()) for link in each.span.links}
        assert linked == {
            (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}")
            for link in before[ids].links
        }
        members |= linked
    assert members == {ids for ids, each in sent.spans.items() if each.span.name == "POST /infer"}
    steps = {
        span.span_id: sum(
            a.value.double_value for link in span.links for a in link.attributes if a.key == SHARE
        )
        for span in spans_at_the_sink(sent.sink)
        if span.name == "gpu.batch"
    }
    assert list(steps.values()) == [pytest.approx(1)] * STEPS


def test_jaeger_finds_the_batches_of_a_service(sent: Sent) -> None:
    """Its search, as its page asks: by service and operation. Members are references there."""
    status, answer = sent.jaeger.get(f"/api/traces?service={SERVICE}&operation=gpu.batch&limit=99")
    assert status == 200
    assert len(answer["data"]) == STEPS
    for trace in answer["data"]:
        (span,) = trace["spans"]
        for reference in span["references"]:
            assert reference["refType"] == "FOLLOWS_FROM"
            assert (reference["traceID"], reference["spanID"]) in sent.spans


def test_jaeger_finds_a_span_by_its_gpu_time(sent: Sent) -> None:
    """`replay` writes to spans what the GPU did for them, so that a trace store can be asked for it."""
    ids, each = next((i, s) for i, s in sent.spans.items() if s.span.name == "prefill")
    gpu_time_ns = each.number("gpu.time_ns")
    assert gpu_time_ns == total(only_span(bundles(SpanLink.ACTIVE), each.span.span_id), GPU_TIME)
    tags = quote(json.dumps({"gpu.time_ns": str(gpu_time_ns)}))
    status, answer = sent.jaeger.get(f"/api/traces?service={SERVICE}&tags={tags}")
    assert status == 200
    assert ids[0] in {trace["traceID"] for trace in answer["data"]}
    assert len(answer["data"]) < REQUESTS


def test_what_grafana_asks_for_a_stored_span_is_the_profile_of_that_span(sent: Sent) -> None:
    """The query is made of the span's attributes and times as they are stored, and of our provisioning. The answer is
    what `replay --span-id` shows, and what the stored span itself says, for each request and each step; together it is
    all that was linked.
    """
    whole, answered = bundles(), 0
    for ids, each in sent.spans.items():
        attributes = each.attributes()
        if PROFILE_ID not in attributes:
            assert each.span.name == "prefill"  # Grafana offers the profile of its request.
            continue
        assert attributes[PROFILE_ID] == ids[1]
        fields = span_query(
            attributes,
            start_ms=each.span.start_time_unix_nano // 1_000_000,
            end_ms=each.span.end_time_unix_nano // 1_000_000,
        )
        graph = flame_graph(sent.pyroscope.http_endpoint, fields)
        expected = total(only_span(whole, bytes.fromhex(ids[1])), GPU_WAIT)
        assert int(graph["total"]) == each.number("gpu.request.wait_ns") == expected > 0
        answered += expected
    assert answered == total(whole, GPU_WAIT)


def test_a_span_is_asked_for_by_the_provisioned_type_service_and_id(sent: Sent) -> None:
    """Word by word, so that a change of the provisioning is seen here."""
    ids, each = next((i, s) for i, s in sent.spans.items() if s.span.name == "gpu.batch")
    start_ms = each.span.start_time_unix_nano // 1_000_000
    assert span_query(each.attributes(), start_ms=start_ms, end_ms=start_ms) == {
        "profileTypeID": "gpu:gpu_wait:nanoseconds:gpu:nanoseconds",
        "labelSelector": '{service_name="inference"}',
        "spanSelector": [ids[1]],
        "start": start_ms - 30_000,
        "end": start_ms + 30_000,
    }


def test_the_recording_holds_what_these_tests_are_about() -> None:
    """Every wait is of a request or a step, and the profiles have the name of the service that the spans have."""
    (bundle,) = bundles()
    (profile,) = (p for p in bundle.profiles if p.sample_type == GPU_WAIT)
    assert (profile.link >= 0).all()
    assert dict(bundle.resource)["service.name"] == SERVICE
