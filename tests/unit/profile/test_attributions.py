"""What an attribution becomes: sample type, frames, device, link, window."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.correlate.waits import WaitMode
from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.encode.pprof import build_pprof
from otel_gpuflame.events import apis
from otel_gpuflame.events.attributions import (
    Attributions,
    Leaf,
    Measure,
    NoLaunch,
    StackPair,
    StackPairs,
)
from otel_gpuflame.events.executions import NO_DEVICE
from otel_gpuflame.events.frames import FrameKind, ProcessKey, StackKey
from otel_gpuflame.events.records import Calls, HandleName, Names, StacksForgotten, Watermark
from otel_gpuflame.events.wire import CallFlag
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import Bundle, Link, ValueType
from otel_gpuflame.profile.sample_types import (
    GPU_IDLE,
    GPU_LAUNCH,
    GPU_QUEUE,
    GPU_TIME,
    GPU_WAIT,
    OF_DEVICES,
)
from tests.unit.profile.builders import (
    DEVICE,
    KEY,
    OTHER,
    PROCESS,
    ROOT_ID,
    SAMPLED,
    SPAN_ID,
    START_NS,
    TRACE_ID,
    attributed,
    attribution,
    batch,
    call,
    devices,
    leaves,
    name_event,
    run,
    samples,
    target_event,
    usual,
)

NOBODY = ProcessKey(0, 0)
NO_STACK = StackKey(0, 0)
STACK_NAMES = ("main", "step")


def stacks(bundles: list[Bundle], sample_type: ValueType) -> dict[tuple[str, ...], int]:
    """Values by the names of frames."""
    return {frames: value for (frames, _), value in samples(bundles, sample_type).items()}


@pytest.mark.parametrize(
    ("row", "sample_type", "frames"),
    [
        (
            attribution(Measure.GPU_TIME, 9, api="cuLaunchKernel", name=1),
            GPU_TIME,
            ("cuLaunchKernel", "gemm"),
        ),
        (
            attribution(Measure.GPU_TIME, 9, api="cuGraphLaunch", name=1),
            GPU_TIME,
            ("cuGraphLaunch", "gemm"),
        ),
        (
            attribution(Measure.GPU_TIME, 9, api="cuLaunchKernel", name=2),
            GPU_TIME,
            ("cuLaunchKernel", "[kernel of unknown name]"),
        ),
        (
            attribution(Measure.GPU_TIME, 9, api="cuMemcpyAsync", leaf_api="cuMemcpyHtoD"),
            GPU_TIME,
            ("cuMemcpyAsync", "[copy HtoD]"),
        ),
        (
            attribution(Measure.GPU_QUEUE, 9, Leaf.WAITS_FOR_EVENT, api="cuLaunchKernel"),
            GPU_QUEUE,
            ("cuLaunchKernel", "[waits for event]"),
        ),
        (
            attribution(Measure.GPU_QUEUE, 9, Leaf.DEVICE_FULL, api="cuLaunchKernel", name=1),
            GPU_QUEUE,
            ("cuLaunchKernel", "gemm", "[device full]"),
        ),
        (
            attribution(
                Measure.GPU_WAIT, 9, api="cuStreamSynchronize", name=1, mode=WaitMode.BLOCKED
            ),
            GPU_WAIT,
            ("cuStreamSynchronize", "[blocked]", "gemm"),
        ),
        (
            attribution(
                Measure.GPU_WAIT, 9, Leaf.DRIVER, api="cuStreamSynchronize", mode=WaitMode.SPIN
            ),
            GPU_WAIT,
            ("cuStreamSynchronize", "[spin]", "[driver]"),
        ),
        (
            attribution(Measure.GPU_WAIT, 9, Leaf.QUEUE_FULL, api="cuLaunchKernel"),
            GPU_WAIT,
            ("cuLaunchKernel", "[queue full]"),
        ),
        (attribution(Measure.GPU_IDLE, 9, Leaf.ON_CPU), GPU_IDLE, ("[on CPU]",)),
        (attribution(Measure.GPU_IDLE, 9, Leaf.OFF_CPU), GPU_IDLE, ("[off CPU]",)),
        (
            attribution(
                Measure.GPU_IDLE, 9, Leaf.DRIVER_CALL, api="cuMemFree", leaf_api="cuMemFree"
            ),
            GPU_IDLE,
            ("cuMemFree", "[driver call]"),
        ),
        (
            attribution(
                Measure.GPU_QUEUE,
                9,
                Leaf.LAUNCH_LATENCY,
                api="cuMemcpyHtoDAsync",
                leaf_api="cuMemcpyHtoD",
            ),
            GPU_QUEUE,
            ("cuMemcpyHtoDAsync", "[copy HtoD]", "[launch latency]"),
        ),
        (
            attribution(Measure.GPU_IDLE, 9, Leaf.NO_SAMPLE, api="cuLaunchKernel"),
            GPU_IDLE,
            ("cuLaunchKernel", "[no sample]"),
        ),
        (attribution(Measure.GPU_IDLE, 9, 200), GPU_IDLE, ("[unknown reason 200]",)),  # type: ignore[arg-type]
    ],
)
def test_frames_of_an_attribution(
    row: np.ndarray, sample_type: ValueType, frames: tuple[str, ...]
) -> None:
    """The captured stack, the call, how the thread waited, what ran, and the reason."""
    bundles, _ = run([*usual(), name_event(1, "gemm"), attributed(row)])
    assert stacks(bundles, sample_type) == {STACK_NAMES + frames: 9}
    assert sum(p.total for b in bundles for p in b.profiles) == 9


@pytest.mark.parametrize("leaf", [leaf for leaf in Leaf if leaf is not Leaf.KERNEL])
def test_every_reason_has_a_name(leaf: Leaf) -> None:
    """No reason is shown by its number."""
    bundles, _ = run([*usual(), attributed(attribution(Measure.GPU_IDLE, 1, leaf))])
    ((name, _),) = leaves(bundles, GPU_IDLE).items()
    assert not any(c.isdigit() for c in name)


@pytest.mark.parametrize("reason", [reason for reason in NoLaunch if reason is not NoLaunch.NONE])
def test_executions_without_a_launch_say_why(reason: NoLaunch) -> None:
    """They stand under a mark with the reason, and keep their value and their kernel."""
    row = attribution(Measure.GPU_TIME, 9, name=1, no_launch=reason, key=NO_STACK)
    bundles, _ = run([*usual(), name_event(1, "gemm"), attributed(row)])
    text = reason.name.lower().replace("_", " ")
    assert stacks(bundles, GPU_TIME) == {(f"[no launch: {text}]", "gemm"): 9}


def test_idle_time_that_nobody_is_known_to_have_caused_has_only_its_reason() -> None:
    """It belongs to the only process there is; to none where there are several."""
    unknown = attribution(
        Measure.GPU_IDLE, 7, Leaf.UNKNOWN_INCOMPLETE, process=NOBODY, key=NO_STACK
    )
    mine = attribution(Measure.GPU_TIME, 9, api="cuLaunchKernel")
    bundles, _ = run([*usual(), attributed(unknown, mine)])
    assert [dict(b.resource)["service.name"] for b in bundles] == ["train"]
    assert stacks(bundles, GPU_IDLE) == {("[unknown: records are missing]",): 7}
    others = attribution(Measure.GPU_TIME, 9, api="cuLaunchKernel", process=OTHER)
    two, _ = run([*usual(), target_event(OTHER, "b"), attributed(unknown, mine, others)])
    assert [dict(b.resource)["service.name"] for b in two if leaves([b], GPU_IDLE)] == [
        "unknown_service"
    ]


def test_a_kernel_frame_has_both_names() -> None:
    """As the leaf of its launches."""
    names = Names((HandleName(PROCESS, 0, 1, "_Z4gemmv", "gemm()"),))
    row = attribution(Measure.GPU_TIME, 9, api="cuLaunchKernel", name=1)
    (bundle,), _ = run([*usual(), names, attributed(row)])
    leaf = bundle.frames[bundle.stacks[0][-1]]
    assert (leaf.kind, leaf.name, leaf.system_name) == (FrameKind.GPU, "gemm", "_Z4gemmv")


def test_waits_that_are_attributed_count_once() -> None:
    """The call is in the books and in the number of waits; its time comes from the attributions alone."""
    wait = call("cuStreamSynchronize", duration_ns=700, flags=CallFlag.ATTRIBUTED)
    rows = [
        attribution(Measure.GPU_WAIT, value, leaf, api="cuStreamSynchronize", mode=WaitMode.SPIN)
        for value, leaf in ((600, Leaf.KERNEL), (100, Leaf.DRIVER))
    ]
    bundles, aggregator = run([*usual(), batch(wait), attributed(*rows)])
    assert leaves(bundles, GPU_WAIT) == {"[kernel of unknown name]": 600, "[driver]": 100}
    assert aggregator.ledger.profiled["wait"] == 1
    assert [calls for _, calls in bundles[0].waits] == [1]


def test_a_launch_that_was_attributed_still_counts() -> None:
    """Only its time comes another way."""
    bundles, _ = run([*usual(), batch(call("cuLaunchKernel", flags=CallFlag.ATTRIBUTED))])
    assert leaves(bundles, GPU_LAUNCH) == {"[kernel of unknown name]": 1}


def test_numbers_of_waits_are_by_how_they_were_spent() -> None:
    """Findings need to know how many calls a time was."""
    spun, blocked = (
        call("cuStreamSynchronize", duration_ns=7, voluntary_switches=n) for n in (0, 1)
    )
    (bundle,), _ = run([*usual(), batch(spun, blocked, spun)])
    counts = {bundle.frames[bundle.stacks[stack][-1]].name: n for stack, n in bundle.waits}
    assert counts == {"[spin]": 2, "[blocked]": 1}


@pytest.mark.parametrize(
    ("mode", "span_id"), [(SpanLink.LOCAL_ROOT, ROOT_ID), (SpanLink.ACTIVE, SPAN_ID)]
)
def test_executions_inherit_the_span_of_their_launch(mode: SpanLink, span_id: bytes) -> None:
    """Links are those that the launch would have had."""
    linked = attribution(
        Measure.GPU_TIME,
        5,
        api="cuLaunchKernel",
        flags=SAMPLED | CallFlag.HAS_LOCAL_ROOT,
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
        local_root_span_id=ROOT_ID,
    )
    other = attribution(Measure.GPU_TIME, 3, api="cuLaunchKernel")
    options = AggregateOptions(window_ns=None, span_link=mode)
    bundles, _ = run([*usual(), attributed(linked, other)], options)
    found = {link: value for (_, link), value in samples(bundles, GPU_TIME).items()}
    assert found == {Link(TRACE_ID, span_id): 5, None: 3}


def test_samples_carry_their_device() -> None:
    """`hw.id` and `hw.model` tell devices apart; samples of no device, or of one that is not known, have neither."""
    second = DEVICE.index + 1
    rows = [
        attribution(Measure.GPU_TIME, value, api="cuLaunchKernel", device=device)
        for value, device in ((5, DEVICE.index), (3, second), (2, NO_DEVICE))
    ]
    (bundle,), _ = run([*usual(), devices(), attributed(*rows, rows[0])])
    (profile,) = [p for p in bundle.profiles if p.sample_type == GPU_TIME]
    found = {
        bundle.attribute_sets[attributes]: value
        for attributes, value in zip(profile.attributes, profile.value.tolist(), strict=True)
    }
    assert found == {
        (("hw.id", DEVICE.uuid), ("hw.model", DEVICE.model), ("service.name", "train")): 10,
        (("service.name", "train"),): 5,
    }
    assert bundle.attribute_sets[0] == ()


def test_formats_carry_the_device() -> None:
    """Labels in pprof, and attributes of samples in OTLP."""
    row = attribution(Measure.GPU_TIME, 5, api="cuLaunchKernel", device=DEVICE.index)
    bundles, _ = run([*usual(), devices(), attributed(row)])
    message = build_pprof(bundles)
    (sample,) = message.sample
    strings = message.string_table
    assert {strings[label.key]: strings[label.str] for label in sample.label} == {
        "hw.id": DEVICE.uuid,
        "hw.model": DEVICE.model,
        "service.name": "train",
    }
    (request,) = encode_otlp(bundles)
    dictionary = request.dictionary
    ((profile,),) = [s.profiles for r in request.resource_profiles for s in r.scope_profiles]
    attributes = [dictionary.attribute_table[i] for i in profile.samples[0].attribute_indices]
    found = {dictionary.string_table[a.key_strindex]: a.value.string_value for a in attributes}
    assert found["hw.id"] == DEVICE.uuid


def test_attributions_count_in_the_window_of_their_time() -> None:
    """A row of a later window waits for it; one that comes too late is remarked and kept."""
    rows = [
        attribution(Measure.GPU_TIME, value, api="cuLaunchKernel", time_ns=START_NS + time_ns)
        for value, time_ns in ((1, 50), (2, 150))
    ]
    events = [*usual(), attributed(*rows), Watermark(START_NS + 120), attributed(rows[0])]
    bundles, aggregator = run(events, AggregateOptions(window_ns=100))
    assert [sum(leaves([b], GPU_TIME).values()) for b in bundles] == [1, 3]
    assert aggregator.ledger.remarks["late for their window"] == 1


def test_equal_attributions_add_up_and_sums_are_exact() -> None:
    """Grouping loses nothing."""
    random = np.random.default_rng(1)
    rows = np.repeat(attribution(Measure.GPU_TIME, 0, api="cuLaunchKernel"), 5_000)
    rows["value_ns"] = random.integers(0, 2**40, len(rows))
    rows["measure"] = random.integers(Measure.GPU_TIME, Measure.GPU_IDLE + 1, len(rows))
    rows["stack_hash"][:, 0] = random.integers(0, 9, len(rows))
    rows["device"] = random.integers(0, 3, len(rows))
    bundles, _ = run([*usual(), Attributions(rows)])
    types = {Measure.GPU_TIME: GPU_TIME, Measure.GPU_QUEUE: GPU_QUEUE, Measure.GPU_IDLE: GPU_IDLE}
    for measure, sample_type in types.items():
        expected = int(rows["value_ns"][rows["measure"] == measure].sum())
        assert sum(leaves(bundles, sample_type).values()) == expected


def test_gaps_of_idle_time_add_up_by_stack() -> None:
    """Not those before the first driver call, and of nothing else."""
    before = attribution(Measure.GPU_IDLE, 5, Leaf.OFF_CPU, gaps=4, time_ns=START_NS)
    rows = [
        attribution(Measure.GPU_IDLE, 5, Leaf.OFF_CPU, gaps=gaps, time_ns=START_NS + 50)
        for gaps in (0.25, 1, 0.5)
    ]
    first = Calls(call("cuLaunchKernel", start_ns=START_NS + 20))
    other = attribution(Measure.GPU_QUEUE, 5, Leaf.DEVICE_FULL, gaps=7)
    (bundle,), _ = run([*usual(), first, attributed(*rows, before, other)])
    ((stack, gaps),) = bundle.idle_gaps
    assert (bundle.frames[bundle.stacks[stack][-1]].name, gaps) == ("[off CPU]", 1.75)


def test_idle_time_of_long_gaps_is_known_apart() -> None:
    """Of more than 10 ms: of a half of one, 5 ms and more."""
    at = {"time_ns": START_NS + 50}
    rows = [
        attribution(Measure.GPU_IDLE, ns, Leaf.ON_CPU, gaps=gaps, **at)
        for ns, gaps in ((5_000_000, 0.5), (5_000_001, 0.5), (30_000_000, 1), (30_000_000, 4))
    ]
    without = attribution(Measure.GPU_IDLE, 10**9, Leaf.NO_SAMPLE, **at)
    first = Calls(call("cuLaunchKernel", start_ns=START_NS + 20))
    (bundle,), _ = run([*usual(), first, attributed(*rows, without)])
    ((stack, long_ns),) = bundle.long_idle
    assert (bundle.frames[bundle.stacks[stack][-1]].name, long_ns) == ("[on CPU]", 35_000_001)
    assert sum(gaps for _, gaps in bundle.idle_gaps) == 6


def test_unknown_measures_are_remarked() -> None:
    """What a newer correlation measures is left out, and not silently."""
    known, unknown = (attribution(measure, 5) for measure in (Measure.GPU_TIME, 99))  # type: ignore[arg-type]
    bundles, aggregator = run([*usual(), attributed(known, unknown), attributed(unknown)])
    assert aggregator.ledger.remarks["attributions of unknown measure"] == 2
    assert sum(leaves(bundles, GPU_TIME).values()) == 5


def test_batches_without_rows_open_no_window() -> None:
    """An empty batch changes nothing."""
    bundles, _ = run([*usual(), Attributions(attribution(Measure.GPU_TIME, 1)[:0])])
    assert bundles == []


def test_captures_without_executions_have_no_such_samples() -> None:
    """Types of devices stay empty."""
    bundles, _ = run([*usual(), batch(call("cuStreamSynchronize", duration_ns=5, key=KEY))])
    assert not any(leaves(bundles, sample_type) for sample_type in OF_DEVICES)


def test_a_pair_of_stacks_has_the_call_between_them() -> None:
    """Also when its parts are forgotten; a part that never came is said."""
    both, half = StackKey(71, 1), StackKey(72, 1)
    api = apis.BY_NAME["cuGraphLaunch"].id
    pairs = StackPairs(
        (
            StackPair(both, PROCESS, KEY, api, KEY),
            StackPair(half, PROCESS, KEY, api, StackKey(9, 9)),
        )
    )
    rows = [
        attribution(Measure.GPU_TIME, 5, api="cuLaunchKernel", name=1, key=key)
        for key in (both, half)
    ]
    bundles, _ = run(
        [*usual(), name_event(1, "gemm"), pairs, StacksForgotten((KEY,)), attributed(*rows)]
    )
    found = stacks(bundles, GPU_TIME)
    between = ("cuGraphLaunch", "[captured at, estimated]")
    end = ("cuLaunchKernel", "gemm")
    assert found == {
        (*STACK_NAMES, *between, *STACK_NAMES, *end): 5,
        (*STACK_NAMES, *between, "[no stack: lost on the way]", *end): 5,
    }
