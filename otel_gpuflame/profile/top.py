"""The rows of the tables that people read first: where the value of a sample type goes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile.model import Bundle, ValueType


@dataclass(frozen=True, slots=True)
class TopRow:
    """A place in code with the value of all samples that it accounts for. `line` is 0 for rows by function."""

    frame: Frame
    value: int

    @property
    def place(self) -> str:
        """`file:line`, the file alone, or nothing, as far as known."""
        if not self.frame.file:
            return ""
        return f"{self.frame.file}:{self.frame.line}" if self.frame.line else self.frame.file


LIBRARY_CODE: Final = r"/(site|dist)-packages/|/lib/python3\.\d+/|^<frozen"
"""Files of installed packages and of the standard library."""

_LIBRARY_CODE: Final = re.compile(LIBRARY_CODE)
_NO_PYTHON: Final = Frame(FrameKind.MARK, "[no Python frame]")


def top_python_lines(bundles: Iterable[Bundle], sample_type: ValueType) -> list[TopRow]:
    r"""Value by the innermost line of the program's own Python code in each stack, largest first.

    A library's line is used where a stack has no line of the program. The same numbers come from
    `go tool pprof -top -lines -show='\.py$' -hide=LIBRARY_CODE`.
    """
    return _rank(bundles, sample_type, innermost_python)


def top_leaves(bundles: Iterable[Bundle], sample_type: ValueType) -> list[TopRow]:
    """Value by leaf frame, largest first: what `go tool pprof -top` calls flat."""
    return _rank(bundles, sample_type, lambda frames: frames[-1]._replace(line=0, address=0))


def total(bundles: Iterable[Bundle], sample_type: ValueType) -> int:
    """Sum over all bundles."""
    return sum(p.total for b in bundles for p in b.profiles if p.sample_type == sample_type)


def innermost_python(frames: Sequence[Frame]) -> Frame:
    """The innermost line of the program's own Python code in a stack, root first; else a library's, else a mark."""
    python = [frame for frame in reversed(frames) if frame.kind is FrameKind.PYTHON]
    own = (frame for frame in python if not _LIBRARY_CODE.search(frame.file))
    return next(own, python[0] if python else _NO_PYTHON)


def _rank(
    bundles: Iterable[Bundle], sample_type: ValueType, place: Callable[[Sequence[Frame]], Frame]
) -> list[TopRow]:
    values: Counter[Frame] = Counter()
    for bundle in bundles:
        for profile in bundle.profiles:
            if profile.sample_type != sample_type:
                continue
            places = [place([bundle.frames[i] for i in stack]) for stack in bundle.stacks]
            for stack, value in zip(profile.stack.tolist(), profile.value.tolist(), strict=True):
                values[places[stack]] += value
    ranked = sorted(values.items(), key=lambda item: (-item[1], item[0].name, item[0].line))
    return [TopRow(frame, value) for frame, value in ranked]
