"""What a call becomes: frames, sample types, links, targets."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import FrameKind, ProcessKey, Stack, StackKey
from otel_gpuflame.events.records import CallArray, HandleName, Names, Stacks
from otel_gpuflame.events.wire import CallFlag
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import Link
from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH, GPU_WAIT
from tests.unit.profile.builders import (
    OTHER,
    PROCESS,
    ROOT_ID,
    SAMPLED,
    SPAN_ID,
    STACK,
    START,
    TRACE_ID,
    batch,
    call,
    counters,
    leaves,
    name_event,
    run,
    samples,
    target_event,
    usual,
)


@pytest.mark.parametrize(
    ("row", "launches", "copied_bytes", "waited_ns"),
    [
        (call("cuLaunchKernel"), {"[kernel of unknown name]": 1}, {}, {}),
        (call("cuGraphLaunch"), {"[graph]": 1}, {}, {}),
        (call("cuMemsetD8Async", bytes=64), {"[set]": 1}, {}, {}),
        (call("cuMemcpyDtoD", bytes=64), {"[copy DtoD]": 1}, {"[copy DtoD]": 64}, {}),
        (
            call("cuMemcpyDtoH", bytes=64, duration_ns=900, voluntary_switches=1),
            {"[copy DtoH]": 1},
            {"[copy DtoH]": 64},
            {"[blocked]": 900},
        ),
        (call("cuMemcpyHtoDAsync", bytes=0, duration_ns=900), {"[copy HtoD]": 1}, {}, {}),
        (call("cuStreamSynchronize", duration_ns=700), {}, {}, {"[spin]": 700}),
        (call("cuMemFree", duration_ns=700), {}, {}, {"[spin]": 700}),
        (call("cuEventRecord"), {}, {}, {}),
        (call("cuStreamWaitEvent"), {}, {}, {}),
        (call("cuMemcpyDtoH", bytes=2**48 + 1), {"[copy DtoH]": 1}, {}, {}),
        (call("cuMemcpyDtoH", bytes=2**64 - 1), {"[copy DtoH]": 1}, {}, {}),
        (call(9_999), {"[unknown work]": 1}, {}, {}),
        (call(9_999, kind=wire.Kind.WAIT, duration_ns=5), {}, {}, {}),
    ],
)
def test_leaves_and_values_of_a_call(
    row: CallArray,
    launches: dict[str, int],
    copied_bytes: dict[str, int],
    waited_ns: dict[str, int],
) -> None:
    """Submissions count in `gpu_launch`, copies also in `gpu_copy`, waits in `gpu_wait`."""
    bundles, _ = run([*usual(), batch(row)])
    assert leaves(bundles, GPU_LAUNCH) == launches
    assert leaves(bundles, GPU_COPY) == copied_bytes
    assert leaves(bundles, GPU_WAIT) == waited_ns


def test_a_stack_reads_from_the_root_to_the_work() -> None:
    """Python frames first, then the driver call, then how the thread waited."""
    bundles, _ = run([*usual(), batch(call("cuStreamSynchronize", duration_ns=5))])
    assert samples(bundles, GPU_WAIT) == {
        (("main", "step", "cuStreamSynchronize", "[spin]"), None): 5
    }


def test_unknown_calls_are_named_by_their_number() -> None:
    """A call of a newer version is kept, as what it is known to be."""
    bundles, _ = run([*usual(), batch(call(9_999))])
    ((frames, _),) = samples(bundles, GPU_LAUNCH)
    assert frames[-2:] == ("[unknown call 9999]", "[unknown work]")


@pytest.mark.parametrize("kind", [0, 12, 15, 255])
def test_calls_of_unknown_kinds_are_remarked(kind: int) -> None:
    """A kind that this version does not know counts in no ledger account, but is not silent."""
    bundles, aggregator = run([*usual(), batch(call("cuLaunchKernel", kind=kind))])
    assert aggregator.ledger.remarks["calls of unknown kind"] == 1
    assert not aggregator.ledger.accounts()
    assert not samples(bundles, GPU_LAUNCH)


def test_unreadable_arguments_are_remarked() -> None:
    """A launch whose arguments could not be read still counts."""
    row = call("cuLaunchKernelEx", flags=CallFlag.ARGS_UNREADABLE)
    bundles, aggregator = run([*usual(), batch(row, row)])
    assert aggregator.ledger.remarks["arguments unreadable"] == 2
    assert leaves(bundles, GPU_LAUNCH) == {"[kernel of unknown name]": 2}


@pytest.mark.parametrize(
    ("mode", "span_id"), [(SpanLink.LOCAL_ROOT, ROOT_ID), (SpanLink.ACTIVE, SPAN_ID)]
)
def test_linked_samples_carry_the_ids_of_the_record(mode: SpanLink, span_id: bytes) -> None:
    """A link has the bytes of the record in their order; unlinked values stay beside it."""
    linked = call(
        "cuLaunchKernel",
        flags=SAMPLED | CallFlag.HAS_LOCAL_ROOT,
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
        local_root_span_id=ROOT_ID,
    )
    options = AggregateOptions(window_ns=None, span_link=mode)
    bundles, _ = run([*usual(), batch(linked, call("cuLaunchKernel"), linked)], options)
    found = {link: value for (_, link), value in samples(bundles, GPU_LAUNCH).items()}
    assert found == {Link(TRACE_ID, span_id): 2, None: 1}


def test_equal_frames_are_one_sample() -> None:
    """Two stacks of different addresses but equal frames add up."""
    twin = Stack(StackKey(8, 8), PROCESS, STACK.frames)
    calls = batch(call("cuLaunchKernel"), call("cuLaunchKernel", key=twin.key))
    bundles, _ = run([*usual(), Stacks((twin,)), calls])
    assert list(samples(bundles, GPU_LAUNCH).values()) == [2]


def test_a_stack_that_comes_after_its_calls_is_used() -> None:
    """Stacks are looked up when the window closes."""
    bundles, _ = run([START, target_event(), batch(call("cuLaunchKernel")), Stacks((STACK,))])
    assert next(iter(samples(bundles, GPU_LAUNCH)))[0][:2] == ("main", "step")


def test_each_process_has_its_own_bundle() -> None:
    """Calls never end up with another process, also not with one that had the same pid before."""
    again = ProcessKey(PROCESS.tgid, PROCESS.start_ns + 1)
    calls = batch(*(call("cuLaunchKernel", process=p) for p in (PROCESS, OTHER, again, OTHER)))
    described = [target_event(PROCESS, "a"), target_event(OTHER, "b"), target_event(again, "c")]
    bundles, _ = run([START, *described, calls])
    services = {
        dict(b.resource)["service.name"]: sum(leaves([b], GPU_LAUNCH).values()) for b in bundles
    }
    assert services == {"a": 1, "b": 2, "c": 1}


def test_undescribed_processes_have_a_service_name_all_the_same() -> None:
    """What is not described is `unknown_service`, as OpenTelemetry calls it."""
    (bundle,) = run([START, batch(call("cuLaunchKernel"))])[0]
    assert bundle.resource == (("service.name", "unknown_service"),)


def test_a_new_description_replaces_the_old_one() -> None:
    """A process that executes another program is called by the new one."""
    first, second = target_event(service="sh"), target_event()
    (bundle,) = run([START, first, batch(call("cuLaunchKernel")), second])[0]
    assert dict(bundle.resource)["service.name"] == "train"


def test_samples_carry_the_service_name() -> None:
    """Every sample refers to the attribute set with the service name, since some backends read it there."""
    (bundle,) = run([*usual(), batch(call("cuLaunchKernel"))])[0]
    sets = {bundle.attribute_sets[i] for p in bundle.profiles for i in p.attributes.tolist()}
    assert sets == {(("service.name", "train"),)}
    assert bundle.attribute_sets[0] == ()


def test_losses_belong_to_the_only_process_there_is() -> None:
    """With one process there is no doubt whose calls were lost; with two there is."""
    lost = counters(launch={"ring_full": 1})
    one, _ = run([*usual(), batch(call("cuLaunchKernel")), lost])
    assert [dict(b.resource)["service.name"] for b in one] == ["train"]
    both = batch(call("cuLaunchKernel"), call("cuLaunchKernel", process=OTHER))
    two, _ = run([*usual(), target_event(OTHER, "b"), both, lost])
    services = {
        dict(b.resource)["service.name"]
        for b in two
        if "[lost: ring full]" in leaves([b], GPU_LAUNCH)
    }
    assert services == {"unknown_service"}


def test_profiles_are_in_display_order() -> None:
    """The headline comes first, and every type has a profile."""
    (bundle,) = run([*usual(), batch(call("cuLaunchKernel"))])[0]
    assert tuple(p.sample_type for p in bundle.profiles) == sample_types.ALL
    assert sample_types.ALL[0] == sample_types.HEADLINE


def test_sample_types_are_found_by_name() -> None:
    """The registry knows its names, and tells them when asked for another."""
    assert sample_types.by_name("gpu_copy") == GPU_COPY
    with pytest.raises(
        KeyError, match="there are: gpu_wait, gpu_time, gpu_queue, gpu_idle, gpu_launch"
    ):
        sample_types.by_name("gpu_stall")


def test_renamed_handles_split_by_time() -> None:
    """Calls before a handle got another name keep the old one; those after it have the new one."""
    launches = batch(call("cuLaunchKernel", object=1), call("cuLaunchKernel", object=1))
    bundles, _ = run(
        [
            *usual(),
            name_event(1, "old"),
            launches,
            name_event(1, "new"),
            batch(call("cuLaunchKernel", object=1)),
        ]
    )
    assert leaves(bundles, GPU_LAUNCH) == {"old": 2, "new": 1}


def test_handles_are_those_of_a_process() -> None:
    """The same handle in two processes means two kernels; without a name it is a mark."""
    third = ProcessKey(5, 5)
    calls = batch(*(call("cuLaunchKernel", object=1, process=p) for p in (PROCESS, OTHER, third)))
    bundles, _ = run([START, name_event(1, "a"), name_event(1, "b", process=OTHER), calls])
    assert leaves(bundles, GPU_LAUNCH) == {"a": 1, "b": 1, "[kernel of unknown name]": 1}


@pytest.mark.parametrize(
    ("api", "kind"),
    [("cuLaunchKernel", FrameKind.GPU), ("clEnqueueNDRangeKernel", FrameKind.GPU_OPENCL)],
)
def test_a_kernel_frame_has_both_names(api: str, kind: FrameKind) -> None:
    """People see the readable name; the mangled one is its identity."""
    names = Names((HandleName(PROCESS, 0, 1, "_Z4gemmv", "gemm()"),))
    (bundle,) = run([*usual(), names, batch(call(api, object=1))])[0]
    leaf = bundle.frames[bundle.stacks[0][-1]]
    assert (leaf.kind, leaf.name, leaf.system_name) == (kind, "gemm", "_Z4gemmv")


def test_only_launches_have_kernels() -> None:
    """The object of another call is no kernel, even if a kernel has the same handle."""
    rows = batch(
        call("cuGraphLaunch", object=1), call("cuEventSynchronize", object=1, duration_ns=3)
    )
    bundles, _ = run([*usual(), name_event(1, "gemm"), rows])
    assert leaves(bundles, GPU_LAUNCH) == {"[graph]": 1}
    assert leaves(bundles, GPU_WAIT) == {"[spin]": 3}


def test_values_are_64_bit() -> None:
    """Sums larger than 32 bits are exact."""
    rows = np.repeat(call("cuMemcpyDtoH", bytes=2**40 + 1), 1_000)
    bundles, _ = run([*usual(), batch(rows)])
    assert leaves(bundles, GPU_COPY) == {"[copy DtoH]": 1_000 * (2**40 + 1)}
