# SPDX-License-Identifier: Apache-2.0
"""OTLP profiles to pprof, by the rules of Pyroscope: one pprof profile for each service that samples name."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple

from opentelemetry.proto.profiles.v1development import profiles_pb2 as otlp

from otel_gpuflame.encode._vendor import profile_pb2 as pprof
from tests.fakes.pyroscope.limits import RefusedError, conversion_error
from tests.fakes.pyroscope.values import attribute_text, label_text, row

SPAN_LABEL = "span_id"
TRACE_LABEL = "trace_id"
_SERVICE = "service.name"
_DEFAULT_DURATION_NS = 10_000_000_000


class Converted(NamedTuple):
    """`service_name` is that of the samples, empty where they name none; `name` becomes `__name__`."""

    service_name: str
    name: str
    message: pprof.Profile


class _Values(Enum):
    AS_THEY_ARE = 0
    TIMES_PERIOD = 1
    SUMMED = 2


def convert(
    profile: otlp.Profile, dictionary: otlp.ProfilesDictionary, now_unix_ns: int
) -> list[Converted]:
    """The pprof profiles that one OTLP profile becomes; none if it has no samples.

    Raises:
        RefusedError: an index is out of bounds, a type or a value is missing, or there are several values.
    """
    builders: dict[str, _Builder] = {}
    for sample in profile.samples:
        try:
            service = attribute_text(sample.attribute_indices, dictionary, _SERVICE)
        except RefusedError:
            # The one silent loss: Pyroscope gives this error away, and the whole profile with it.
            return []
        if service not in builders:
            builders[service] = _Builder(profile, dictionary, now_unix_ns)
        builders[service].add(sample)
    return [Converted(service, b.name, b.message) for service, b in builders.items()]


class _Builder:
    def __init__(
        self, profile: otlp.Profile, dictionary: otlp.ProfilesDictionary, now_unix_ns: int
    ) -> None:
        if not profile.HasField("sample_type"):
            raise conversion_error("sample type is missing")
        self._dictionary = dictionary
        self._period = profile.period
        self._has_period = profile.period != 0 and profile.HasField("period_type")
        self._strings: dict[str, int] = {"": 0}
        self._ids: dict[Hashable, int] = {}
        self.message = pprof.Profile(
            string_table=[""],
            time_nanos=profile.time_unix_nano or now_unix_ns,
            duration_nanos=profile.duration_nano or _DEFAULT_DURATION_NS,
            period=profile.period,
        )
        kind = self._types(profile)
        self.name, self._values = _name_and_values(kind)
        if self._values is _Values.TIMES_PERIOD:
            self._set_type(self.message.sample_type[0], "cpu", "nanoseconds")

    def add(self, sample: otlp.Sample) -> None:
        """Convert one sample."""
        entry = self.message.sample.add(value=self._sample_values(sample))
        for index in sample.attribute_indices:
            attribute = row(self._dictionary.attribute_table, index, "attribute")
            key = row(self._dictionary.string_table, attribute.key_strindex, "attribute key")
            text = label_text(attribute.value)
            if key != _SERVICE and text:
                self._label(entry, key, text)
        if sample.link_index:
            link = row(self._dictionary.link_table, sample.link_index, "link")
            self._label(entry, SPAN_LABEL, link.span_id.hex())
            if len(link.trace_id) == 16:
                self._label(entry, TRACE_LABEL, link.trace_id.hex())
        stack = row(self._dictionary.stack_table, sample.stack_index, "stack")
        entry.location_id.extend(self._location(index) for index in stack.location_indices)

    def _sample_values(self, sample: otlp.Sample) -> list[int]:
        values = list(sample.values)
        if not values and sample.timestamps_unix_nano:
            values = [len(sample.timestamps_unix_nano)]
        if not values:
            raise conversion_error("sample value is required")
        if self._values is _Values.TIMES_PERIOD:
            values[0] *= self._period
        if self._values is _Values.SUMMED:
            values = [sum(values)]
        if self._has_period and len(values) != 1:
            raise conversion_error(f"sample values length mismatch {len(values)} 1")
        return values

    def _types(self, profile: otlp.Profile) -> str:
        """Write both types; return them as Pyroscope compares them."""
        sample_type = self._type_names(profile.sample_type)
        self._set_type(self.message.sample_type.add(), *sample_type)
        period_type = ("", "")
        if profile.HasField("period_type"):
            period_type = self._type_names(profile.period_type)
            self._set_type(self.message.period_type, *period_type)
        self.message.default_sample_type = self._string(sample_type[0])
        return ":".join((*sample_type, *(period_type if self._has_period else ("", ""))))

    def _type_names(self, value_type: otlp.ValueType) -> tuple[str, str]:
        strings = self._dictionary.string_table
        return (
            row(strings, value_type.type_strindex, "type string"),
            row(strings, value_type.unit_strindex, "unit string"),
        )

    def _set_type(self, target: pprof.ValueType, name: str, unit: str) -> None:
        target.type, target.unit = self._string(name), self._string(unit)

    def _location(self, index: int) -> int:
        if ("location", index) not in self._ids:
            location = row(self._dictionary.location_table, index, "location")
            lines = [(self._function(line.function_index), line.line) for line in location.lines]
            entry = self.message.location.add(
                id=len(self.message.location) + 1,
                mapping_id=self._mapping(location.mapping_index),
                address=location.address,
            )
            for function_id, line in lines:
                entry.line.add(function_id=function_id, line=line)
            self._ids["location", index] = entry.id
        return self._ids["location", index]

    def _mapping(self, index: int) -> int:
        if ("mapping", index) not in self._ids:
            mapping = row(self._dictionary.mapping_table, index, "mapping")
            build_id = attribute_text(
                mapping.attribute_indices, self._dictionary, "process.executable.build_id.gnu"
            )
            entry = self.message.mapping.add(
                id=len(self.message.mapping) + 1,
                memory_start=mapping.memory_start,
                memory_limit=mapping.memory_limit,
                file_offset=mapping.file_offset,
                filename=self._table_string(mapping.filename_strindex, "mapping file name"),
                build_id=self._string(build_id),
            )
            self._ids["mapping", index] = entry.id
        return self._ids["mapping", index]

    def _function(self, index: int) -> int:
        if ("function", index) not in self._ids:
            function = row(self._dictionary.function_table, index, "function")
            entry = self.message.function.add(
                id=len(self.message.function) + 1,
                name=self._table_string(function.name_strindex, "function name"),
                system_name=self._table_string(function.system_name_strindex, "system name"),
                filename=self._table_string(function.filename_strindex, "function file name"),
                start_line=function.start_line,
            )
            self._ids["function", index] = entry.id
        return self._ids["function", index]

    def _label(self, sample: pprof.Sample, key: str, text: str) -> None:
        sample.label.add(key=self._string(key), str=self._string(text))

    def _table_string(self, index: int, what: str) -> int:
        return self._string(row(self._dictionary.string_table, index, what))

    def _string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings)
            self.message.string_table.append(text)
        return self._strings[text]


def _name_and_values(kind: str) -> tuple[str, _Values]:
    if kind == "samples:count:cpu:nanoseconds":
        return "process_cpu", _Values.TIMES_PERIOD
    if kind == "off_cpu:nanoseconds::":
        return "off_cpu", _Values.SUMMED
    # By position, so that a colon in a sample type moves another part here; empty without a period.
    return kind.split(":")[2], _Values.AS_THEY_ARE
