"""All references of an OTLP profiles request to its dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import Message

TABLES = (
    "mapping_table",
    "location_table",
    "function_table",
    "link_table",
    "string_table",
    "attribute_table",
    "stack_table",
)


class Reference(NamedTuple):
    """An index into `table`, found at `where`."""

    where: str
    table: str
    entry: int


_TABLE_OF_FIELD = {
    "mapping_index": "mapping_table",
    "function_index": "function_table",
    "link_index": "link_table",
    "stack_index": "stack_table",
    "location_indices": "location_table",
    "attribute_indices": "attribute_table",
}


def references(message: Any, where: str = "request") -> Iterator[Reference]:
    """Every index in `message`, by the names of its fields, explicit or left at 0."""
    for field in message.DESCRIPTOR.fields:
        table = "string_table" if field.name.endswith("_strindex") else None
        table = _TABLE_OF_FIELD.get(field.name, table)
        value = getattr(message, field.name)
        if table is not None:
            if field.containing_oneof is not None and not message.HasField(field.name):
                continue
            for index in [value] if isinstance(value, int) else value:
                yield Reference(f"{where}.{field.name}", table, index)
        elif field.message_type is None:
            continue
        elif not isinstance(value, Message):
            for item, child in enumerate(value):
                yield from references(child, f"{where}.{field.name}[{item}]")
        elif message.HasField(field.name):
            yield from references(value, f"{where}.{field.name}")
