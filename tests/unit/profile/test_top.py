"""The tables that people read first, and the selection of one span."""

from __future__ import annotations

import pytest

from otel_gpuflame.events.frames import Frame, FrameKind, Stack, StackKey, mark
from otel_gpuflame.events.records import CallArray, Stacks
from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH, GPU_WAIT
from otel_gpuflame.profile.select import only_span
from otel_gpuflame.profile.top import TopRow, top_leaves, top_python_lines, total
from tests.unit.profile.builders import (
    OTHER,
    PROCESS,
    SAMPLED,
    SPAN_ID,
    TRACE_ID,
    batch,
    call,
    name_event,
    run,
    samples,
    target_event,
    usual,
)

APP = "/srv/app/train.py"
LIBRARIES = [
    "/opt/venv/lib/python3.12/site-packages/torch/nn/module.py",
    "/usr/lib/python3/dist-packages/numpy/core.py",
    "/usr/lib/python3.11/threading.py",
    "<frozen importlib._bootstrap>",
]


def python(name: str, line: int, file: str = APP) -> Frame:
    """A Python frame."""
    return Frame(FrameKind.PYTHON, name, file=file, line=line)


def waits(*stacks: tuple[Frame, ...]) -> list[TopRow]:
    """Python lines of one wait in each stack: 1 ns in the first, 2 in the second and so on."""
    events = usual()
    for number, frames in enumerate(stacks, 1):
        key = StackKey(50, number)
        row = call("cuCtxSynchronize", key=key, duration_ns=number)
        events += [Stacks((Stack(key, PROCESS, frames),)), batch(row)]
    return top_python_lines(run(events)[0], GPU_WAIT)


def test_the_innermost_python_line_counts() -> None:
    """A wait belongs to the line that made the call, however deep, below native frames."""
    native = Frame(FrameKind.NATIVE, "at::sync")
    rows = waits(
        (python("main", 1), python("step", 88), native),
        (python("main", 1), python("step", 90)),
        (python("main", 1), python("step", 88), mark("native stack cut"), native),
    )
    assert [(r.frame.name, r.frame.line, r.value) for r in rows] == [
        ("step", 88, 4),
        ("step", 90, 2),
    ]
    assert rows[0].place == f"{APP}:88"


@pytest.mark.parametrize("file", LIBRARIES)
def test_lines_of_the_program_go_before_those_of_libraries(file: str) -> None:
    """The program's own line is shown, and a library's only where there is none of the program."""
    library = python("forward", 5, file)
    own, alone = waits((python("main", 1), library), (library,))[::-1]
    assert (own.frame.name, own.value) == ("main", 1)
    assert (alone.frame, alone.value) == (library, 2)


def test_stacks_without_python_have_a_row() -> None:
    """Values that no Python line accounts for are not hidden."""
    (row,) = waits((Frame(FrameKind.NATIVE, "start_thread"),))
    assert (row.frame.name, row.place, row.value) == ("[no Python frame]", "", 1)


def test_rows_are_ranked_and_ties_are_stable() -> None:
    """Largest first; equal values by name, then line."""
    a, b = python("a", 9), python("b", 1)
    rows = waits((b,), (a, python("c", 3)), (a,), (python("b", 2), b))
    assert [(r.frame.name, r.frame.line, r.value) for r in rows] == [
        ("b", 1, 5),
        ("a", 9, 3),
        ("c", 3, 2),
    ]
    y, z_far, z_near = python("y", 1), python("z", 5), python("z", 2)
    assert [r.frame for r in waits((y,), (y,), (z_far,))] == [y, z_far]
    assert [r.frame for r in waits((z_far,), (z_far,), (z_near,))] == [z_near, z_far]


@pytest.mark.parametrize(
    ("file", "line", "place"), [("/a.py", 3, "/a.py:3"), ("/a.py", 0, "/a.py"), ("", 3, "")]
)
def test_a_place_is_given_as_far_as_it_is_known(file: str, line: int, place: str) -> None:
    """File and line, the file alone, or nothing."""
    assert TopRow(python("f", line, file), 1).place == place


def test_leaves_are_ranked_by_frame() -> None:
    """The leaf table says what the GPU was given, over all processes."""
    rows = batch(
        call("cuLaunchKernel", object=1),
        call("cuLaunchKernel", object=1),
        call("cuLaunchKernel", object=1, process=OTHER),
        call("cuMemcpyDtoD", bytes=10),
    )
    names = [name_event(1, "gemm"), name_event(1, "gemm", process=OTHER)]
    bundles, _ = run([*usual(), target_event(OTHER, "b"), *names, rows])
    assert len(bundles) == 2
    found = [(row.frame.name, row.value) for row in top_leaves(bundles, GPU_LAUNCH)]
    assert found == [("gemm", 3), ("[copy DtoD]", 1)]
    assert [row.value for row in top_leaves(bundles, GPU_COPY)] == [10]
    assert total(bundles, GPU_LAUNCH) == 4


def test_no_samples_no_rows() -> None:
    """A type without samples has an empty table."""
    bundles, _ = run([*usual(), batch(call("cuLaunchKernel"))])
    assert top_python_lines(bundles, GPU_WAIT) == top_leaves(bundles, GPU_WAIT) == []
    assert total(bundles, GPU_WAIT) == total([], GPU_WAIT) == 0


def test_only_span_keeps_what_belongs_to_it() -> None:
    """Samples of the span are kept exactly, in all types; others, and bundles without any, go."""
    other_span = bytes([9] * 8)

    def linked(span_id: bytes, **fields: int) -> CallArray:
        return call(
            "cuMemcpyDtoH",
            flags=SAMPLED,
            trace_id=TRACE_ID,
            span_id=span_id,
            duration_ns=fields["waited_ns"],
            bytes=fields["size"],
        )

    rows = batch(
        linked(SPAN_ID, waited_ns=100, size=1),
        linked(other_span, waited_ns=10, size=2),
        call("cuMemcpyDtoH", duration_ns=7, bytes=4),
        call("cuLaunchKernel", process=OTHER),
    )
    bundles, _ = run([*usual(), target_event(OTHER, "b"), rows])
    (bundle,) = only_span(bundles, SPAN_ID)
    assert dict(bundle.resource)["service.name"] == "train"
    assert [total([bundle], t) for t in (GPU_WAIT, GPU_LAUNCH, GPU_COPY)] == [100, 1, 1]
    links = {link.span_id for _, link in samples([bundle], GPU_WAIT) if link}
    assert links == {SPAN_ID}
    assert only_span(bundles, bytes(8)) == []
    assert only_span([], SPAN_ID) == []
