"""Strings and bytes of the target's CPython, bounded."""

from __future__ import annotations

from otel_gpuflame.symbolize.cpython.layouts import CodeLayout
from otel_gpuflame.symbolize.memory import MAX_READ_BYTES, ProcessMemory

MAX_TEXT_CHARACTERS = 4096
MAX_BYTES_OBJECT = MAX_READ_BYTES
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


def read_text(memory: ProcessMemory, layout: CodeLayout, address: int) -> str | None:
    """A `str`, cut after `MAX_TEXT_CHARACTERS` with an ellipsis; None where there is no such
    object.
    """
    header = memory.read(address, layout.text_ascii_header)
    if header is None:
        return None
    length = int.from_bytes(header[layout.text_length : layout.text_length + 8], "little")
    state = int.from_bytes(header[layout.text_state : layout.text_state + 4], "little")
    # state: 2 bits interned, 3 bits bytes per character, compact, ascii: the same in 3.10 to 3.14.
    kind, compact, ascii_only = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
    if kind not in _ENCODINGS or length > MAX_READ_BYTES:
        return None
    data_at: int | None = address + (
        layout.text_ascii_header if ascii_only else layout.text_compact_header
    )
    if not compact:
        # Instances of subclasses point to their characters.
        data_at = memory.u64(address + layout.text_compact_header)
    if data_at is None:
        return None
    raw = memory.read(data_at, min(length, MAX_TEXT_CHARACTERS) * kind) if length else b""
    if raw is None:
        return None
    # File names hold undecodable bytes as lone surrogates, which no output format takes.
    text = raw.decode(_ENCODINGS[kind], "replace" if kind == 4 else "surrogatepass")
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if length <= MAX_TEXT_CHARACTERS else text + "…"


def read_bytes(memory: ProcessMemory, layout: CodeLayout, address: int) -> bytes | None:
    """A `bytes` of at most `MAX_BYTES_OBJECT`; None where there is no such object."""
    size = memory.u64(address + layout.object_size)
    if size is None or size > MAX_BYTES_OBJECT:
        return None
    return memory.read(address + layout.bytes_data, size) if size else b""
