"""Line tables of code objects: which line an instruction belongs to.

3.10: pairs of bytes (PEP 626). From 3.11 on: the location table (Objects/locations.md of CPython).
"""

from __future__ import annotations

NO_LINE = 0
_NO_LINE_310 = -128


def line_310(table: bytes, first_line: int, unit: int) -> int | None:
    """Line of code unit `unit` (2 bytes each); `NO_LINE` for code without a line, None beyond the
    table.
    """
    if unit < 0:
        return first_line
    line, end = first_line, 0
    for index in range(0, len(table) - 1, 2):
        end += table[index]
        delta = table[index + 1] - ((table[index + 1] & 0x80) << 1)
        if delta != _NO_LINE_310:
            line += delta
        if unit * 2 < end:
            return NO_LINE if delta == _NO_LINE_310 else line
    return None


def line_311(table: bytes, first_line: int, unit: int) -> int | None:
    """As `line_310`, for 3.11 to 3.14."""
    if unit < 0:
        return first_line
    line, end, position = first_line, 0, 0
    while position < len(table):
        head = table[position]
        kind = head >> 3 & 15
        end += (head & 7) + 1
        delta, position = _delta(table, position + 1, kind)
        if delta is not None:
            line += delta
        if unit < end:
            return NO_LINE if delta is None else line
    return None


def _delta(table: bytes, position: int, kind: int) -> tuple[int | None, int]:
    """Line delta of the entry whose body starts at `position`, None for "no line", and where the
    next entry starts.
    """
    if kind == 15:
        return None, position
    if kind >= 13:
        value, position = _varint(table, position)
        if kind == 14:
            for _ in range(3):  # end line, column, end column
                _, position = _varint(table, position)
        return (-(value >> 1) if value & 1 else value >> 1), position
    if kind >= 10:
        return kind - 10, position + 2
    return 0, position + 1


def _varint(table: bytes, position: int) -> tuple[int, int]:
    """Six bits a byte, lowest first, bit 6 says that more follow. A table that ends early ends the
    number.
    """
    value = shift = 0
    while position < len(table):
        byte = table[position]
        position += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return value, position
