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
    where the thread itself was. The states are `ogf_python_state` and `ogf_native_state`.
    The last `owner_frames` of `python` are those of the thread on whose behalf this one works.
    """

    key: StackKey
    process: ProcessKey
    python: tuple[tuple[int, int], ...]
    native: tuple[int, ...]
    python_state: int
    native_state: int
    leaf_is_instruction: bool = False
    owner_frames: int = 0
