"""How large a profile is in the pprof form to which Pyroscope converts it."""

from __future__ import annotations

from opentelemetry.proto.profiles.v1development import profiles_pb2 as otlp

from otel_gpuflame.encode._vendor import profile_pb2 as pprof


def pprof_size_bytes(profile: otlp.Profile, dictionary: otlp.ProfilesDictionary) -> int:
    """Uncompressed bytes of `profile` as pprof, spans and attributes as string labels."""
    strings: dict[str, int] = {"": 0}
    message = pprof.Profile(time_nanos=profile.time_unix_nano, period=profile.period)
    for sample in profile.samples:
        converted = message.sample.add(
            location_id=dictionary.stack_table[sample.stack_index].location_indices,
            value=sample.values,
        )
        for key, value in _labels(sample, dictionary):
            converted.label.add(
                key=strings.setdefault(key, len(strings)),
                str=strings.setdefault(value, len(strings)),
            )
    used = {index for sample in message.sample for index in sample.location_id}
    functions: set[int] = set()
    for index in used:
        location = dictionary.location_table[index]
        entry = message.location.add(
            id=index, mapping_id=location.mapping_index, address=location.address
        )
        for line in location.lines:
            entry.line.add(function_id=line.function_index, line=line.line)
            functions.add(line.function_index)
    for index in functions:
        function = dictionary.function_table[index]
        message.function.add(
            id=index,
            **{
                field: strings.setdefault(dictionary.string_table[string], len(strings))
                for field, string in (
                    ("name", function.name_strindex),
                    ("system_name", function.system_name_strindex),
                    ("filename", function.filename_strindex),
                )
            },
        )
    message.string_table.extend(strings)
    return message.ByteSize()


def _labels(sample: otlp.Sample, dictionary: otlp.ProfilesDictionary) -> list[tuple[str, str]]:
    attributes = [dictionary.attribute_table[index] for index in sample.attribute_indices]
    labels = [
        (dictionary.string_table[a.key_strindex], a.value.string_value or str(a.value.int_value))
        for a in attributes
    ]
    link = dictionary.link_table[sample.link_index]
    if link.span_id:
        labels += [("span_id", link.span_id.hex()), ("trace_id", link.trace_id.hex())]
    return labels
