# SPDX-License-Identifier: Apache-2.0
"""Loads each BPF object of a folder; of one that is refused, each program by itself. Prints which and why, as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

from otel_gpuflame.capture.bpf.libbpf import BpfObject, LibbpfError
from otel_gpuflame.capture.bpf.library import load_library

_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_LOG_BYTES = 1 << 16
_KEPT_CHARACTERS = 3000
log: list[str] = []


def keep_message(_level: int, form: bytes, arguments: int) -> int:
    """The library's messages hold the verifier's log. A va_list is a pointer here, which only C can follow."""
    buffer = ctypes.create_string_buffer(_LOG_BYTES)
    ctypes.CDLL(None).vsnprintf(
        buffer, ctypes.c_size_t(_LOG_BYTES), form, ctypes.c_void_p(arguments)
    )
    log.append(buffer.value.decode("utf-8", "replace"))
    return 0


def refusal(library: ctypes.CDLL, image: bytes, wanted: frozenset[str]) -> str:
    """Why the kernel does not load these programs; empty if it does."""
    log.clear()
    bpf_object = BpfObject(library, image)
    try:
        for name, _handle in bpf_object.programs():
            bpf_object.set_autoload(name, load=name in wanted)
        bpf_object.load()
    except LibbpfError as error:
        return f"{error}\n{''.join(log)[-_KEPT_CHARACTERS:]}"
    finally:
        bpf_object.close()
    return ""


def refused(library: ctypes.CDLL, image: bytes, names: frozenset[str]) -> dict[str, str]:
    """Programs that the kernel refuses, with its words."""
    if not refusal(library, image, names):
        return {}
    each = {name: refusal(library, image, frozenset({name})) for name in sorted(names)}
    return {name: words for name, words in each.items() if words}


def main() -> None:
    """Print {"programs": {object: names}, "refused": {object: {program: why}}}."""
    library = load_library()
    callback = _PRINT(keep_message)
    library.libbpf_set_print(ctypes.cast(callback, ctypes.c_void_p))
    images = {path.name: path.read_bytes() for path in sorted(Path(sys.argv[1]).glob("*.bpf.o"))}
    programs = {}
    for name, image in images.items():
        bpf_object = BpfObject(library, image)
        programs[name] = [program for program, _handle in bpf_object.programs()]
        bpf_object.close()
    report = {
        "kernel": os.uname().release,
        "programs": programs,
        "refused": {n: refused(library, i, frozenset(programs[n])) for n, i in images.items()},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
