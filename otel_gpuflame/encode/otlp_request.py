"""One OTLP profiles request: the dictionary and the profiles that refer to it.

A request carries its own dictionary, without an entry that nothing refers to and without the same
entry twice. Resource and scope attributes are written inline (`key`, `string_value`): Pyroscope,
Parca and Collectors up to 0.159 do not resolve references there and would lose `service.name`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb

from otel_gpuflame import __version__
from otel_gpuflame.encode.dictionary import UNSEEN, Dictionary, Table, used_entries, valid_text
from otel_gpuflame.encode.rows import Rows, merge
from otel_gpuflame.errors import EncodeError
from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.model import AttributeSet, Bundle, Link, Profile, ValueType

_NO_LINK = Link(b"", b"")
_NO_ATTRIBUTE = (0, "")
_PROFILE_ID_BYTES = 16

# What a sample, a link, an attribute and a location cost in the pprof form that Pyroscope converts
# to, rounded up: field tags and lengths, a value of 10 bytes; two labels with 16 + 32 hexadecimal
# digits; a label; the ids of a location and its function, which OTLP leaves implicit.
_PPROF_SAMPLE_BYTES = 24
_PPROF_LINK_BYTES = 72
_PPROF_ATTRIBUTE_BYTES = 10
_PPROF_LOCATION_BYTES = 12


class Part(NamedTuple):
    """Some samples of one profile: `rows` are positions in its columns."""

    bundle: Bundle
    profile: Profile
    rows: NDArray[np.int64]


class BuiltRequest(NamedTuple):
    """A request, and an upper estimate of the size of all its profiles after conversion to uncompressed pprof."""

    request: ExportProfilesServiceRequest
    converted_bytes: int


def build_request(parts: Sequence[Part]) -> BuiltRequest:
    """Encode `parts`, each with at least one row; profiles keep their order within a bundle."""
    builder = _Builder()
    for bundle in {id(part.bundle): part.bundle for part in parts}.values():
        builder.add(bundle, [part for part in parts if part.bundle is bundle])
    return builder.finish()


class _Columns(NamedTuple):
    """Table indexes of this request by table indexes of a bundle."""

    stacks: NDArray[np.int64]
    links: NDArray[np.int64]
    attribute_sets: NDArray[np.int64]


class _Builder:
    def __init__(self) -> None:
        self._request = ExportProfilesServiceRequest()
        self._dictionary = Dictionary()
        self._links: Table[Link] = Table(_NO_LINK)
        self._attributes: Table[tuple[int, str | int]] = Table(_NO_ATTRIBUTE)
        self._attribute_sets: Table[tuple[int, ...]] = Table(())
        self._resources: dict[AttributeSet, pb.ResourceProfiles] = {}
        self._scopes: dict[tuple[AttributeSet, str], pb.ScopeProfiles] = {}
        self._profiles: list[tuple[pb.Profile, Bundle, Rows]] = []

    def add(self, bundle: Bundle, parts: Sequence[Part]) -> None:
        """Encode `parts`, all of them of `bundle`."""
        columns = self._columns(bundle, parts)
        for part in parts:
            profile, rows = part.profile, part.rows
            samples = merge(
                Rows(
                    columns.stacks[profile.stack[rows]],
                    # -1, "no span", is the last entry and holds 0.
                    columns.links[profile.link[rows]],
                    columns.attribute_sets[profile.attributes[rows]],
                    np.zeros(len(rows), dtype=np.int64),
                    profile.value[rows],
                )
            )
            message = self._scope(bundle).profiles.add()
            self._write_profile(message, bundle, profile.sample_type, samples)
            self._profiles.append((message, bundle, samples))

    def finish(self) -> BuiltRequest:
        """Write the dictionary and the profile ids, which depend on everything else."""
        dictionary = self._request.dictionary
        self._write_dictionary(dictionary)
        self._write_profile_ids(dictionary)
        stack_bytes = np.array([stack.ByteSize() for stack in dictionary.stack_table])
        # A stack costs its tag and length in the table, which pprof spends at each sample.
        shared_bytes = dictionary.ByteSize() - int(stack_bytes.sum())
        shared_bytes += _PPROF_LOCATION_BYTES * len(dictionary.location_table)
        set_bytes = np.array([_PPROF_ATTRIBUTE_BYTES * len(s) for s in self._attribute_sets])
        sizes = [
            shared_bytes
            + _PPROF_SAMPLE_BYTES * len(rows.value)
            + int(stack_bytes[rows.stack].sum())
            + int(set_bytes[rows.attributes].sum())
            + _PPROF_LINK_BYTES * int(np.count_nonzero(rows.link))
            for _, _, rows in self._profiles
        ]
        return BuiltRequest(self._request, sum(sizes))

    def _columns(self, bundle: Bundle, parts: Sequence[Part]) -> _Columns:
        used = used_entries(len(bundle.stacks), (p.profile.stack[p.rows] for p in parts))
        links = np.zeros(len(bundle.links) + 1, dtype=np.int64)
        for index in _used(len(bundle.links), [p.profile.link[p.rows] for p in parts]):
            links[index] = self._link(bundle.links[index])
        sets = np.full(len(bundle.attribute_sets), UNSEEN, dtype=np.int64)
        for index in _used(len(sets), [p.profile.attributes[p.rows] for p in parts]):
            sets[index] = self._attribute_set(bundle.attribute_sets[index])
        return _Columns(self._dictionary.add_stacks(bundle, used, self._location), links, sets)

    def _location(self, frame: Frame) -> int:
        # A mark is not code, so it has no type of code; all others have one, registered or custom.
        kind = "" if frame.kind is FrameKind.MARK else frame.kind.value
        return self._dictionary.location(frame, kind)

    def _link(self, link: Link) -> int:
        if len(link.trace_id) != 16 or len(link.span_id) != 8:
            raise EncodeError(
                f"a span link has ids of {len(link.trace_id)} and {len(link.span_id)} bytes, "
                "not of 16 and 8: correct the source of the span context"
            )
        is_valid = any(link.trace_id) and any(link.span_id)
        return self._links.intern(link) if is_valid else 0

    def _attribute_set(self, attributes: AttributeSet) -> int:
        return self._attribute_sets.intern(
            tuple(self._attribute(key, value) for key, value in attributes)
        )

    def _attribute(self, key: str, value: str | int) -> int:
        return self._attributes.intern((self._dictionary.string(key), value))

    def _scope(self, bundle: Bundle) -> pb.ScopeProfiles:
        key = (bundle.resource, bundle.scope)
        if key not in self._scopes:
            self._scopes[key] = self._resource(bundle.resource).scope_profiles.add()
            self._scopes[key].scope.name = bundle.scope
            self._scopes[key].scope.version = __version__
        return self._scopes[key]

    def _resource(self, resource: AttributeSet) -> pb.ResourceProfiles:
        if resource not in self._resources:
            message = self._request.resource_profiles.add()
            # Integers as text too: a newer Collector (0.165.0 does, 0.158.0 does not) moves keys of resource attributes
            # into the dictionary. Pyroscope then makes a nameless label of an integer and refuses the whole request.
            message.resource.attributes.extend(
                KeyValue(key=valid_text(key), value=AnyValue(string_value=valid_text(str(value))))
                for key, value in resource
            )
            self._resources[resource] = message
        return self._resources[resource]

    def _write_profile(
        self, message: pb.Profile, bundle: Bundle, sample_type: ValueType, rows: Rows
    ) -> None:
        message.sample_type.CopyFrom(self._value_type(sample_type))
        period = sample_types.period(sample_type)
        if period is not None:
            message.period_type.CopyFrom(self._value_type(period.type))
            message.period = period.value
        message.time_unix_nano = bundle.window.start_unix_ns
        message.duration_nano = bundle.window.duration_ns
        message.attribute_indices.extend(
            self._attribute(key, value) for key, value in bundle.profile_attributes
        )
        sets = list(self._attribute_sets)
        add = message.samples.add
        for stack, link, attributes, value in zip(
            rows.stack.tolist(),
            rows.link.tolist(),
            rows.attributes.tolist(),
            rows.value.tolist(),
            strict=True,
        ):
            add(
                stack_index=stack,
                link_index=link,
                attribute_indices=sets[attributes],
                values=(value,),
            )

    def _value_type(self, value_type: ValueType) -> pb.ValueType:
        string = self._dictionary.string
        return pb.ValueType(
            type_strindex=string(value_type.type), unit_strindex=string(value_type.unit)
        )

    def _write_dictionary(self, message: pb.ProfilesDictionary) -> None:
        """Fill every table, those first whose entries still add strings and attributes."""
        tables = self._dictionary
        for mapping in tables.mappings:
            build_id = mapping.build_id
            message.mapping_table.add(
                filename_strindex=mapping.file,
                attribute_indices=[self._attribute("process.executable.build_id.gnu", build_id)]
                if build_id
                else [],
            )
        for location in tables.locations:
            frame_type = location.frame_type
            entry = message.location_table.add(
                mapping_index=location.mapping,
                address=location.address,
                attribute_indices=[self._attribute("profile.frame.type", frame_type)]
                if frame_type
                else [],
            )
            if location.function:
                entry.lines.add(function_index=location.function, line=location.line)
        for function in tables.functions:
            message.function_table.add(
                name_strindex=function.name,
                system_name_strindex=function.system_name,
                filename_strindex=function.file,
            )
        for stack in tables.stacks:
            message.stack_table.add(location_indices=stack)
        for link in self._links:
            message.link_table.add(trace_id=link.trace_id, span_id=link.span_id)
        message.attribute_table.add()
        for _, (key, value) in self._attributes.used():
            message.attribute_table.add(key_strindex=key, value=_any_value(value))
        message.string_table.extend(tables.strings)

    def _write_profile_ids(self, dictionary: pb.ProfilesDictionary) -> None:
        """Ids are hashes of the content, so replaying a capture gives the same ids again."""
        shared = blake2b(dictionary.SerializeToString(deterministic=True)).digest()
        for position, (message, bundle, _) in enumerate(self._profiles):
            # The position keeps two equal profiles apart, as of a bundle that was passed twice.
            origin = repr((position, bundle.resource, bundle.scope))
            content = blake2b(shared, digest_size=_PROFILE_ID_BYTES)
            content.update(origin.encode("utf-8", "backslashreplace"))
            content.update(message.SerializeToString(deterministic=True))
            message.profile_id = content.digest()


def _used(length: int, columns: Sequence[NDArray[np.int32]]) -> list[int]:
    indexes: list[int] = np.flatnonzero(used_entries(length, columns)).tolist()
    return indexes


def _any_value(value: str | int) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=valid_text(value))
    return AnyValue(int_value=value)
