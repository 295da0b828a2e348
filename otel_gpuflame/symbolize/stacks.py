"""Joins Python frames and native frames into one stack. Pure: addresses are already resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_gpuflame.events.frames import Frame, mark
from otel_gpuflame.events.wire import NativeState, PythonState
from otel_gpuflame.symbolize.native import NativeStack

NATIVE_CUT = mark("native stack cut")
NATIVE_TRUNCATED = mark("native stack truncated")
PYTHON_CUT = mark("Python stack cut")
PYTHON_TRUNCATED = mark("Python stack truncated")
PYTHON_NOT_READ = mark("no Python frames: the bcc loader does not read them")
PYTHON_NOT_FOUND = mark("no Python frames: more threads than are searched at a time")
PYTHON_NO_OWNER = mark("no Python frames: the caller of backward() is not known")

_PYTHON_MARKS: Final[dict[int, Frame]] = {
    PythonState.UNREADABLE: PYTHON_CUT,
    PythonState.TRUNCATED: PYTHON_TRUNCATED,
    PythonState.NOT_READ: PYTHON_NOT_READ,
    PythonState.NOT_FOUND: PYTHON_NOT_FOUND,
    PythonState.NO_OWNER: PYTHON_NO_OWNER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Both halves of a stack, leaf first, and how each of them ended.

    `interpreter` identifies the interpreter's file (None: unknown); `refusal` says why it is not
    walked. The last `owner_frames` of `python` are those of another thread, on whose behalf this one
    works.
    """

    python: Sequence[Frame]
    native: NativeStack
    python_state: int
    native_state: int
    interpreter: tuple[str, int, str] | None
    refusal: str
    owner_frames: int = 0


def join(parts: Parts) -> tuple[Frame, ...]:
    """The stack, root first.

    With Python frames: those, then the native frames between the interpreter and the probed
    function. Frame pointers rarely survive the way to the interpreter: then `NATIVE_CUT` stands
    between the two. Without Python frames of the thread's own: all native frames, the mark at their
    root.
    """
    has_own = len(parts.python) > parts.owner_frames
    native, reached = _below_interpreter(parts) if has_own else (_all(parts), False)
    frames = [*_python_marks(parts), *reversed(parts.python)]
    if not reached:
        frames.extend(_native_marks(parts))
    frames.extend(reversed(native))
    return tuple(frames)


def _all(parts: Parts) -> list[Frame]:
    return [each.frame for each in parts.native.frames]


def _below_interpreter(parts: Parts) -> tuple[list[Frame], bool]:
    frames: list[Frame] = []
    for each in parts.native.frames:
        if each.file == parts.interpreter:
            return frames, True
        frames.append(each.frame)
    return frames, False


def _native_marks(parts: Parts) -> list[Frame]:
    if parts.native.cut or parts.native_state == NativeState.CUT:
        return [NATIVE_CUT]
    if parts.native_state == NativeState.TRUNCATED:
        return [NATIVE_TRUNCATED]
    # A chain that ends properly must have passed the interpreter, if the thread has Python frames.
    has_own = len(parts.python) > parts.owner_frames
    return [NATIVE_CUT] if has_own and parts.native.frames else []


def _python_marks(parts: Parts) -> list[Frame]:
    if parts.python_state == PythonState.UNSUPPORTED:
        return [mark(f"no Python frames: {parts.refusal or 'this interpreter is not supported'}")]
    found = _PYTHON_MARKS.get(parts.python_state)
    return [] if found is None else [found]
