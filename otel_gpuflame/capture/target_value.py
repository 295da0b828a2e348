"""What BPF must know of a target to walk its Python frames and to read its span: the value in the `targets` map."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.describe import read_local_root_key
from otel_gpuflame.capture.target import Target
from otel_gpuflame.events import wire
from otel_gpuflame.symbolize.cpython.detect import PythonRefusal, PythonRuntime, find_python
from otel_gpuflame.symbolize.elf_files import ElfFiles
from otel_gpuflame.symbolize.thread_context import find_thread_context

NOTHING_KNOWN: Final = np.zeros(1, wire.TARGET).tobytes()
"""Of a target that nobody has looked at yet."""
_NO_OWNER: Final = 255


def target_value(target: Target, proc: Path, files: ElfFiles) -> bytes:
    """`wire.TARGET` as the process is now. Notes in `target` what the next look need not search again."""
    value = np.zeros(1, wire.TARGET)
    layout = value["python"]
    layout["skip_owner"] = _NO_OWNER
    python = _python(target, proc, files)
    if isinstance(python, PythonRefusal):
        layout["unsupported"] = 1
    elif isinstance(python, PythonRuntime):
        for each in fields(python.layout):
            layout[each.name] = getattr(python.layout, each.name)
    place = find_thread_context(target.pid, proc, files, target.without_context)
    if place is not None:
        value["has_span"] = 1
        value["span_tls_offset"], value["span_tls_module"] = place
        value["local_root_key"] = read_local_root_key(target.pid, proc)
    return value.tobytes()


def _python(target: Target, proc: Path, files: ElfFiles) -> PythonRuntime | PythonRefusal | None:
    """The interpreter; once found, it is looked at again only by the later looks, when it has run for a while."""
    if target.python is not None and target.is_first_look:
        return target.python
    python = find_python(target.pid, proc, files)
    target.python = python if isinstance(python, PythonRuntime) else None
    return python
