"""Each conformance rule fires on a request that breaks it, so that silence means conformance."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb

from otel_gpuflame.encode.otlp import encode_otlp
from tests.contract import conformance
from tests.contract.conformance import rules_of, violations
from tests.unit.encode.bundles import waits_and_launches

Request: TypeAlias = ExportProfilesServiceRequest
Breakage: TypeAlias = Callable[[Request], object]


def good_request() -> Request:
    """A request without violations; each test breaks a copy of its own."""
    (request,) = encode_otlp([waits_and_launches()])
    return request


def first(request: Request) -> pb.Profile:
    """The first profile of `request`."""
    return request.resource_profiles[0].scope_profiles[0].profiles[0]


def add_timestamp(request: Request, *times_ns: int) -> None:
    """Give the first sample timestamps."""
    first(request).samples[0].timestamps_unix_nano.extend(times_ns)


def start_ns(request: Request) -> int:
    """Start of the first profile."""
    return first(request).time_unix_nano


def repeat_key(request: Request) -> None:
    """Put two attributes with one key on the first sample."""
    table = request.dictionary.attribute_table
    for text in ("one", "two"):
        entry = table.add(key_strindex=table[1].key_strindex)
        entry.value.string_value = text
        first(request).samples[0].attribute_indices.append(len(table) - 1)


def many_samples(request: Request) -> None:
    """More samples than Pyroscope takes in a profile."""
    first(request).samples.extend([first(request).samples[0]] * 16_001)


def deep_stack(request: Request) -> None:
    """A stack that is small in the dictionary, but that pprof repeats for each sample."""
    request.dictionary.stack_table[1].location_indices.extend([1] * 2_000)
    first(request).samples.extend([first(request).samples[0]] * 4_000)


def resource_attribute(request: Request, key: str, value: str | float) -> None:
    """Add a resource attribute."""
    attribute = request.resource_profiles[0].resource.attributes.add(key=key)
    if isinstance(value, str):
        attribute.value.string_value = value
    else:
        attribute.value.double_value = value


def many_labels(request: Request) -> None:
    """More attributes than Pyroscope takes as labels of a series."""
    for number in range(20):
        resource_attribute(request, f"label.{number}", "x")


def remove_service_name(request: Request) -> None:
    """Remove the resource attribute by which backends file a profile."""
    attributes = request.resource_profiles[0].resource.attributes
    del attributes[[attribute.key for attribute in attributes].index("service.name")]


def rename(request: Request, old: str, new: str) -> None:
    """Call something else."""
    strings = request.dictionary.string_table
    strings[list(strings).index(old)] = new


BREAKAGES: list[tuple[str, Breakage]] = [
    ("request-size", lambda r: r.dictionary.string_table.append("x" * 5_000_000)),
    ("empty", lambda r: r.ClearField("resource_profiles")),
    ("empty", lambda r: r.resource_profiles.add()),
    ("empty", lambda r: r.resource_profiles[0].scope_profiles.add()),
    ("empty", lambda r: first(r).ClearField("samples")),
    (
        "profile-id-twice",
        lambda r: r.resource_profiles[0].scope_profiles[0].profiles.append(first(r)),
    ),
    ("profile-id-length", lambda r: setattr(first(r), "profile_id", b"short")),
    ("profile-id-length", lambda r: setattr(first(r), "profile_id", bytes(16))),
    ("attribute-key-twice", repeat_key),
    ("attribute-key-twice", lambda r: resource_attribute(r, "service.name", "again")),
    ("inline-attributes", lambda r: resource_attribute(r, "", "value")),
    (
        "inline-attributes",
        lambda r: setattr(
            r.resource_profiles[0].resource.attributes[0].value, "string_value_strindex", 1
        ),
    ),
    ("zero-element", lambda r: r.dictionary.string_table.insert(0, "first")),
    ("zero-element", lambda r: r.dictionary.ClearField("link_table")),
    ("zero-element", lambda r: setattr(r.dictionary.link_table[0], "trace_id", bytes(16))),
    ("zero-element", lambda r: setattr(r.dictionary.mapping_table[0], "memory_limit", 1)),
    ("index-range", lambda r: setattr(first(r).samples[0], "stack_index", 1_000)),
    ("index-range", lambda r: setattr(first(r).samples[0], "link_index", -1)),
    ("index-range", lambda r: setattr(r.dictionary.function_table[1], "name_strindex", 1_000)),
    ("mapping-range", lambda r: setattr(r.dictionary.mapping_table[1], "memory_start", 5)),
    ("negative-line", lambda r: setattr(r.dictionary.location_table[1].lines[0], "line", -1)),
    ("negative-line", lambda r: setattr(r.dictionary.function_table[1], "start_line", -1)),
    ("function-nameless", lambda r: r.dictionary.location_table[1].lines.add()),
    ("function-nameless", lambda r: r.dictionary.function_table.add(start_line=3)),
    ("link-length", lambda r: setattr(r.dictionary.link_table[1], "span_id", b"123")),
    ("duplicate-entry", lambda r: r.dictionary.string_table.append(r.dictionary.string_table[1])),
    ("duplicate-entry", lambda r: r.dictionary.stack_table.append(r.dictionary.stack_table[1])),
    ("orphan-entry", lambda r: r.dictionary.string_table.append("nobody refers to this")),
    ("orphan-entry", lambda r: r.dictionary.link_table.add(trace_id=b"t" * 16, span_id=b"s" * 8)),
    ("sample-type", lambda r: first(r).ClearField("sample_type")),
    ("original-payload", lambda r: setattr(first(r), "original_payload", b"pprof")),
    ("sample-without-value", lambda r: first(r).samples[0].ClearField("values")),
    ("values-and-timestamps", lambda r: add_timestamp(r, start_ns(r), start_ns(r) + 1)),
    ("timestamp-range", lambda r: add_timestamp(r, start_ns(r) + first(r).duration_nano)),
    ("mixed-shapes", lambda r: add_timestamp(r, start_ns(r))),
    ("one-value", lambda r: first(r).samples[0].values.append(2)),
    ("sample-identity-twice", lambda r: first(r).samples.append(first(r).samples[0])),
    ("pyroscope-period", lambda r: first(r).ClearField("period")),
    ("pyroscope-period", lambda r: first(r).ClearField("period_type")),
    ("pyroscope-off-cpu-period", lambda r: rename(r, "gpu_wait", "off_cpu")),
    ("pyroscope-cpu-samples", lambda r: rename(r, "gpu", "cpu")),
    ("pyroscope-time", lambda r: first(r).ClearField("time_unix_nano")),
    ("pyroscope-time", lambda r: first(r).ClearField("duration_nano")),
    ("pyroscope-samples", many_samples),
    ("pyroscope-one-value", lambda r: first(r).samples[0].values.append(2)),
    ("pyroscope-profile-size", deep_stack),
    ("pyroscope-service-name", remove_service_name),
    ("pyroscope-labels", many_labels),
    ("pyroscope-attribute-type", lambda r: resource_attribute(r, "ratio", 0.5)),
    ("pyroscope-label-size", lambda r: resource_attribute(r, "long", "x" * 3_000)),
    ("pyroscope-label-size", lambda r: resource_attribute(r, "k" * 2_000, "x")),
    (
        "parca-scope-name",
        lambda r: r.resource_profiles[0].scope_profiles[0].scope.ClearField("name"),
    ),
]


@pytest.mark.parametrize(("rule", "break_it"), BREAKAGES)
def test_rule_fires(rule: str, break_it: Breakage) -> None:
    """A request broken in one way violates the rule against that."""
    request = good_request()
    assert violations(request) == []

    break_it(request)

    assert rule in rules_of(violations(request))


def test_every_rule_is_broken_here() -> None:
    """No rule exists that the list of breakages does not exercise."""
    source = Path(conformance.__file__).read_text()

    assert set(re.findall(r'Violation\("([a-z-]+)"', source)) == {rule for rule, _ in BREAKAGES}
