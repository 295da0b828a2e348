"""Line tables against the interpreter's own decoder, and against damage."""

from __future__ import annotations

import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.symbolize.cpython.lines import NO_LINE, line_310, line_311

SOURCE = """
def one(value):
    try:
        with value as name:
            return [
                name(
                    item,
                )
                for item in value
            ]
    except (
        ValueError
    ) as error:
        raise TypeError from error
    finally:
        print(
            value)



    async def two():
        async for _ in value:
            await value
"""


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return [code, *(found for each in inner for found in _codes(each))]


@pytest.mark.parametrize("lines", [0, 3, 200, 40000])
def test_every_instruction_has_the_line_that_python_says(lines: int) -> None:
    """All code units of nested code objects, near and far from the first line."""
    decode = line_310 if sys.version_info < (3, 11) else line_311
    text = SOURCE.replace("print(", "print(" + "\n" * lines)
    for code in _codes(compile(text, "<text>", "exec")):
        for start, end, line in code.co_lines():
            for unit in range(start // 2, end // 2):
                found = decode(code.co_linetable, code.co_firstlineno, unit)
                assert found == (NO_LINE if line is None else line)


def test_pep_626_entries() -> None:
    """Forward, backward, ranges without a line, and ranges longer than a byte."""
    table = bytes([4, 1, 6, 0x80, 2, 0xFE, 254, 3, 10, 0])
    expected = [11, 11, NO_LINE, NO_LINE, NO_LINE, 9] + [12] * 132
    found = [line_310(table, 10, unit) for unit in range(138)]
    assert found == expected
    assert line_310(table, 10, 138) is None


def test_location_entries() -> None:
    """Short, one-line, no-column, long and empty forms, and numbers of several bytes."""
    table = bytes(
        [
            0x80 | 0 << 3 | 1, 0x00,  # short, 2 units, same line
            0x80 | 11 << 3 | 0, 1, 2,  # one line, +1
            0x80 | 13 << 3 | 0, 0x03,  # no column, -1
            0x80 | 14 << 3 | 0, 0x40 | 8, 25, 0, 1, 1,  # long, + (8 + 25 * 64) / 2
            0x80 | 15 << 3 | 7,  # nothing, 8 units
        ]
    )  # fmt: skip
    found = [line_311(table, 10, unit) for unit in range(14)]
    assert found == [10, 10, 11, 10, 814, *[NO_LINE] * 8, None]


def test_before_the_first_instruction_is_the_first_line() -> None:
    """A frame that has not begun points one before its code."""
    assert line_310(b"\x02\x01", 7, -1) == 7
    assert line_311(b"\x80\x00", 7, -1) == 7


@given(st.binary(max_size=300), st.integers(-(1 << 31), 1 << 31), st.integers(-1, 1 << 32))
def test_any_table_is_decoded(table: bytes, first_line: int, unit: int) -> None:
    """The answer is a number or None, whatever the table holds."""
    for decode in (line_310, line_311):
        line = decode(table, first_line, unit)
        assert line is None or isinstance(line, int)
