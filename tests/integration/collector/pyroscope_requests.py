# SPDX-License-Identifier: Apache-2.0
"""Requests for the Pyroscope double: the example, and how to change it."""

from __future__ import annotations

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.profiles.v1development.profiles_pb2 import KeyValueAndUnit, Profile

from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.fakes.pyroscope.limits import Limits
from tests.fakes.pyroscope.store import StoredProfile
from tests.integration.collector.example_request import (
    START_UNIX_NS,
)
from tests.integration.collector.otlp_client import export_grpc

Request = ExportProfilesServiceRequest
LIMITS = Limits()
PROFILES_PATH = "/v1development/profiles"
WAIT_ID = "gpu:gpu_wait:nanoseconds:gpu:nanoseconds"
LAUNCH_ID = "gpu:gpu_launch:count:gpu:nanoseconds"


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = START_UNIX_NS

    def __call__(self) -> int:
        return self.now_ns


def make_double(limits: Limits = LIMITS, clock: Clock | None = None) -> PyroscopeDouble:
    """A double whose time is that of the example request."""
    clock = clock or Clock()
    return PyroscopeDouble(limits, unix_ns=clock, monotonic_ns=clock)


def first(request: Request) -> Profile:
    """The `gpu_wait` profile of the example."""
    return request.resource_profiles[0].scope_profiles[0].profiles[0]


def string(request: Request, text: str) -> int:
    """Index of `text`, added to the string table."""
    request.dictionary.string_table.append(text)
    return len(request.dictionary.string_table) - 1


def add_attribute(request: Request, key: str, value: AnyValue) -> None:
    """Give the first sample one more attribute."""
    request.dictionary.attribute_table.append(
        KeyValueAndUnit(key_strindex=string(request, key), value=value)
    )
    index = len(request.dictionary.attribute_table) - 1
    first(request).samples[0].attribute_indices.append(index)


def add_resource(request: Request, key: str, value: str) -> None:
    """Give the resource one more attribute."""
    request.resource_profiles[0].resource.attributes.append(
        KeyValue(key=key, value=AnyValue(string_value=value))
    )


def add_timestamps(request: Request, *, values: tuple[int, ...]) -> None:
    """Two instants on the first sample, beside `values`."""
    sample = first(request).samples[0]
    sample.timestamps_unix_nano.extend([START_UNIX_NS, START_UNIX_NS + 1])
    del sample.values[:]
    sample.values.extend(values)


def many_labels(request: Request) -> None:
    """One label too many for the first series, which has seven; the others have one less."""
    for number in range(LIMITS.max_labels_per_series - 6):
        add_resource(request, f"label.{number}", "x")


def many_sample_labels(request: Request) -> None:
    """One label too many for a sample, which has three: an attribute and its link."""
    for number in range(LIMITS.max_labels_per_sample - 2):
        add_attribute(request, f"label.{number}", AnyValue(string_value="x"))


def many_samples(request: Request) -> None:
    """One sample more than a profile may have."""
    sample = first(request).samples[2]
    first(request).samples.extend([sample] * (LIMITS.max_samples - 2))


def hyphen_type(request: Request) -> None:
    """A sample type that is no name of a metric."""
    first(request).sample_type.type_strindex = string(request, "gpu-wait")


def push(request: Request, limits: Limits = LIMITS) -> tuple[StoredProfile, ...]:
    """What a double stores of `request`, which it must take."""
    with make_double(limits) as pyroscope:
        export_grpc(pyroscope.grpc_endpoint, request)
        return pyroscope.store.all()


def refer(request: Request, key: str) -> None:
    """Move the key of a resource attribute, and a string value, into the string table, as Collectors do."""
    (pair,) = [p for p in request.resource_profiles[0].resource.attributes if p.key == key]
    pair.key, pair.key_strindex = "", string(request, key)
    if pair.value.HasField("string_value"):
        pair.value.string_value_strindex = string(request, pair.value.string_value)
