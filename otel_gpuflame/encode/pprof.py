"""Bundles to one pprof file, as `go tool pprof` and everything built on it reads.

pprof knows neither resources nor spans. Spans become the labels `trace_id` and `span_id` (which
Pyroscope understands), attributes become labels. What all bundles say about their target goes into
comments; where bundles are of several targets, the attributes in which these differ become labels,
so that no two targets melt together.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame import __version__
from otel_gpuflame.encode._vendor import profile_pb2
from otel_gpuflame.encode.dictionary import Dictionary, Table, used_entries
from otel_gpuflame.encode.rows import Rows, concatenate, pivot
from otel_gpuflame.errors import EncodeError
from otel_gpuflame.events.frames import Frame
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.model import AttributeSet, Bundle, Link, Profile, ValueType

_GZIP_LEVEL = 6
_GZIP_CONTAINER = 31
"""zlib's way to ask for a gzip header. It writes no time and no name: equal input, equal bytes."""

Labels: TypeAlias = tuple[tuple[str, str], ...]


def encode_pprof(bundles: Sequence[Bundle]) -> bytes:
    """Encode all profiles of `bundles` as one gzip-compressed pprof file.

    Equal input gives equal bytes. Each sample has one value per sample type. Types without samples
    are left out unless all are empty.

    Raises:
        EncodeError: exact and estimated values (different scopes) would share a file.
    """
    return compress(build_pprof(bundles).SerializeToString(deterministic=True))


def compress(data: bytes) -> bytes:
    """Gzip `data` with neither time nor name in the header."""
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_CONTAINER)
    return compressor.compress(data) + compressor.flush()


def build_pprof(bundles: Sequence[Bundle]) -> profile_pb2.Profile:
    """The message that `encode_pprof` compresses."""
    scopes = {bundle.scope for bundle in bundles}
    if len(scopes) > 1:
        raise EncodeError(
            f"one pprof file cannot hold the scopes {', '.join(sorted(scopes))}: "
            "exact and estimated values must not be added up; write a file for each scope"
        )
    builder = _Builder(bundles)
    rows = [row for bundle in bundles for row in builder.rows(bundle)]
    return builder.message(concatenate(rows))


class _Builder:
    """Tables of one file, filled bundle by bundle, then written at once."""

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        self._bundles = bundles
        self._types = _sample_types(bundles)
        self._differing = _differing_keys(bundle.resource for bundle in bundles)
        self._dictionary = Dictionary()
        self._labels: Table[Labels] = Table(())
        executable = _main_binary(bundles)
        if executable:
            # Mapping id 1: readers call the whole profile by the name of the first mapping.
            self._dictionary.mapping(*executable)

    def rows(self, bundle: Bundle) -> list[Rows]:
        """Samples of `bundle` by the tables of this file; `attributes` are label sets with links."""
        profiles = [profile for profile in bundle.profiles if profile.value.size]
        used = used_entries(len(bundle.stacks), (profile.stack for profile in profiles))
        stacks = self._dictionary.add_stacks(bundle, used, self._location)
        return [
            Rows(
                stacks[profile.stack],
                np.zeros(len(profile.value), dtype=np.int64),
                self._label_column(bundle, profile),
                np.full(len(profile.value), self._types.index(profile.sample_type)),
                profile.value * _pprof_type(profile.sample_type)[1],
            )
            for profile in profiles
        ]

    def message(self, rows: Rows) -> profile_pb2.Profile:
        """The whole profile. Strings come last, since everything else still adds some."""
        message = profile_pb2.Profile()
        self._write_samples(message, rows)
        self._write_header(message)
        self._write_locations(message)
        self._write_mappings(message)
        message.string_table.extend(self._dictionary.strings)
        return message

    def _location(self, frame: Frame) -> int:
        return self._dictionary.location(frame, frame_type="")

    def _label_column(self, bundle: Bundle, profile: Profile) -> NDArray[np.int64]:
        target = tuple(item for item in bundle.resource if item[0] in self._differing)
        width = len(bundle.attribute_sets)
        pairs = (profile.link.astype(np.int64) + 1) * width + profile.attributes
        distinct, inverse = np.unique(pairs, return_inverse=True)
        numbers = np.zeros(len(distinct), dtype=np.int64)
        for position, pair in enumerate(distinct.tolist()):
            link, attributes = divmod(pair, width)
            labels = _label_set(
                (*target, *bundle.attribute_sets[attributes]),
                bundle.links[link - 1] if link else None,
            )
            numbers[position] = self._labels.intern(labels)
        return numbers[inverse]

    def _write_samples(self, message: profile_pb2.Profile, rows: Rows) -> None:
        identities, values = pivot(rows, len(self._types))
        stacks = list(self._dictionary.stacks)
        labels = [self._label_messages(label_set) for label_set in self._labels]
        for stack, label_set, sample_values in zip(
            identities.stack.tolist(),
            identities.attributes.tolist(),
            values.tolist(),
            strict=True,
        ):
            message.sample.add(
                location_id=stacks[stack], value=sample_values, label=labels[label_set]
            )

    def _label_messages(self, labels: Labels) -> list[profile_pb2.Label]:
        string = self._dictionary.string
        return [profile_pb2.Label(key=string(key), str=string(value)) for key, value in labels]

    def _write_header(self, message: profile_pb2.Profile) -> None:
        string = self._dictionary.string
        message.sample_type.extend(self._value_type(_pprof_type(type_)[0]) for type_ in self._types)
        headline = sample_types.HEADLINE
        default = headline if headline in self._types else self._types[0]
        message.default_sample_type = string(_pprof_type(default)[0].type)
        # There is one period a file: that of the type which is shown first.
        period = sample_types.period(default)
        if period is not None:
            message.period_type.CopyFrom(self._value_type(period.type))
            message.period = period.value
        comments = [f"otel_gpuflame {__version__}"]
        if self._bundles:
            windows = [bundle.window for bundle in self._bundles]
            message.time_nanos = min(window.start_unix_ns for window in windows)
            message.duration_nanos = (
                max(window.end_unix_ns for window in windows) - message.time_nanos
            )
            comments += [
                f"{key}={value}"
                for key, value in self._bundles[0].resource
                if key not in self._differing
            ]
        message.comment.extend(string(comment) for comment in comments)

    def _value_type(self, value_type: ValueType) -> profile_pb2.ValueType:
        string = self._dictionary.string
        return profile_pb2.ValueType(type=string(value_type.type), unit=string(value_type.unit))

    def _write_locations(self, message: profile_pb2.Profile) -> None:
        for number, location in self._dictionary.locations.used():
            entry = message.location.add(
                id=number, mapping_id=location.mapping, address=location.address
            )
            entry.line.add(function_id=location.function, line=location.line)
        for number, function in self._dictionary.functions.used():
            message.function.add(
                id=number,
                name=function.name,
                system_name=function.system_name,
                filename=function.file,
            )

    def _write_mappings(self, message: profile_pb2.Profile) -> None:
        functions = list(self._dictionary.functions)
        without_file: set[int] = set()
        without_line: set[int] = set()
        for _, location in self._dictionary.locations.used():
            if not functions[location.function].file:
                without_file.add(location.mapping)
            if not location.line:
                without_line.add(location.mapping)
        for number, mapping in self._dictionary.mappings.used():
            message.mapping.add(
                id=number,
                filename=mapping.file,
                build_id=self._dictionary.string(mapping.build_id),
                has_functions=True,
                has_filenames=number not in without_file,
                has_line_numbers=number not in without_line,
            )


def _sample_types(bundles: Sequence[Bundle]) -> list[ValueType]:
    """Types that have samples, in display order; all types where none has."""
    profiles = [profile for bundle in bundles for profile in bundle.profiles]
    filled = [profile for profile in profiles if profile.value.size]
    types = dict.fromkeys(profile.sample_type for profile in filled or profiles)
    return list(types) or [sample_types.HEADLINE]


def _pprof_type(sample_type: ValueType) -> tuple[ValueType, int]:
    """What a type is called here, and by how much its values are multiplied.

    A file has one period for all types, so CPU samples carry the time that they stand for.
    """
    if sample_type == sample_types.CPU_SAMPLES:
        return sample_types.CPU_PERIOD.type, sample_types.CPU_PERIOD.value
    return sample_type, 1


def _differing_keys(resources: Iterable[AttributeSet]) -> frozenset[str]:
    """Keys of the attributes that not all resources have with the same value."""
    sets = [frozenset(resource) for resource in resources]
    shared = frozenset.intersection(*sets) if sets else frozenset()
    return frozenset(key for items in sets for key, _ in items - shared)


def _main_binary(bundles: Sequence[Bundle]) -> tuple[str, str] | None:
    """Path and build id of the first target's executable; its bare name if no frame lies in it."""
    for bundle in bundles:
        name = dict(bundle.resource).get("process.executable.name")
        if not name:
            continue
        for frame in bundle.frames:
            if frame.module.rsplit("/", 1)[-1] == name:
                return frame.module, frame.build_id
        return str(name), ""
    return None


def _label_set(attributes: AttributeSet, link: Link | None) -> Labels:
    """String labels by key.

    Integers too: they are ids here, not amounts, and readers lose a numeric label of 0.
    """
    merged = {key: str(value) for key, value in attributes}
    if link is not None:
        merged["trace_id"] = link.trace_id.hex()
        merged["span_id"] = link.span_id.hex()
    return tuple(sorted(merged.items()))
