"""What rules look at: a bundle's samples by line of the program, driver call and reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

from otel_gpuflame.events import apis
from otel_gpuflame.events.apis import Api
from otel_gpuflame.events.frames import Frame
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.model import Bundle, KernelUse, ValueType, Window
from otel_gpuflame.profile.sample_types import (
    GPU_COPY,
    GPU_IDLE,
    GPU_LAUNCH,
    GPU_TIME,
    GPU_WAIT,
    OF_DEVICES,
)
from otel_gpuflame.profile.top import innermost_python
from otel_gpuflame.profile.view import call_depth

LAUNCHES: Final = frozenset({Kind.LAUNCH, Kind.GRAPH_LAUNCH})
"""Kinds of calls that start kernels."""


class At(NamedTuple):
    """A driver call at a line of the program. `api` is None where the stack ends outside of the driver."""

    place: Frame
    api: Api | None

    def is_of(self, *kinds: Kind) -> bool:
        """Whether the call is of one of these kinds."""
        return self.api is not None and self.api.kind in kinds


@dataclass(frozen=True, slots=True)
class Facts:
    """Sums over the used part of a window of one target. Counters have 0 for what did not occur."""

    window_ns: int
    probability: float = 1.0
    """With which anything in it was seen, where these are estimates."""
    devices: int = 1
    """Devices that are known to have worked or idled, at least 1."""
    wait_ns: Counter[At] = field(default_factory=Counter)
    waits: Counter[At] = field(default_factory=Counter)
    """Calls that waited."""
    submissions: Counter[At] = field(default_factory=Counter)
    copied_bytes: Counter[At] = field(default_factory=Counter)
    is_windowed: bool = False
    """Launches of kernels may be estimated elsewhere."""
    gpu_time_ns: int = 0
    gpu_time_by_kernel: dict[Frame, Counter[Frame]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    """Nanoseconds by leaf, then by the line that launched it."""
    idle_ns: Counter[tuple[At, Frame]] = field(default_factory=Counter)
    """By what the thread did that ended it, line and call, and by the leaf (`labels.reason_frame`)."""
    idle_gaps: defaultdict[tuple[At, Frame], float] = field(
        default_factory=lambda: defaultdict(float)
    )
    """Of how many gaps it is all there was."""
    long_idle_ns: Counter[tuple[At, Frame]] = field(default_factory=Counter)
    """What of it is of gaps longer than a launch takes to prepare."""
    kernels: tuple[KernelUse, ...] = ()
    """Those that ran longest."""
    kernel_executions: int = 0
    """Of all kernels."""

    @property
    def device_ns(self) -> int:
        """What devices could have worked in the window."""
        return self.window_ns * self.devices

    def seen(self, count: float) -> int:
        """How many of so many were seen; the others are estimated."""
        return round(count * self.probability)

    def launching_places(self) -> frozenset[Frame]:
        """Lines that launch kernels or graphs."""
        return frozenset(at.place for at in self.submissions if at.is_of(*LAUNCHES))

    def knows_launches(self) -> bool:
        """Whether all launches are counted here, and not only those of graphs."""
        return not self.is_windowed or any(at.is_of(Kind.LAUNCH) for at in self.submissions)

    def launches(self) -> int:
        """Kernels and graphs that were launched."""
        return sum(n for at, n in self.submissions.items() if at.is_of(*LAUNCHES))


def facts_of(bundle: Bundle) -> Facts:
    """Sum up a bundle."""
    places = [_at([bundle.frames[i] for i in stack]) for stack in bundle.stacks]
    gpu_time = list(_samples(bundle, GPU_TIME))
    facts = Facts(
        window_ns=used_window(bundle).duration_ns,
        devices=_devices(bundle),
        is_windowed=bundle.is_windowed,
        gpu_time_ns=sum(value for _, value in gpu_time),
        kernels=bundle.kernels,
        kernel_executions=bundle.kernel_executions,
    )
    for counter, sample_type in (
        (facts.wait_ns, GPU_WAIT),
        (facts.submissions, GPU_LAUNCH),
        (facts.copied_bytes, GPU_COPY),
    ):
        for stack, value in _samples(bundle, sample_type):
            counter[places[stack]] += value
    for stack, launches in bundle.launches:
        facts.submissions[places[stack]] += launches
    for stack, calls in bundle.waits:
        facts.waits[places[stack]] += calls
    for stack, value in gpu_time:
        facts.gpu_time_by_kernel[_leaf(bundle, stack)][places[stack].place] += value
    for stack, value in _samples(bundle, GPU_IDLE):
        facts.idle_ns[places[stack], _leaf(bundle, stack)] += value
    for stack, gaps in bundle.idle_gaps:
        facts.idle_gaps[places[stack], _leaf(bundle, stack)] += gaps
    for stack, value in bundle.long_idle:
        facts.long_idle_ns[places[stack], _leaf(bundle, stack)] += value
    # Nobody is told to start sooner.
    for stack, value in bundle.startup_idle:
        facts.idle_ns[places[stack], _leaf(bundle, stack)] -= value
    return facts


def used_window(bundle: Bundle) -> Window:
    """The part of a bundle's window in which the GPU was used."""
    return bundle.used or bundle.window


def _samples(bundle: Bundle, sample_type: ValueType) -> Iterator[tuple[int, int]]:
    """(stack, value) of a sample type."""
    for profile in bundle.profiles:
        if profile.sample_type == sample_type:
            yield from zip(profile.stack.tolist(), profile.value.tolist(), strict=True)


def _devices(bundle: Bundle) -> int:
    used = {
        dict(bundle.attribute_sets[index]).get("hw.id", "")
        for profile in bundle.profiles
        if profile.sample_type in OF_DEVICES
        for index in set(profile.attributes.tolist())
    }
    # Samples without a device are of none in particular.
    return max(len(used - {""}), 1)


def _leaf(bundle: Bundle, stack: int) -> Frame:
    return bundle.frames[bundle.stacks[stack][-1]]


def _at(frames: Sequence[Frame]) -> At:
    depth = call_depth(frames)
    call = _calls().get(frames[depth - 1]) if depth else None
    return At(innermost_python(frames), call)


@cache
def _calls() -> dict[Frame, Api]:
    """The frame of each driver call."""
    return {labels.call_frame(api.id): api for api in apis.ALL}
