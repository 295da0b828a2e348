"""C++ names for people, through the demangler of the C++ run-time library of this host."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from otel_gpuflame.symbolize.demangle_bound import longest_demangled

MAX_MANGLED_BYTES = 4096
"""The library's demangler needs 64 bytes of stack for each character."""
MAX_NAME_CHARACTERS = 64 << 20
"""Names of real libraries reach 100 KiB; see `demangle_bound` for what a hostile one can do."""
MAX_CACHED_NAMES = 1 << 14
MAX_CACHED_CHARACTERS = 8192
"""Of a demangled name that is kept, so that all of them take 200 MB at most; real ones have up to 5,000."""
_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1")


class Demangler:
    """Demangles Itanium names; all that cannot be demangled here is returned unchanged."""

    def __init__(self, libraries: tuple[str, ...] = _LIBRARIES) -> None:
        self._demangle = _load(libraries)
        self._free = _libc_free()
        self._short = lru_cache(MAX_CACHED_NAMES)(self._if_short)

    def demangle(self, name: str) -> str:
        """The name for people."""
        if len(name) > MAX_MANGLED_BYTES:
            return name
        readable = self._short(name)
        return self._uncached(name) if readable is None else readable

    def _if_short(self, name: str) -> str | None:
        """None: too long to be kept."""
        readable = self._uncached(name)
        return readable if len(readable) <= MAX_CACHED_CHARACTERS else None

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
