"""Joins Python frames and native frames into one stack. Pure: addresses are already resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_gpuflame.events.frames import Frame, mark
from otel_gpuflame.events.wire import NativeState, PythonState
from otel_gpuflame.symbolize.interleave import interleave, loops_of
from otel_gpuflame.symbolize.native import NativeFrame, NativeStack

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
    runs: Sequence[int] = ()
    """How many of the thread's own Python frames each run of the interpreter's loop has, leaf first."""


def join(parts: Parts) -> tuple[Frame, ...]:
    """The stack, root first.

    With Python frames: those, then the native frames between the interpreter and the probed
    function. Frame pointers rarely survive the way to the interpreter: then `NATIVE_CUT` stands
    between the two. Where native frames reach the root, those between Python frames are there too. Without Python
    frames of the thread's own: all native frames, the mark at their root.

    The owner's Python frames come first. Native frames then begin where the thread has begun to work for it: further
    up it works for somebody else.
    """
    own, owner = _split(parts)
    native, is_for_owner = _of_this_work(parts)
    whole = _interleaved(parts, own, native, is_for_owner)
    if whole is not None:
        return (*reversed(owner), *whole)
    below, reached = (
        _below_interpreter(native, parts.interpreter) if own else (_all(native), is_for_owner)
    )
    frames = [*_python_marks(parts), *reversed(parts.python)]
    if not reached:
        frames.extend(_native_marks(parts))
    frames.extend(reversed(below))
    return tuple(frames)


def _split(parts: Parts) -> tuple[Sequence[Frame], Sequence[Frame]]:
    """The thread's own Python frames, and its owner's."""
    own = len(parts.python) - parts.owner_frames
    return parts.python[:own], parts.python[own:]


def _of_this_work(parts: Parts) -> tuple[Sequence[NativeFrame], bool]:
    """Native frames of what the thread does for its owner, and whether there are others further up.

    Its own Python frames end where it has called `backward()` in a hook for another owner. The run of the interpreter's
    loop that made that call is the first one that none of them belongs to.
    """
    native = parts.native.frames
    if not parts.owner_frames or parts.interpreter is None:
        return native, False
    loops = loops_of(native, parts.interpreter)
    has_others = len(loops) > len(parts.runs)
    return (native[: loops[len(parts.runs)]] if has_others else native), has_others


def _interleaved(
    parts: Parts, own: Sequence[Frame], native: Sequence[NativeFrame], is_complete: bool
) -> list[Frame] | None:
    is_complete |= parts.native_state == NativeState.ROOT and not parts.native.cut
    if not is_complete or parts.interpreter is None or parts.python_state != PythonState.OK:
        return None
    return interleave(own, parts.runs, native, parts.interpreter) if parts.python else None


def _all(native: Sequence[NativeFrame]) -> list[Frame]:
    return [each.frame for each in native]


def _below_interpreter(
    native: Sequence[NativeFrame], interpreter: tuple[str, int, str] | None
) -> tuple[list[Frame], bool]:
    frames: list[Frame] = []
    for each in native:
        if each.file == interpreter:
            return frames, True
        frames.append(each.frame)
    return frames, False


def _native_marks(parts: Parts) -> list[Frame]:
    if parts.native.cut or parts.native_state == NativeState.CUT:
        return [NATIVE_CUT]
    if parts.native_state == NativeState.TRUNCATED:
        return [NATIVE_TRUNCATED]
    # A chain that ends properly must have passed the interpreter, if the thread has Python frames.
    own, _owner = _split(parts)
    return [NATIVE_CUT] if own and parts.native.frames else []


def _python_marks(parts: Parts) -> list[Frame]:
    if parts.python_state == PythonState.UNSUPPORTED:
        return [mark(f"no Python frames: {parts.refusal or 'this interpreter is not supported'}")]
    found = _PYTHON_MARKS.get(parts.python_state)
    return [] if found is None else [found]
