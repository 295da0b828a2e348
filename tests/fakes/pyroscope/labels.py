# SPDX-License-Identifier: Apache-2.0
"""Labels of series: where they come from, and which are refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.profiles.v1development import profiles_pb2 as otlp

from otel_gpuflame.encode._vendor import profile_pb2 as pprof
from tests.fakes.pyroscope.convert import SPAN_LABEL, TRACE_LABEL, Converted
from tests.fakes.pyroscope.limits import Limits, invalid
from tests.fakes.pyroscope.values import label_text

Labels = tuple[tuple[str, str], ...]
"""Sorted by name; a name may occur twice until they are checked."""

_UNKNOWN_SERVICE = "unknown_service"


def series_labels(
    converted: Converted, resource: otlp.ResourceProfiles, scope: otlp.ScopeProfiles
) -> Labels:
    """What all samples of a converted profile have in common."""
    labels = [("__delta__", "false"), ("__otel__", "true"), ("__name__", converted.name)]
    seen = {"__name__"}
    for attributes in (resource.resource.attributes, scope.scope.attributes):
        for attribute in attributes:
            text = label_text(attribute.value)
            # A key that is only referred to (`key_strindex`) is empty here, and the value may be as well.
            if text and attribute.key not in seen:
                seen.add(attribute.key)
                labels.append((attribute.key, text))
    service = converted.service_name or service_name(resource.resource.attributes)
    return tuple(sorted([*labels, ("service_name", service)]))


def service_name(attributes: Iterable[KeyValue]) -> str:
    """Of a resource; `unknown_service`, with the executable where it is named."""
    fallback = _UNKNOWN_SERVICE
    for attribute in attributes:
        text = label_text(attribute.value)
        if attribute.key == "service.name" and text:
            return text
        if attribute.key == "process.executable.name" and text:
            fallback += f":{text}"
    return fallback


def split_by_labels(
    message: pprof.Profile, labels: Labels
) -> Iterator[tuple[Labels, list[pprof.Sample]]]:
    """Samples by their labels other than span and trace: each set makes a series of its own."""
    strings = message.string_table
    groups: dict[Labels, list[pprof.Sample]] = {}
    for sample in message.sample:
        own = [(strings[label.key], strings[label.str]) for label in sample.label]
        groups.setdefault(_added(labels, own), []).append(sample)
    yield from groups.items()


def _added(labels: Labels, own: list[tuple[str, str]]) -> Labels:
    names = {name for name, _ in labels}
    added = list(labels)
    for name, value in own:
        # What the series has already wins over what a sample says.
        if name not in names and name not in (SPAN_LABEL, TRACE_LABEL):
            names.add(name)
            added.append((name, value))
    return tuple(sorted(added))


def labels_text(labels: Labels) -> str:
    """As Pyroscope writes them in messages."""
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels) + "}"


def labels_size(labels: Labels) -> int:
    """Bytes that count against the rate of ingestion."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in labels)


def check_labels(labels: Labels, limits: Limits) -> None:
    """Raise a `RefusedError` for labels that no series may have."""
    text = labels_text(labels)
    if len(labels) > limits.max_labels_per_series:
        raise invalid(
            f"profile series {text} has {len(labels)} label names; "
            f"limit {limits.max_labels_per_series}"
        )
    if not dict(labels).get("__name__"):
        raise invalid(f"invalid labels {text}: invalid metric name")
    for name, value in labels:
        if len(name.encode()) > limits.max_label_name_bytes:
            raise invalid(f"profile with labels {text} has label name too long: {name!r}")
        if len(value.encode()) > limits.max_label_value_bytes:
            raise invalid(f"profile with labels {text} has label value too long: {value!r}")
        if not name:
            raise invalid(f"invalid labels {text}: invalid label name {name!r}")
    for (left, _), (right, _) in pairwise(labels):
        if left == right:
            raise invalid(f"profile with labels {text} has duplicate label name: {left!r}")
