"""`docs/capture-format.md` says what the code does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from otel_gpuflame.events import capture_format as fmt
from otel_gpuflame.events.capture_format import Kind
from otel_gpuflame.events.capture_tables import TABLES
from otel_gpuflame.events.records import Calls, Stacks
from tests.unit.events.capture_samples import capture_bytes, small_recording

DOCUMENT = (Path(__file__).parents[3] / "docs" / "capture-format.md").read_text("utf-8")


def _documented_reader() -> Callable[[bytes], Iterator[dict[str, Any]]]:
    code = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert len(code) == 1
    names: dict[str, Any] = {}
    exec(code[0], names)
    reader: Callable[[bytes], Iterator[dict[str, Any]]] = names["segments"]
    return reader


def test_documented_reader_reads_a_capture() -> None:
    """The code in the document gets every call, stack and string out of a capture."""
    events = small_recording()
    segments = list(_documented_reader()(capture_bytes(events)))
    calls = [each.rows for each in events if isinstance(each, Calls)]
    found = [table for segment in segments for table in segment.get("calls", [])]
    assert np.concatenate(found).tobytes() == np.concatenate(calls).tobytes()
    stacks = [stack for each in events if isinstance(each, Stacks) for stack in each.stacks]
    rows = [row for segment in segments for table in segment.get("stacks", []) for row in table]
    assert [(row["key_high"], row["frame_count"]) for row in rows] == [
        (stack.key.high, len(stack.frames)) for stack in stacks
    ]
    text = b"".join(table.tobytes() for s in segments for table in s.get("string_bytes", []))
    assert "/srv/träin.py".encode() in text


def test_documented_tables_are_those_of_the_code() -> None:
    """Every kind is listed under its number, with the columns and formats that are written."""
    listed = dict(re.findall(r"^\| (\d+) \| `\w+` \| (.*) \|$", DOCUMENT, re.MULTILINE))
    assert {int(kind) for kind in listed} == set(Kind)
    for kind in Kind:
        assert f"| {int(kind)} | `{kind.name.lower()}` |" in DOCUMENT
    for kind, schema in TABLES.items():
        if kind is Kind.EXECUTIONS:  # as its schema in the file says
            continue
        columns = [f"`{name}` {field.str}" for name, field in schema.fields()]
        assert listed[str(int(kind))].replace("\\|", "|") == ", ".join(columns)


def test_documented_example_is_what_a_header_says() -> None:
    """The example schema of the document is the one that is written."""
    example = re.search(r'"18": (\{.*?\})', DOCUMENT, re.DOTALL)
    assert example is not None
    assert eval(example[1]) == TABLES[Kind.STACKS].to_json()


def test_documented_numbers_are_those_of_the_code() -> None:
    """Magic, versions and limits are as written."""
    assert fmt.MAGIC.hex(" ").upper() in DOCUMENT
    assert f"format {fmt.MAJOR_VERSION}.{fmt.MINOR_VERSION}" in DOCUMENT
    assert f"of a segment | {fmt.MAX_SEGMENT_BYTES >> 20} MiB |" in DOCUMENT
    assert f"events of a segment | 2^{fmt.MAX_SEGMENT_EVENTS.bit_length() - 1} |" in DOCUMENT
    assert f"since the last reset | 2^{fmt.MAX_OBJECT_ROWS.bit_length() - 1} each |" in DOCUMENT
    assert f"since the last reset | {fmt.MAX_DICTIONARY_BYTES >> 20} MiB |" in DOCUMENT
    assert f"payload | {fmt.MAX_HEADER_BYTES >> 20} MiB |" in DOCUMENT
