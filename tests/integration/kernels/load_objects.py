# SPDX-License-Identifier: Apache-2.0
"""Runs in a guest: loads each program of each BPF object by itself, and prints which the kernel takes, as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

from otel_gpuflame.capture.bpf.libbpf import BpfObject, LibbpfError, load_library

_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_LOG_BYTES = 1 << 16
log: list[str] = []


@_PRINT
def keep_message(_level: int, form: bytes, arguments: int) -> int:
    """libbpf's messages hold the verifier's log. A va_list is a pointer here, which only C can follow."""
    buffer = ctypes.create_string_buffer(_LOG_BYTES)
    ctypes.CDLL(None).vsnprintf(buffer, ctypes.c_size_t(_LOG_BYTES), form, ctypes.c_void_p(arguments))
    log.append(buffer.value.decode("utf-8", "replace"))
    return 0


def refusal(library: ctypes.CDLL, image: bytes, only: str) -> str:
    """Why the kernel does not load this program; empty if it does."""
    log.clear()
    bpf_object = BpfObject(library, image)
    try:
        for name, _handle in bpf_object.programs():
            bpf_object.set_autoload(name, load=name == only)
        bpf_object.load()
    except LibbpfError as error:
        return f"{error}\n{''.join(log)[-3000:]}"
    finally:
        bpf_object.close()
    return ""


def main() -> None:
    """Print {object: {program: refusal}}."""
    library = load_library()
    library.libbpf_set_print(ctypes.cast(keep_message, ctypes.c_void_p))
    report = {}
    for path in sorted(Path(sys.argv[1]).glob("*.bpf.o")):
        image = path.read_bytes()
        bpf_object = BpfObject(library, image)
        names = [name for name, _handle in bpf_object.programs()]
        bpf_object.close()
        report[path.name] = {name: refusal(library, image, name) for name in names}
    print(json.dumps({"kernel": os.uname().release, "objects": report}))


if __name__ == "__main__":
    main()
