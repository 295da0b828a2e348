"""Ids of spans as text: what Parca reads of OTLP is what pprof files have in any case."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.encode._vendor import profile_pb2
from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.encode.pprof import encode_pprof
from otel_gpuflame.profile.model import Bundle, Link
from otel_gpuflame.profile.span_attributes import with_span_attributes
from tests.unit.encode.bundles import bundles, waits_and_launches

Labelled = Counter[tuple[str, frozenset[tuple[str, str]]]]
"""Values by sample type and labels."""


def of_otlp(requests: list[ExportProfilesServiceRequest]) -> Labelled:
    """By text attributes of samples."""
    found: Labelled = Counter()
    for request in requests:
        tables = request.dictionary
        strings = tables.string_table
        for of_resource in request.resource_profiles:
            for scope in of_resource.scope_profiles:
                for profile in scope.profiles:
                    for sample in profile.samples:
                        pairs = [tables.attribute_table[i] for i in sample.attribute_indices]
                        labels = frozenset(
                            (strings[each.key_strindex], each.value.string_value) for each in pairs
                        )
                        assert len(labels) == len(pairs)
                        name = strings[profile.sample_type.type_strindex]
                        found[name, labels] += sample.values[0]
    return found


def of_pprof(data: bytes) -> Labelled:
    """By labels."""
    message = profile_pb2.Profile.FromString(gzip.decompress(data))
    strings = message.string_table
    found: Labelled = Counter()
    for sample in message.sample:
        labels = frozenset((strings[each.key], strings[each.str]) for each in sample.label)
        assert len(labels) == len({key for key, _ in labels})
        for value_type, value in zip(message.sample_type, sample.value, strict=True):
            if value:
                found[strings[value_type.type], labels] += value
    return found


def test_linked_samples_have_the_ids_of_their_span() -> None:
    """32 and 16 hexadecimal digits beside the link; others are as they were, and the service stays."""
    before = waits_and_launches()
    after = with_span_attributes(before)
    assert after.links == before.links
    assert after.attribute_sets[0] == ()
    for old, new in zip(before.profiles, after.profiles, strict=True):
        rows = zip(old.attributes.tolist(), new.attributes.tolist(), new.link.tolist(), strict=True)
        for was, now, link in rows:
            expected = dict(before.attribute_sets[was])
            if link >= 0:
                span = before.links[link]
                expected |= {"trace_id": span.trace_id.hex(), "span_id": span.span_id.hex()}
            assert dict(after.attribute_sets[now]) == expected
    assert any((profile.link >= 0).any() for profile in before.profiles)


def test_otlp_then_has_what_pprof_has() -> None:
    """The same labels with the same values; OTLP keeps its links."""
    given = with_span_attributes(waits_and_launches())
    requests = encode_otlp([given])
    assert of_otlp(requests) == of_pprof(encode_pprof([given]))
    assert len(requests[0].dictionary.link_table) == 1 + len(given.links)
    assert of_otlp(encode_otlp([waits_and_launches()])) != of_otlp(requests)


def test_pprof_does_not_change() -> None:
    """It has the ids already."""
    usual = waits_and_launches()
    assert encode_pprof([with_span_attributes(usual)]) == encode_pprof([usual])


def test_ids_of_zeros_are_not_named() -> None:
    """As with links: they are of no span."""
    usual = waits_and_launches()
    zeros = replace(usual, links=tuple(Link(bytes(16), bytes(8)) for _ in usual.links))
    after = with_span_attributes(zeros)
    assert not any(key == "span_id" for each in after.attribute_sets for key, _ in each)


@given(st.lists(bundles(), max_size=2))
def test_totals_and_links_stay(generated: list[Bundle]) -> None:
    """Whatever else a bundle holds."""
    for before in generated:
        after = with_span_attributes(before)
        for old, new in zip(before.profiles, after.profiles, strict=True):
            assert (old.link == new.link).all()
            assert (old.value == new.value).all()
        assert len(set(after.attribute_sets)) == len(after.attribute_sets)
