"""BCC as a compiler: text in, instructions and maps out. It is the distribution's, and imported only on request."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from otel_gpuflame.errors import SourceUnavailable

SOURCE: Final = Path(__file__).parents[2] / "_artifacts" / "capture.bcc"
HEADERS_VARIABLE: Final = "BCC_KERNEL_SOURCE"
PACKAGES: Final = "apt-get install python3-bpfcc (Debian, Ubuntu), dnf install python3-bcc (Fedora)"
# A virtual environment does not look here. BCC's Python part is plain ctypes and fits any version.
_DISTRIBUTION: Final = ("usr/lib/python3/dist-packages", "usr/lib/python3.*/site-packages")
# Another package is called bcc on PyPI. Only the real one has this file.
_MARK: Final = Path("bcc") / "libbcc.py"
_PRIVATE_NAME: Final = "_distribution_bcc"
_IN_HEADERS: Final = Path("include/linux/kconfig.h")


def find_bcc() -> Path | None:
    """Folder of the distribution's package `bcc`, or None."""
    distribution = [str(found) for glob in _DISTRIBUTION for found in sorted(Path("/").glob(glob))]
    for folder in (*sys.path, *distribution):
        if (Path(folder) / _MARK).is_file():
            return Path(folder) / "bcc"
    return None


def find_headers(environment: Mapping[str, str], root: Path = Path("/")) -> Path | None:
    """Where BCC will find kernel headers, or None."""
    named = environment.get(HEADERS_VARIABLE)
    if named:
        return Path(named) if (Path(named) / _IN_HEADERS).is_file() else None
    modules = root / "lib/modules" / os.uname().release
    for folder in (modules / "build", modules / "source"):
        if (folder / _IN_HEADERS).is_file():
            return folder
    archive = root / "sys/kernel/kheaders.tar.xz"
    return archive if archive.is_file() else None


def load_bcc() -> ModuleType:
    """The distribution's `bcc`. Raises SourceUnavailable naming the package, or the headers that it lacks."""
    if _PRIVATE_NAME in sys.modules:
        return sys.modules[_PRIVATE_NAME]
    folder = find_bcc()
    if folder is None:
        raise SourceUnavailable(
            f"--loader bcc needs BCC of the distribution: {PACKAGES}. PyPI's `bcc` is something else."
        )
    if find_headers(os.environ) is None:
        raise SourceUnavailable(_no_headers(os.environ))
    return _import_from(folder)


class BccModule:
    """The capture programs, compiled. Raises SourceUnavailable when that is impossible here."""

    def __init__(self, definitions: Mapping[str, int]) -> None:
        bcc = load_bcc()
        self.version = str(bcc.__version__)
        flags = [f"-D{name}={value}" for name, value in definitions.items()]
        try:
            self._bpf: Any = bcc.BPF(text=_read_source(), cflags=flags)
        except Exception as error:  # BCC raises nothing narrower, and clang has said more on stderr
            raise SourceUnavailable(
                f"BCC {self.version} cannot compile the capture programs with the headers in "
                f"{find_headers(os.environ)}: {str(error).splitlines()[0]}"
            ) from error
        self._library: Any = sys.modules[f"{_PRIVATE_NAME}.libbcc"].lib

    def instructions(self, program: str) -> bytes:
        """Code of a program, with the descriptors of its maps in place."""
        return bytes(self._bpf.dump_func(program.encode()))

    def map_fd(self, name: str) -> int:
        """Descriptor of a map. KeyError if there is none."""
        fd = int(self._library.bpf_table_fd(self._bpf.module, name.encode()))
        if fd < 0:
            raise KeyError(f"the BCC module has no map {name!r}")
        return fd

    def close(self) -> None:
        """Free the maps and the compiler's memory."""
        self._bpf.cleanup()


def _import_from(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        _PRIVATE_NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise SourceUnavailable(f"{folder} is not a Python package: reinstall BCC ({PACKAGES})")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_PRIVATE_NAME] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        del sys.modules[_PRIVATE_NAME]
        raise SourceUnavailable(f"cannot use BCC in {folder}: {error}. {PACKAGES}") from error
    return module


def _no_headers(environment: Mapping[str, str]) -> str:
    release = os.uname().release
    named = environment.get(HEADERS_VARIABLE)
    if named:
        return f"{HEADERS_VARIABLE}={named} holds no {_IN_HEADERS}: docs/kernels.md says how to make such a tree"
    return (
        f"--loader bcc needs kernel headers, and there are none for {release}: "
        f"apt-get install linux-headers-{release} (Debian, Ubuntu), or set {HEADERS_VARIABLE} to a tree of "
        "another kernel's (docs/kernels.md)"
    )


def _read_source() -> bytes:
    try:
        return SOURCE.read_bytes()
    except OSError as error:
        raise SourceUnavailable(
            f"the programs for BCC are missing ({error}): run `make bpf`, or reinstall the package"
        ) from error
