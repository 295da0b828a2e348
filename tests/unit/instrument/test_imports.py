"""Extension modules enter and leave Contexts by functions that they import: those come by us."""

from __future__ import annotations

import contextvars
import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.trace import Tracer

from otel_gpuflame.instrument._library import NativeContextLibrary

SOURCE = Path(__file__).with_name("extension.c")
before_watchers = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="CPython tells of switches by itself since 3.14"
)


def writable(path: Path) -> list[str]:
    """Address ranges of the file that can be written to."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[0] for line in lines if line.endswith(str(path)) and " rw" in line]


@before_watchers
@pytest.mark.parametrize(
    "flags",
    [["-Wl,-z,lazy"], ["-Wl,-z,now", "-Wl,-z,relro"], ["-fno-plt", "-Wl,-z,now", "-Wl,-z,relro"]],
    ids=["lazy", "relro", "no-plt"],
)
def test_calls_of_an_extension_are_seen(
    flags: list[str], reader: Any, tracer: Tracer, library_path: Path, tmp_path: Path
) -> None:
    """However it was linked; what was read-only is so again, and a second time changes nothing."""
    path = tmp_path / "extension.so"
    command = ["cc", "-shared", "-fPIC", "-O1", *flags, "-o", str(path), str(SOURCE)]
    subprocess.run(command, check=True)
    extension = ctypes.PyDLL(str(path))
    extension.enter.argtypes = extension.leave.argtypes = [ctypes.py_object]
    span = tracer.start_span("span")
    entered = contextvars.Context()
    entered.run(context.attach, trace.set_span_in_context(span))
    before = writable(path)
    library = NativeContextLibrary(library_path)
    assert library.follow(str(path).encode()) == 2
    assert writable(path) == before
    assert library.follow(str(path).encode()) == 0
    for _ in range(2):
        assert extension.enter(entered) == 0
        assert reader.span_id() == span.get_span_context().span_id
        assert extension.leave(entered) == 0
        assert reader.span_id() is None


def test_a_library_that_is_not_loaded_has_nothing_to_change(library_path: Path) -> None:
    """Nor one that imports neither."""
    library = NativeContextLibrary(library_path)
    assert library.follow(b"/nowhere/extension.so") == 0
    assert library.follow(str(library_path).encode()) == 0
