"""What tables say of any number of bundles, in memory that does not grow with stacks or with time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile.model import Bundle, Profile, ValueType, Window
from otel_gpuflame.profile.top import innermost_python

_SCOPE: Final = "otel_gpuflame/digest"

Stack = tuple[Frame, ...]


class Digest:
    """Sums over bundles by the two frames of a stack that tables show: the innermost Python line and the leaf.

    A program has thousands of such pairs, where a recording of an hour has a hundred thousand stacks.
    """

    def __init__(self) -> None:
        self._values: dict[ValueType, Counter[Stack]] = {}
        self._window: Window | None = None

    def add(self, bundles: Iterable[Bundle]) -> None:
        """Take in bundles, which can then go."""
        for bundle in bundles:
            self._extend(bundle.window)
            stacks = [_shortened([bundle.frames[i] for i in stack]) for stack in bundle.stacks]
            for profile in bundle.profiles:
                values = self._values.setdefault(profile.sample_type, Counter())
                for index, value in zip(
                    profile.stack.tolist(), profile.value.tolist(), strict=True
                ):
                    values[stacks[index]] += value

    def bundles(self) -> list[Bundle]:
        """One bundle with the same tables as all of them; without targets, spans and labels. None came: none."""
        if self._window is None:
            return []
        frames: dict[Frame, int] = {}
        stacks: dict[Stack, int] = {}
        for stack in (stack for values in self._values.values() for stack in values):
            stacks.setdefault(stack, len(stacks))
            for frame in stack:
                frames.setdefault(frame, len(frames))
        return [
            Bundle(
                resource=(),
                scope=_SCOPE,
                window=self._window,
                frames=tuple(frames),
                stacks=tuple(tuple(frames[frame] for frame in stack) for stack in stacks),
                links=(),
                attribute_sets=((),),
                profiles=tuple(_profile(t, v, stacks) for t, v in self._values.items()),
            )
        ]

    def _extend(self, window: Window) -> None:
        whole = self._window or window
        self._window = Window(
            min(whole.start_unix_ns, window.start_unix_ns),
            max(whole.end_unix_ns, window.end_unix_ns),
        )


def _shortened(frames: list[Frame]) -> Stack:
    """At most two frames of a stack, with the same innermost line and the same leaf."""
    python, leaf = innermost_python(frames), frames[-1]
    if python == leaf:
        return (leaf,)
    # Tables show leaves by function, so that their lines would only make more pairs.
    leaf = leaf._replace(line=0)
    return (python, leaf) if python.kind is FrameKind.PYTHON else (leaf,)


def _profile(sample_type: ValueType, values: Counter[Stack], stacks: dict[Stack, int]) -> Profile:
    count = len(values)
    return Profile(
        sample_type=sample_type,
        stack=np.fromiter((stacks[stack] for stack in values), np.int32, count),
        link=np.full(count, -1, np.int32),
        attributes=np.zeros(count, np.int32),
        value=np.fromiter(values.values(), np.int64, count),
    )
