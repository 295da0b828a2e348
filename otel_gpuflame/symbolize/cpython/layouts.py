"""Where a CPython keeps what is read from it: from tables for each minor version, from 3.13 on from the
process itself.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from otel_gpuflame.symbolize.cpython.tables import OFFSETS

FIRST_VERSION = (3, 10)
LAST_VERSION = (3, 14)
SUPPORTED = "3.10 to 3.14 are"
NO_OWNER = 255
DEBUG_COOKIE = b"xdebugpy"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonLayout:
    """What the frame walk in BPF needs, with the names of `struct ogf_python_layout`."""

    interpreters_head: int = 0
    """Address in the target, not an offset."""
    interpreter_threads_head: int
    interpreter_next: int
    thread_next: int
    thread_id: int
    thread_frame: int
    cframe_frame: int = 0
    frame_code: int
    frame_previous: int
    frame_instruction: int
    frame_owner: int = 0
    frame_entry: int = 0
    has_cframe: int = 0
    instruction_is_index: int = 0
    skip_owner: int = NO_OWNER
    unsupported: int = 0
    code_version: int = 0
    code_first_line: int
    code_name: int
    text_ascii_header: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLayout:
    """What reading code objects, strings and bytes needs: offsets and header sizes in bytes."""

    code_filename: int
    code_first_line: int
    code_line_table: int
    code_name: int
    code_instructions: int = 0
    """0 in 3.10, where instructions are known by index."""
    object_type: int
    object_size: int
    bytes_data: int
    text_length: int
    text_state: int
    text_ascii_header: int
    text_compact_header: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLayout:
    """All of one minor version; `runtime_interpreters_head` is an offset in `_PyRuntime`."""

    runtime_interpreters_head: int
    python: PythonLayout
    code: CodeLayout


def layout_of(version: tuple[int, int]) -> VersionLayout | None:
    """The table of a minor version; None where it is not supported."""
    offsets = OFFSETS.get(version)
    if offsets is None:
        return None
    walk = {field.name for field in fields(PythonLayout)}
    code = {field.name for field in fields(CodeLayout)}
    return VersionLayout(
        runtime_interpreters_head=offsets["runtime_interpreters_head"],
        python=PythonLayout(**{name: value for name, value in offsets.items() if name in walk}),
        code=CodeLayout(**{name: value for name, value in offsets.items() if name in code}),
    )


# Which word of `_Py_DebugOffsets` holds what, by the names that our layouts have for it.
_WORDS: Final[dict[tuple[int, int], dict[str, int]]] = {
    (3, 13): {
        "runtime_interpreters_head": 5,
        "interpreter_threads_head": 9,
        "interpreter_next": 8,
        "thread_next": 21,
        "thread_frame": 23,
        "thread_id": 24,
        "frame_previous": 29,
        "frame_code": 30,
        "frame_instruction": 31,
        "frame_owner": 33,
        "code_filename": 35,
        "code_name": 37,
        "code_line_table": 38,
        "code_first_line": 39,
        "code_instructions": 43,
        "object_type": 45,
        "bytes_data": 66,
        "text_state": 68,
        "text_length": 69,
        "text_ascii_header": 70,
    },
    (3, 14): {
        "runtime_interpreters_head": 5,
        "interpreter_threads_head": 9,
        "interpreter_next": 8,
        "thread_next": 24,
        "thread_frame": 26,
        "thread_id": 27,
        "frame_previous": 32,
        "frame_code": 33,
        "frame_instruction": 34,
        "frame_owner": 36,
        "code_filename": 40,
        "code_name": 42,
        "code_line_table": 43,
        "code_first_line": 44,
        "code_instructions": 48,
        "object_type": 51,
        "object_size": 75,
        "bytes_data": 76,
        "text_state": 78,
        "text_length": 79,
        "text_ascii_header": 80,
    },
}
DEBUG_OFFSETS_BYTES: Final = 8 * 81
_VERSION_WORD: Final = 1
_FREE_THREADED_WORD: Final = 2
_LARGE: Final = frozenset({"runtime_interpreters_head", "interpreter_threads_head"})
_MAX_OFFSET: Final = 1 << 16
"""BPF keeps offsets in 16 bits, but those in the two large structures."""
_MAX_LARGE_OFFSET: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class DebugOffsets:
    """`_Py_DebugOffsets`, which the interpreter publishes at the start of `_PyRuntime` from 3.13 on."""

    free_threaded: bool
    offsets: Mapping[str, int]

    def apply(self, layout: VersionLayout) -> VersionLayout:
        """`layout` with everything that this process says about itself."""
        return VersionLayout(
            runtime_interpreters_head=self.offsets["runtime_interpreters_head"],
            python=replace(layout.python, **self._known_to(PythonLayout)),
            code=replace(layout.code, **self._known_to(CodeLayout)),
        )

    def _known_to(self, layout: type[PythonLayout | CodeLayout]) -> dict[str, int]:
        names = {field.name for field in fields(layout)}
        return {name: offset for name, offset in self.offsets.items() if name in names}


def parse_debug_offsets(data: bytes | None) -> DebugOffsets | None:
    """Debug offsets from the start of `_PyRuntime`; None without the cookie, of a version whose structure is not known,
    or with impossible values.
    """
    if data is None or len(data) < DEBUG_OFFSETS_BYTES or data[:8] != DEBUG_COOKIE:
        return None
    words = struct.unpack_from(f"<{DEBUG_OFFSETS_BYTES // 8}Q", data)
    version = words[_VERSION_WORD]
    at = _WORDS.get((version >> 24, version >> 16 & 255))
    if at is None:
        return None
    offsets = {name: words[word] for name, word in at.items()}
    if any(
        offset >= (_MAX_LARGE_OFFSET if name in _LARGE else _MAX_OFFSET)
        for name, offset in offsets.items()
    ):
        return None
    return DebugOffsets(words[_FREE_THREADED_WORD] != 0, offsets)
