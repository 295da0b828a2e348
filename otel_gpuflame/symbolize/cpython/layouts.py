"""Where a CPython keeps what is read from it: from tables for each minor version, in 3.13 from the
process itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields, replace

from otel_gpuflame.symbolize.cpython.tables import OFFSETS

FIRST_VERSION = (3, 10)
LAST_VERSION = (3, 13)
NO_OWNER = 255
DEBUG_COOKIE = b"xdebugpy"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonLayout:
    """What the frame walk in BPF needs, with the names of `struct ogf_python_layout`."""

    interpreters_head: int = 0
    """Address in the target, not an offset."""
    interpreter_threads_head: int
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


@dataclass(frozen=True, slots=True)
class DebugOffsets:
    """`_Py_DebugOffsets` of 3.13, which the interpreter publishes at the start of `_PyRuntime`."""

    version: int
    free_threaded: bool
    words: tuple[int, ...]

    def apply(self, layout: VersionLayout) -> VersionLayout:
        """`layout` with everything that this process says about itself."""
        word = self.words
        return VersionLayout(
            runtime_interpreters_head=word[5],
            python=replace(
                layout.python,
                interpreter_threads_head=word[9],
                thread_next=word[21],
                thread_frame=word[23],
                thread_id=word[24],
                frame_previous=word[29],
                frame_code=word[30],
                frame_instruction=word[31],
                frame_owner=word[33],
                code_first_line=word[39],
                code_name=word[37],
                text_ascii_header=word[70],
            ),
            code=replace(
                layout.code,
                code_filename=word[35],
                code_name=word[37],
                code_line_table=word[38],
                code_first_line=word[39],
                code_instructions=word[43],
                object_type=word[45],
                bytes_data=word[66],
                text_state=word[68],
                text_length=word[69],
                text_ascii_header=word[70],
            ),
        )


_DEBUG_WORDS = 71
DEBUG_OFFSETS_BYTES = 8 * _DEBUG_WORDS
_MAX_OFFSET = 1 << 16
_MAX_RUNTIME_OFFSET = 1 << 24


def parse_debug_offsets(data: bytes | None) -> DebugOffsets | None:
    """Debug offsets of 3.13 from the start of `_PyRuntime`; None without the cookie or with
    impossible values.
    """
    if data is None or len(data) < DEBUG_OFFSETS_BYTES or data[:8] != DEBUG_COOKIE:
        return None
    words = struct.unpack_from(f"<{_DEBUG_WORDS}Q", data)
    # Offsets in the two large structures may be large; BPF keeps all others in 16 bits.
    if max(words[3:19]) > _MAX_RUNTIME_OFFSET or max(words[19:]) >= _MAX_OFFSET:
        return None
    return DebugOffsets(version=words[1], free_threaded=words[2] != 0, words=words)
