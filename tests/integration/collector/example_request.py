# SPDX-License-Identifier: Apache-2.0
"""A profiles request written out by hand, table by table: independent of the project's encoder.

It uses every field that otel_gpuflame sends: two sample types, an inlined call, mangled and
readable kernel names, attributes of locations, mappings and samples, a link, and samples without.
"""

from __future__ import annotations

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.profiles.v1development.profiles_pb2 import (
    Function,
    KeyValueAndUnit,
    Line,
    Link,
    Location,
    Mapping,
    Profile,
    ProfilesDictionary,
    ResourceProfiles,
    Sample,
    ScopeProfiles,
    Stack,
    ValueType,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

DEVELOPMENT_VERSION = ("otlp-profiles-development-version", "1")
"""Collectors from 0.163 check this metadata key, and take only one value."""

TRACE_ID = bytes.fromhex("0af7651916cd43dd8448eb211c80319c")
SPAN_ID = bytes.fromhex("b7ad6b7169203331")
START_UNIX_NS = 1_796_000_000_000_000_000
DURATION_NS = 10_000_000_000

_STRINGS = (
    "",
    "gpu_wait",
    "nanoseconds",
    "gpu_launch",
    "count",
    "gpu",
    "main",
    "train.py",
    "step",
    "loss_item",
    "cuStreamSynchronize",
    "saxpy<float>(float*, float*)",
    "_Z5saxpyIfEvPT_S1_",
    "/usr/lib/libcuda.so.1",
    "hw.id",
    "profile.frame.type",
    "process.executable.build_id.gnu",
    "cuLaunchKernel",
)
_INDEX = {text: index for index, text in enumerate(_STRINGS)}


def profiles_request(*, service_name: str = "checkout") -> ExportProfilesServiceRequest:
    """Two profiles of one process: `gpu_wait` with three samples and `gpu_launch` with one."""
    scope_profiles = ScopeProfiles(
        scope=InstrumentationScope(name="otel_gpuflame", version="0.1.0"),
        profiles=[
            _profile(
                ValueType(type_strindex=_INDEX["gpu_wait"], unit_strindex=_INDEX["nanoseconds"]),
                [
                    Sample(stack_index=1, attribute_indices=[1], link_index=1, values=[2_500_000]),
                    Sample(stack_index=1, attribute_indices=[1], values=[40]),
                    Sample(stack_index=3, values=[7]),
                ],
            ),
            _profile(
                ValueType(type_strindex=_INDEX["gpu_launch"], unit_strindex=_INDEX["count"]),
                [Sample(stack_index=2, attribute_indices=[1], link_index=1, values=[3])],
            ),
        ],
    )
    resource = Resource(
        # Inline keys and strings: backends in use do not read references here.
        attributes=[
            KeyValue(key="service.name", value=AnyValue(string_value=service_name)),
            KeyValue(key="process.pid", value=AnyValue(int_value=4711)),
        ]
    )
    return ExportProfilesServiceRequest(
        resource_profiles=[ResourceProfiles(resource=resource, scope_profiles=[scope_profiles])],
        dictionary=_dictionary(),
    )


def trace_request() -> ExportTraceServiceRequest:
    """The span that the samples' link names."""
    span = Span(
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
        name="POST /checkout",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=START_UNIX_NS,
        end_time_unix_nano=START_UNIX_NS + 5_000_000,
        attributes=[
            KeyValue(key="pyroscope.profile.id", value=AnyValue(string_value=SPAN_ID.hex()))
        ],
    )
    resource = Resource(
        attributes=[KeyValue(key="service.name", value=AnyValue(string_value="checkout"))]
    )
    return ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=[span])])]
    )


def _profile(sample_type: ValueType, samples: list[Sample]) -> Profile:
    return Profile(
        sample_type=sample_type,
        samples=samples,
        time_unix_nano=START_UNIX_NS,
        duration_nano=DURATION_NS,
        period_type=ValueType(type_strindex=_INDEX["gpu"], unit_strindex=_INDEX["nanoseconds"]),
        period=1,
        profile_id=bytes(range(16)),
    )


def _dictionary() -> ProfilesDictionary:
    # Entry 0 of each table is the zero value.
    return ProfilesDictionary(
        string_table=_STRINGS,
        attribute_table=[
            KeyValueAndUnit(),
            _attribute("hw.id", "GPU-5f2c8b1e"),
            _attribute("profile.frame.type", "native"),
            _attribute("profile.frame.type", "cpython"),
            _attribute("process.executable.build_id.gnu", "5c1d0f"),
        ],
        link_table=[Link(), Link(trace_id=TRACE_ID, span_id=SPAN_ID)],
        mapping_table=[
            Mapping(),
            Mapping(
                memory_start=0x7F0000000000,
                memory_limit=0x7F0000400000,
                filename_strindex=_INDEX["/usr/lib/libcuda.so.1"],
                attribute_indices=[4],
            ),
        ],
        function_table=[
            Function(),
            Function(name_strindex=_INDEX["main"], filename_strindex=_INDEX["train.py"]),
            Function(name_strindex=_INDEX["step"], filename_strindex=_INDEX["train.py"]),
            Function(name_strindex=_INDEX["loss_item"], filename_strindex=_INDEX["train.py"]),
            Function(name_strindex=_INDEX["cuStreamSynchronize"]),
            Function(name_strindex=_INDEX["cuLaunchKernel"]),
            Function(
                name_strindex=_INDEX["saxpy<float>(float*, float*)"],
                system_name_strindex=_INDEX["_Z5saxpyIfEvPT_S1_"],
            ),
        ],
        location_table=[
            Location(),
            Location(lines=[Line(function_index=1, line=88)], attribute_indices=[3]),
            # `loss_item` is inlined into `step`: the innermost call comes first.
            Location(
                lines=[Line(function_index=3, line=12), Line(function_index=2, line=30)],
                attribute_indices=[3],
            ),
            Location(
                mapping_index=1,
                address=0x7F0000001234,
                lines=[Line(function_index=4)],
                attribute_indices=[2],
            ),
            Location(
                mapping_index=1,
                address=0x7F0000005678,
                lines=[Line(function_index=5)],
                attribute_indices=[2],
            ),
            Location(lines=[Line(function_index=6)]),
            # No symbol was found for this one.
            Location(mapping_index=1, address=0x7F0000009ABC, attribute_indices=[2]),
        ],
        stack_table=[
            Stack(),
            Stack(location_indices=[5, 3, 2, 1]),
            Stack(location_indices=[5, 4, 2, 1]),
            Stack(location_indices=[6, 1]),
        ],
    )


def _attribute(key: str, value: str) -> KeyValueAndUnit:
    return KeyValueAndUnit(key_strindex=_INDEX[key], value=AnyValue(string_value=value))
