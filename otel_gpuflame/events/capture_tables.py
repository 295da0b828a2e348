"""The tables of a capture file whose columns this package defines; only the columns of `calls` come
from elsewhere.

A column that ends in `_id` is an index into the string table (`frame_id`: the frame table) since
the last reset. A column `*_count` says how many rows of the child table belong to the row: children
lie in the order of their parents.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from otel_gpuflame.events.capture_format import Kind
from otel_gpuflame.events.capture_schema import TableSchema, describe
from otel_gpuflame.events.device_metrics import DEVICE_METRIC
from otel_gpuflame.events.executions import EXECUTION

_PROCESS = [("tgid", "<u4"), ("start_ns", "<i8")]

_COLUMNS: Mapping[Kind, list[tuple[str, str]] | np.dtype[Any]] = {
    Kind.EVENTS: [("kind", "<u2"), ("rows", "<u4")],
    Kind.STRINGS: [("size_bytes", "<u4")],
    Kind.STRING_BYTES: [("byte", "|u1")],
    Kind.FRAMES: [
        ("kind_id", "<u4"),
        ("name_id", "<u4"),
        ("system_name_id", "<u4"),
        ("file_id", "<u4"),
        ("line", "<i8"),
        ("module_id", "<u4"),
        ("build_id_id", "<u4"),
        ("address", "<u8"),
    ],
    Kind.STACK_FRAMES: [("frame_id", "<u4")],
    Kind.TARGET_ATTRIBUTES: [
        ("key_id", "<u4"),
        ("is_integer", "|u1"),
        ("text_id", "<u4"),
        ("integer", "<i8"),
    ],
    Kind.COUNTER_VALUES: [("kind_id", "<u4"), ("outcome_id", "<u4"), ("count", "<i8")],
    Kind.START_ATTRIBUTES: [("key_id", "<u4"), ("text_id", "<u4")],
    Kind.CAPTURE_STARTS: [
        ("time_ns", "<i8"),
        ("unix_offset_ns", "<i8"),
        ("attribute_count", "<u4"),
    ],
    Kind.STACKS: [("key_high", "<u8"), ("key_low", "<u8"), *_PROCESS, ("frame_count", "<u4")],
    Kind.NAMES: [
        *_PROCESS,
        ("time_ns", "<i8"),
        ("handle", "<u8"),
        ("name_id", "<u4"),
        ("readable_id", "<u4"),
    ],
    Kind.TARGETS: [*_PROCESS, ("attribute_count", "<u4")],
    Kind.COUNTERS: [("time_ns", "<i8"), ("value_count", "<u4")],
    Kind.WATERMARKS: [("time_ns", "<i8")],
    Kind.PROCESSES_ENDED: [*_PROCESS],
    Kind.STACKS_FORGOTTEN: [("key_high", "<u8"), ("key_low", "<u8")],
    Kind.SAMPLING_WINDOWS: [
        ("stratum_start_ns", "<i8"),
        ("stratum_end_ns", "<i8"),
        ("open_ns", "<i8"),
        ("close_ns", "<i8"),
        ("probability_ppb", "<u4"),
        ("with_waits", "|u1"),
        ("with_graph_launches", "|u1"),
    ],
    Kind.EXECUTIONS: EXECUTION,
    Kind.DEVICES: [
        ("index", "<u4"),
        ("uuid_id", "<u4"),
        ("model_id", "<u4"),
        ("multiprocessors", "<u4"),
        ("threads_per_multiprocessor", "<u4"),
        ("blocks_per_multiprocessor", "<u4"),
        ("registers_per_multiprocessor", "<u4"),
        ("shared_bytes_per_multiprocessor", "<u4"),
    ],
    Kind.EXECUTIONS_BEGIN: [*_PROCESS, ("time_ns", "<i8")],
    Kind.EXECUTIONS_END: [*_PROCESS, ("time_ns", "<i8"), ("incomplete_id", "<u4")],
    Kind.EXECUTION_WATERMARKS: [*_PROCESS, ("time_ns", "<i8")],
    Kind.DEVICE_METRICS: DEVICE_METRIC,
    Kind.DEVICE_ERRORS: [
        ("time_ns", "<i8"),
        ("device", "<u4"),
        ("bus_id_id", "<u4"),
        ("code", "<u4"),
        ("message_id", "<u4"),
    ],
}

TABLES: Mapping[Kind, TableSchema] = MappingProxyType(
    {kind: describe(kind.name.lower(), np.dtype(columns)) for kind, columns in _COLUMNS.items()}
)

ADDED_COLUMNS = MappingProxyType(
    {Kind.SAMPLING_WINDOWS: frozenset({"with_waits", "with_graph_launches"})}
)
"""Columns that a minor version has added: 0 in older files."""

BYTE_TABLES = frozenset(
    {
        Kind.CALLS,
        Kind.EXECUTIONS,
        Kind.DEVICE_METRICS,
        Kind.STRING_BYTES,
        Kind.STACK_FRAMES,
    }
)
"""Tables whose rows stay numbers, so that bytes alone bound them; all others obey
`MAX_OBJECT_ROWS`."""


def table_dtype(kind: Kind) -> np.dtype[Any]:
    """The dtype of a table that this package defines."""
    return TABLES[kind].dtype
