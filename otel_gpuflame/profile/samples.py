"""Samples of one target in one window: interned frames, stacks and links, values by sample type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from otel_gpuflame.events.executions import DeviceInfo
from otel_gpuflame.events.frames import Frame, StackKey
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.known import Known
from otel_gpuflame.profile.model import (
    AttributeSet,
    Bundle,
    KernelUse,
    Link,
    Profile,
    ValueType,
    Window,
)
from otel_gpuflame.profile.sample_types import ALL, ESTIMATED_ATTRIBUTE, ESTIMATED_SCOPE, SCOPE

_NO_LINK = -1
_SERVICE_ATTRIBUTES = 1
"""The set of samples that are of no device. Those of devices follow."""


class SampleTable:
    """Adds up values by (stack, link, device). Stacks with equal frames are one, whatever addresses they came from."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._bases: dict[StackKey, tuple[int, ...]] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._links: dict[Link, int] = {}
        self._hardware: dict[AttributeSet, int] = {(): _SERVICE_ATTRIBUTES}
        self._values: dict[ValueType, dict[tuple[int, int, int], int]] = {t: {} for t in ALL}
        self._waits: Counter[int] = Counter()
        self._startup_idle: Counter[int] = Counter()
        self._idle_gaps: defaultdict[int, float] = defaultdict(float)
        self._long_idle: Counter[int] = Counter()
        self._launches: Counter[int] = Counter()
        self._kernels: tuple[KernelUse, ...] = ()
        self._kernel_executions = 0

    def base(self, key: StackKey, frames: Iterable[Frame]) -> tuple[int, ...]:
        """Indexes of a captured stack's frames; `frames` is only read the first time."""
        found = self._bases.get(key)
        if found is None:
            found = self._bases[key] = self.indexes(frames)
        return found

    def indexes(self, frames: Iterable[Frame]) -> tuple[int, ...]:
        """Indexes of frames."""
        table = self._frames
        return tuple(table.setdefault(frame, len(table)) for frame in frames)

    def hardware(self, device: DeviceInfo | None) -> int:
        """The attribute set of samples of this device, as far as it is known."""
        if device is None:
            return _SERVICE_ATTRIBUTES
        known = (("hw.id", device.uuid), ("hw.model", device.model))
        attributes = tuple(item for item in known if item[1])
        return self._hardware.setdefault(attributes, len(self._hardware) + _SERVICE_ATTRIBUTES)

    def add(
        self,
        sample_type: ValueType,
        stack: tuple[int, ...],
        link: Link | None,
        value: int,
        attributes: int = _SERVICE_ATTRIBUTES,
    ) -> None:
        """Add `value` to the sample (stack, link, attributes); nothing for 0."""
        if not value:
            return
        link_index = _NO_LINK
        if link is not None:
            link_index = self._links.setdefault(link, len(self._links))
        key = (self._stack(stack), link_index, attributes)
        values = self._values[sample_type]
        values[key] = values.get(key, 0) + value

    def count_waits(self, stack: tuple[int, ...], calls: int) -> None:
        """Note that so many calls waited in this stack, which ends with how they waited."""
        self._waits[self._stack(stack)] += calls

    def note_startup(self, stack: tuple[int, ...], idle_ns: int) -> None:
        """Note that so much of the idle time of this stack was before the program used the GPU."""
        self._startup_idle[self._stack(stack)] += idle_ns

    def note_gaps(self, stack: tuple[int, ...], gaps: float, long_ns: int) -> None:
        """Note that idle time of this stack is that of so many gaps, and how much of it is of long ones."""
        self._idle_gaps[self._stack(stack)] += gaps
        if long_ns:
            self._long_idle[self._stack(stack)] += long_ns

    def note_launches(self, stack: tuple[int, ...], launches: int) -> None:
        """Note that this stack submitted so much, which another bundle counts."""
        self._launches[self._stack(stack)] += launches

    def note_kernels(self, longest: tuple[KernelUse, ...], executions: int) -> None:
        """Note the kernels that ran longest, and how often all ran."""
        self._kernels += longest
        self._kernel_executions += executions

    def bundle(
        self,
        resource: AttributeSet,
        window: Window,
        scope: str = SCOPE,
        profile_attributes: AttributeSet = (),
        used: Window | None = None,
        *,
        is_windowed: bool = False,
    ) -> Bundle:
        """Everything added so far."""
        # Also on samples: newer Collectors (0.165.0 does, 0.158.0 does not) turn resource attributes into references,
        # which backends that read only inline keys show as unknown_service.
        attributes = _sample_attributes(resource, scope)
        sets = [tuple(sorted(attributes + hardware)) for hardware in self._hardware]
        return Bundle(
            resource=resource,
            scope=scope,
            profile_attributes=profile_attributes,
            window=window,
            frames=tuple(self._frames),
            stacks=tuple(self._stacks),
            links=tuple(self._links),
            attribute_sets=((), *sets),
            profiles=tuple(_profile(t, self._values[t]) for t in ALL),
            waits=tuple(self._waits.items()),
            kernels=self._kernels,
            kernel_executions=self._kernel_executions,
            used=used,
            is_windowed=is_windowed,
            startup_idle=tuple(self._startup_idle.items()),
            idle_gaps=tuple(self._idle_gaps.items()),
            long_idle=tuple(self._long_idle.items()),
            launches=tuple(self._launches.items()),
        )

    def _stack(self, stack: tuple[int, ...]) -> int:
        return self._stacks.setdefault(stack, len(self._stacks))


def captured_stack(
    table: SampleTable, key: StackKey, known: Known, none_taken: Frame
) -> tuple[int, ...]:
    """Indexes of the frames of a captured stack, or of a mark that says why there are none."""
    stack = known.stack(key)
    if stack is not None:
        return table.base(key, stack.frames)
    return table.indexes((labels.NO_STACK if any(key) else none_taken,))


def link_of(words: list[int]) -> Link | None:
    """The link in three words of `link_columns`; None for zeros."""
    if not words[2]:
        return None
    trace = words[0].to_bytes(8, "little") + words[1].to_bytes(8, "little")
    return Link(trace, words[2].to_bytes(8, "little"))


def _sample_attributes(resource: AttributeSet, scope: str) -> AttributeSet:
    """What is on every sample. Estimates say so here as well, since some backends ignore scopes and add them up."""
    service = tuple(item for item in resource if item[0] == "service.name")
    estimated = ((ESTIMATED_ATTRIBUTE, "true"),) if scope == ESTIMATED_SCOPE else ()
    return tuple(sorted(service + estimated))


def _profile(sample_type: ValueType, values: dict[tuple[int, int, int], int]) -> Profile:
    def column(items: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.fromiter(items, np.int32, len(items))

    return Profile(
        sample_type=sample_type,
        stack=column([stack for stack, _, _ in values]),
        link=column([link for _, link, _ in values]),
        attributes=column([attributes for _, _, attributes in values]),
        value=np.fromiter(values.values(), np.int64, len(values)),
    )
