"""Interning tables and what a frame is called."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.encode.dictionary import (
    UNSEEN,
    Dictionary,
    Table,
    display_name,
    used_entries,
    valid_text,
)
from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile import sample_types
from tests.unit.encode.bundles import ADD, MODULE, bundle


def test_table_numbers_keys_by_first_use() -> None:
    """The zero element has index 0, others follow in order of first use and keep their index."""
    table = Table("")

    assert [table.intern(key) for key in ("b", "a", "b", "")] == [1, 2, 1, 0]
    assert list(table) == ["", "b", "a"]
    assert list(table.used()) == [(1, "b"), (2, "a")]
    assert len(table) == 3


def test_equal_frames_share_a_location() -> None:
    """Frames that a format cannot tell apart become one location; a different line makes two."""
    dictionary = Dictionary()

    numbers = [
        dictionary.location(frame, "cpython")
        for frame in (MODULE, Frame(*MODULE), MODULE._replace(line=89))
    ]

    assert numbers == [1, 1, 2]
    assert len(dictionary.functions) == 2


def test_stacks_are_numbered_leaf_first_and_unused_ones_left_out() -> None:
    """Only marked stacks are interned, their frames resolved once and their order turned round."""
    resolved: list[Frame] = []
    dictionary = Dictionary()

    def location_of(frame: Frame) -> int:
        resolved.append(frame)
        return dictionary.location(frame, "")

    numbers = dictionary.add_stacks(
        bundle(
            {sample_types.GPU_WAIT: []}, frames=[MODULE, ADD], stacks=[(0,), (0, 1, 1), (0, 1, 1)]
        ),
        np.array([False, True, True]),
        location_of,
    )

    assert numbers.tolist() == [UNSEEN, 1, 1]
    assert list(dictionary.stacks) == [(), (2, 2, 1)]
    assert resolved == [MODULE, ADD]


def test_used_entries_ignores_references_to_nothing() -> None:
    """-1 refers to nothing, also in a table where it could be taken for the last entry."""
    mask = used_entries(3, [np.array([-1, 0], np.int32), np.array([1], np.int32)])

    assert mask.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (ADD, "void at::add<float>(float*, at::Tensor const&)"),
        (ADD._replace(name=""), "_ZN2at3addIfEEvPfRKNS_6TensorE"),
        (Frame(FrameKind.NATIVE, "", module="/usr/lib/libc.so.6", address=0x1F), "libc.so.6+0x1f"),
        (Frame(FrameKind.NATIVE, "", address=0x1F), "0x1f"),
        (Frame(FrameKind.NATIVE, ""), "[unknown]"),
    ],
)
def test_every_frame_has_a_name(frame: Frame, name: str) -> None:
    """A frame without a name is called by the best that is known of it."""
    assert display_name(frame) == name


def test_undecodable_bytes_become_visible() -> None:
    """A path that is no UTF-8 is written with an escape instead of failing or losing the byte."""
    assert valid_text("/opt/\udcff/x") == "/opt/\\udcff/x"


def test_line_and_address_are_brought_into_range() -> None:
    """A negative line and an address over 64 bits, which damaged targets yield, do not fail."""
    dictionary = Dictionary()

    dictionary.location(MODULE._replace(line=-1, address=2**64 + 5), "")

    ((_, location),) = dictionary.locations.used()
    assert (location.line, location.address) == (0, 5)
