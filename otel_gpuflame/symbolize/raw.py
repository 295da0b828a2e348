"""What the stack walkers saw: addresses only."""

from __future__ import annotations

from dataclasses import dataclass

from otel_gpuflame.events.frames import ProcessKey, StackKey


@dataclass(frozen=True, slots=True)
class RawStack:
    """One stack as captured, leaf first on both sides.

    `python` holds (address of the PyCodeObject, instruction): from CPython 3.11 on the instruction
    is an address, in 3.10 it is the index of a code unit. `native` holds return addresses, the
    first one into the caller of the probed function; with `leaf_is_instruction` the first one is
    where the thread itself was, and those at the positions `instructions` are where a signal found
    it, or where its handler returns to. The states are `ogf_python_state` and `ogf_native_state`.
    The last `owner_frames` of `python` are those of the thread on whose behalf this one works.
    """

    key: StackKey
    process: ProcessKey
    python: tuple[tuple[int, int], ...]
    native: tuple[int, ...]
    python_state: int
    native_state: int
    called_by_c: frozenset[int] = frozenset()
    """Positions of the Python frames that C code has called, each in a run of the interpreter's loop of its own."""
    leaf_is_instruction: bool = False
    owner_frames: int = 0
    instructions: frozenset[int] = frozenset()
    lacks_table: bool = False
    """Whether an unwind table was missing on the way, which might be made."""
