"""Frames of CPython: (code object, instruction) → name, file, line, from the live process."""

from __future__ import annotations

import struct
from collections import OrderedDict

from otel_gpuflame.events.frames import Frame, FrameKind, mark
from otel_gpuflame.symbolize.cpython.detect import PythonRuntime
from otel_gpuflame.symbolize.cpython.lines import line_310, line_311
from otel_gpuflame.symbolize.cpython.objects import read_bytes, read_text
from otel_gpuflame.symbolize.memory import ProcessMemory

UNREADABLE = mark("Python frame unreadable")
MAX_CACHED_BYTES = 32 << 20
"""For each process: about 20,000 code objects of usual size, or 32 with the longest line tables."""
MAX_CACHED_LINES = 256
"""For each code object: the call sites that launch GPU work."""
_COST_BYTES = 1024
_FIRST_LINE_BYTES = 4
MAX_LINE = (1 << 31) - 1
_TRAMPOLINE = "<interpreter trampoline>"
_INIT_SHIM = "__init__"
"""3.13 on: the name, and the file, of what stands between a class that is called and its `__init__`."""
_UNNAMED = "<unnamed>"
"""Programs can make code objects with an empty name, but a profile needs one."""
_CODE_UNIT_BYTES = 2
_MINUS_ONE = 0xFFFFFFFF


class _Code:
    """A code object as it was read.

    `identity` tells it from another one that later lives at the same address: what the object
    says about its name, file, lines and first line, as it stands in memory.
    """

    __slots__ = ("file", "first_line", "frames", "identity", "line_table", "name")

    def __init__(self, identity: bytes, name: str, file: str, line_table: bytes) -> None:
        self.identity = identity
        self.first_line = int.from_bytes(identity[-_FIRST_LINE_BYTES:], "little", signed=True)
        self.name = name
        self.file = file
        self.line_table = line_table
        self.frames: dict[int, Frame] = {}

    @property
    def is_shim(self) -> bool:
        """Whether the interpreter made it for itself; `sys._getframe` leaves it out, too."""
        is_init = self.name == self.file == _INIT_SHIM and self.first_line <= 0
        return is_init or self.name == _TRAMPOLINE

    @property
    def size_bytes(self) -> int:
        """What keeping it costs, about."""
        return len(self.line_table) + len(self.name) + len(self.file) + _COST_BYTES


class CodeReader:
    """Resolves frames of one process."""

    def __init__(self, memory: ProcessMemory, runtime: PythonRuntime) -> None:
        self._memory = memory
        self._runtime = runtime
        self._layout = runtime.code
        self._codes: OrderedDict[int, _Code] = OrderedDict()
        self._bytes = 0
        layout = runtime.code
        pointers = (layout.code_name, layout.code_filename, layout.code_line_table)
        first_line = layout.code_first_line
        self._identity = [slice(field, field + 8) for field in pointers]
        self._identity.append(slice(first_line, first_line + _FIRST_LINE_BYTES))
        self._header_bytes = max(part.stop for part in self._identity)

    def frame(self, code_address: int, instruction: int) -> Frame | None:
        """One frame, or None for a shim of the interpreter itself.

        `UNREADABLE` where the target does not have the code object any more.
        """
        header = self._memory.read(code_address, self._header_bytes)
        if header is None or not self._is_code(header):
            # From 3.13 on there is None where a frame of the interpreter itself would have its code.
            is_none = code_address == self._runtime.none != 0
            return None if is_none else UNREADABLE
        code = self._code(code_address, header)
        if code is None:
            return UNREADABLE
        if code.is_shim:
            return None
        return self._at(code, self._unit(code_address, instruction))

    def _is_code(self, header: bytes) -> bool:
        kind = _u64(header, self._layout.object_type)
        return self._runtime.code_type in (0, kind)

    def _code(self, address: int, header: bytes) -> _Code | None:
        identity = b"".join([header[part] for part in self._identity])
        known = self._codes.get(address)
        if known is not None and known.identity == identity:
            self._codes.move_to_end(address)
            return known
        code = self._read(identity)
        if code is not None:
            self._keep(address, code)
        return code

    def _keep(self, address: int, code: _Code) -> None:
        replaced = self._codes.pop(address, None)
        self._codes[address] = code
        self._bytes += code.size_bytes - (0 if replaced is None else replaced.size_bytes)
        while self._bytes > MAX_CACHED_BYTES:
            self._bytes -= self._codes.popitem(last=False)[1].size_bytes

    def _read(self, identity: bytes) -> _Code | None:
        name_at, filename_at, line_table_at = struct.unpack_from("<QQQ", identity)
        name = read_text(self._memory, self._layout, name_at)
        file = read_text(self._memory, self._layout, filename_at)
        line_table = read_bytes(self._memory, self._layout, line_table_at)
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
            # An instruction outside the code: another code object was here when the stack was taken. A line that no C
            # int holds: the table was freed, and is something else by now.
            frame = (
                UNREADABLE
                if line is None or line > MAX_LINE
                else Frame(FrameKind.PYTHON, code.name, "", code.file, max(line, 0))
            )
            if len(code.frames) < MAX_CACHED_LINES:
                code.frames[unit] = frame
        return frame


def _u64(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")
