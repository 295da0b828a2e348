"""How Python frames and native frames become one stack."""

from __future__ import annotations

import pytest

from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.events.wire import NativeState, PythonState
from otel_gpuflame.symbolize.native import NativeFrame, NativeStack
from otel_gpuflame.symbolize.stacks import Parts, join

INTERPRETER = ("08:02", 7, "/usr/bin/python3.12")
CUT = "[native stack cut]"


def _join(
    python: str,
    native: str,
    *,
    python_state: PythonState = PythonState.OK,
    native_state: NativeState = NativeState.END,
    cut: bool = False,
    interpreter: tuple[str, int, str] | None = INTERPRETER,
    refusal: str = "",
    owner_frames: int = 0,
) -> list[str]:
    """Names root first; both halves are given leaf first, native ones with `i` are the interpreter's."""
    frames = tuple(
        NativeFrame(
            Frame(FrameKind.NATIVE, name), INTERPRETER if name.startswith("i") else ("", 1, name)
        )
        for name in native.split()
    )
    parts = Parts(
        python=[Frame(FrameKind.PYTHON, name) for name in python.split()],
        native=NativeStack(frames, cut=cut),
        python_state=python_state,
        native_state=native_state,
        interpreter=interpreter,
        refusal=refusal,
        owner_frames=owner_frames,
    )
    return [frame.name for frame in join(parts)]


def test_native_frames_end_at_the_interpreter() -> None:
    """What lies below the first interpreter frame is told by the Python frames."""
    assert _join("leaf root", "a b i1 c i2") == ["root", "leaf", "b", "a"]


def test_native_frames_end_at_the_interpreter_even_if_cut_later() -> None:
    """A chain that breaks inside the interpreter has done its work."""
    joined = _join("leaf root", "a i1", cut=True, native_state=NativeState.CUT)
    assert joined == ["root", "leaf", "a"]


@pytest.mark.parametrize(
    ("cut", "state"),
    [(True, NativeState.END), (False, NativeState.CUT), (False, NativeState.END)],
    ids=["implausible here", "implausible in BPF", "ended before the interpreter"],
)
def test_a_chain_that_misses_the_interpreter_is_marked_between(
    cut: bool, state: NativeState
) -> None:
    """The mark stands where frames are missing: between Python and native frames."""
    assert _join("leaf root", "a b", cut=cut, native_state=state) == ["root", "leaf", CUT, "b", "a"]


def test_a_chain_cut_at_once_leaves_the_mark() -> None:
    """The driver was called from somewhere, but nobody knows where."""
    assert _join("leaf root", "", cut=True) == ["root", "leaf", CUT]


def test_no_native_addresses_are_no_loss() -> None:
    """Where no native stack was captured, nothing was cut."""
    assert _join("leaf root", "") == ["root", "leaf"]


def test_a_truncated_chain_says_so() -> None:
    """The limit of BPF is another reason than an implausible address."""
    joined = _join("leaf", "a", native_state=NativeState.TRUNCATED)
    assert joined == ["leaf", "[native stack truncated]", "a"]


@pytest.mark.parametrize("state", [PythonState.NONE, PythonState.NO_THREAD, PythonState.OK])
def test_without_python_all_native_frames_are_shown(state: PythonState) -> None:
    """Interpreter frames too, since nothing else tells what ran; the mark stands at the root."""
    assert _join("", "a i1 b", python_state=state) == ["b", "i1", "a"]
    assert _join("", "a i1 b", python_state=state, cut=True) == [CUT, "b", "i1", "a"]


@pytest.mark.parametrize(
    ("state", "first"),
    [
        (PythonState.UNREADABLE, "[Python stack cut]"),
        (PythonState.TRUNCATED, "[Python stack truncated]"),
        (
            PythonState.NOT_FOUND,
            "[no Python frames: more threads than are searched at a time]",
        ),
    ],
)
def test_missing_python_frames_are_marked_at_the_root(state: PythonState, first: str) -> None:
    """The frames near the leaf are kept."""
    joined = _join("leaf mid", "a i1", python_state=state)
    assert joined == [first, "mid", "leaf", "a"]


def test_an_unsupported_interpreter_is_named() -> None:
    """The reason is in the stack itself."""
    joined = _join(
        "",
        "a",
        python_state=PythonState.UNSUPPORTED,
        interpreter=None,
        refusal="CPython 3.9 is not supported",
    )
    assert joined == ["[no Python frames: CPython 3.9 is not supported]", "a"]


def test_an_unsupported_interpreter_without_reason_is_marked_too() -> None:
    """The process may be gone before anybody could ask why."""
    joined = _join("", "a", python_state=PythonState.UNSUPPORTED, interpreter=None)
    assert joined[0] == "[no Python frames: this interpreter is not supported]"


def test_under_an_owner_come_all_native_frames() -> None:
    """The thread has no Python frames of its own: its native frames end where it was started."""
    joined = _join("backward root", "apply engine clone", owner_frames=2)
    assert joined == ["root", "backward", "clone", "engine", "apply"]


def test_a_native_stack_that_is_cut_is_marked_under_the_owner() -> None:
    """The mark stands where frames are missing."""
    joined = _join("backward root", "apply", native_state=NativeState.CUT, owner_frames=2)
    assert joined == ["root", "backward", CUT, "apply"]


def test_a_hook_stands_between_its_owner_and_its_native_frames() -> None:
    """Its own Python frames are above the owner's, and native frames end at the interpreter again."""
    joined = _join("hook backward root", "a i1 engine", owner_frames=2)
    assert joined == ["root", "backward", "hook", "a"]
    joined = _join("hook backward root", "a", owner_frames=2)
    assert joined == ["root", "backward", "hook", CUT, "a"]


def test_an_unknown_owner_is_marked() -> None:
    """A thread that works for a pass of which nobody saw the beginning."""
    mark = "[no Python frames: the caller of backward() is not known]"
    assert _join("", "a b", python_state=PythonState.NO_OWNER) == [mark, "b", "a"]
    assert _join("hook", "a i", python_state=PythonState.NO_OWNER) == [mark, "hook", "a"]
