# SPDX-License-Identifier: Apache-2.0
"""How Pyroscope reads OTLP attributes and tables: by index with bounds, and strings only where they are inline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesDictionary

from tests.fakes.pyroscope.limits import conversion_error

_Row = TypeVar("_Row")


def row(table: Sequence[_Row], index: int, what: str) -> _Row:
    """The entry at `index`; a `RefusedError` where there is none. Negative indexes do not count from the end."""
    if 0 <= index < len(table):
        return table[index]
    raise conversion_error(f"could not access {what}: index {index} out of bounds")


def label_text(value: AnyValue) -> str:
    """A string or integer, also as the only item of a list; empty for every other value.

    A reference into the string table (`string_value_strindex`) is not followed: an empty text.
    """
    kind = value.WhichOneof("value")
    if kind == "array_value":
        items = value.array_value.values
        return _scalar_text(items[0]) if len(items) == 1 else ""
    return _scalar_text(value)


def _scalar_text(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value
    return str(value.int_value) if kind == "int_value" else ""


def attribute_text(indices: Iterable[int], dictionary: ProfilesDictionary, wanted: str) -> str:
    """Text of the attribute with key `wanted`, empty if there is none."""
    for index in indices:
        attribute = row(dictionary.attribute_table, index, "attribute")
        if row(dictionary.string_table, attribute.key_strindex, "attribute key") == wanted:
            return label_text(attribute.value)
    return ""
