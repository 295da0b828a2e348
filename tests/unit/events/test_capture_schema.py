"""Column codecs, schemas in files, and calls of other versions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events import wire
from otel_gpuflame.events.capture_format import Kind
from otel_gpuflame.events.capture_schema import conform, describe, join_rows, parse_schema
from otel_gpuflame.events.codecs import CODECS, can_delta, decode_column, encode_column
from otel_gpuflame.events.executions import EXECUTION, Executions
from otel_gpuflame.events.records import Calls, Event, Watermark
from tests.unit.events.capture_samples import (
    assert_same,
    block,
    calls,
    capture_bytes,
    executions,
    forge,
    read_all,
    split,
    with_header,
)

FIELDS = ["<u8", "<i4", "<u2", "|i1", "|u1", "|b1", "<f8", "<f4", "|S5", "(16,)|u1", "(2,3)<u4"]


@settings(deadline=None)
@given(
    field=st.sampled_from(FIELDS),
    codec=st.sampled_from(CODECS),
    rows=st.integers(0, 9),
    data=st.binary(min_size=9 * 24, max_size=9 * 24),
)
def test_columns_survive_every_codec(field: str, codec: str, rows: int, data: bytes) -> None:
    """Bytes of any content come back from any codec that the type allows."""
    dtype = np.dtype(field)
    if codec == "delta+shuffle" and not can_delta(dtype):
        return
    size_bytes = rows * dtype.itemsize
    column = np.frombuffer(data[:size_bytes], dtype.base).reshape(rows, *dtype.shape)
    encoded = encode_column(column, codec)
    assert len(encoded) == size_bytes
    assert decode_column(memoryview(encoded), dtype, rows, codec).tobytes() == data[:size_bytes]


def test_codecs_lay_bytes_out_as_documented() -> None:
    """The first byte of every row comes first; differences wrap; the first row is kept whole."""
    column = np.array([0x0201, 0x0403, 0x0302], "<u2")
    assert encode_column(column, "raw") == bytes([1, 2, 3, 4, 2, 3])
    assert encode_column(column, "shuffle") == bytes([1, 3, 2, 2, 4, 3])
    assert encode_column(column, "delta+shuffle") == bytes([1, 2, 0xFF, 2, 2, 0xFE])


def test_schema_comes_back_from_its_json() -> None:
    """A dtype with arrays, padding and fields out of order is described without loss."""
    dtype = np.dtype(
        {
            "names": ["b", "a", "name"],
            "formats": [("<u4", (2, 3)), "<i8", "S7"],
            "offsets": [16, 0, 48],
            "itemsize": 64,
        }
    )
    schema = describe("calls", dtype)
    again = parse_schema(schema.to_json())
    assert (again, again.dtype, again.packed_bytes) == (schema, dtype, 24 + 8 + 7)


def test_times_are_stored_as_differences_and_identifiers_whole() -> None:
    """The codec follows from the field, so that new fields of the wire get a fitting one."""
    schema = describe("calls", wire.CALL)
    codecs = dict(zip(wire.CALL.names or (), schema.codecs, strict=True))
    assert codecs["start_ns"] == codecs["end_ns"] == "delta+shuffle"
    assert codecs["trace_id"] == codecs["stack_hash"] == "raw"
    assert codecs["bytes"] == codecs["grid"] == "shuffle"


def test_joined_rows_keep_their_padding() -> None:
    """Rows of several blocks make one array of the very same dtype."""
    dtype = np.dtype({"names": ["a"], "formats": ["<u2"], "offsets": [6], "itemsize": 16})
    parts = [np.full(2, 7, dtype), np.full(1, 8, dtype)]
    joined = join_rows(parts)
    assert (joined.dtype, joined["a"].tolist()) == (dtype, [7, 7, 8])


def _other_version() -> np.dtype[Any]:
    """`wire.CALL` without `bytes` and `grid`, with a new field, in another order."""
    names = [name for name in wire.CALL.names or () if name not in {"bytes", "grid"}]
    fields: list[Any] = [(name, wire.CALL[name]) for name in reversed(names)]
    return np.dtype([("priority", "<i2"), *fields])


def test_calls_of_another_version_keep_their_own_dtype() -> None:
    """The reader needs no code for the columns: it delivers what the file describes."""
    rows = calls(4, dtype=_other_version())
    found, reader = read_all(capture_bytes([Calls(rows)]))
    assert_same(found, [Calls(rows)])
    assert reader.damage is None


def test_executions_of_another_version_are_conformed() -> None:
    """A column that the file lacks is 0, one that nobody knows is left out, the others keep their values."""
    rows = executions(3)
    names = [name for name in EXECUTION.names or () if name != "registers_per_thread"]
    fields: list[Any] = [(name, EXECUTION[name]) for name in reversed(names)]
    other = np.zeros(3, np.dtype([("priority", "<i2"), *fields]))
    for name in names:
        other[name] = rows[name]
    head, blocks = split(capture_bytes([Executions(rows)]))
    schema = describe("executions", other.dtype)
    kinds = json.loads(head[20:])["kinds"] | {str(int(Kind.EXECUTIONS)): schema.to_json()}
    changed = [
        block(kind, 3, schema.pack(other)) if kind == Kind.EXECUTIONS else data
        for kind, data in blocks
    ]
    (found,), reader = read_all(forge(with_header(head, kinds=kinds), changed))
    rows["registers_per_thread"] = 0
    assert_same([found], [Executions(rows)])
    assert reader.damage is None


def test_executions_that_do_not_fit_are_damage() -> None:
    """A column of another shape is refused by name, and not cut off."""
    other: list[Any] = [("bytes", "<u4"), ("grid", "<u4")]
    head, blocks = split(capture_bytes([Executions(executions(1))]))
    schema = describe("executions", np.dtype(other))
    kinds = json.loads(head[20:])["kinds"] | {str(int(Kind.EXECUTIONS)): schema.to_json()}
    changed = [
        block(kind, 1, bytes(8)) if kind == Kind.EXECUTIONS else data for kind, data in blocks
    ]
    found, reader = read_all(forge(with_header(head, kinds=kinds), changed))
    assert found == []
    assert "column 'grid' is <u4, which does not fit" in str(reader.damage)


def test_dtype_may_change_within_a_capture() -> None:
    """Recordings of two versions in one file keep both, each batch in its own dtype."""
    old, new = calls(3, dtype=_other_version()), calls(3)
    events: list[Event] = [Calls(old), Watermark(1), Calls(new), Calls(old[:0]), Calls(old)]
    data = capture_bytes(events, flush_after_ns=2**64)
    assert [kind for kind, _ in split(data)[1]].count(Kind.SCHEMA) == 3
    assert_same(read_all(data)[0], events)


def test_conform_fills_new_fields_with_zero_and_drops_old_ones() -> None:
    """Rows of another version reach the current dtype by field name."""
    rows = calls(4, dtype=_other_version())
    current = conform(rows, wire.CALL)
    assert current.dtype == wire.CALL
    assert not current["bytes"].any()
    assert not current["grid"].any()
    shared = [name for name in wire.CALL.names or () if name in (rows.dtype.names or ())]
    assert len(shared) == len(wire.CALL.names or ()) - 2
    for name in shared:
        assert current[name].tobytes() == rows[name].tobytes()


def test_conform_of_the_same_dtype_copies_nothing() -> None:
    """The usual case costs nothing."""
    rows = calls(2)
    assert conform(rows, wire.CALL) is rows


def test_conform_widens_but_never_narrows() -> None:
    """A narrower number fits; a wider one, or another shape, is refused by name."""
    narrow = np.array([(200,)], [("tid", "<u2")])
    assert conform(narrow, np.dtype([("tid", "<u4")]))["tid"].tolist() == [200]
    for other in ("<u1", "<i2", "(2,)<u2", "S2"):
        with pytest.raises(CaptureFileError, match="'tid'"):
            conform(narrow, np.dtype([("tid", other)]))
