"""The combined view `gpu`: the same samples as its parts, each under a mark that says which."""

from __future__ import annotations

from otel_gpuflame.correlate.waits import WaitMode
from otel_gpuflame.encode.folded import encode_folded
from otel_gpuflame.encode.html import encode_html
from otel_gpuflame.events.attributions import Leaf, Measure, NoLaunch
from otel_gpuflame.events.frames import StackKey
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import (
    GPU_IDLE,
    GPU_QUEUE,
    GPU_TIME,
    GPU_VIEW,
    GPU_WAIT,
)
from otel_gpuflame.profile.view import has_device_times, with_gpu_view
from tests.unit.profile.builders import (
    SAMPLED,
    SPAN_ID,
    TRACE_ID,
    attributed,
    attribution,
    batch,
    call,
    devices,
    name_event,
    run,
    usual,
)

NO_STACK = StackKey(0, 0)


def bundle_of_everything() -> Bundle:
    """A window with each of the four parts."""
    span = {"flags": SAMPLED, "trace_id": TRACE_ID, "span_id": SPAN_ID}
    rows = [
        attribution(Measure.GPU_TIME, 100, api="cuLaunchKernel", name=1, device=3, **span),
        attribution(Measure.GPU_TIME, 9, name=1, no_launch=NoLaunch.NO_PROBE, key=NO_STACK),
        attribution(Measure.GPU_QUEUE, 20, Leaf.DEVICE_FULL, api="cuLaunchKernel", name=1),
        attribution(Measure.GPU_WAIT, 90, api="cuStreamSynchronize", name=1, mode=WaitMode.BLOCKED),
        attribution(Measure.GPU_IDLE, 40, Leaf.OFF_CPU),
        attribution(Measure.GPU_IDLE, 2, Leaf.UNKNOWN_INCOMPLETE, key=NO_STACK),
    ]
    calls = batch(call("cuLaunchKernel", object=1), call("cuMemFree", duration_ns=5))
    events = [*usual(), devices(), name_event(1, "gemm"), calls, attributed(*rows)]
    (bundle,), _ = run(events)
    return bundle


def test_the_view_puts_a_mark_between_the_call_and_what_came_of_it() -> None:
    """Python, the call, what kind of time it is, how or which kernel, why."""
    view = encode_folded(with_gpu_view(bundle_of_everything()), GPU_VIEW)
    assert view.splitlines() == [
        "[idle];[unknown: records are missing] 2",
        "[no launch: no probe];[executing];gemm 9",
        "main;step;[idle];[off CPU] 40",
        "main;step;cuLaunchKernel;[executing];gemm 100",
        "main;step;cuLaunchKernel;[queued];gemm;[device full] 20",
        "main;step;cuMemFree;[waiting];[spin] 5",
        "main;step;cuStreamSynchronize;[waiting];[blocked];gemm 90",
    ]


def test_the_total_is_that_of_its_parts() -> None:
    """Nothing is added, left out or counted twice; spans and devices stay."""
    bundle = bundle_of_everything()
    with_view = with_gpu_view(bundle)
    parts = [
        p for p in bundle.profiles if p.sample_type in (GPU_WAIT, GPU_TIME, GPU_QUEUE, GPU_IDLE)
    ]
    *before, view = with_view.profiles
    assert tuple(before) == bundle.profiles
    assert view.total == sum(p.total for p in parts) == 266
    assert sorted(view.link.tolist()) == [-1] * 6 + [0]
    device = ("hw.model", "NVIDIA H200")
    of_device = [device in bundle.attribute_sets[index] for index in view.attributes.tolist()]
    assert view.value[of_device].tolist() == [100]
    identities = zip(view.stack.tolist(), view.link.tolist(), view.attributes.tolist(), strict=True)
    assert len(set(identities)) == len(view.value)


def test_a_bundle_without_samples_has_an_empty_view() -> None:
    """There is nothing to show, and no crash."""
    (bundle,), _ = run([*usual(), batch(call("cuLaunchKernel"))])
    *_, view = with_gpu_view(bundle).profiles
    assert (view.sample_type, len(view.value)) == (GPU_VIEW, 0)
    assert not has_device_times(bundle)


def test_the_page_shows_the_view_last() -> None:
    """The headline stays what one sees first."""
    page = encode_html([with_gpu_view(bundle_of_everything())], title="t")
    assert page.index('"label":"gpu_wait"') < page.index('"label":"gpu"')
