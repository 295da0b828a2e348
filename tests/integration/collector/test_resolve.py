# SPDX-License-Identifier: Apache-2.0
"""The resolver says what a request means, and refuses a broken one. Needs no Collector."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from tests.integration.collector.example_request import (
    DURATION_NS,
    SPAN_ID,
    START_UNIX_NS,
    TRACE_ID,
    profiles_request,
)
from tests.integration.collector.resolve import (
    Attribute,
    ResolvedLink,
    ResolvedType,
    ResolveError,
    resolve_profiles,
    resolve_samples,
)

Damage = Callable[[ExportProfilesServiceRequest], object]
KERNEL = "saxpy<float>(float*, float*)"
WAIT_STACK = ("main", "step", "loss_item", "cuStreamSynchronize", KERNEL)
LAUNCH_STACK = ("main", "step", "loss_item", "cuLaunchKernel", KERNEL)


def test_samples_have_their_stack_root_first_with_link_attributes_and_value() -> None:
    """Every sample is resolved to names, root first, with inlined calls below their callers."""
    link = ResolvedLink(TRACE_ID.hex(), SPAN_ID.hex())
    wait = ResolvedType("gpu_wait", "nanoseconds")
    gpu = (Attribute("hw.id", "GPU-5f2c8b1e"),)
    assert [
        (s.sample_type, s.stack, s.attributes, s.link, s.value)
        for s in resolve_samples(profiles_request())
    ] == [
        (wait, WAIT_STACK, gpu, link, 2_500_000),
        (wait, WAIT_STACK, gpu, None, 40),
        (wait, ("main", "0x7f0000009abc"), (), None, 7),
        (ResolvedType("gpu_launch", "count"), LAUNCH_STACK, gpu, link, 3),
    ]


def test_profiles_have_resource_scope_period_and_times() -> None:
    """What belongs to a whole profile is read from the resource, the scope and the profile."""
    first, second = resolve_profiles(profiles_request())
    assert first.resource == (
        Attribute("process.pid", 4711),
        Attribute("service.name", "checkout"),
    )
    assert (first.scope.name, first.scope.version) == ("otel_gpuflame", "0.1.0")
    assert (first.period_type, first.period) == (ResolvedType("gpu", "nanoseconds"), 1)
    assert (first.start_unix_ns, first.duration_ns) == (START_UNIX_NS, DURATION_NS)
    assert first.profile_id == bytes(range(16)).hex()
    assert [len(first.samples), len(second.samples)] == [3, 1]


def test_frames_keep_mangled_name_file_line_mapping_and_type() -> None:
    """A frame keeps what its function, line, mapping and location say."""
    main, _, inlined, sync, kernel = resolve_samples(profiles_request())[0].frames
    assert (main.filename, main.line) == ("train.py", 88)
    assert main.attributes == (Attribute("profile.frame.type", "cpython"),)
    assert (inlined.name, inlined.line) == ("loss_item", 12)
    assert (sync.mapping, sync.address) == ("/usr/lib/libcuda.so.1", 0x7F0000001234)
    assert kernel.system_name == "_Z5saxpyIfEvPT_S1_"


def test_references_into_the_string_table_mean_the_same_as_inline_strings() -> None:
    """Newer Collectors move resource keys and strings into the dictionary; no difference."""
    inline, referenced = profiles_request(), profiles_request()
    strings = referenced.dictionary.string_table
    for pair in referenced.resource_profiles[0].resource.attributes:
        strings.append(pair.key)
        pair.key = ""
        pair.key_strindex = len(strings) - 1
        if pair.value.HasField("string_value"):
            strings.append(pair.value.string_value)
            pair.value.string_value_strindex = len(strings) - 1
    assert referenced != inline
    assert resolve_profiles(referenced) == resolve_profiles(inline)


def test_nested_attribute_values_become_tuples() -> None:
    """Lists and lists of pairs stay comparable values."""
    request = profiles_request()
    value = request.resource_profiles[0].resource.attributes.add(key="nested").value
    value.array_value.values.add(bool_value=True)
    value.array_value.values.add().kvlist_value.values.add(key="k").value.double_value = 0.5
    value.array_value.values.add()
    resource = {a.key: a.value for a in resolve_profiles(request)[0].resource}
    assert resource["nested"] == (True, (Attribute("k", 0.5),), None)


def _sample_stack(request: ExportProfilesServiceRequest) -> None:
    request.resource_profiles[0].scope_profiles[0].profiles[0].samples[0].stack_index = 4


def _negative_link(request: ExportProfilesServiceRequest) -> None:
    request.resource_profiles[0].scope_profiles[0].profiles[0].samples[0].link_index = -1


def _short_link(request: ExportProfilesServiceRequest) -> None:
    request.dictionary.link_table[1].span_id = b"\x01"


def _both_keys(request: ExportProfilesServiceRequest) -> None:
    request.resource_profiles[0].resource.attributes[0].key_strindex = 1


def _double_key(request: ExportProfilesServiceRequest) -> None:
    request.resource_profiles[0].scope_profiles[0].profiles[0].samples[0].attribute_indices.append(
        1
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_sample_stack, "index 4 is outside stack_table"),
        (_negative_link, "index -1 is outside link_table"),
        (_short_link, "16 and 1 bytes"),
        (_both_keys, "both key 'service.name' and key_strindex"),
        (_double_key, "'hw.id' is given twice"),
    ],
)
def test_a_damaged_request_is_refused_with_the_place(damage: Damage, message: str) -> None:
    """Nothing is guessed from a request that breaks a MUST."""
    request = profiles_request()
    damage(request)
    with pytest.raises(ResolveError, match=message):
        resolve_profiles(request)


def test_the_value_of_a_sample_with_several_is_refused() -> None:
    """`value` is for the shape that every backend takes: exactly one."""
    request = profiles_request()
    request.resource_profiles[0].scope_profiles[0].profiles[0].samples[0].values.append(5)
    sample = resolve_samples(request)[0]
    assert sample.values == (2_500_000, 5)
    with pytest.raises(ResolveError, match="2 values"):
        _ = sample.value
