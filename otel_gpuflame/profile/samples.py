"""Samples of one target in one window: interned frames, stacks and links, values by sample type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from otel_gpuflame.events.frames import Frame, StackKey
from otel_gpuflame.profile.model import AttributeSet, Bundle, Link, Profile, ValueType, Window
from otel_gpuflame.profile.sample_types import ALL, ESTIMATED_ATTRIBUTE, ESTIMATED_SCOPE, SCOPE

_NO_LINK = -1
_SERVICE_ATTRIBUTES = 1


class SampleTable:
    """Adds up values by (stack, link). Stacks with equal frames are one, whatever addresses they came from."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._bases: dict[StackKey, tuple[int, ...]] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._links: dict[Link, int] = {}
        self._values: dict[ValueType, dict[tuple[int, int], int]] = {t: {} for t in ALL}

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

    def add(
        self, sample_type: ValueType, stack: tuple[int, ...], link: Link | None, value: int
    ) -> None:
        """Add `value` to the sample (stack, link); nothing for 0."""
        if not value:
            return
        stack_index = self._stacks.setdefault(stack, len(self._stacks))
        link_index = _NO_LINK
        if link is not None:
            link_index = self._links.setdefault(link, len(self._links))
        values = self._values[sample_type]
        values[stack_index, link_index] = values.get((stack_index, link_index), 0) + value

    def bundle(
        self,
        resource: AttributeSet,
        window: Window,
        scope: str = SCOPE,
        profile_attributes: AttributeSet = (),
    ) -> Bundle:
        """Everything added so far."""
        return Bundle(
            resource=resource,
            scope=scope,
            profile_attributes=profile_attributes,
            window=window,
            frames=tuple(self._frames),
            stacks=tuple(self._stacks),
            links=tuple(self._links),
            # Also on samples: Collectors from 0.163 on turn resource attributes into references, which backends
            # that read only inline keys show as unknown_service.
            attribute_sets=((), _sample_attributes(resource, scope)),
            profiles=tuple(_profile(t, self._values[t]) for t in ALL),
        )


def _sample_attributes(resource: AttributeSet, scope: str) -> AttributeSet:
    """What is on every sample. Estimates say so here as well, since some backends ignore scopes and add them up."""
    service = tuple(item for item in resource if item[0] == "service.name")
    estimated = ((ESTIMATED_ATTRIBUTE, "true"),) if scope == ESTIMATED_SCOPE else ()
    return tuple(sorted(service + estimated))


def _profile(sample_type: ValueType, values: dict[tuple[int, int], int]) -> Profile:
    def column(items: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.fromiter(items, np.int32, len(items))

    return Profile(
        sample_type=sample_type,
        stack=column([stack for stack, _ in values]),
        link=column([link for _, link in values]),
        attributes=np.full(len(values), _SERVICE_ATTRIBUTES, np.int32),
        value=np.fromiter(values.values(), np.int64, len(values)),
    )
