# SPDX-License-Identifier: Apache-2.0
"""The bundled recording through the shipped Collector configuration into the Pyroscope double, and out by queries."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_gpuflame.pipeline import replay as run_replay
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.aggregate import AggregateOptions
from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.fakes.pyroscope.store import StoredProfile
from tests.integration.collector.build import BUILD_TIMEOUT_S
from tests.integration.collector.pyroscope_collector import CAPTURE, replay, shipped_collector
from tests.integration.collector.pyroscope_query import ask, flame_graph, span_query, stacks

pytestmark = [pytest.mark.collector, pytest.mark.timeout(BUILD_TIMEOUT_S + 900)]

SERVICE = "train_step.py"
RECORDED = ("gpu_wait", "gpu_launch", "gpu_copy")

ARRIVAL_S = 300.0
WINDOW_NS = 10_000_000_000
"""As `replay --endpoint` cuts them."""


def profile_type_id(kind: str) -> str:
    """The id under which Pyroscope knows one of our sample types."""
    sample = sample_types.by_name(kind)
    period = sample_types.period(sample)
    assert period is not None
    return ":".join((period.type.type, *sample, *period.type))


def longest_wait() -> str:
    """The span of the recording that waits longest, preferably one with samples in several windows."""
    windows: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    for bundle in run_replay(CAPTURE, AggregateOptions(window_ns=WINDOW_NS)).bundles:
        (profile,) = [p for p in bundle.profiles if p.sample_type == sample_types.GPU_WAIT]
        linked = profile.link >= 0
        spans = [bundle.links[link].span_id.hex() for link in profile.link[linked].tolist()]
        windows.update(set(spans))
        for span, value in zip(spans, profile.value[linked].tolist(), strict=True):
            waits[span] += value
    return max(waits, key=lambda span: (windows[span], waits[span]))


def folded(*arguments: str) -> Counter[tuple[str, ...]]:
    """Value by stack, as `replay --folded` prints them."""
    found: Counter[tuple[str, ...]] = Counter()
    for line in replay("--folded", "-", *arguments).splitlines():
        stack, _, value = line.rpartition(" ")
        found[tuple(stack.split(";"))] += int(value)
    return found


class Sent(NamedTuple):
    """Where the recording was sent to, and in which milliseconds its samples lie."""

    url: str
    start_ms: int
    end_ms: int


def is_whole(profiles: tuple[StoredProfile, ...]) -> bool:
    """Whether the waits of all windows have arrived; the tests say whether they are right."""
    waits = [p for p in profiles if p.profile_type.sample_type == sample_types.GPU_WAIT.type]
    windows = {p.time_unix_ns for p in waits}
    kinds = {p.profile_type.sample_type for p in profiles}
    return len(windows) == 2 and kinds == set(RECORDED)


@pytest.fixture(scope="module")
def sent(collector_binary: Path) -> Iterator[Sent]:
    """The recording, sent once through the Collector."""
    with (
        PyroscopeDouble() as pyroscope,
        shipped_collector(collector_binary, pyroscope) as collector,
    ):
        start_ms = time.time_ns() // 1_000_000
        endpoint = f"http://{collector.http_endpoint}"
        replay("--endpoint", endpoint, "--protocol", "http/protobuf")
        pyroscope.store.wait_until(is_whole, timeout_s=ARRIVAL_S)
        # The times ended when it was sent, and the recording is shorter than a minute.
        end_ms = time.time_ns() // 1_000_000
        yield Sent(pyroscope.http_endpoint, start_ms - 60_000, end_ms + 1)


def query(sent: Sent, kind: str, **changes: Any) -> dict[str, Any]:
    """A query for one sample type of the recording's service."""
    fields = {
        "profileTypeID": profile_type_id(kind),
        "labelSelector": f'{{service_name="{SERVICE}"}}',
        "start": sent.start_ms,
        "end": sent.end_ms,
    }
    return {**fields, **changes}


@pytest.mark.parametrize("kind", RECORDED)
def test_every_total_is_that_of_the_recording(sent: Sent, kind: str) -> None:
    """Pyroscope's flame graph has the same sum as `replay`, for each sample type."""
    expected = folded("--sample-type", kind)
    graph = flame_graph(sent.url, query(sent, kind))
    assert int(graph["total"]) == sum(expected.values()) > 0


def test_stacks_are_those_of_the_recording(sent: Sent) -> None:
    """The waits by function name are those of the folded stacks, once lines and files are left out."""
    graph = flame_graph(sent.url, query(sent, "gpu_wait"))
    expected: Counter[tuple[str, ...]] = Counter()
    for stack, value in folded().items():
        expected[tuple(frame.split(" (")[0] for frame in stack)] += value
    assert stacks(graph) == expected


def test_the_query_of_a_span_is_the_profile_of_that_span(sent: Sent) -> None:
    """What Grafana asks when a span is opened, made from our provisioning, gives `replay --span-id`."""
    span_id = longest_wait()
    span = {"service.name": SERVICE, "service.namespace": "x", "pyroscope.profile.id": span_id}
    fields = span_query(span, start_ms=sent.start_ms, end_ms=sent.end_ms)
    graph = flame_graph(sent.url, fields)
    expected = sum(folded("--span-id", span_id).values())
    assert int(graph["total"]) == expected > 0
    whole = int(flame_graph(sent.url, query(sent, "gpu_wait"))["total"])
    assert expected < whole


def test_a_span_of_another_service_finds_nothing(sent: Sent) -> None:
    """The label selector of the provisioning counts as well as the span id."""
    span = {"service.name": "other", "pyroscope.profile.id": longest_wait()}
    fields = span_query(span, start_ms=sent.start_ms, end_ms=sent.end_ms)
    assert flame_graph(sent.url, fields) == {}


def test_grafana_lists_our_types_and_the_service(sent: Sent) -> None:
    """The dashboard's variable and the type menu offer what was sent, and nothing else."""
    times = {"start": sent.start_ms, "end": sent.end_ms}
    _, types = ask(sent.url, "ProfileTypes", times)
    ids = {kind["ID"] for kind in types["profileTypes"]}
    assert ids == {profile_type_id(kind) for kind in RECORDED}
    _, services = ask(sent.url, "LabelValues", {"name": "service_name", **times})
    assert services == {"names": [SERVICE]}


def test_no_number_of_ours_loses_its_name(collector_binary: Path) -> None:
    """The Collector moves keys into the dictionary; since we send numbers as text, Pyroscope takes the request even
    without the second file.
    """
    with (
        PyroscopeDouble() as pyroscope,
        shipped_collector(collector_binary, pyroscope, overlays=()) as collector,
    ):
        endpoint = f"http://{collector.http_endpoint}"
        replay("--endpoint", endpoint, "--protocol", "http/protobuf")
        pyroscope.store.wait_until(is_whole, timeout_s=ARRIVAL_S)
        assert not pyroscope.refusals


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_pyroscope_takes_the_recording_without_a_collector(protocol: str) -> None:
    """Sent directly, over either transport, nothing is refused and the resource makes labels."""
    with PyroscopeDouble() as pyroscope:
        endpoint = pyroscope.http_endpoint if protocol != "grpc" else pyroscope.grpc_endpoint
        replay("--endpoint", endpoint, "--protocol", protocol)
        profiles = pyroscope.store.all()
    assert pyroscope.refusals == ()
    assert is_whole(profiles)
    assert {p.labels["service_name"] for p in profiles} == {SERVICE}
    assert all(p.labels["process.pid"] for p in profiles)
