"""The content of pprof files."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame import __version__
from otel_gpuflame.encode._vendor import profile_pb2
from otel_gpuflame.encode.pprof import encode_pprof
from otel_gpuflame.errors import EncodeError
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.model import Bundle, Window
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


def decode(*given_bundles: Bundle) -> profile_pb2.Profile:
    """Encode and read back."""
    return profile_pb2.Profile.FromString(gzip.decompress(encode_pprof(given_bundles)))


def labels(message: profile_pb2.Profile, sample: profile_pb2.Sample) -> dict[str, str]:
    """String labels of a sample."""
    strings = message.string_table
    return {strings[label.key]: strings[label.str] for label in sample.label}


def names(message: profile_pb2.Profile, sample: profile_pb2.Sample) -> list[str]:
    """Function names of a sample, leaf first."""
    locations = {location.id: location for location in message.location}
    functions = {function.id: function for function in message.function}
    return [
        message.string_table[functions[locations[index].line[0].function_id].name]
        for index in sample.location_id
    ]


def test_header_says_what_and_when() -> None:
    """Types, default type, period, window, and a comment with tool version and target."""
    message = decode(waits_and_launches())
    strings = message.string_table

    assert [(strings[t.type], strings[t.unit]) for t in message.sample_type] == [
        ("gpu_wait", "nanoseconds"),
        ("gpu_launch", "count"),
    ]
    assert strings[message.default_sample_type] == "gpu_wait"
    assert strings[message.period_type.type] == "gpu"
    assert strings[message.period_type.unit] == "nanoseconds"
    assert message.period == 1
    assert message.time_nanos == WINDOW.start_unix_ns
    assert message.duration_nanos == 10_000_000_000
    assert [strings[comment] for comment in message.comment] == [
        f"otel_gpuflame {__version__}",
        "process.executable.name=python3.11",
        "process.pid=4711",
        "service.name=checkout",
    ]


def test_cpu_samples_are_the_time_that_they_stand_for() -> None:
    """A file has one period, so `samples` become `cpu` in nanoseconds; the waits stay what is shown first."""
    message = decode(
        bundle(
            {
                sample_types.GPU_WAIT: [(0, -1, 0, 5)],
                sample_types.CPU_SAMPLES: [(0, -1, 0, 3), (1, -1, 0, 1)],
            }
        )
    )
    strings = message.string_table

    assert [(strings[t.type], strings[t.unit]) for t in message.sample_type] == [
        ("gpu_wait", "nanoseconds"),
        ("cpu", "nanoseconds"),
    ]
    assert sorted(tuple(sample.value) for sample in message.sample) == [
        (0, 10_101_010),
        (5, 30_303_030),
    ]
    assert strings[message.default_sample_type] == "gpu_wait"
    assert (strings[message.period_type.type], message.period) == ("gpu", 1)


def test_a_file_of_cpu_samples_has_their_period() -> None:
    """Without waits it is a usual CPU profile."""
    message = decode(bundle({sample_types.CPU_SAMPLES: [(0, -1, 0, 3)]}))
    strings = message.string_table

    assert strings[message.default_sample_type] == "cpu"
    period_type = message.period_type
    assert (strings[period_type.type], strings[period_type.unit]) == ("cpu", "nanoseconds")
    assert message.period == 10_101_010


def test_a_file_of_off_cpu_times_has_no_period() -> None:
    """Every period of 1 ms and more is seen: nothing stands for more than itself."""
    message = decode(bundle({sample_types.OFF_CPU: [(0, -1, 0, 3)]}))

    assert not message.HasField("period_type")
    assert message.period == 0


def test_samples_have_a_value_for_each_type() -> None:
    """Profiles are merged by stack, span and attributes; a type without the sample has 0."""
    same = bundle(
        {
            sample_types.GPU_WAIT: [(0, 0, 0, 5), (1, -1, 1, 7)],
            sample_types.GPU_LAUNCH: [(0, 0, 0, 2), (0, -1, 0, 3)],
        },
        stacks=[(0, 1), (0,)],
        frames=[MODULE, ADD],
    )

    message = decode(same)

    span = {"trace_id": SPAN.trace_id.hex(), "span_id": SPAN.span_id.hex()}
    found = [
        (names(message, sample), labels(message, sample), list(sample.value))
        for sample in message.sample
    ]
    assert len(found) == 3
    assert ([ADD.name, "<module>"], span, [5, 2]) in found
    assert ([ADD.name, "<module>"], {}, [0, 3]) in found
    assert (["<module>"], {"hw.id": "GPU-1"}, [7, 0]) in found


def test_functions_keep_both_names() -> None:
    """The mangled name is the system name; without one it stays empty, so readers keep the name."""
    message = decode(waits_and_launches())
    strings = message.string_table

    system_names = {strings[f.name]: strings[f.system_name] for f in message.function}
    assert system_names[ADD.name] == ADD.system_name
    assert system_names["<module>"] == ""
    assert {strings[f.name]: strings[f.filename] for f in message.function}["<module>"] == (
        "/app/train.py"
    )


def test_main_binary_is_the_first_mapping() -> None:
    """Mapping 1 is the target's executable, and mappings carry build ids and flags."""
    binary = ADD._replace(name="main", system_name="", module="/usr/bin/python3.11", build_id="ee")
    message = decode(
        bundle(
            {sample_types.GPU_WAIT: [(0, -1, 0, 1)]},
            frames=[MODULE, ADD, binary],
            stacks=[(0, 1, 2)],
        )
    )
    strings = message.string_table

    assert [(m.id, strings[m.filename], strings[m.build_id]) for m in message.mapping] == [
        (1, "/usr/bin/python3.11", "ee"),
        (2, "/usr/lib/libtorch_cuda.so", "5f0c2ab1"),
    ]
    assert all(mapping.has_functions for mapping in message.mapping)
    assert not any(m.has_filenames or m.has_line_numbers for m in message.mapping)


def test_main_binary_without_frames_still_names_the_profile() -> None:
    """Where no frame lies in the executable, its name alone is the first mapping."""
    message = decode(waits_and_launches())

    assert message.string_table[message.mapping[0].filename] == "python3.11"


def test_attributes_that_tell_targets_apart_become_labels() -> None:
    """Samples of two processes stay apart and say whose they are; what is common is a comment."""
    one = bundle({sample_types.GPU_WAIT: [(0, -1, 0, 5)]}, stacks=[(0,)])
    other = replace(one, resource=(*RESOURCE[:1], ("process.pid", 4712), RESOURCE[2]))

    message = decode(one, other)

    assert [(labels(message, s), list(s.value)) for s in message.sample] == [
        ({"process.pid": "4711"}, [5]),
        ({"process.pid": "4712"}, [5]),
    ]
    comments = [message.string_table[comment] for comment in message.comment]
    assert "service.name=checkout" in comments
    assert not any(comment.startswith("process.pid") for comment in comments)


def test_windows_of_one_target_are_added_up() -> None:
    """Bundles of consecutive windows make one profile over both, equal samples summed."""
    one = bundle({sample_types.GPU_WAIT: [(0, 0, 0, 5)]})
    later = replace(one, window=Window(WINDOW.end_unix_ns, WINDOW.end_unix_ns + 7))

    message = decode(one, later)

    assert [list(sample.value) for sample in message.sample] == [[10]]
    assert message.time_nanos == WINDOW.start_unix_ns
    assert message.duration_nanos == WINDOW.duration_ns + 7


def test_equal_input_gives_equal_bytes() -> None:
    """Nothing in the file depends on the time or the run; the gzip header holds no time."""
    data = encode_pprof([waits_and_launches()])

    assert data == encode_pprof([waits_and_launches()])
    assert data[4:8] == bytes(4)


def test_nothing_recorded_is_a_valid_file() -> None:
    """Without samples the file still names its types, so that readers open it."""
    empty = decode(bundle({sample_types.GPU_WAIT: [], sample_types.GPU_COPY: []}))
    assert [empty.string_table[t.type] for t in empty.sample_type] == ["gpu_wait", "gpu_copy"]
    assert not empty.sample

    nothing = decode()
    assert [nothing.string_table[t.type] for t in nothing.sample_type] == ["gpu_wait"]


def test_scopes_are_not_mixed() -> None:
    """Exact and estimated values in one file would be added up, so that is refused."""
    exact = waits_and_launches()

    with pytest.raises(EncodeError, match="file for each scope"):
        encode_pprof([exact, replace(exact, scope="otel_gpuflame/estimated")])


@settings(deadline=None, max_examples=60)
@given(st.lists(bundles(), max_size=3))
def test_any_bundles_keep_their_totals(generated: list[Bundle]) -> None:
    """Totals by type survive, identities are unique, and every id refers to something."""
    message = decode(*generated)

    expected: Counter[str] = Counter()
    for profile in (profile for one in generated for profile in one.profiles):
        if profile.sample_type == sample_types.CPU_SAMPLES:
            expected["cpu"] += profile.total * 10_101_010
        else:
            expected[profile.sample_type.type] += profile.total
    found: Counter[str] = Counter()
    for index, sample_type in enumerate(message.sample_type):
        name = message.string_table[sample_type.type]
        found[name] = sum(sample.value[index] for sample in message.sample)
    assert +found == +expected
    identities = [
        (tuple(s.location_id), tuple(sorted(labels(message, s).items()))) for s in message.sample
    ]
    assert len(set(identities)) == len(identities)
    locations = {location.id for location in message.location}
    assert all(index in locations for sample in message.sample for index in sample.location_id)
    assert {location.mapping_id for location in message.location} <= {
        0,
        *(mapping.id for mapping in message.mapping),
    }
