"""Every request that the encoder makes obeys the schema and what known receivers demand."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.model import Bundle, Link
from tests.contract.conformance import profiles, violations
from tests.unit.encode.bundles import MODULE, SPAN, bundle, bundles, waits_and_launches


def test_hand_built_bundle_conforms() -> None:
    """A bundle with spans, attributes, marks and every kind of frame breaks no rule."""
    (request,) = encode_otlp([waits_and_launches()])

    assert violations(request) == []


def test_repeated_table_entries_are_merged() -> None:
    """Equal frames, stacks, links and attribute sets are written once and their samples merged."""
    repeated = bundle(
        {sample_types.GPU_WAIT: [(0, 0, 1, 5), (1, 1, 2, 7), (2, -1, 0, 1)]},
        frames=[MODULE, MODULE],
        stacks=[(0, 1), (1, 0), (0,)],
        links=[SPAN, Link(*SPAN)],
        attribute_sets=[(), (("hw.id", "GPU-1"),), (("hw.id", "GPU-1"),)],
    )

    (request,) = encode_otlp([repeated])

    assert violations(request) == []
    ((_, profile),) = profiles(request)
    assert sorted(sample.values[0] for sample in profile.samples) == [1, 12]


def test_unused_table_entries_are_left_out() -> None:
    """What only empty profiles or nothing refers to is not in the dictionary."""
    (request,) = encode_otlp([bundle({sample_types.GPU_WAIT: [(1, -1, 0, 5)]})])

    assert violations(request) == []
    assert "[spin]" not in request.dictionary.string_table


@settings(max_examples=60, deadline=None)
@given(st.lists(bundles(), max_size=3))
def test_generated_bundles_conform(generated: list[Bundle]) -> None:
    """Whatever bundles the model allows, the requests break no rule."""
    for request in encode_otlp(generated):
        assert violations(request) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(bundles(), max_size=3), st.integers(700, 3000))
def test_split_requests_conform(generated: list[Bundle], max_request_bytes: int) -> None:
    """Requests that had to be split break no rule either."""
    for request in encode_otlp(generated, max_request_bytes=max_request_bytes, dropped=Counter()):
        assert violations(request) == []
        assert request.ByteSize() <= max_request_bytes
