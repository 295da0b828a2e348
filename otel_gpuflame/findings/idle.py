"""Why a device has nothing to do: threads that prepare launches too slowly, or do something else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from otel_gpuflame.events.attributions import Leaf
from otel_gpuflame.events.frames import Frame
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.findings.facts import At, Facts
from otel_gpuflame.findings.model import Confidence, Loss, Rule
from otel_gpuflame.profile.labels import reason_frame

_ON_CPU, _OFF_CPU = reason_frame(Leaf.ON_CPU), reason_frame(Leaf.OFF_CPU)
_NO_SAMPLE, _DRIVER_CALL = reason_frame(Leaf.NO_SAMPLE), reason_frame(Leaf.DRIVER_CALL)
_NOBODYS: Final = frozenset(
    map(
        reason_frame,
        (
            Leaf.UNKNOWN_INCOMPLETE,
            Leaf.UNKNOWN_NOT_CAPTURED,
            Leaf.BEFORE_FIRST,
            Leaf.AFTER_LAST,
        ),
    )
)
_MIN_LAUNCHING_SHARE: Final = 0.20
_MIN_LAUNCHES: Final = 1_000
_MAX_MEAN_EXECUTION_NS: Final = 100_000
"""Longer ones give a thread time for several launches, whatever these cost."""
_MIN_INPUT_SHARE: Final = 0.05
_MIN_GAPS: Final = 3
"""What comes once or twice is a pause at the start, a checkpoint: to prepare it earlier in each step is no remedy."""
_MANY_GAPS: Final = 10


def idle_of_devices(facts: Facts) -> int:
    """Nanoseconds in which devices are known to have had nothing to do, from the first execution to the last."""
    return sum(ns for (_, leaf), ns in facts.idle_ns.items() if leaf not in _NOBODYS)


def idle_beside_launches(facts: Facts) -> int:
    """Nanoseconds of it in which threads, again and again, did something else than to wait or launch."""
    return sum(lines.total() for lines, _ in _repeated(facts).values())


def _repeated(
    facts: Facts,
) -> dict[tuple[str, str], tuple[Counter[tuple[Frame, Frame]], float]]:
    """By function, such idle time by line and leaf, and of how many gaps it is; of `_MIN_GAPS` at least."""
    _, other = _split(facts)
    lines: defaultdict[tuple[str, str], Counter[tuple[Frame, Frame]]] = defaultdict(Counter)
    gaps: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (at, leaf), ns in other.items():
        function = (at.place.file, at.place.name)
        lines[function][at.place, leaf] += ns
        gaps[function] += facts.idle_gaps[at, leaf]
    # Each gap begins a little before the thread turns to it, and ends a little after.
    return {
        function: (its, gaps[function])
        for function, its in lines.items()
        if facts.seen(gaps[function]) >= _MIN_GAPS
    }


def _split(facts: Facts) -> tuple[Counter[tuple[At, Frame]], Counter[tuple[At, Frame]]]:
    """Idle time while a thread was about to launch, and while it did something else.

    On the CPU at a line that launches, it prepares launches: operators are dispatched there. What a thread does inside
    of a synchronise belongs to neither: the wait ends a little after the work.
    """
    places = facts.launching_places()
    launching: Counter[tuple[At, Frame]] = Counter()
    other: Counter[tuple[At, Frame]] = Counter()
    for (at, leaf), ns in facts.idle_ns.items():
        waits = leaf == _DRIVER_CALL and at.is_of(Kind.WAIT, Kind.COPY, Kind.FREE)
        if leaf == _OFF_CPU or (leaf == _ON_CPU and at.place not in places):
            other[at, leaf] += ns
        elif leaf in (_ON_CPU, _NO_SAMPLE, _DRIVER_CALL) and not waits:
            # Something is loaded or compiled there.
            launching[at, leaf] += ns - facts.long_idle_ns[at, leaf]
    return launching, other


def _find_launch_bound(facts: Facts) -> Iterator[Loss]:
    launching, other = _split(facts)
    lost_ns, launches = launching.total(), facts.launches()
    executions = facts.kernel_executions or launches
    if launches < _MIN_LAUNCHES or lost_ns < _MIN_LAUNCHING_SHARE * facts.device_ns:
        return
    mean_ns = facts.gpu_time_ns / executions
    if mean_ns > _MAX_MEAN_EXECUTION_NS or lost_ns < other.total():
        return
    by_place: Counter[Frame] = Counter()
    for (at, _), ns in launching.items():
        by_place[at.place] += ns
    place, most_ns = _largest(by_place)
    yield Loss(
        place=place,
        lost_ns=lost_ns,
        evidence=(
            ("launches", launches),
            ("mean_execution_ns", round(mean_ns)),
            ("mean_idle_ns_per_launch", round(lost_ns / launches)),
            ("at_this_line_ns", most_ns),
        ),
        confidence=Confidence.HIGH if lost_ns >= 2 * other.total() else Confidence.MEDIUM,
    )


def _find_input_bound(facts: Facts) -> Iterator[Loss]:
    for lines, gaps in _repeated(facts).values():
        lost_ns = lines.total()
        if lost_ns < _MIN_INPUT_SHARE * facts.device_ns:
            continue
        by_place: Counter[Frame] = Counter()
        for (place, _), ns in lines.items():
            by_place[place] += ns
        off_cpu_ns = sum(ns for (_, leaf), ns in lines.items() if leaf == _OFF_CPU)
        place, most_ns = _largest(by_place)
        yield Loss(
            place=place,
            lost_ns=lost_ns,
            evidence=(
                ("off_cpu_ns", off_cpu_ns),
                ("on_cpu_ns", lost_ns - off_cpu_ns),
                ("at_this_line_ns", most_ns),
                ("gaps", round(gaps)),
            ),
            # Times off the CPU are measured, those on it come from samples.
            confidence=Confidence.HIGH
            if 2 * off_cpu_ns >= lost_ns and gaps >= _MANY_GAPS
            else Confidence.MEDIUM,
        )


def _largest(values: Counter[Frame]) -> tuple[Frame, int]:
    """The same one of equal ones, in whatever order they came."""
    return min(values.items(), key=lambda item: (-item[1], item[0].file, item[0].line))


LAUNCH_BOUND: Final = Rule(
    id="launch-bound",
    title="Launch-bound",
    remedy="Give the device more work with each launch: larger batches, fused kernels (torch.compile), or a CUDA graph "
    "for steps that repeat.",
    find=_find_launch_bound,
)

INPUT_BOUND: Final = Rule(
    id="input-bound",
    title="Input-bound",
    remedy="Do what this line does ahead of time or beside the device's work: more workers and prefetching in the data "
    "loader, another thread, or a step earlier.",
    find=_find_input_bound,
)
