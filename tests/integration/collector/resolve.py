# SPDX-License-Identifier: Apache-2.0
"""Turns an OTLP profiles request into plain values, so that two requests compare by meaning.

Dictionary tables have no meaning in their order, and a Collector may renumber them, merge them, or
move attribute keys and strings into them. After `resolve_profiles` none of that is visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, TypeVar

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.profiles.v1development.profiles_pb2 import (
    Location,
    Profile,
    ProfilesData,
    ProfilesDictionary,
    Sample,
    ValueType,
)

from otel_gpuflame.errors import OtelGpuflameError

Value: TypeAlias = "str | bool | int | float | bytes | tuple[Value, ...] | Attributes | None"
_Row = TypeVar("_Row")


class ResolveError(OtelGpuflameError):
    """The request refers to something that is not in its dictionary, or breaks a MUST of OTLP."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute; `unit` is empty where OTLP has none (resource, scope, lists of pairs)."""

    key: str
    value: Value
    unit: str = ""


Attributes: TypeAlias = tuple[Attribute, ...]
"""Sorted by key, since OTLP gives no meaning to their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedScope:
    """The instrumentation scope of a profile."""

    name: str
    version: str
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFrame:
    """One line of one location. `address` is 0 and `mapping` empty where there is none."""

    name: str
    system_name: str
    filename: str
    line: int
    address: int
    mapping: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class ResolvedLink:
    """Ids in lower-case hex: 32 and 16 digits."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class ResolvedType:
    """What a number counts, such as (`gpu_wait`, `nanoseconds`)."""

    type: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSample:
    """One sample with all that a reader may group it by. `frames` has the root first."""

    resource: Attributes
    scope: ResolvedScope
    sample_type: ResolvedType
    frames: tuple[ResolvedFrame, ...]
    attributes: Attributes
    link: ResolvedLink | None
    values: tuple[int, ...]
    timestamps_unix_ns: tuple[int, ...]

    @property
    def stack(self) -> tuple[str, ...]:
        """Frame names, root first."""
        return tuple(frame.name for frame in self.frames)

    @property
    def value(self) -> int:
        """The one value; raises `ResolveError` for a sample with none or several."""
        if len(self.values) != 1:
            raise ResolveError(f"sample has {len(self.values)} values, not one: {self.values}")
        return self.values[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedProfile:
    """One Profile message; `samples` in the order in which they were sent."""

    resource: Attributes
    scope: ResolvedScope
    sample_type: ResolvedType
    period_type: ResolvedType
    period: int
    start_unix_ns: int
    duration_ns: int
    profile_id: str
    attributes: Attributes
    samples: tuple[ResolvedSample, ...]


def resolve_samples(
    request: ExportProfilesServiceRequest | ProfilesData,
) -> tuple[ResolvedSample, ...]:
    """Every sample of every profile, in message order."""
    return tuple(s for profile in resolve_profiles(request) for s in profile.samples)


def resolve_profiles(
    request: ExportProfilesServiceRequest | ProfilesData,
) -> tuple[ResolvedProfile, ...]:
    """Every profile, in message order.

    Raises:
        ResolveError: an index is outside its table, a key is given twice, or a link has ids of a
            wrong length.
    """
    reader = _Dictionary(request.dictionary)
    return tuple(
        reader.profile(
            profile,
            resource=reader.key_values(resource_profiles.resource.attributes),
            scope=ResolvedScope(
                name=scope_profiles.scope.name,
                version=scope_profiles.scope.version,
                attributes=reader.key_values(scope_profiles.scope.attributes),
            ),
        )
        for resource_profiles in request.resource_profiles
        for scope_profiles in resource_profiles.scope_profiles
        for profile in scope_profiles.profiles
    )


class _Dictionary:
    """Looks indices up in one request's tables."""

    def __init__(self, tables: ProfilesDictionary) -> None:
        self._tables = tables

    def profile(
        self, profile: Profile, *, resource: Attributes, scope: ResolvedScope
    ) -> ResolvedProfile:
        sample_type = self._type(profile.sample_type)
        return ResolvedProfile(
            resource=resource,
            scope=scope,
            sample_type=sample_type,
            period_type=self._type(profile.period_type),
            period=profile.period,
            start_unix_ns=profile.time_unix_nano,
            duration_ns=profile.duration_nano,
            profile_id=profile.profile_id.hex(),
            attributes=self._attributes(profile.attribute_indices),
            samples=tuple(
                self._sample(sample, resource=resource, scope=scope, sample_type=sample_type)
                for sample in profile.samples
            ),
        )

    def key_values(self, pairs: Sequence[KeyValue]) -> Attributes:
        return _by_key([Attribute(self._key(pair), self._value(pair.value)) for pair in pairs])

    def _sample(
        self,
        sample: Sample,
        *,
        resource: Attributes,
        scope: ResolvedScope,
        sample_type: ResolvedType,
    ) -> ResolvedSample:
        return ResolvedSample(
            resource=resource,
            scope=scope,
            sample_type=sample_type,
            frames=self._frames(sample.stack_index),
            attributes=self._attributes(sample.attribute_indices),
            link=self._link(sample.link_index),
            values=tuple(sample.values),
            timestamps_unix_ns=tuple(sample.timestamps_unix_nano),
        )

    def _frames(self, stack_index: int) -> tuple[ResolvedFrame, ...]:
        stack = _row(self._tables.stack_table, stack_index, "stack_table")
        frames: list[ResolvedFrame] = []
        # OTLP has the leaf first, and in a location the innermost inlined call first.
        for index in reversed(stack.location_indices):
            frames.extend(self._lines(_row(self._tables.location_table, index, "location_table")))
        return tuple(frames)

    def _lines(self, location: Location) -> list[ResolvedFrame]:
        mapping = _row(self._tables.mapping_table, location.mapping_index, "mapping_table")
        mapping_name = self._string(mapping.filename_strindex)
        attributes = self._attributes(location.attribute_indices)
        frames = []
        for line in reversed(location.lines):
            function = _row(self._tables.function_table, line.function_index, "function_table")
            frames.append(
                ResolvedFrame(
                    name=self._string(function.name_strindex),
                    system_name=self._string(function.system_name_strindex),
                    filename=self._string(function.filename_strindex),
                    line=line.line,
                    address=location.address,
                    mapping=mapping_name,
                    attributes=attributes,
                )
            )
        if frames:
            return frames
        unsymbolized = ResolvedFrame(
            name=f"0x{location.address:x}",
            system_name="",
            filename="",
            line=0,
            address=location.address,
            mapping=mapping_name,
            attributes=attributes,
        )
        return [unsymbolized]

    def _link(self, index: int) -> ResolvedLink | None:
        link = _row(self._tables.link_table, index, "link_table")
        if index == 0:
            return None
        if (len(link.trace_id), len(link.span_id)) != (16, 8):
            raise ResolveError(
                f"link_table[{index}] has ids of {len(link.trace_id)} and {len(link.span_id)} "
                "bytes; OTLP wants 16 and 8"
            )
        return ResolvedLink(link.trace_id.hex(), link.span_id.hex())

    def _attributes(self, indices: Sequence[int]) -> Attributes:
        rows = [_row(self._tables.attribute_table, i, "attribute_table") for i in indices]
        return _by_key(
            [
                Attribute(
                    self._string(row.key_strindex),
                    self._value(row.value),
                    self._string(row.unit_strindex),
                )
                for row in rows
            ]
        )

    def _type(self, value_type: ValueType) -> ResolvedType:
        return ResolvedType(
            self._string(value_type.type_strindex), self._string(value_type.unit_strindex)
        )

    def _string(self, index: int) -> str:
        return _row(self._tables.string_table, index, "string_table")

    def _key(self, pair: KeyValue) -> str:
        if pair.key and pair.key_strindex:
            raise ResolveError(f"attribute has both key {pair.key!r} and key_strindex")
        return self._string(pair.key_strindex) if pair.key_strindex else pair.key

    def _value(self, value: AnyValue) -> Value:
        kind = value.WhichOneof("value")
        if kind is None:
            return None
        if kind == "string_value_strindex":
            return self._string(value.string_value_strindex)
        if kind == "array_value":
            return tuple(self._value(item) for item in value.array_value.values)
        if kind == "kvlist_value":
            return self.key_values(value.kvlist_value.values)
        scalar: str | bool | int | float | bytes = getattr(value, kind)
        return scalar


def _row(table: Sequence[_Row], index: int, name: str) -> _Row:
    # A negative index would silently count from the end.
    if not 0 <= index < len(table):
        raise ResolveError(f"index {index} is outside {name}, which has {len(table)} entries")
    return table[index]


def _by_key(attributes: list[Attribute]) -> Attributes:
    ordered = tuple(sorted(attributes, key=lambda attribute: attribute.key))
    for left, right in pairwise(ordered):
        if left.key == right.key:
            raise ResolveError(f"attribute {left.key!r} is given twice: {left}, {right}")
    return ordered
