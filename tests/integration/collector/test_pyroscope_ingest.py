# SPDX-License-Identifier: Apache-2.0
"""What the Pyroscope double makes of requests that it takes: names, labels, values, stacks. Needs no Collector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from google.protobuf import json_format
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue

from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.integration.collector.example_request import (
    SPAN_ID,
    TRACE_ID,
    profiles_request,
)
from tests.integration.collector.otlp_client import post
from tests.integration.collector.pyroscope_requests import (
    LAUNCH_ID,
    LIMITS,
    PROFILES_PATH,
    WAIT_ID,
    add_attribute,
    add_resource,
    add_timestamps,
    first,
    make_double,
    push,
    refer,
    string,
)


@pytest.fixture
def pyroscope() -> Iterator[PyroscopeDouble]:
    """A double with Pyroscope's own limits."""
    with make_double() as running:
        yield running


def test_the_unbroken_request_is_stored_as_two_types_and_two_series() -> None:
    """Names, labels, stacks, spans and values of the example arrive; each set of sample labels is a series."""
    stored = push(profiles_request())
    assert [(p.profile_type.id, p.labels.get("hw.id"), len(p.samples)) for p in stored] == [
        (WAIT_ID, "GPU-5f2c8b1e", 2),
        (WAIT_ID, None, 1),
        (LAUNCH_ID, "GPU-5f2c8b1e", 1),
    ]
    assert stored[0].labels == {
        "__delta__": "false",
        "__name__": "gpu",
        "__otel__": "true",
        "hw.id": "GPU-5f2c8b1e",
        "process.pid": "4711",
        "service.name": "checkout",
        "service_name": "checkout",
    }
    sample, unlinked = stored[0].samples
    assert sample.stack[:3] == ("main", "step", "loss_item")
    assert (sample.span_id, sample.trace_id) == (SPAN_ID.hex(), TRACE_ID.hex())
    assert (sample.value, unlinked.value, unlinked.span_id) == (2_500_000, 40, "")
    assert stored[1].samples[0].stack == ("main", "/usr/lib/libcuda.so.1 0x7f0000009abc")


@pytest.mark.parametrize(
    ("sample_type", "period_type", "period", "values", "expected"),
    [
        (
            ("samples", "count"),
            ("cpu", "nanoseconds"),
            10,
            (3,),
            ("process_cpu:cpu:nanoseconds:cpu:nanoseconds", 30),
        ),
        (("off_cpu", "nanoseconds"), None, 0, (3, 4), ("off_cpu:off_cpu:nanoseconds::", 7)),
        (
            ("gpu_time", "nanoseconds"),
            ("gpu", "nanoseconds"),
            1,
            (3,),
            ("gpu:gpu_time:nanoseconds:gpu:nanoseconds", 3),
        ),
        (
            ("wall:time", "nanoseconds"),
            ("gpu", "nanoseconds"),
            1,
            (3,),
            ("nanoseconds:wall:time:nanoseconds:gpu:nanoseconds", 3),
        ),
    ],
    ids=["cpu", "off-cpu", "custom", "colon"],
)
def test_profile_types_are_named_by_period_type(
    sample_type: tuple[str, str],
    period_type: tuple[str, str] | None,
    period: int,
    values: tuple[int, ...],
    expected: tuple[str, int],
) -> None:
    """CPU samples become nanoseconds, off-CPU values are summed, all others are named after their period type."""
    request = profiles_request()
    profile = first(request)
    del profile.samples[1:]
    profile.sample_type.type_strindex = string(request, sample_type[0])
    profile.sample_type.unit_strindex = string(request, sample_type[1])
    profile.ClearField("period_type")
    if period_type:
        profile.period_type.type_strindex = string(request, period_type[0])
        profile.period_type.unit_strindex = string(request, period_type[1])
    profile.period = period
    del profile.samples[0].values[:]
    profile.samples[0].values.extend(values)
    stored = push(request)[0]
    assert (stored.profile_type.id, stored.samples[0].value) == expected


def test_timestamps_without_values_are_counted() -> None:
    """A sample with two instants and no value counts two."""
    request = profiles_request()
    add_timestamps(request, values=())
    assert push(request)[0].samples[0].value == 2


def test_service_name_of_a_sample_wins_and_splits_the_profile() -> None:
    """Samples that name a service make a profile of it; the others have the resource's."""
    request = profiles_request()
    add_attribute(request, "service.name", AnyValue(string_value="payments"))
    services = [p.labels["service_name"] for p in push(request)]
    assert services == ["payments", "checkout", "checkout", "checkout"]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ((), "unknown_service"),
        (("process.executable.name",), "unknown_service:process.executable.name"),
    ],
)
def test_without_a_service_name_the_executable_stands_in(
    attributes: tuple[str, ...], expected: str
) -> None:
    """`unknown_service`, with the executable where the resource names it."""
    request = profiles_request()
    del request.resource_profiles[0].resource.attributes[:]
    for key in attributes:
        add_resource(request, key, key)
    assert {p.labels["service_name"] for p in push(request)} == {expected}


def test_a_referenced_string_is_lost() -> None:
    """A key and a string that are only referred to make no label: the service has no name."""
    request = profiles_request()
    refer(request, "service.name")
    assert {p.labels["service_name"] for p in push(request)} == {"unknown_service"}


def test_labels_take_strings_integers_and_lists_of_one() -> None:
    """Booleans, numbers with a point and longer lists are left out."""
    request = profiles_request()
    one, two = AnyValue(string_value="one"), AnyValue(string_value="two")
    add_attribute(request, "number", AnyValue(int_value=7))
    add_attribute(request, "list", AnyValue(array_value=ArrayValue(values=[one])))
    add_attribute(request, "longer", AnyValue(array_value=ArrayValue(values=[one, two])))
    add_attribute(request, "flag", AnyValue(bool_value=True))
    add_attribute(request, "ratio", AnyValue(double_value=0.5))
    labels = push(request)[0].labels
    assert (labels["number"], labels["list"]) == ("7", "one")
    assert not {"longer", "flag", "ratio"} & set(labels)


def test_what_the_resource_says_wins_over_a_sample() -> None:
    """A sample attribute with a key of the resource does not change the series."""
    request = profiles_request()
    add_attribute(request, "process.pid", AnyValue(string_value="1"))
    assert push(request)[0].labels["process.pid"] == "4711"


def test_a_bad_attribute_index_loses_the_profile_silently() -> None:
    """The one loss without an error: success is answered, and nothing of the profile is stored."""
    request = profiles_request()
    first(request).samples[0].attribute_indices.append(99)
    assert [p.profile_type.id for p in push(request)] == [LAUNCH_ID]


def test_stacks_are_cut_at_the_leaf() -> None:
    """Of a stack that is too deep only the frames next to the root stay."""
    stored = push(profiles_request(), replace(LIMITS, max_stack_depth=2))
    assert stored[0].samples[0].stack == ("main", "step", "loss_item")


def test_json_is_read_as_protobuf_writes_it(pyroscope: PyroscopeDouble) -> None:
    """`application/json` has bytes as base64, unlike OTLP's own JSON."""
    body = json_format.MessageToJson(profiles_request()).encode()
    headers = {"Content-Type": "application/json"}
    reply = post(pyroscope.http_endpoint + PROFILES_PATH, body, headers=headers)
    assert reply.status == 200
    assert pyroscope.store.all()[0].samples[0].span_id == SPAN_ID.hex()
