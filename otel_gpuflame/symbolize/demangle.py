"""C++ names for people, through the demangler of the C++ run-time library of this host."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from otel_gpuflame.symbolize.demangle_bound import longest_demangled

MAX_MANGLED_BYTES = 4096
"""The library's demangler needs 64 bytes of stack for each character."""
MAX_NAME_CHARACTERS = 64 << 20
"""Names of real libraries reach 100 KiB; see `demangle_bound` for what a hostile one can do."""
MAX_CACHED_NAMES = 1 << 16
_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1")


class Demangler:
    """Demangles Itanium names; all that cannot be demangled here is returned unchanged."""

    def __init__(self, libraries: tuple[str, ...] = _LIBRARIES) -> None:
        self._demangle = _load(libraries)
        self._free = _libc_free()
        self.demangle = lru_cache(MAX_CACHED_NAMES)(self._uncached)

    def _uncached(self, name: str) -> str:
        mangled = name.encode("utf-8", "replace")
        if self._demangle is None or not name.startswith("_Z") or len(mangled) > MAX_MANGLED_BYTES:
            return name
        if longest_demangled(name, MAX_NAME_CHARACTERS) > MAX_NAME_CHARACTERS:
            return name
        status = ctypes.c_int(-1)
        text = self._demangle(mangled, None, None, ctypes.byref(status))
        if not text:
            return name
        try:
            return ctypes.string_at(text).decode("utf-8", "replace") if status.value == 0 else name
        finally:
            self._free(text)


def _load(libraries: tuple[str, ...]) -> ctypes._NamedFuncPointer | None:
    for library in libraries:
        try:
            function = ctypes.CDLL(library)["__cxa_demangle"]
        except (OSError, AttributeError):
            continue
        function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        function.restype = ctypes.c_void_p
        return function
    return None


def _libc_free() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None)["free"]
    function.argtypes = (ctypes.c_void_p,)
    function.restype = None
    return function
