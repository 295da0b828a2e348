"""Frames and stacks: what an address means, after symbolisation and before any output format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class FrameKind(Enum):
    """Which layer of the machine a frame belongs to. Values are those of `profile.frame.type` where one exists."""

    PYTHON = "cpython"
    NATIVE = "native"
    OS_KERNEL = "kernel"
    GPU = "cuda"
    GPU_OPENCL = "opencl"
    MARK = "mark"
    """Not code: `[spin]`, `[no stack: ring full]`, `[native stack cut]`."""


class Frame(NamedTuple):
    """One resolved place in code. A tuple, since a window hashes hundreds of thousands of them.

    `name` is for people (demangled, qualified); `system_name` is the linker's name, empty where it is the same.
    `line` is 0 and `file` empty where unknown; `module` is the path of the mapped file; `address` is the offset in it.
    """

    kind: FrameKind
    name: str
    system_name: str = ""
    file: str = ""
    line: int = 0
    module: str = ""
    build_id: str = ""
    address: int = 0


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """A process for all time: (host tgid, start in CLOCK_MONOTONIC ns). A pid alone is reused."""

    tgid: int
    start_ns: int


class StackKey(NamedTuple):
    """128-bit identity of a stack, as computed in BPF over process, Python frames and return addresses."""

    high: int
    low: int


@dataclass(frozen=True, slots=True)
class Stack:
    """A resolved stack, root first."""

    key: StackKey
    process: ProcessKey
    frames: tuple[Frame, ...]


def mark(text: str) -> Frame:
    """A frame that says something about the stack instead of naming code: `mark("spin")` shows as `[spin]`."""
    return Frame(FrameKind.MARK, f"[{text}]")
