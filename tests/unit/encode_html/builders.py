# SPDX-License-Identifier: Apache-2.0
"""Bundles for tests, written as folded stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from otel_gpuflame.events.frames import Frame, FrameKind, mark
from otel_gpuflame.profile.model import AttributeSet, Bundle, Link, Profile, ValueType, Window
from otel_gpuflame.profile.sample_types import SCOPE

START_UNIX_NS = 1_796_000_000_123_456_789
WINDOW = Window(START_UNIX_NS, START_UNIX_NS + 10_000_000_000)

Sample = tuple[tuple[Frame, ...], Link | None, int]
"""Frames root first, span, value."""


def python(name: str, file: str = "/app/train.py", line: int = 1) -> Frame:
    """A frame of CPython."""
    return Frame(FrameKind.PYTHON, name, file=file, line=line)


def native(name: str, module: str = "/usr/lib/libtorch_cpu.so") -> Frame:
    """A frame of C or C++."""
    return Frame(FrameKind.NATIVE, name, module=module)


def api(name: str) -> Frame:
    """A function of the CUDA driver."""
    return native(name, "/usr/lib/x86_64-linux-gnu/libcuda.so.1")


def gpu(name: str, system_name: str = "") -> Frame:
    """A GPU kernel."""
    return Frame(FrameKind.GPU, name, system_name=system_name)


def span(number: int) -> Link:
    """A link that differs for each number."""
    return Link(bytes(15) + bytes([number]), bytes(7) + bytes([number]))


def bundle(
    samples: Mapping[ValueType, Sequence[Sample]],
    *,
    resource: AttributeSet = (("service.name", "trainer"),),
    scope: str = SCOPE,
    window: Window = WINDOW,
) -> Bundle:
    """A bundle with one profile for each sample type, all without attributes."""
    frames: dict[Frame, int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    links: dict[Link, int] = {}
    profiles = []
    for sample_type, rows in samples.items():
        stack_column, link_column, value_column = [], [], []
        for stack, link, value in rows:
            ids = tuple(frames.setdefault(frame, len(frames)) for frame in stack)
            stack_column.append(stacks.setdefault(ids, len(stacks)))
            link_column.append(-1 if link is None else links.setdefault(link, len(links)))
            value_column.append(value)
        profiles.append(
            Profile(
                sample_type=sample_type,
                stack=np.array(stack_column, dtype=np.int32),
                link=np.array(link_column, dtype=np.int32),
                attributes=np.zeros(len(rows), dtype=np.int32),
                value=np.array(value_column, dtype=np.int64),
            )
        )
    return Bundle(
        resource=resource,
        scope=scope,
        window=window,
        frames=tuple(frames),
        stacks=tuple(stacks),
        links=tuple(links),
        attribute_sets=((),),
        profiles=tuple(profiles),
    )


__all__ = [
    "START_UNIX_NS",
    "WINDOW",
    "Sample",
    "api",
    "bundle",
    "gpu",
    "mark",
    "native",
    "python",
    "span",
]
