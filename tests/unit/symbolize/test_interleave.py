"""Python and native frames in one stack, by the runs of the interpreter's loop."""

from __future__ import annotations

from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.events.wire import NativeState, PythonState
from otel_gpuflame.symbolize.interleave import interleave
from otel_gpuflame.symbolize.native import NativeFrame, NativeStack
from otel_gpuflame.symbolize.stacks import Parts, join

INTERPRETER = ("fe:00", 1, "/usr/lib/libpython3.12.so.1.0")
LIBC = ("fe:00", 2, "/usr/lib/libc.so.6")
PROGRAM = ("fe:00", 3, "/usr/bin/python3.12")
TORCH = ("fe:00", 4, "/opt/libtorch.so")


def python(*names: str) -> list[Frame]:
    """Python frames, leaf first."""
    return [Frame(FrameKind.PYTHON, name) for name in names]


def native(*parts: tuple[str, tuple[str, int, str]]) -> list[NativeFrame]:
    """Native frames by name and file, leaf first."""
    return [NativeFrame(Frame(FrameKind.NATIVE, name), file) for name, file in parts]


LOOP = ("_PyEval_EvalFrameDefault", INTERPRETER)
START = (
    ("pymain_run_python", INTERPRETER),
    ("main", PROGRAM),
    ("__libc_start_call_main", LIBC),
    ("_start", PROGRAM),
)
WHOLE = native(
    ("launch", TORCH),
    ("cfunction_vectorcall", INTERPRETER),
    LOOP,
    ("PyObject_Call", INTERPRETER),
    ("apply_hook", TORCH),
    ("qsort", LIBC),
    ("backward", TORCH),
    ("_PyEval_EvalFrameDefault.cold", INTERPRETER),
    *START,
)


def names(frames: list[Frame] | tuple[Frame, ...] | None) -> list[str]:
    """Root first."""
    assert frames is not None
    return [frame.name for frame in frames]


def test_code_called_by_python_that_calls_python_stands_between() -> None:
    """Each run of the loop is replaced by its Python frames; the interpreter's own functions are left out."""
    found = interleave(python("inner", "hook", "main"), [2, 1], WHOLE, INTERPRETER)
    assert names(found) == ["main", "backward", "qsort", "apply_hook", "hook", "inner", "launch"]


def test_a_thread_of_a_library_keeps_its_beginning() -> None:
    """What starts every thread says nothing; what a library does before it calls Python does."""
    frames = native(LOOP, ("thread_init", TORCH), ("start_thread", LIBC), ("clone3", LIBC))
    assert names(interleave(python("hook"), [1], frames, INTERPRETER)) == ["thread_init", "hook"]


def test_sides_that_do_not_fit_are_refused() -> None:
    """In the middle of a call one side has a run that the other has not yet."""
    frames = python("inner", "hook", "main")
    assert interleave(frames, [3], WHOLE, INTERPRETER) is None
    assert interleave(frames, [2], WHOLE, INTERPRETER) is None
    assert interleave(frames, [1, 1], WHOLE, INTERPRETER) is None
    assert interleave([], [], WHOLE, INTERPRETER) is None


def join_of(**changes: object) -> list[str]:
    """Names of the joined stack, with all that is needed to interleave but for `changes`."""
    fields = {
        "python": python("inner", "hook", "main"),
        "native": NativeStack(tuple(WHOLE), cut=False),
        "python_state": PythonState.OK,
        "native_state": NativeState.ROOT,
        "interpreter": INTERPRETER,
        "refusal": "",
        "runs": [2, 1],
    }
    return names(join(Parts(**{**fields, **changes})))  # type: ignore[arg-type]


def test_only_whole_stacks_are_interleaved() -> None:
    """Otherwise Python frames come first, then the native ones below the interpreter, with the marks that apply."""
    apart = ["main", "hook", "inner", "launch"]
    assert join_of() != apart
    assert join_of(runs=[1, 2]) != apart
    assert join_of(runs=[3]) == apart
    assert join_of(native_state=NativeState.END) == apart
    assert join_of(native=NativeStack(tuple(WHOLE), cut=True)) == apart
    assert join_of(python_state=PythonState.UNREADABLE) == ["[Python stack cut]", *apart]


WORKER = native(
    ("launch", TORCH),
    LOOP,
    ("apply_hook", TORCH),
    ("engine", TORCH),
    ("start_thread", LIBC),
    ("clone3", LIBC),
)
NESTED = native(
    ("launch", TORCH), LOOP, ("apply_hook", TORCH), ("engine", TORCH), ("cfunction_call", INTERPRETER), *(LOOP,),
    ("apply_hook", TORCH), ("engine", TORCH), ("start_thread", LIBC),
)  # fmt: skip


def owned(own: str, native_frames: list[NativeFrame], **changes: object) -> list[str]:
    """Of a thread that works for one whose Python frames are `main` and `backward`."""
    python_frames = python(*own.split(), "backward", "main")
    runs = [1] * len(own.split())
    stack = NativeStack(tuple(native_frames), cut=False)
    return join_of(python=python_frames, owner_frames=2, runs=runs, native=stack, **changes)


def test_only_the_own_frames_of_a_worker_are_interleaved() -> None:
    """Its owner's stand at the root, and its native ones in between belong to no Python frame of the owner."""
    assert owned("hook", WORKER) == ["main", "backward", "engine", "apply_hook", "hook", "launch"]


def test_native_frames_of_a_worker_without_python_follow_its_owner() -> None:
    """What starts every thread says nothing there either."""
    frames = native(("launch", TORCH), ("engine", TORCH), ("start_thread", LIBC), ("clone3", LIBC))
    assert owned("", frames) == ["main", "backward", "engine", "launch"]


def test_a_worker_without_python_of_its_own_and_no_owner_keeps_all_native_frames() -> None:
    """As they are: there is nothing that they could stand between."""
    stack = NativeStack(tuple(native(*START)), cut=False)
    assert join_of(python=[], runs=[], native=stack) == [
        "_start",
        "__libc_start_call_main",
        "main",
        "pymain_run_python",
    ]


def test_work_for_another_owner_further_up_is_left_out() -> None:
    """A pass in a hook: the outer pass's hook and all above it are not on behalf of the inner one's owner."""
    expected = ["main", "backward", "engine", "apply_hook", "hook", "launch"]
    assert owned("hook", NESTED) == expected
    inner = native(
        ("launch", TORCH), ("engine", TORCH), ("cfunction_call", INTERPRETER), *[(LOOP)], *START
    )
    assert owned("", inner) == ["main", "backward", "engine", "launch"]


def test_what_is_cut_further_up_matters_only_to_the_other_work() -> None:
    """Native frames that break off behind the place where the thread has begun to work for its owner are enough."""
    expected = ["main", "backward", "engine", "apply_hook", "hook", "launch"]
    assert owned("hook", NESTED, native_state=NativeState.CUT) == expected
    apart = ["main", "backward", "hook", "launch"]
    assert owned("hook", [NESTED[0], NESTED[1]], native_state=NativeState.CUT)[:2] == apart[:2]
