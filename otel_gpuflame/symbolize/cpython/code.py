"""Frames of CPython: (code object, instruction) → name, file, line, from the live process."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from otel_gpuflame.events.frames import Frame, FrameKind, mark
from otel_gpuflame.symbolize.cpython.detect import PythonRuntime
from otel_gpuflame.symbolize.cpython.lines import line_310, line_311
from otel_gpuflame.symbolize.cpython.objects import read_bytes, read_text
from otel_gpuflame.symbolize.memory import ProcessMemory

UNREADABLE = mark("Python frame unreadable")
MAX_CACHED_CODES = 1 << 15
MAX_CACHED_LINES = 1 << 10
"""For each code object: the call sites that launch GPU work."""
_TRAMPOLINE = "<interpreter trampoline>"
_UNNAMED = "<unnamed>"
"""Programs can make code objects with an empty name, but a profile needs one."""
_CODE_UNIT_BYTES = 2
_MINUS_ONE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Identity:
    """What tells a code object from another one that later lives at the same address."""

    name_at: int
    filename_at: int
    line_table_at: int
    first_line: int


class _Code:
    __slots__ = ("file", "first_line", "frames", "identity", "line_table", "name")

    def __init__(self, identity: _Identity, name: str, file: str, line_table: bytes) -> None:
        self.identity = identity
        self.first_line = identity.first_line
        self.name = name
        self.file = file
        self.line_table = line_table
        self.frames: dict[int, Frame] = {}


class CodeReader:
    """Resolves frames of one process."""

    def __init__(self, memory: ProcessMemory, runtime: PythonRuntime) -> None:
        self._memory = memory
        self._runtime = runtime
        self._layout = runtime.code
        self._codes: OrderedDict[int, _Code] = OrderedDict()
        layout = runtime.code
        fields = (
            layout.code_filename,
            layout.code_name,
            layout.code_line_table,
            layout.code_first_line,
        )
        self._header_bytes = max(layout.code_instructions, *(field + 8 for field in fields))

    def frame(self, code_address: int, instruction: int) -> Frame | None:
        """One frame; `UNREADABLE` where the target does not have it any more, None for the
        interpreter's own shims.
        """
        header = self._memory.read(code_address, self._header_bytes)
        if header is None:
            return self._no_code(code_address)
        if not self._is_code(header):
            return self._no_code(code_address)
        code = self._code(code_address, header)
        if code is None:
            return UNREADABLE
        if code.name == _TRAMPOLINE:
            return None
        return self._at(code, self._unit(code_address, instruction))

    def _no_code(self, address: int) -> Frame | None:
        # 3.13 puts None where a frame of the interpreter itself would have its code.
        return None if address == self._runtime.none and address else UNREADABLE

    def _is_code(self, header: bytes) -> bool:
        kind = _u64(header, self._layout.object_type)
        return self._runtime.code_type in (0, kind)

    def _code(self, address: int, header: bytes) -> _Code | None:
        layout = self._layout
        identity = _Identity(
            name_at=_u64(header, layout.code_name),
            filename_at=_u64(header, layout.code_filename),
            line_table_at=_u64(header, layout.code_line_table),
            first_line=int.from_bytes(header[layout.code_first_line :][:4], "little", signed=True),
        )
        known = self._codes.get(address)
        if known is not None and known.identity == identity:
            self._codes.move_to_end(address)
            return known
        code = self._read(identity)
        if code is not None:
            self._codes[address] = code
            self._codes.move_to_end(address)
            if len(self._codes) > MAX_CACHED_CODES:
                self._codes.popitem(last=False)
        return code

    def _read(self, identity: _Identity) -> _Code | None:
        name = read_text(self._memory, self._layout, identity.name_at)
        file = read_text(self._memory, self._layout, identity.filename_at)
        line_table = read_bytes(self._memory, self._layout, identity.line_table_at)
        if name is None or file is None or line_table is None:
            return None
        return _Code(identity, name or _UNNAMED, file, line_table)

    def _unit(self, code_address: int, instruction: int) -> int:
        """Index of the code unit; -1 before the first one."""
        if self._runtime.layout.instruction_is_index:
            return -1 if instruction & _MINUS_ONE == _MINUS_ONE else instruction
        return (instruction - code_address - self._layout.code_instructions) // _CODE_UNIT_BYTES

    def _at(self, code: _Code, unit: int) -> Frame:
        frame = code.frames.get(unit)
        if frame is None:
            decode = line_310 if self._runtime.layout.instruction_is_index else line_311
            line = decode(code.line_table, code.first_line, unit) if unit >= -1 else None
            # An instruction outside the code: another code object was here when the stack was
            # taken.
            frame = (
                UNREADABLE
                if line is None
                else Frame(FrameKind.PYTHON, code.name, "", code.file, max(line, 0))
            )
            if len(code.frames) < MAX_CACHED_LINES:
                code.frames[unit] = frame
        return frame


def _u64(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")
