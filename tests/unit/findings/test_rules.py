"""Where each rule begins to say something, and where it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from otel_gpuflame.events.attributions import Leaf, Measure
from otel_gpuflame.events.executions import NO_DEVICE
from otel_gpuflame.events.records import Calls, SamplingWindow, Watermark
from otel_gpuflame.findings.find import RULES, find
from otel_gpuflame.findings.model import Confidence
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import Bundle, Window
from otel_gpuflame.profile.sample_types import (
    ESTIMATED_SCOPE,
    GPU_IDLE,
    GPU_LAUNCH,
    PROBABILITY_ATTRIBUTE,
)
from otel_gpuflame.profile.top import total
from tests.unit.findings import programs
from tests.unit.findings.programs import MS, TINY, US, Program, S
from tests.unit.profile.builders import (
    DEVICE,
    OTHER,
    START,
    START_NS,
    UNIX_OFFSET_NS,
    attributed,
    attribution,
    call,
    devices,
    name_event,
    run,
    target_event,
    usual,
)


def rules(program: Program) -> list[tuple[str, str]]:
    """Rule and confidence of each finding."""
    return [(finding.rule, finding.confidence.value) for finding in program.findings()]


def reading(waits: int, wait_ns: int, launches: int = 1_000) -> Program:
    """Only what probes see: reads of a result, and launches before them."""
    program = Program()
    program.calls("cuLaunchKernel", 10, launches)
    program.calls("cuStreamSynchronize", 20, waits, wait_ns)
    return program


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (reading(10, 50 * MS), [("synchronise-in-loop", "medium")]),
        (reading(9, 500 * MS), []),
        (reading(10, 49 * MS), []),
        (reading(100, 5 * MS, 102_400), [("synchronise-in-loop", "medium")]),
        (reading(100, 5 * MS, 102_401), []),
        (reading(100, 5 * MS, 0), [("synchronise-in-loop", "medium")]),
        (reading(99, 50 * MS, 0), []),
    ],
)
def test_waits_count_when_they_are_many_long_and_drain_the_queue(
    program: Program, found: list[tuple[str, str]]
) -> None:
    """Without executions nothing is known of the device: medium confidence."""
    assert rules(program) == found


def test_waits_after_which_the_device_idles_are_certain() -> None:
    """Then not only the thread loses."""
    program = programs.item_a_step()
    program.attribute(Measure.GPU_IDLE, 400 * MS, 10, Leaf.NO_SAMPLE, api="cuLaunchKernel")
    assert rules(program) == [("synchronise-in-loop", "high")]


def test_idle_time_that_is_not_known_is_no_evidence() -> None:
    """What may have been another process's work says nothing about this one."""
    program = programs.item_a_step()
    program.attribute(Measure.GPU_IDLE, 5 * S, 20, Leaf.UNKNOWN_NOT_CAPTURED)
    assert rules(program) == [("synchronise-in-loop", "low")]


def test_rare_waits_of_a_long_recording_are_no_loop() -> None:
    """Less than one a second: whatever they cost, the queue is long between them."""
    (bundle,) = reading(20, 500 * MS).bundles()
    longer = replace(bundle.window, end_unix_ns=bundle.window.start_unix_ns + 21 * S)
    assert find([replace(bundle, window=longer, used=longer)]) == []
    assert len(find([replace(bundle, window=longer)])) == 1


def test_time_before_and_after_the_gpu_is_used_does_not_count() -> None:
    """The window of a finding is the part in which there were driver calls: imports do not make a share small."""
    program = Program()
    program.calls("cuStreamSynchronize", 20, 100, 10 * MS, start_ns=START_NS + 5 * S)
    program.calls("cuStreamSynchronize", 20, 1, 10 * MS, start_ns=START_NS + 7 * S - 10 * MS)
    (finding,) = find(run([*usual(), *program.events, Watermark(START_NS + 20 * S)])[0])
    assert finding.window == Window(
        UNIX_OFFSET_NS + START_NS + 5 * S, UNIX_OFFSET_NS + START_NS + 7 * S + 1
    )
    assert finding.share == pytest.approx(1.01 / 2)


def test_what_other_processes_do_makes_no_window_longer() -> None:
    """A program of two seconds in a recording that another one fills."""
    program = Program()
    for number in range(20):
        at_ns = START_NS + 5 * S + number * 100 * MS
        program.calls("cuStreamSynchronize", 20, 1, 90 * MS, start_ns=at_ns)
    other = {"tgid": OTHER.tgid, "process_start_ns": OTHER.start_ns}
    for at_ns in (0, 5_500 * MS, 100 * S):
        program.calls("cuEventRecord", 30, 1, start_ns=START_NS + at_ns, **other)
    (finding,) = find(run([*usual(), *program.events, Watermark(START_NS + 101 * S)])[0])
    begin_ns = UNIX_OFFSET_NS + START_NS + 5 * S
    assert finding.window == Window(begin_ns, begin_ns + 1_990 * MS + 1)
    assert finding.share == pytest.approx(1.8 / 1.99)


def test_idle_time_before_the_first_call_is_no_loss() -> None:
    """Nobody is told to start sooner; what comes later counts, also under the same stack."""
    program = Program()
    program.launches(10, 900, 1 * MS)
    for at_ns in (START_NS - 1, START_NS):
        program.attribute(Measure.GPU_IDLE, 4 * S, 40, Leaf.OFF_CPU, time_ns=at_ns)
    (finding,) = program.findings()
    assert (finding.rule, finding.lost_ns) == ("input-bound", 4 * S)
    assert sum(total([b], GPU_IDLE) for b in program.bundles()) == 8 * S


def test_a_wait_is_not_told_where_the_device_idles_longer_for_something_else() -> None:
    """Who sleeps 5 ms after each wait of 4 ms is told to do that beside the device's work."""
    program = reading(100, 40 * MS)
    program.attribute(Measure.GPU_IDLE, 4 * S, 40, Leaf.OFF_CPU)
    program.launches(10, 100, 1 * MS)
    assert [rule for rule, _ in rules(program)] == ["input-bound", "synchronise-in-loop"]
    program.attribute(Measure.GPU_IDLE, 1, 40, Leaf.OFF_CPU)
    assert [rule for rule, _ in rules(program)] == ["input-bound"]


def test_devices_that_idle_at_once_do_not_hide_a_wait() -> None:
    """Four devices that each idle for 2 s beside a line that waits for 6 s."""
    program = reading(100, 60 * MS)
    program.launches(10, 100, 1 * MS)
    infos = [replace(DEVICE, index=10 + n, uuid=f"GPU-{n}") for n in range(4)]
    program.events.insert(0, devices(*infos))
    for info in infos:
        program.attribute(Measure.GPU_IDLE, 2 * S, 40, Leaf.OFF_CPU, device=info.index)
        program.attribute(Measure.GPU_TIME, S, 10, api="cuLaunchKernel", device=info.index)
    assert [rule for rule, _ in rules(program)] == ["input-bound", "synchronise-in-loop"]


def copying(
    api: str, count: int, wait_ns: int, size_bytes: int, synchronise_ns: int = 0
) -> Program:
    """Copies at one line, each followed by a synchronise there if that takes time."""
    program = Program()
    program.calls("cuLaunchKernel", 10, 1_000)
    program.calls(api, 30, count, wait_ns, bytes=size_bytes)
    if synchronise_ns:
        program.calls("cuStreamSynchronize", 30, count, synchronise_ns)
    return program


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (copying("cuMemcpyHtoDAsync", 10, 20 * MS, 1 << 20), [("unpinned-copy", "high")]),
        (copying("cuMemcpyHtoDAsync", 9, 200 * MS, 1 << 20), []),
        (copying("cuMemcpyHtoDAsync", 10, 19 * MS, 1 << 20), []),
        (copying("cuMemcpyDtoHAsync", 25_000, 8 * US, 4_097), [("unpinned-copy", "high")]),
        (copying("cuMemcpyDtoHAsync", 10, 50 * MS, 4_096), [("synchronise-in-loop", "medium")]),
        (copying("cuMemcpyHtoD", 10, 20 * MS, 1 << 20), [("unpinned-copy", "medium")]),
        (copying("cuMemcpyHtoDAsync", 10, 3 * US, 1 << 20, 20 * MS), [("unpinned-copy", "medium")]),
        (copying("cuMemcpyHtoDAsync", 1_000, 3 * US, 1 << 20), []),
        (copying("cuMemcpyDtoD", 10, 500 * MS, 1 << 20), []),
    ],
)
def test_copies_count_when_they_are_many_and_a_thread_waits_for_them(
    program: Program, found: list[tuple[str, str]]
) -> None:
    """Small ones from the device are reads of results; those on the device wait for nothing."""
    assert rules(program) == found


@pytest.mark.parametrize(
    ("size", "wait_ms", "found"),
    [
        (512 << 10, 20, "synchronise-in-loop"),
        (9 << 20, 20, "synchronise-in-loop"),
        (11 << 20, 20, "unpinned-copy"),
    ],
)
def test_a_read_that_waits_for_what_came_before_is_no_slow_copy(
    size: int, wait_ms: int, found: str
) -> None:
    """Logits of half a megabyte a token: to pin their memory would not make the token come sooner."""
    program = Program()
    program.calls("cuLaunchKernel", 10, 10_000)
    program.calls("cuMemcpyDtoHAsync", 30, 400, wait_ms * MS, bytes=size)
    assert [rule for rule, _ in rules(program)] == [found]


def launching(idle_ns: int, launches: int = 10_000, execution_ns: int = 4 * US) -> Program:
    """Launches, and a device that waits for the next one."""
    program = Program()
    program.launches(70, launches, execution_ns)
    program.attribute(Measure.GPU_IDLE, idle_ns, 70, Leaf.NO_SAMPLE, api="cuLaunchKernel")
    return program


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (launching(2 * S), ["launch-bound"]),
        (launching(2 * S - 1), []),
        (launching(2 * S, 1_000), ["launch-bound"]),
        (launching(2 * S, 999), []),
        (launching(2 * S, 10_000, 100 * US), ["launch-bound"]),
        (launching(2 * S, 10_000, 101 * US), []),
    ],
)
def test_launches_limit_when_the_device_idles_between_short_executions(
    program: Program, found: list[str]
) -> None:
    """Long executions leave time for launches."""
    assert [rule for rule, _ in rules(program)] == found


def test_launches_limit_whatever_shapes_kernels_have() -> None:
    """Inputs of 500 lengths: what is kept of kernels is but the 64 shapes that took most time."""
    program = Program()
    for length in range(500):
        program.launches(70, 20, 4 * US, grid=(10_000 + length, 1, 1))
    program.attribute(Measure.GPU_IDLE, 2 * S, 70, Leaf.NO_SAMPLE, api="cuLaunchKernel")
    (finding,) = program.findings()
    evidence = dict(finding.evidence)
    assert finding.rule == "launch-bound"
    assert (evidence["launches"], evidence["mean_execution_ns"]) == (10_000, 4 * US)


@pytest.mark.parametrize(("gaps", "found"), [(7, []), (700, ["launch-bound"])])
def test_a_library_that_is_loaded_at_a_launch_does_not_limit_launches(
    gaps: int, found: list[str]
) -> None:
    """A few gaps of a second at a line that launches, or many of 10 ms."""
    program = launching(0)
    program.attribute(Measure.GPU_IDLE, 7 * S, 70, Leaf.ON_CPU, gaps=gaps)
    assert [rule for rule, _ in rules(program)] == found


def test_launches_do_not_limit_what_waits_for_input() -> None:
    """The larger reason is the one that is told."""
    program = launching(2 * S)
    program.attribute(Measure.GPU_IDLE, 3 * S, 40, Leaf.OFF_CPU)
    assert [rule for rule, _ in rules(program)] == ["input-bound"]


def test_the_end_of_a_wait_is_not_the_time_of_a_launch() -> None:
    """What a thread idles away inside of a synchronise belongs to that."""
    program = launching(0)
    program.attribute(Measure.GPU_IDLE, 5 * S, 20, Leaf.DRIVER_CALL, api="cuStreamSynchronize")
    assert rules(program) == []


def test_shares_of_several_devices_are_of_all_their_time() -> None:
    """One of two devices that idles a quarter of the time is an eighth."""
    program = launching(2_500 * MS)
    program.attribute(Measure.GPU_TIME, S, 70, api="cuLaunchKernel", device=NO_DEVICE)
    assert rules(program) == []


@pytest.mark.parametrize(
    ("idle_ns", "leaf", "found"),
    [
        (500 * MS, Leaf.OFF_CPU, [("input-bound", "high")]),
        (500 * MS - 1, Leaf.OFF_CPU, []),
        (500 * MS, Leaf.ON_CPU, [("input-bound", "medium")]),
        (5 * S, Leaf.UNKNOWN_INCOMPLETE, []),
        (1 * S, Leaf.NO_SAMPLE, []),
    ],
)
def test_idle_time_counts_where_a_thread_did_something_else(
    idle_ns: int, leaf: Leaf, found: list[tuple[str, str]]
) -> None:
    """Only what is known of the thread is said of it."""
    program = Program()
    program.launches(10, 900, 1 * MS)
    program.attribute(Measure.GPU_IDLE, idle_ns, 40, leaf)
    assert rules(program) == found


@pytest.mark.parametrize(
    ("gaps", "found"),
    [
        ([1], []),
        ([1, 1, 1], [("input-bound", "medium")]),
        # Whatever there is beside it in the gaps; lines of one function add up.
        ([2.4], []),
        ([1.3, 1.3], [("input-bound", "medium")]),
        ([9.5], [("input-bound", "medium")]),
        ([10], [("input-bound", "high")]),
    ],
)
def test_what_happens_once_is_no_reason_for_idle_time(
    gaps: list[float], found: list[tuple[str, str]]
) -> None:
    """A pause at the start, a checkpoint: the time is there, and no remedy."""
    program = Program()
    program.launches(10, 900, 1 * MS)
    for number, part in enumerate(gaps):
        key = program.at(40 + number, "load")
        row = attribution(Measure.GPU_IDLE, 6 * S // len(gaps), Leaf.OFF_CPU, key=key, gaps=part)
        program.events.append(attributed(row))
    assert rules(program) == found


def test_a_pause_does_not_hide_a_synchronise_in_a_loop() -> None:
    """The device idles for longer in it than the loop waits, but once."""
    program = Program()
    program.launches(10, 900, 1 * MS)
    program.waits(20, 100, 10 * MS)
    program.attribute(Measure.GPU_IDLE, 2 * S, 40, Leaf.OFF_CPU, gaps=1)
    assert [rule for rule, _ in rules(program)] == ["synchronise-in-loop"]


def test_a_thread_on_the_cpu_at_a_line_that_launches_prepares_launches() -> None:
    """It is not input that the device waits for; off the CPU it is."""
    program = Program()
    program.launches(10, 900, 1 * MS)
    program.attribute(Measure.GPU_IDLE, 1 * S, 10, Leaf.ON_CPU)
    assert rules(program) == []
    program.attribute(Measure.GPU_IDLE, 1 * S, 10, Leaf.OFF_CPU)
    assert rules(program) == [("input-bound", "high")]


@pytest.mark.parametrize(("held_back_ns", "found"), [(1 * S, ["back-pressure-bound"]), (S - 1, [])])
def test_held_back_launches_count_from_a_tenth_of_the_window(
    held_back_ns: int, found: list[str]
) -> None:
    """Also where nothing is known of what ran meanwhile."""
    program = Program()
    program.launches(60, 5_000, 1 * MS)
    program.attribute(Measure.GPU_WAIT, held_back_ns, 60, Leaf.QUEUE_FULL, api="cuGraphLaunch")
    assert [rule for rule, _ in rules(program)] == found


@pytest.mark.parametrize(
    ("shape", "share_ms", "found"),
    [
        ({"grid": (4, 1, 1)}, 1_000, [("low-occupancy", "medium")]),
        ({"grid": (4, 1, 1)}, 999, []),
        ({"grid": (131, 1, 1), "block": (256, 1, 1)}, 3_000, [("low-occupancy", "medium")]),
        ({"grid": (132, 1, 1), "block": (256, 1, 1)}, 3_000, []),
        ({"block": (1, 1, 1)}, 3_000, [("low-occupancy", "low")]),
        ({"block": (64, 1, 1), "shared_bytes": 230_000}, 3_000, [("low-occupancy", "low")]),
        ({"block": (128, 1, 1), "shared_bytes": 230_000}, 3_000, []),
        ({"block": (0, 0, 0)}, 3_000, []),
        ({"grid": (4, 1, 1), "device": 99}, 3_000, []),
    ],
)
def test_kernels_count_that_cannot_fill_the_device(
    shape: dict[str, Any], share_ms: int, found: list[tuple[str, str]]
) -> None:
    """From a tenth of the device's time on, and by limits that no good kernel reaches."""
    program = Program()
    program.launches(10, 10_000 - share_ms, 1 * MS)
    program.launches(80, share_ms, 1 * MS, TINY, **shape)
    assert rules(program) == found


@pytest.mark.parametrize(
    "name", ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "at::cuda::spin_kernel(long)"]
)
def test_kernels_that_need_few_blocks_are_left_out(name: str) -> None:
    """They move data between devices, or let time pass."""
    program = Program()
    program.launches(10, 7_000, 1 * MS)
    program.events.append(name_event(TINY, name))
    program.launches(80, 3_000, 1 * MS, TINY, grid=(1, 1, 1))
    assert rules(program) == []


def test_shapes_of_one_kernel_add_up() -> None:
    """Shapes that vary do not hide a kernel."""
    program = Program()
    program.launches(10, 9_000, 1 * MS)
    for blocks in range(1, 11):
        program.launches(80, 100, 1 * MS, TINY, grid=(blocks, 1, 1))
    (finding,) = program.findings()
    evidence = dict(finding.evidence)
    assert (finding.rule, evidence["executions"], evidence["execution_ns"]) == (
        "low-occupancy",
        1_000,
        1 * S,
    )


def test_estimates_of_few_executions_are_left_out() -> None:
    """What is scaled from nearly nothing is no evidence of a certain line."""
    (bundle,) = programs.unpinned_copy().bundles()
    assert find([replace(bundle, scope=ESTIMATED_SCOPE)]) == []
    (bundle,) = programs.launch_bound().bundles()
    assert find([estimated(bundle, 1e-9)]) == []


def test_estimates_of_executions_are_evidence() -> None:
    """Launches of the same windows are exported by another bundle. A finding says how much was seen."""
    (bundle,) = programs.launch_bound().bundles()
    (exact,), (found,) = find([bundle]), find([estimated(bundle, 0.1)])
    assert exact.confidence is Confidence.HIGH
    assert found.confidence is Confidence.MEDIUM
    assert found.evidence == (*exact.evidence, ("sampling_probability", 0.1))
    assert (found.rule, found.where, found.lost_ns) == (exact.rule, exact.where, exact.lost_ns)


@pytest.mark.parametrize(("sampled", "found"), [(False, ["synchronise-in-loop"]), (True, [])])
def test_launches_of_graphs_alone_are_not_all_launches_in_the_agent(
    sampled: bool, found: list[str]
) -> None:
    """Graphs are always captured while they are rare, kernels in windows: how many a wait drains is not known."""
    program = Program()
    program.calls("cuGraphLaunch", 10, 600)
    program.calls("cuStreamSynchronize", 20, 20, 100 * MS)
    ends = [Calls(call("cuCtxSynchronize", start_ns=START_NS + at)) for at in (0, 10 * S - 1)]
    options = AggregateOptions(window_ns=10 * S, sampled=sampled)
    bundles, _ = run([START, *ends, *program.events, Watermark(START_NS + 10 * S)], options)
    assert [finding.rule for finding in find(bundles)] == found


def decoding(waits: int, probability_ppb: int) -> list[Bundle]:
    """A read a token, so often that the agent captures waits in windows: so many are seen, of 25 ms each."""
    begin_ns, end_ns = START_NS, START_NS + 10 * S
    window = SamplingWindow(
        begin_ns, end_ns, begin_ns + S, begin_ns + 2 * S, probability_ppb, with_waits=True
    )
    program = Program()
    for number in range(waits):
        at = {"start_ns": begin_ns + S + number * 30 * MS}
        program.calls("cuLaunchKernel", 10, 40, **at)
        program.calls("cuStreamSynchronize", 20, 1, 25 * MS, **at)
    options = AggregateOptions(window_ns=10 * S, sampled=True)
    bundles, _ = run([START, target_event(), window, *program.events, Watermark(end_ns)], options)
    return bundles


def test_waits_that_are_so_many_that_they_are_estimated_are_evidence() -> None:
    """The agent looks at them in windows exactly where programs wait most."""
    (finding,) = find(decoding(20, 100_000_000))
    evidence = dict(finding.evidence)
    assert (finding.rule, finding.place.line) == ("synchronise-in-loop", 20)
    assert (finding.lost_ns, finding.confidence) == (200 * 25 * MS, Confidence.MEDIUM)
    assert (evidence["waits"], evidence["launches_between"]) == (200, 40)
    assert evidence["sampling_probability"] == 0.1


def test_estimates_of_few_waits_are_left_out() -> None:
    """Nine of them at a line, however many they stand for."""
    assert find(decoding(10, 50_000_000))
    assert find(decoding(9, 50_000_000)) == []


@pytest.mark.parametrize(("probability", "found"), [(0.02, []), (0.03, ["input-bound"])])
def test_what_a_window_saw_once_or_twice_does_not_happen_again_and_again(
    probability: float, found: list[str]
) -> None:
    """A pause in a sampling window stands for a hundred, of which nobody saw any."""
    program = Program()
    program.launches(10, 90_000, 100 * US)
    program.attribute(Measure.GPU_IDLE, S, 40, Leaf.OFF_CPU, gaps=100)
    (bundle,) = program.bundles()
    assert [finding.rule for finding in find([estimated(bundle, probability)])] == found


def estimated(bundle: Bundle, probability: float) -> Bundle:
    """The bundle as an estimate: its launches are in another one."""
    launches = next(each for each in bundle.profiles if each.sample_type == GPU_LAUNCH)
    return replace(
        bundle,
        scope=ESTIMATED_SCOPE,
        profile_attributes=((PROBABILITY_ATTRIBUTE, f"{probability:.6g}"),),
        profiles=tuple(each for each in bundle.profiles if each is not launches),
        launches=tuple(zip(launches.stack.tolist(), launches.value.tolist(), strict=True)),
    )


def test_findings_do_not_depend_on_the_order_of_events() -> None:
    """Replays of one capture say the same."""
    program = programs.python_loop()
    expected = program.findings()
    order = np.random.default_rng(1).permutation(len(program.events))
    assert Program([program.events[i] for i in order]).findings() == expected


def test_rules_have_names_of_their_own() -> None:
    """A machine tells findings apart by them."""
    assert len({rule.id for rule in RULES}) == len(RULES)
