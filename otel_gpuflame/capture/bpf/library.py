"""Which libbpf is used: the one that the user names, else the bundled one, else the system's."""

from __future__ import annotations

import ctypes
import logging
import os
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_gpuflame.errors import SourceUnavailable

logger = logging.getLogger(__name__)

LIBRARY_VARIABLE: Final = "OTEL_GPUFLAME_LIBBPF"
BUNDLED: Final = Path(__file__).parents[2] / "_artifacts" / "libbpf.so.1"
_SYSTEM: Final = "libbpf.so.1"
_LOWEST_MAJOR: Final = 1

# Name, result, arguments. Functions returning pointers give NULL and errno on failure since libbpf 1.0.
_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (
    ("libbpf_major_version", c_uint32, ()),
    ("libbpf_version_string", c_char_p, ()),
    ("libbpf_set_print", c_void_p, (c_void_p,)),
    ("bpf_object__open_mem", c_void_p, (c_char_p, c_size_t, c_void_p)),
    ("bpf_object__load", c_int, (c_void_p,)),
    ("bpf_object__close", None, (c_void_p,)),
    ("bpf_object__next_program", c_void_p, (c_void_p, c_void_p)),
    ("bpf_object__find_map_by_name", c_void_p, (c_void_p, c_char_p)),
    ("bpf_program__name", c_char_p, (c_void_p,)),
    ("bpf_program__fd", c_int, (c_void_p,)),
    ("bpf_program__set_autoload", c_int, (c_void_p, c_bool)),
    ("bpf_program__set_expected_attach_type", c_int, (c_void_p, c_int)),
    ("bpf_program__attach", c_void_p, (c_void_p,)),
    ("bpf_program__attach_perf_event_opts", c_void_p, (c_void_p, c_int, c_void_p)),
    (
        "bpf_program__attach_uprobe_opts",
        c_void_p,
        (c_void_p, c_int, c_char_p, c_size_t, c_void_p),
    ),
    ("bpf_link__destroy", c_int, (c_void_p,)),
    ("bpf_map__fd", c_int, (c_void_p,)),
    ("bpf_map__set_max_entries", c_int, (c_void_p, c_uint32)),
    ("bpf_map__set_initial_value", c_int, (c_void_p, c_void_p, c_size_t)),
    (
        "bpf_map_create",
        c_int,
        (c_int, c_char_p, c_uint32, c_uint32, c_uint32, c_void_p),
    ),
    ("bpf_map_lookup_elem", c_int, (c_int, c_void_p, c_void_p)),
    ("bpf_map_update_elem", c_int, (c_int, c_void_p, c_void_p, c_uint64)),
    ("bpf_map_delete_elem", c_int, (c_int, c_void_p)),
    ("bpf_map_lookup_and_delete_elem", c_int, (c_int, c_void_p, c_void_p)),
    ("bpf_map_get_next_key", c_int, (c_int, c_void_p, c_void_p)),
    ("libbpf_num_possible_cpus", c_int, ()),
)

_PRINT_CALLBACK = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)
# A va_list cannot be formatted from Python, so libbpf's own messages are dropped and errno is reported instead.
_SILENT = _PRINT_CALLBACK(lambda _level, _format, _arguments: 0)


@dataclass(frozen=True, slots=True)
class Libbpf:
    """A usable libbpf: its functions with their types, and where it comes from."""

    functions: ctypes.CDLL
    origin: str

    @property
    def version(self) -> str:
        """As libbpf says it: `v1.1`."""
        return str(self.functions.libbpf_version_string().decode())


def load_library() -> ctypes.CDLL:
    """Functions of the libbpf to use. Raises SourceUnavailable."""
    return choose_library().functions


def choose_library(bundled: Path = BUNDLED) -> Libbpf:
    """The libbpf to use.

    Raises SourceUnavailable naming the package to install: nothing usable was found, or what the user names is not.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return _open_only(named, f"{named}, by {LIBRARY_VARIABLE}")
    if not bundled.is_file():
        return _open_only(_SYSTEM, "the system's")
    try:
        return _open(str(bundled), "bundled")
    except (OSError, AttributeError) as error:
        # A host may lack what the bundled one is linked to, and have a libbpf that brings it.
        logger.info("the bundled libbpf cannot be used: %s", error)
        return _open_only(_SYSTEM, f"the system's, since the bundled one cannot be used: {error}")


def _open_only(name: str, origin: str) -> Libbpf:
    try:
        return _open(name, origin)
    except (OSError, AttributeError) as error:
        raise SourceUnavailable(
            f"cannot use libbpf ({origin}): {error}. Install libbpf 1.0 or newer and libelf "
            f"(Debian, Ubuntu: apt-get install libbpf1 libelf1) or set {LIBRARY_VARIABLE} to its path."
        ) from error


def _open(name: str, origin: str) -> Libbpf:
    """Raises OSError, or AttributeError where a function is missing."""
    library = ctypes.CDLL(name, use_errno=True)
    for function, result, arguments in _FUNCTIONS:
        symbol = getattr(library, function)
        symbol.restype, symbol.argtypes = result, arguments
    # Before 1.0 functions that return pointers had another way to say what failed.
    if library.libbpf_major_version() < _LOWEST_MAJOR:
        raise OSError(f"{name} is {library.libbpf_version_string().decode()}")
    library.libbpf_set_print(ctypes.cast(_SILENT, c_void_p))
    return Libbpf(library, origin)
