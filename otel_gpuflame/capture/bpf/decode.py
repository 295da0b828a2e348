"""Records of variable length from the rings, as objects. They are rare: one a stack, a name, a process change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey, StackKey
from otel_gpuflame.symbolize.raw import RawStack

_IS_INSTRUCTION: Final = 1 << 63
"""OGF_IS_INSTRUCTION_BIT of bpf/include/ogf_events.h."""
_CALLED_BY_C: Final = 1
"""OGF_CALLED_BY_C of the same."""


@dataclass(frozen=True, slots=True)
class RawName:
    """A handle got `name`, or means the same kernel as `alias_of` when the name is empty."""

    process: ProcessKey
    time_ns: int
    handle: int
    alias_of: int
    name: str


@dataclass(frozen=True, slots=True)
class ProcessChange:
    """A captured process was born, replaced its program, ended, or mapped code."""

    change: wire.ProcessChange
    process: ProcessKey
    parent: ProcessKey
    time_ns: int
    comm: str
    maps_gpu_library: bool = False
    """Of mapped code: whether its file may be a GPU library."""


@dataclass(frozen=True, slots=True)
class RawXid:
    """NVIDIA's driver reported an error of the device at `bus_id`, as the kernel writes it (`0000:3b:00.0`)."""

    time_ns: int
    bus_id: str
    code: int
    message: str


def decode_stack(record: bytes) -> RawStack | None:
    """One stack, or None if its counts and its length disagree."""
    if len(record) < wire.STACK.itemsize:
        return None
    head = np.frombuffer(record, wire.STACK, 1)[0]
    python_count, native_count = int(head["python_count"]), int(head["native_count"])
    if len(record) != wire.STACK.itemsize + 16 * python_count + 8 * native_count:
        return None
    words = np.frombuffer(record, "<u8", offset=wire.STACK.itemsize).tolist()
    split = 2 * python_count
    native = words[split:]
    return RawStack(
        key=StackKey(*head["stack_hash"].tolist()),
        process=ProcessKey(int(head["tgid"]), int(head["process_start_ns"])),
        python=tuple(
            (code & ~_CALLED_BY_C, instruction)
            for code, instruction in zip(words[0:split:2], words[1:split:2], strict=True)
        ),
        native=tuple(each & ~_IS_INSTRUCTION for each in native),
        python_state=int(head["python_state"]),
        native_state=int(head["native_state"]),
        called_by_c=frozenset(i for i, each in enumerate(words[0:split:2]) if each & _CALLED_BY_C),
        leaf_is_instruction=bool(head["leaf_is_instruction"]),
        owner_frames=min(int(head["owner_python_count"]), python_count),
        instructions=frozenset(i for i, each in enumerate(native) if each & _IS_INSTRUCTION),
        lacks_table=bool(head["lacks_table"]),
    )


def decode_name(record: bytes) -> RawName | None:
    """One name, or None if its length disagrees with what it says.

    A name longer than BPF can carry ends in `…@handle`, so that two kernels with equal beginnings stay apart.
    """
    size = wire.NAME.itemsize
    if len(record) < size:
        return None
    head = np.frombuffer(record, wire.NAME, 1)[0]
    if len(record) != size + int(head["name_bytes"]):
        return None
    name = record[size:].decode("utf-8", "backslashreplace")
    handle = int(head["handle"])
    if head["truncated"]:
        name = f"{name}…@{handle:#x}"
    return RawName(
        process=ProcessKey(int(head["tgid"]), int(head["process_start_ns"])),
        time_ns=int(head["time_ns"]),
        handle=handle,
        alias_of=int(head["alias_of"]),
        name=name,
    )


def decode_process(record: bytes) -> ProcessChange | None:
    """One process change, or None if the record is malformed."""
    if len(record) != wire.PROCESS.itemsize:
        return None
    row = np.frombuffer(record, wire.PROCESS, 1)[0]
    try:
        change = wire.ProcessChange(int(row["change"]))
    except ValueError:
        return None
    return ProcessChange(
        change=change,
        process=ProcessKey(int(row["tgid"]), int(row["process_start_ns"])),
        parent=ProcessKey(int(row["parent_tgid"]), int(row["parent_start_ns"])),
        time_ns=int(row["time_ns"]),
        comm=_text(row["comm"]),
        maps_gpu_library=bool(row["maps_gpu_library"]),
    )


def decode_xid(record: bytes) -> RawXid:
    """One error of a device, a `wire.XID`."""
    row = np.frombuffer(record, wire.XID, 1)[0]
    return RawXid(
        time_ns=int(row["time_ns"]),
        bus_id=_text(row["bus_id"]),
        code=int(row["code"]),
        message=_text(row["message"]).strip(),
    )


def _text(characters: NDArray[Any]) -> str:
    """Up to the terminating 0: an older, longer text may still stand behind it."""
    return bytes(characters).partition(b"\0")[0].decode("utf-8", "backslashreplace")
