# SPDX-License-Identifier: Apache-2.0
"""What the page says about the samples that went in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.encode.html import encode_html
from otel_gpuflame.errors import EncodeError
from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile.model import Bundle, Profile, Window
from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH, GPU_WAIT
from tests.unit.encode_html.builders import (
    START_UNIX_NS,
    WINDOW,
    api,
    bundle,
    gpu,
    mark,
    native,
    python,
    span,
)
from tests.unit.encode_html.page import ParsedPage, folded


def data_of(*bundles: Bundle) -> dict[str, Any]:
    """The JSON of the page for `bundles`."""
    return ParsedPage(encode_html(bundles, title="t")).data


def totals(data: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Total by (target label, sample type label)."""
    return {
        (data["targets"][s["target"]]["label"], data["types"][s["type"]]["label"]): s["total"]
        for s in data["series"]
    }


def layer_of(frame: Frame) -> str:
    """Layer that the page gives to `frame`."""
    data = data_of(bundle({GPU_WAIT: [((frame,), None, 1)]}))
    layer: str = data["layers"][data["frames"]["layer"][-1]]
    return layer


SAMPLES = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcd"), max_size=6).map(lambda s: tuple(map(python, s))),
        st.sampled_from([None, span(1), span(2)]),
        st.integers(min_value=0, max_value=2**55),
    ),
    max_size=20,
)


@given(wait=SAMPLES, launch=SAMPLES)
def test_page_holds_every_value(wait: list[Any], launch: list[Any]) -> None:
    """For any samples, stacks and values read back from the page are those that went in."""
    expected: Counter[tuple[str, str, str]] = Counter()
    for label, rows in (("gpu_wait", wait), ("gpu_launch", launch)):
        for stack, link, value in rows:
            path = ";".join(["trainer", *(frame.name for frame in stack)])
            expected[label, path, link.span_id.hex() if link else ""] += value
    source = bundle({GPU_WAIT: wait, GPU_LAUNCH: launch})
    data = data_of(source)
    assert folded(data) == {key: value for key, value in expected.items() if value}
    profiles = {p.sample_type.type: p.total for p in source.profiles if p.total}
    assert {label: total for (_, label), total in totals(data).items()} == profiles


def test_values_above_2_53_stay_exact() -> None:
    """A value that a double cannot hold is written in full."""
    value = 2**62 + 1
    assert totals(data_of(bundle({GPU_COPY: [((python("f"),), None, value)]}))) == {
        ("trainer", "gpu_copy"): value
    }


def test_samples_that_differ_in_attributes_are_added_up() -> None:
    """The page shows no sample attributes, so such samples are one."""
    source = bundle({GPU_WAIT: [((python("f"),), None, 5)]})
    profile = Profile(
        sample_type=GPU_WAIT,
        stack=np.array([0, 0], dtype=np.int32),
        link=np.array([-1, -1], dtype=np.int32),
        attributes=np.array([0, 1], dtype=np.int32),
        value=np.array([5, 7], dtype=np.int64),
    )
    source = replace(source, profiles=(profile,), attribute_sets=((), (("hw.id", "GPU-1"),)))
    assert folded(data_of(source)) == {("gpu_wait", "trainer;f", ""): 12}


def test_windows_of_one_target_are_added_up() -> None:
    """Two bundles with the same resource make one target over the span of both windows."""
    later = Window(WINDOW.end_unix_ns, WINDOW.end_unix_ns + 5_000_000_000)
    samples = {GPU_WAIT: [((python("f"),), None, 3)]}
    data = data_of(bundle(samples, window=later), bundle(samples))
    assert totals(data) == {("trainer", "gpu_wait"): 6}
    assert data["window"] == {
        "start_utc": "2026-11-30 00:53:20.123 UTC",
        "start_unix_ns": str(START_UNIX_NS),
        "duration_ns": 15_000_000_000,
    }


def test_targets_keep_their_values_apart() -> None:
    """The same stack in two services stays under the service that it belongs to."""
    rows = [((python("f"),), None, 1)]
    one = bundle({GPU_WAIT: rows}, resource=(("service.name", "one"),))
    two = bundle({GPU_WAIT: rows}, resource=(("service.name", "two"),))
    assert folded(data_of(one, two)) == {
        ("gpu_wait", "one;f", ""): 1,
        ("gpu_wait", "two;f", ""): 1,
    }


@pytest.mark.parametrize(
    ("resources", "labels"),
    [
        ([{"service.name": "a"}, {"service.name": "b"}], ["a", "b"]),
        ([{"service.name": "a", "process.pid": 1}], ["a"]),
        (
            [{"process.pid": 1, "service.name": "a"}, {"process.pid": 2, "service.name": "a"}],
            ["a (pid 1)", "a (pid 2)"],
        ),
        ([{"host.name": "x"}, {"host.name": "y"}], ["unknown service", "unknown service #2"]),
        (
            [
                {"service.name": "a #2"},
                {"host.name": "x", "service.name": "a"},
                {"service.name": "a"},
            ],
            ["a #2", "a", "a #3"],
        ),
    ],
)
def test_targets_have_distinct_labels(resources: list[dict[str, Any]], labels: list[str]) -> None:
    """Service names that meet are told apart by pid, and otherwise by number."""
    bundles = [bundle({GPU_WAIT: []}, resource=tuple(sorted(r.items()))) for r in resources]
    assert [target["label"] for target in data_of(*bundles)["targets"]] == labels


def test_sample_types_are_in_display_order() -> None:
    """The headline comes first even if a bundle without it comes first."""
    rows = [((python("f"),), None, 1)]
    data = data_of(
        bundle({GPU_COPY: rows}, resource=(("service.name", "one"),)),
        bundle({GPU_WAIT: rows}, resource=(("service.name", "two"),)),
    )
    used = {series["type"] for series in data["series"]}
    assert [data["types"][i]["label"] for i in sorted(used)] == ["gpu_wait", "gpu_copy"]


def test_estimates_are_a_sample_type_of_their_own() -> None:
    """Exact and scaled values of one type are never added up."""
    rows = [((python("f"),), None, 1)]
    data = data_of(
        bundle({GPU_LAUNCH: rows}),
        bundle({GPU_LAUNCH: rows}, scope="otel_gpuflame/estimated"),
    )
    assert totals(data) == {("trainer", "gpu_launch"): 1, ("trainer", "gpu_launch (estimated)"): 1}


def test_empty_profiles_make_no_series() -> None:
    """A profile without samples, or with zeros only, is left out."""
    data = data_of(bundle({GPU_WAIT: [], GPU_LAUNCH: [((python("f"),), None, 0)]}))
    assert data["series"] == []


def test_no_bundles_is_a_page_without_window() -> None:
    """Nothing at all still gives a page."""
    data = data_of()
    assert (data["series"], data["targets"], data["window"]) == ([], [], None)


def test_negative_values_are_refused() -> None:
    """A negative value has no width; the error names the type and what to use instead."""
    with pytest.raises(EncodeError, match=r"gpu_wait has a negative value.*pprof"):
        data_of(bundle({GPU_WAIT: [((python("f"),), None, -1)]}))


@pytest.mark.parametrize(
    ("frame", "layer"),
    [
        (python("f"), "python"),
        (native("at::native::item"), "native"),
        (api("cuStreamSynchronize"), "driver_api"),
        (native("cudaLaunchKernel", "/opt/lib/libcudart-9335f6a2.so.12"), "driver_api"),
        (native("clFinish", "/usr/lib/libOpenCL.so.1"), "driver_api"),
        (native("cuMemAlloc_v2", ""), "driver_api"),
        (native("cut", ""), "native"),
        (native("f", "/app/libcudaish.so"), "native"),
        (Frame(FrameKind.OS_KERNEL, "do_syscall_64"), "os_kernel"),
        (gpu("sgemm"), "gpu"),
        (Frame(FrameKind.GPU_OPENCL, "vecadd"), "gpu"),
        (mark("spin"), "mark"),
        (mark("no stack: ring full"), "loss"),
        (mark("native stack cut"), "loss"),
        (mark("lost"), "loss"),
    ],
)
def test_frames_are_coloured_by_layer(frame: Frame, layer: str) -> None:
    """Each kind of frame has its layer; driver calls and losses are found by module and name."""
    assert layer_of(frame) == layer


def test_frames_that_look_the_same_are_one() -> None:
    """Return addresses inside one function do not split it; without a name they are the name."""
    frames = [
        Frame(FrameKind.NATIVE, name, module="/lib/libx.so", address=address)
        for name in ("f", "")
        for address in (0x10, 0x20)
    ]
    values = folded(data_of(bundle({GPU_WAIT: [((frame,), None, 1) for frame in frames]})))
    assert values == {
        ("gpu_wait", "trainer;f", ""): 2,
        ("gpu_wait", "trainer;libx.so+0x10", ""): 1,
        ("gpu_wait", "trainer;libx.so+0x20", ""): 1,
    }


def test_kernels_with_one_readable_name_stay_apart() -> None:
    """Two GPU kernels that differ in their mangled name only are two frames."""
    rows = [((gpu("gemm", system_name),), None, 1) for system_name in ("_Z4gemmf", "_Z4gemmd")]
    data = data_of(bundle({GPU_WAIT: rows}))
    assert len(data["series"][0]["value"]) == 2
