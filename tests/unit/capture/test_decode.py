"""Records from the rings: what they hold, and that no bytes at all can break the decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.capture.bpf.decode import decode_name, decode_process, decode_stack
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey, StackKey


def record(dtype: np.dtype[Any], tail: bytes = b"", **fields: Any) -> bytes:
    """One record with these fields, followed by what the ring has behind it."""
    row = np.zeros(1, dtype)
    for name, value in fields.items():
        row[name] = value
    return row.tobytes() + tail


def test_a_stack_is_split_into_python_and_native_frames() -> None:
    """Python frames are pairs of words, native ones single words; both leaf first."""
    raw = decode_stack(
        record(
            wire.STACK,
            np.array([8, 2, 16, 4, 50, 60, 70], "<u8").tobytes(),
            stack_hash=(2**64 - 1, 6),
            tgid=7,
            process_start_ns=8,
            python_count=2,
            native_count=3,
            python_state=wire.PythonState.TRUNCATED,
            native_state=wire.NativeState.CUT,
        )
    )
    assert raw is not None
    assert raw.key == StackKey(2**64 - 1, 6)
    assert raw.process == ProcessKey(7, 8)
    assert raw.python == ((8, 2), (16, 4))
    assert raw.native == (50, 60, 70)
    assert (raw.python_state, raw.native_state) == (
        wire.PythonState.TRUNCATED,
        wire.NativeState.CUT,
    )


def test_a_stack_says_whether_its_leaf_is_an_instruction() -> None:
    """Samples begin where the thread was, calls in their caller."""
    for number in (0, 1):
        raw = decode_stack(record(wire.STACK, leaf_is_instruction=number))
        assert raw is not None
        assert raw.leaf_is_instruction is bool(number)


@pytest.mark.parametrize(("said", "found"), [(0, 0), (1, 1), (2, 2), (3, 2), (255, 2)])
def test_a_stack_says_which_frames_are_of_whom_the_thread_works_for(said: int, found: int) -> None:
    """They are among the Python frames that there are, whatever the record says."""
    words = np.array([1, 2, 3, 4], "<u8").tobytes()
    raw = decode_stack(record(wire.STACK, words, python_count=2, owner_python_count=said))
    assert raw is not None
    assert raw.owner_frames == found


def test_marks_in_the_words_of_a_stack_are_taken_out() -> None:
    """Python frames that C code has called, and native ones that a signal interrupted, by position."""
    words = np.array([8, 2, 16 | 1, 4, 50, 60 | 1 << 63], "<u8").tobytes()
    raw = decode_stack(record(wire.STACK, words, python_count=2, native_count=2, lacks_table=1))
    assert raw is not None
    assert (raw.python, raw.called_by_c) == (((8, 2), (16, 4)), {1})
    assert (raw.native, raw.instructions) == ((50, 60), {1})
    assert raw.lacks_table


def test_a_stack_may_be_empty() -> None:
    """Neither kind of frame is a stack too: it says why in its states."""
    raw = decode_stack(record(wire.STACK))
    assert raw is not None
    assert (raw.python, raw.native) == ((), ())


@pytest.mark.parametrize(("python", "native", "words"), [(1, 0, 1), (0, 1, 2), (255, 0, 2)])
def test_counts_that_do_not_fit_the_length_are_refused(
    python: int, native: int, words: int
) -> None:
    """A stack is taken whole or not at all."""
    data = record(wire.STACK, bytes(8 * words), python_count=python, native_count=native)
    assert decode_stack(data) is None


def test_a_name_belongs_to_a_handle() -> None:
    """Handle, time, process and text."""
    name = decode_name(
        record(
            wire.NAME,
            "gemmä".encode(),
            handle=2**64 - 1,
            tgid=7,
            process_start_ns=8,
            time_ns=9,
            name_bytes=6,
        )
    )
    assert name is not None
    assert (name.process, name.time_ns, name.handle) == (ProcessKey(7, 8), 9, 2**64 - 1)
    assert (name.name, name.alias_of) == ("gemmä", 0)


def test_an_alias_has_no_name() -> None:
    """A record without characters says which handle has the name."""
    name = decode_name(record(wire.NAME, handle=1, alias_of=2))
    assert name is not None
    assert (name.name, name.alias_of) == ("", 2)


def test_cut_names_with_equal_beginnings_stay_apart() -> None:
    """A name longer than BPF carries is told from others by its handle."""
    names = [
        decode_name(record(wire.NAME, b"abc", handle=h, name_bytes=3, truncated=1))
        for h in (16, 17)
    ]
    assert [n and n.name for n in names] == ["abc…@0x10", "abc…@0x11"]


def test_names_that_are_no_text_are_escaped() -> None:
    """A program may give the driver any bytes."""
    name = decode_name(record(wire.NAME, b"k\xff", name_bytes=2))
    assert name is not None
    assert name.name == "k\\xff"


def test_a_process_change() -> None:
    """Who changed, into what, and who the parent is."""
    change = decode_process(
        record(
            wire.PROCESS,
            change=wire.ProcessChange.FORK,
            tgid=2,
            process_start_ns=20,
            parent_tgid=1,
            parent_start_ns=10,
            time_ns=99,
            comm=b"python",
        )
    )
    assert change is not None
    assert change.change is wire.ProcessChange.FORK
    assert (change.process, change.parent) == (ProcessKey(2, 20), ProcessKey(1, 10))
    assert (change.time_ns, change.comm) == (99, "python")


@pytest.mark.parametrize("flag", [0, 1])
def test_a_mapping_says_whether_it_may_be_a_gpu_library(flag: int) -> None:
    """Such a library is probed before anything else is done."""
    data = record(wire.PROCESS, change=wire.ProcessChange.MAP, maps_gpu_library=flag)
    change = decode_process(data)
    assert change is not None
    assert change.maps_gpu_library is bool(flag)


@pytest.mark.parametrize(
    ("comm", "text"),
    [
        (b"sh\0hon3\0", "sh"),
        (b"0123456789abcdef", "0123456789abcdef"),
        (b"\xff", "\\xff"),
        (b"", ""),
    ],
)
def test_the_name_of_a_process_ends_at_its_terminator(comm: bytes, text: str) -> None:
    """What stands behind it is left over from an older name."""
    change = decode_process(record(wire.PROCESS, comm=comm, change=wire.ProcessChange.EXIT))
    assert change is not None
    assert change.comm == text


@pytest.mark.parametrize("number", [0, 5, 2**32 - 1])
def test_unknown_changes_are_refused(number: int) -> None:
    """A number that is no change is malformed."""
    assert decode_process(record(wire.PROCESS, change=number)) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_none(data: bytes) -> None:
    """Decoders never raise, and what they take has the length that it claims."""
    stack, name, change = decode_stack(data), decode_name(data), decode_process(data)
    if stack is not None:
        words = 2 * len(stack.python) + len(stack.native)
        assert len(data) == wire.STACK.itemsize + 8 * words
    if name is not None:
        assert len(data) >= wire.NAME.itemsize
    if change is not None:
        assert len(data) == wire.PROCESS.itemsize


@given(st.integers(0, 199))
def test_cut_records_are_refused(length: int) -> None:
    """A record that lost its end is no record."""
    data = record(wire.STACK, bytes(160), python_count=5, native_count=10)
    assert (decode_stack(data[:length]) is None) == (length < len(data))
