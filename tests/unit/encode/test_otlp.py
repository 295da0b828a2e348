"""The content of OTLP requests, and how they are split."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame import __version__
from otel_gpuflame.encode import otlp
from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.errors import EncodeError
from otel_gpuflame.events.frames import Frame, FrameKind, mark
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.model import Bundle, Link, ValueType, Window
from tests.contract.conformance import profiles, violations
from tests.unit.encode.bundles import (
    ADD,
    MODULE,
    RESOURCE,
    SPAN,
    WINDOW,
    bundle,
    bundles,
    waits_and_launches,
)

Identity = tuple[str, tuple[str, ...], str, tuple[tuple[str, str | int], ...]]


def samples_of(requests: list[ExportProfilesServiceRequest]) -> Counter[Identity]:
    """Value by sample type, names leaf first, span id and attributes, over all requests."""
    found: Counter[Identity] = Counter()
    for request in requests:
        tables = request.dictionary
        strings = tables.string_table
        for _, profile in profiles(request):
            for sample in profile.samples:
                locations = tables.stack_table[sample.stack_index].location_indices
                lines = [tables.location_table[index].lines[0] for index in locations]
                functions = [tables.function_table[line.function_index] for line in lines]
                attributes = [tables.attribute_table[i] for i in sample.attribute_indices]
                identity = (
                    strings[profile.sample_type.type_strindex],
                    tuple(strings[function.name_strindex] for function in functions),
                    tables.link_table[sample.link_index].span_id.hex(),
                    tuple(
                        (strings[a.key_strindex], a.value.string_value or a.value.int_value)
                        for a in attributes
                    ),
                )
                found[identity] += sample.values[0]
    return found


def totals_of(requests: list[ExportProfilesServiceRequest]) -> Counter[str]:
    """Value by sample type."""
    totals: Counter[str] = Counter()
    for (name, *_), value in samples_of(requests).items():
        totals[name] += value
    return totals


@pytest.mark.parametrize(
    ("sample_type", "period_type", "period"),
    [
        (sample_types.GPU_WAIT, ("gpu", "nanoseconds"), 1),
        (sample_types.GPU_DRIVER, ("gpu", "nanoseconds"), 1),
        (sample_types.CPU_SAMPLES, ("cpu", "nanoseconds"), 10_101_010),
        (sample_types.OFF_CPU, ("", ""), 0),
    ],
)
def test_each_type_has_the_period_that_backends_know_it_by(
    sample_type: ValueType, period_type: tuple[str, str], period: int
) -> None:
    """Pyroscope: gpu, gpu, process_cpu, off_cpu."""
    (request,) = encode_otlp([bundle({sample_type: [(0, -1, 0, 5)]})])

    profile = request.resource_profiles[0].scope_profiles[0].profiles[0]
    strings = request.dictionary.string_table
    found = profile.period_type
    assert (strings[found.type_strindex], strings[found.unit_strindex]) == period_type
    assert profile.period == period
    assert profile.HasField("period_type") == (period != 0)
    assert profile.samples[0].values == [5]


def test_whole_request() -> None:
    """A small bundle gives exactly this request, apart from the profile id."""
    small = bundle(
        {sample_types.GPU_WAIT: [(0, 0, 1, 5)]},
        frames=[MODULE, ADD, mark("spin")],
        stacks=[(0, 1, 2)],
    )

    (request,) = encode_otlp([small])

    profile = request.resource_profiles[0].scope_profiles[0].profiles[0]
    assert len(profile.profile_id) == 16
    profile.ClearField("profile_id")
    expected = text_format.Parse(
        f"""
        resource_profiles {{
          resource {{
            attributes {{ key: "process.executable.name" value {{ string_value: "python3.11" }} }}
            attributes {{ key: "process.pid" value {{ string_value: "4711" }} }}
            attributes {{ key: "service.name" value {{ string_value: "checkout" }} }}
          }}
          scope_profiles {{
            scope {{ name: "otel_gpuflame" version: "{__version__}" }}
            profiles {{
              sample_type {{ type_strindex: 8 unit_strindex: 9 }}
              period_type {{ type_strindex: 10 unit_strindex: 9 }}
              period: 1
              time_unix_nano: 1700000000000000000
              duration_nano: 10000000000
              samples {{ stack_index: 1 link_index: 1 attribute_indices: 1 values: 5 }}
            }}
          }}
        }}
        dictionary {{
          mapping_table {{}}
          mapping_table {{ filename_strindex: 6 attribute_indices: 2 }}
          location_table {{}}
          location_table {{ lines {{ function_index: 1 line: 88 }} attribute_indices: 3 }}
          location_table {{
            mapping_index: 1 address: 0x1234 lines {{ function_index: 2 }} attribute_indices: 4
          }}
          location_table {{ lines {{ function_index: 3 }} }}
          function_table {{}}
          function_table {{ name_strindex: 2 filename_strindex: 3 }}
          function_table {{ name_strindex: 4 system_name_strindex: 5 }}
          function_table {{ name_strindex: 7 }}
          link_table {{}}
          link_table {{}}
          string_table: ""
          string_table: "hw.id"
          string_table: "<module>"
          string_table: "/app/train.py"
          string_table: "void at::add<float>(float*, at::Tensor const&)"
          string_table: "_ZN2at3addIfEEvPfRKNS_6TensorE"
          string_table: "/usr/lib/libtorch_cuda.so"
          string_table: "[spin]"
          string_table: "gpu_wait"
          string_table: "nanoseconds"
          string_table: "gpu"
          string_table: "process.executable.build_id.gnu"
          string_table: "profile.frame.type"
          attribute_table {{}}
          attribute_table {{ key_strindex: 1 value {{ string_value: "GPU-1" }} }}
          attribute_table {{ key_strindex: 11 value {{ string_value: "5f0c2ab1" }} }}
          attribute_table {{ key_strindex: 12 value {{ string_value: "cpython" }} }}
          attribute_table {{ key_strindex: 12 value {{ string_value: "native" }} }}
          stack_table {{}}
          stack_table {{ location_indices: [3, 2, 1] }}
        }}
        """,
        ExportProfilesServiceRequest(),
    )
    expected.dictionary.link_table[1].trace_id = SPAN.trace_id
    expected.dictionary.link_table[1].span_id = SPAN.span_id
    assert request == expected


def test_headline_comes_first() -> None:
    """Profiles keep the display order of the bundle, and empty ones are left out."""
    (request,) = encode_otlp([waits_and_launches()])

    strings = request.dictionary.string_table
    assert [strings[profile.sample_type.type_strindex] for _, profile in profiles(request)] == [
        "gpu_wait",
        "gpu_launch",
    ]


def test_bundles_are_grouped_by_resource_and_scope() -> None:
    """Windows of one target share a resource and scope; another scope or target gets its own."""
    one = bundle({sample_types.GPU_WAIT: [(0, 0, 0, 5)]})
    later = replace(one, window=Window(WINDOW.end_unix_ns, WINDOW.end_unix_ns + 7))
    estimated = replace(one, scope="otel_gpuflame/estimated")
    other = replace(one, resource=(("service.name", "worker"),))

    (request,) = encode_otlp([one, later, estimated, other])

    shape = [
        [(scope.scope.name, len(scope.profiles)) for scope in resource.scope_profiles]
        for resource in request.resource_profiles
    ]
    assert shape == [
        [("otel_gpuflame", 2), ("otel_gpuflame/estimated", 1)],
        [("otel_gpuflame", 1)],
    ]
    assert violations(request) == []


def test_nothing_recorded_is_no_request() -> None:
    """Without samples nothing is sent: some receivers refuse an empty profile."""
    assert encode_otlp([]) == []
    assert encode_otlp([bundle({sample_types.GPU_WAIT: []})]) == []


def test_invalid_span_is_no_link() -> None:
    """All-zero ids are not a span, so the sample is unlinked and merged with other unlinked ones."""
    zero = Link(bytes(16), bytes(8))
    (request,) = encode_otlp(
        [bundle({sample_types.GPU_WAIT: [(0, 0, 0, 5), (0, -1, 0, 2)]}, links=[zero])]
    )

    assert len(request.dictionary.link_table) == 1
    assert list(samples_of([request]).values()) == [7]


def test_malformed_span_is_refused() -> None:
    """A link of wrong length is an error that says so, instead of a request nobody accepts."""
    with pytest.raises(EncodeError, match="ids of 3 and 8 bytes"):
        encode_otlp(
            [bundle({sample_types.GPU_WAIT: [(0, 0, 0, 5)]}, links=[Link(b"abc", b"12345678")])]
        )


def test_profile_ids_depend_on_content() -> None:
    """The same bundle gives the same ids; other values, windows and types give others."""
    one = bundle({sample_types.GPU_WAIT: [(0, 0, 0, 5)]})

    def ids(*given_bundles: Bundle) -> list[bytes]:
        return [
            bytes(profile.profile_id)
            for request in encode_otlp(given_bundles)
            for _, profile in profiles(request)
        ]

    different = [
        *ids(one),
        *ids(bundle({sample_types.GPU_WAIT: [(0, 0, 0, 6)]})),
        *ids(bundle({sample_types.GPU_LAUNCH: [(0, 0, 0, 5)]})),
        *ids(replace(one, window=Window(1, 2))),
        *ids(replace(one, resource=(("service.name", "worker"),))),
        *ids(bundle({sample_types.GPU_WAIT: [(1, 0, 0, 5)]})),
    ]
    assert len(set(different)) == len(different)
    assert ids(one) == ids(one)


def many_stacks(stacks: int, depth: int, links: int = 1) -> Bundle:
    """Two types over `stacks` different stacks of `depth` frames, `links` spans on each."""
    frames = [Frame(FrameKind.NATIVE, f"function_{index}") for index in range(stacks + 1)]
    rows = [(stack, link, 0, 1 + stack + link) for stack in range(stacks) for link in range(links)]
    return bundle(
        {sample_types.GPU_WAIT: rows, sample_types.GPU_LAUNCH: rows},
        frames=frames,
        stacks=[(stack,) * (depth - 1) + (stack + 1,) for stack in range(stacks)],
        links=[Link(bytes([1] * 16), index.to_bytes(8, "big")) for index in range(1, links + 1)],
    )


def test_large_bundle_is_split_without_loss() -> None:
    """Requests stay under the limit, conform, and together hold every sample once."""
    large = many_stacks(stacks=300, depth=40)

    requests = encode_otlp([large], max_request_bytes=10_000)

    assert len(requests) > 3
    assert all(request.ByteSize() <= 10_000 for request in requests)
    assert not any(violations(request) for request in requests)
    assert samples_of(requests) == samples_of(encode_otlp([large]))
    assert len(samples_of(requests)) == 600


def test_types_over_one_stack_stay_together() -> None:
    """A cut goes between stacks, so that no stack is sent in two requests."""
    requests = encode_otlp([many_stacks(stacks=300, depth=40)], max_request_bytes=10_000)

    stacks = [{names for _, names, *_ in samples_of([request])} for request in requests]
    assert sum(map(len, stacks)) == 300


def test_profile_has_at_most_16000_samples() -> None:
    """A type with more samples than Pyroscope takes goes out in several requests."""
    requests = encode_otlp([many_stacks(stacks=330, depth=2, links=100)])

    sizes = [len(profile.samples) for request in requests for _, profile in profiles(request)]
    assert max(sizes) <= 16_000
    assert sum(sizes) == 66_000
    assert all(len(list(profiles(request))) == 2 for request in requests)


def test_profile_stays_under_4_mib_as_pprof() -> None:
    """Converted, each sample repeats its stack, so many spans on deep stacks are cut earlier."""
    deep = many_stacks(stacks=2, depth=3_500, links=700)

    requests = encode_otlp([deep])

    assert sum(request.ByteSize() for request in requests) < otlp.MAX_REQUEST_BYTES
    assert len(requests) > 1
    for request in requests:
        assert [v for v in violations(request) if v.rule.startswith("pyroscope")] == []
    sizes = [len(profile.samples) for request in requests for _, profile in profiles(request)]
    assert sum(sizes) == 2_800


def test_oversized_sample_is_a_counted_drop() -> None:
    """A sample that no request can hold is counted with its value; the others are sent."""
    long_name = Frame(FrameKind.NATIVE, "x" * 5_000)
    large = bundle(
        {
            sample_types.GPU_WAIT: [(0, -1, 0, 5), (1, -1, 0, 7)],
            sample_types.GPU_COPY: [(0, -1, 0, 9)],
        },
        frames=[MODULE, long_name],
        stacks=[(0, 1), (0,)],
    )
    dropped: Counter[str] = Counter()

    requests = encode_otlp([large], max_request_bytes=2_000, dropped=dropped)

    assert totals_of(requests) == {"gpu_wait": 7}
    assert dropped == {"gpu_wait": 5, "gpu_copy": 9}


def test_uncounted_drop_is_an_error() -> None:
    """Without a counter a sample is never lost silently."""
    with pytest.raises(EncodeError, match="gpu_wait sample is too large"):
        encode_otlp([waits_and_launches()], max_request_bytes=100)


def test_old_schema_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field numbers from before proto 1.10 would be misread, so nothing is encoded with them."""
    fields = {"values": SimpleNamespace(number=2)}
    old = SimpleNamespace(Sample=SimpleNamespace(DESCRIPTOR=SimpleNamespace(fields_by_name=fields)))
    monkeypatch.setattr(otlp, "profiles_pb2", old)

    with pytest.raises(EncodeError, match=r"opentelemetry-proto>=1\.43"):
        encode_otlp([waits_and_launches()])


@settings(deadline=None, max_examples=60)
@given(st.lists(bundles(), max_size=3), st.integers(500, 3_000))
def test_nothing_is_lost_uncounted(generated: list[Bundle], max_request_bytes: int) -> None:
    """What goes in comes out or is counted as dropped, by sample type, exactly."""
    dropped: Counter[str] = Counter()

    requests = encode_otlp(generated, max_request_bytes=max_request_bytes, dropped=dropped)

    expected: Counter[str] = Counter()
    for profile in (profile for one in generated for profile in one.profiles):
        expected[profile.sample_type.type] += profile.total
    assert totals_of(requests) + dropped == +expected
    assert all(request.resource_profiles[0].resource.attributes for request in requests)


def test_resource_is_inline() -> None:
    """Every resource attribute is written with its key, not as a reference."""
    (request,) = encode_otlp([waits_and_launches()])

    attributes = request.resource_profiles[0].resource.attributes
    assert [attribute.key for attribute in attributes] == [key for key, _ in RESOURCE]
