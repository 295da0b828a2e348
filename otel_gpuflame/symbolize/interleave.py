"""Python and native frames in the order in which they have called each other. Pure.

Each run of the interpreter's loop is one native frame, and stands for the Python frames up to the one that C code has
called. What the interpreter does between its loop and the code that it calls says nothing, and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_gpuflame.events.frames import Frame
from otel_gpuflame.symbolize.native import NativeFrame

_LOOP: Final = "_PyEval_EvalFrameDefault"
"""Exported by CPython 3.10 to 3.14. Compilers move rare parts into a function of the same name with a suffix."""
_STARTS: Final = frozenset({"_start", "main"})
_LIBC: Final = "libc.so"


def interleave(
    python: Sequence[Frame],
    runs: Sequence[int],
    native: Sequence[NativeFrame],
    interpreter: tuple[str, int, str],
) -> list[Frame] | None:
    """All frames, root first; None where the two sides do not fit, as in the middle of a call.

    `python` and `native` are leaf first, and native ones reach the root. `runs` says how many Python frames belong to
    each run of the loop, in the same order. There may be none of both: of a thread that works for another one.
    """
    loops = loops_of(native, interpreter)
    if len(loops) != len(runs) or sum(runs) != len(python):
        return None
    frames: list[Frame] = []
    begin = position = 0
    for loop, count in zip(loops, runs, strict=True):
        frames += [each.frame for each in native[begin:loop] if each.file != interpreter]
        frames += python[position : position + count]
        begin, position = loop + 1, position + count
    frames += [each.frame for each in native[begin:] if not _starts_threads(each, interpreter)]
    frames.reverse()
    return frames


def loops_of(native: Sequence[NativeFrame], interpreter: tuple[str, int, str]) -> list[int]:
    """Positions of the runs of the interpreter's loop."""
    return [
        at
        for at, each in enumerate(native)
        if each.file == interpreter and each.frame.name.partition(".")[0] == _LOOP
    ]


def _starts_threads(native: NativeFrame, interpreter: tuple[str, int, str]) -> bool:
    """The way from the thread's begin to its first Python frame, which all threads have."""
    is_libc = native.file[2].rpartition("/")[2].startswith(_LIBC)
    return native.file == interpreter or is_libc or native.frame.name in _STARTS
