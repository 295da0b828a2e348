"""What receivers demand of an OTLP profiles request, as functions that return violations.

`schema_violations` are the rules in the comments of profiles.proto and those of the OpenTelemetry
profiling group's `profcheck`. `pyroscope_violations` and `parca_violations` are what these two
backends refuse, lose or misread, taken from their sources, because neither can be run in a test.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import Message
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb

from tests.contract.references import TABLES, references
from tests.contract.to_pprof import pprof_size_bytes

Request = ExportProfilesServiceRequest

GRPC_RECEIVER_BYTES = 4 * 1024 * 1024
PYROSCOPE_PROFILE_BYTES = 4 * 1024 * 1024
PYROSCOPE_SAMPLES = 16_000
PYROSCOPE_LABELS = 30
PYROSCOPE_LABEL_NAME_BYTES = 1024
PYROSCOPE_LABEL_VALUE_BYTES = 2048
PYROSCOPE_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
PYROSCOPE_OFF_CPU, PYROSCOPE_CPU = "off_cpu", "cpu"
PYROSCOPE_SPAN_LABELS = frozenset({"trace_id", "span_id"})
PYROSCOPE_ADDED_LABELS = 10
"""`__name__`, `__type__`, `__unit__`, `__period_type__`, `service_name` and so on."""


class Violation(NamedTuple):
    """A broken rule, and the place in the request."""

    rule: str
    where: str


def violations(request: Request) -> list[Violation]:
    """All broken rules of the schema and of every known receiver."""
    found = list(schema_violations(request))
    # The other checks follow indexes, which must be sound for that.
    if not any(violation.rule in ("index-range", "zero-element") for violation in found):
        found += [*pyroscope_violations(request), *parca_violations(request)]
    return found


def schema_violations(request: Request) -> Iterator[Violation]:
    """Rules of profiles.proto (MUST and SHOULD) and of profcheck."""
    if request.ByteSize() > GRPC_RECEIVER_BYTES:
        yield Violation("request-size", f"{request.ByteSize()} bytes")
    yield from _envelope(request)
    broken = list(_references_and_zeros(request))
    yield from broken
    if broken:
        return
    yield from _entries(request.dictionary)
    yield from _duplicates(request.dictionary)
    yield from _orphans(request)
    for where, profile in profiles(request):
        yield from _profile(where, profile, request.dictionary)
        yield from _samples(where, profile)


def profiles(request: Request) -> Iterator[tuple[str, pb.Profile]]:
    """Every profile with its place."""
    for where, _, _, profile in contexts(request):
        yield where, profile


def contexts(
    request: Request,
) -> Iterator[tuple[str, pb.ResourceProfiles, pb.ScopeProfiles, pb.Profile]]:
    """Every profile with its place, resource and scope."""
    for r, resource in enumerate(request.resource_profiles):
        for s, scope in enumerate(resource.scope_profiles):
            for p, profile in enumerate(scope.profiles):
                yield f"resource {r} scope {s} profile {p}", resource, scope, profile


def _envelope(request: Request) -> Iterator[Violation]:
    if not request.resource_profiles:
        yield Violation("empty", "no resource profiles")
    for r, resource in enumerate(request.resource_profiles):
        if not resource.scope_profiles:
            yield Violation("empty", f"resource {r} has no scope profiles")
        yield from _inline(f"resource {r}", resource.resource.attributes)
        for s, scope in enumerate(resource.scope_profiles):
            if not scope.profiles:
                yield Violation("empty", f"resource {r} scope {s} has no profiles")
            yield from _inline(f"resource {r} scope {s}", scope.scope.attributes)
    ids = Counter(bytes(profile.profile_id) for _, profile in profiles(request))
    for profile_id, count in ids.items():
        if count > 1 and profile_id:
            yield Violation("profile-id-twice", profile_id.hex())


def _inline(where: str, attributes: Iterable[Any]) -> Iterator[Violation]:
    """Resource and scope attributes must be inline: few receivers resolve references there."""
    keys = Counter(attribute.key for attribute in attributes)
    if any(count > 1 for count in keys.values()):
        yield Violation("attribute-key-twice", where)
    for attribute in attributes:
        if (
            not attribute.key
            or attribute.key_strindex
            or attribute.value.HasField("string_value_strindex")
        ):
            yield Violation("inline-attributes", where)


def _references_and_zeros(request: Request) -> Iterator[Violation]:
    dictionary = request.dictionary
    for name in TABLES:
        table = getattr(dictionary, name)
        first = table[0] if len(table) else None
        if first is None or (first.ByteSize() if isinstance(first, Message) else first):
            yield Violation("zero-element", name)
    for reference in references(request):
        if not 0 <= reference.entry < len(getattr(dictionary, reference.table)):
            yield Violation("index-range", f"{reference.where}: {reference}")


def _entries(dictionary: pb.ProfilesDictionary) -> Iterator[Violation]:
    for index, mapping in enumerate(dictionary.mapping_table):
        if (mapping.memory_start or mapping.memory_limit) and not (
            mapping.memory_start < mapping.memory_limit
        ):
            yield Violation("mapping-range", f"mapping {index}")
        yield from _unique_keys(f"mapping {index}", mapping.attribute_indices, dictionary)
    for index, location in enumerate(dictionary.location_table):
        yield from _unique_keys(f"location {index}", location.attribute_indices, dictionary)
        if any(line.line < 0 or line.column < 0 for line in location.lines):
            yield Violation("negative-line", f"location {index}")
        if any(line.function_index == 0 for line in location.lines):
            yield Violation("function-nameless", f"location {index}")
    for index, function in enumerate(dictionary.function_table):
        if function.start_line < 0:
            yield Violation("negative-line", f"function {index}")
        names = function.name_strindex, function.system_name_strindex, function.filename_strindex
        if index and not any(names):
            yield Violation("function-nameless", f"function {index}")
    for index, link in enumerate(dictionary.link_table):
        if index and (len(link.trace_id), len(link.span_id)) != (16, 8):
            yield Violation("link-length", f"link {index}")


def _duplicates(dictionary: pb.ProfilesDictionary) -> Iterator[Violation]:
    for name in TABLES:
        table = getattr(dictionary, name)
        distinct = {
            entry.SerializeToString(deterministic=True) if isinstance(entry, Message) else entry
            for entry in table
        }
        if len(distinct) != len(table):
            yield Violation("duplicate-entry", name)


def _orphans(request: Request) -> Iterator[Violation]:
    used = {(reference.table, reference.entry) for reference in references(request)}
    for name in TABLES:
        for index in range(1, len(getattr(request.dictionary, name))):
            if (name, index) not in used:
                yield Violation("orphan-entry", f"{name} {index}")


def _profile(
    where: str, profile: pb.Profile, dictionary: pb.ProfilesDictionary
) -> Iterator[Violation]:
    if not profile.sample_type.type_strindex or not profile.sample_type.unit_strindex:
        yield Violation("sample-type", where)
    if not profile.samples:
        yield Violation("empty", f"{where} has no samples")
    if profile.profile_id and (len(profile.profile_id) != 16 or not any(profile.profile_id)):
        yield Violation("profile-id-length", where)
    if bool(profile.original_payload) != bool(profile.original_payload_format):
        yield Violation("original-payload", where)
    yield from _unique_keys(where, profile.attribute_indices, dictionary)
    for index, sample in enumerate(profile.samples):
        yield from _unique_keys(f"{where} sample {index}", sample.attribute_indices, dictionary)


def _samples(where: str, profile: pb.Profile) -> Iterator[Violation]:
    start, end = profile.time_unix_nano, profile.time_unix_nano + profile.duration_nano
    shapes: set[tuple[bool, bool]] = set()
    identities: set[tuple[int, frozenset[int], int]] = set()
    for index, sample in enumerate(profile.samples):
        place = f"{where} sample {index}"
        shape = bool(sample.values), bool(sample.timestamps_unix_nano)
        shapes.add(shape)
        if not any(shape):
            yield Violation("sample-without-value", place)
        if all(shape) and len(sample.values) != len(sample.timestamps_unix_nano):
            yield Violation("values-and-timestamps", place)
        if shape == (True, False) and len(sample.values) != 1:
            yield Violation("one-value", place)
        if any(not start <= time < end for time in sample.timestamps_unix_nano):
            yield Violation("timestamp-range", place)
        identity = sample.stack_index, frozenset(sample.attribute_indices), sample.link_index
        if identity in identities:
            yield Violation("sample-identity-twice", place)
        identities.add(identity)
    if len(shapes) > 1:
        yield Violation("mixed-shapes", where)


def _unique_keys(
    where: str, indexes: Iterable[int], dictionary: pb.ProfilesDictionary
) -> Iterator[Violation]:
    keys = [dictionary.attribute_table[index].key_strindex for index in indexes]
    if len(set(keys)) != len(keys):
        yield Violation("attribute-key-twice", where)


def pyroscope_violations(request: Request) -> Iterator[Violation]:
    """What Grafana Pyroscope (2.x) refuses, or stores under a useless name."""
    for where, resource, scope, profile in contexts(request):
        strings = request.dictionary.string_table
        yield from _pyroscope_name(where, profile, strings)
        if not profile.time_unix_nano or not profile.duration_nano:
            yield Violation("pyroscope-time", where)
        if len(profile.samples) > PYROSCOPE_SAMPLES:
            yield Violation("pyroscope-samples", where)
        if any(len(sample.values) != 1 for sample in profile.samples):
            yield Violation("pyroscope-one-value", where)
        if pprof_size_bytes(profile, request.dictionary) > PYROSCOPE_PROFILE_BYTES:
            yield Violation("pyroscope-profile-size", where)
        shared = {a.key: a.value for a in (*resource.resource.attributes, *scope.scope.attributes)}
        for attributes in {tuple(sample.attribute_indices) for sample in profile.samples}:
            own = {
                strings[request.dictionary.attribute_table[index].key_strindex]: (
                    request.dictionary.attribute_table[index].value
                )
                for index in attributes
            }
            yield from _pyroscope_series(where, shared | own)


def _pyroscope_name(where: str, profile: pb.Profile, strings: Sequence[str]) -> Iterator[Violation]:
    """Profiles are named after their period type, but off-CPU ones are known by having none."""
    name = strings[profile.period_type.type_strindex]
    has_period = profile.period != 0 or profile.HasField("period_type")
    if strings[profile.sample_type.type_strindex] == PYROSCOPE_OFF_CPU:
        if has_period:
            yield Violation("pyroscope-off-cpu-period", where)
    elif not profile.period or not PYROSCOPE_METRIC_NAME.fullmatch(name):
        yield Violation("pyroscope-period", where)
    elif name == PYROSCOPE_CPU and strings[profile.sample_type.type_strindex] != "samples":
        yield Violation("pyroscope-cpu-samples", where)


def _pyroscope_series(where: str, labels: dict[str, Any]) -> Iterator[Violation]:
    if not labels.get("service.name") or not labels["service.name"].string_value:
        yield Violation("pyroscope-service-name", where)
    if len(labels.keys() - PYROSCOPE_SPAN_LABELS) + PYROSCOPE_ADDED_LABELS > PYROSCOPE_LABELS:
        yield Violation("pyroscope-labels", where)
    for name, value in labels.items():
        if value.WhichOneof("value") not in ("string_value", "int_value"):
            yield Violation("pyroscope-attribute-type", f"{where} {name}")
        if (
            len(name.encode()) > PYROSCOPE_LABEL_NAME_BYTES
            or len(value.string_value.encode()) > PYROSCOPE_LABEL_VALUE_BYTES
        ):
            yield Violation("pyroscope-label-size", f"{where} {name[:40]}")


def parca_violations(request: Request) -> Iterator[Violation]:
    """What Parca stores under a useless name: it calls a profile by its scope."""
    for where, _, scope, _ in contexts(request):
        if not scope.scope.name:
            yield Violation("parca-scope-name", where)


def rules_of(found: Sequence[Violation]) -> set[str]:
    """Names of the broken rules."""
    return {violation.rule for violation in found}
