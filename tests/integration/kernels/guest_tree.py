# SPDX-License-Identifier: Apache-2.0
"""What a guest holds: this interpreter, what the product needs, the product, the doubles, and their libraries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from tests.integration.kernels.newc import InitramfsWriter

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
APP = PurePosixPath("/app")
PACKAGES = PurePosixPath("/packages")
FAKES = PurePosixPath("/fakes")
HEADERS = PurePosixPath("/headers")
# What takes room and serves nobody in a guest.
_LEFT_OUT = frozenset(
    [
        *("test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "turtledemo"),
        *("pydoc_data", "site-packages", "dist-packages"),
    ]
)
# Loaded by name at run time, so no file says that it needs them.
_LIBRARIES_BY_NAME = ("libstdc++.so.6", "libgcc_s.so.1")


def python() -> str:
    """The interpreter's path in the guest, which is the same as here."""
    return os.path.realpath(sys.executable)


def environment() -> dict[str, str]:
    """Environment of every program in the guest."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "PYTHONHOME": sys.base_prefix,
        "PYTHONPATH": f"{PACKAGES}{os.pathsep}{APP}",
        "LD_LIBRARY_PATH": str(FAKES),
        "LANG": "C.UTF-8",
    }


def write_tree(archive: InitramfsWriter, fakes: Path) -> None:
    """Add everything but the programs that a test starts."""
    _links_of_merged_usr(archive)
    programs = [Path(python())]
    archive.copy(programs[0])
    standard = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    for folder in sorted(standard):
        programs += _copy_folder(archive, folder, PurePosixPath(folder))
    for path, place in _distribution_files():
        archive.copy(path, PACKAGES / place)
        programs.append(path)
    for name in ("otel_gpuflame", "tests/fakes", "tests/integration/bpf"):
        programs += _copy_folder(archive, ROOT / name, APP / name)
    for name in ("libcuda.so.1", "libfake_app.so"):
        archive.copy(fakes / name, FAKES / name)
        programs.append(fakes / name)
    named = [Path(path) for path in _loader_paths(_LIBRARIES_BY_NAME)]
    for library in sorted({*named, *_needed_by([*programs, *named])}):
        archive.copy(library)


def write_bcc(archive: InitramfsWriter, package: Path, headers: Path) -> None:
    """Add BCC where the distribution has it, the compiler that it is linked to, and kernel headers in HEADERS."""
    _copy_folder(archive, package, PurePosixPath(package))
    _copy_folder(archive, headers, HEADERS)
    compiler = Path(next(_loader_paths(["libbcc.so.0"])))
    for library in sorted({compiler, *_needed_by([compiler])}):
        archive.copy(library)


def _links_of_merged_usr(archive: InitramfsWriter) -> None:
    """/lib and /lib64 lead into /usr, where this host is built that way: the loader's path starts with them."""
    for name in ("bin", "lib", "lib64"):
        link = Path("/") / name
        if link.is_symlink():
            archive.directory(PurePosixPath("/usr") / name)
            archive.symlink(PurePosixPath(link), os.readlink(link))


def _copy_folder(archive: InitramfsWriter, source: Path, place: PurePosixPath) -> list[Path]:
    copied = []
    for folder, names, files in os.walk(source):
        names[:] = sorted(
            n for n in names if n not in _LEFT_OUT and not n.startswith((".", "config-"))
        )
        for name in sorted(files):
            if name.startswith("_tkinter"):
                continue  # It alone needs all of X11.
            path = Path(folder) / name
            archive.copy(path, place / path.relative_to(source))
            copied.append(path)
    return copied


def _distribution_files() -> Iterator[tuple[Path, PurePosixPath]]:
    """Files of the distributions that the `agent` extra names, and of those that they need."""
    for name in sorted(_closure()):
        for file in metadata.files(name) or ():
            path = Path(str(file.locate()))
            if _LEFT_OUT.isdisjoint(file.parts) and ".." not in file.parts and path.is_file():
                yield path, PurePosixPath(file)


def _closure() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [*project["dependencies"], *project["optional-dependencies"]["agent"]]
    found: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += metadata.requires(name) or ()
    return found


def _loader_paths(names: Iterable[str]) -> Iterator[str]:
    """Where the dynamic loader finds these libraries."""
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    for name in names:
        found = re.search(
            rf"^\s{re.escape(name)} \(.*x86-64\) => (\S+)$", cache.stdout, re.MULTILINE
        )
        assert found is not None, f"{name} is not installed"
        yield found[1]


def _needed_by(paths: Iterable[Path]) -> Iterator[Path]:
    """Shared libraries of the host that these files are linked to, directly or not."""
    files = [str(path) for path in paths if ".so" in path.name or os.access(path, os.X_OK)]
    elf = [file for file in files if Path(file).read_bytes()[:4] == b"\x7fELF"]
    listed = subprocess.run(["ldd", *elf], capture_output=True, text=True, check=False)
    for found in re.findall(r"(/\S+) \(0x", listed.stdout):
        path = Path(os.path.normpath(found))
        # Those that a distribution brings are found from where it lies.
        if not {"site-packages", "dist-packages"} & set(path.parts):
            yield path
