"""Opening mapped files, and keeping them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpuflame.symbolize.elf_files import ElfFiles, open_regular
from otel_gpuflame.symbolize.maps import Mapping, read_maps

PROC = Path("/proc")
SOURCE = "int one(void) { return 1; }"


def _mapping(path: Path, *, inode: int | None = None) -> Mapping:
    return Mapping(
        start=0x1000,
        end=0x2000,
        offset=0,
        device="00:00",
        inode=path.stat().st_ino if inode is None else inode,
        path=str(path),
        deleted=False,
        text="1000-2000",
    )


@pytest.fixture
def libraries(build: Callable[..., Path]) -> list[Path]:
    """Three libraries."""
    return [build(f"lib{number}.so", SOURCE, "-shared", "-fPIC") for number in range(3)]


def test_a_file_is_parsed_once(libraries: list[Path]) -> None:
    """The same file gives the same object."""
    files = ElfFiles()
    first = files.open(os.getpid(), _mapping(libraries[0]), PROC)
    assert first is not None
    assert files.open(os.getpid(), _mapping(libraries[0]), PROC) is first


def test_a_rewritten_file_is_another_file(libraries: list[Path]) -> None:
    """Same inode, other contents: nothing old is answered."""
    files = ElfFiles()
    mapping = _mapping(libraries[0])
    first = files.open(os.getpid(), mapping, PROC)
    libraries[0].write_bytes(libraries[0].read_bytes() + b"more")
    assert files.open(os.getpid(), mapping, PROC) is not first


def test_the_least_recently_used_file_is_closed(libraries: list[Path]) -> None:
    """No more files stay open than the limit says."""
    files = ElfFiles(max_open=2)
    mappings = [_mapping(path) for path in libraries]
    before = len(os.listdir("/proc/self/fd"))
    first, second, _ = [files.open(os.getpid(), mapping, PROC) for mapping in mappings]
    assert files.open(os.getpid(), mappings[1], PROC) is second
    assert files.open(os.getpid(), mappings[0], PROC) is not first
    del first, second, _
    assert len(os.listdir("/proc/self/fd")) == before + 2


def test_what_is_not_elf_is_counted(tmp_path: Path) -> None:
    """A text file that is mapped executable has no symbols, and the count says so."""
    path = tmp_path / "text"
    path.write_text("not ELF")
    files = ElfFiles()
    assert files.open(os.getpid(), _mapping(path), PROC) is None
    assert files.unreadable == 1


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link", "absent"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    """A path that the target has put a pipe, device or link at is not opened."""
    path = tmp_path / "thing"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/null")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    assert open_regular(path) is None


def test_a_file_of_this_process_is_opened_by_its_mapping() -> None:
    """The real program behind a real mapping."""
    maps = read_maps(os.getpid(), PROC)
    assert maps is not None
    program = str(Path("/proc/self/exe").readlink())
    mapping = next(each for each in maps.mappings if each.path == program)
    file = ElfFiles().open(os.getpid(), mapping, PROC)
    assert file is not None
    assert file.headers.bias_of(mapping.start, mapping.offset) is not None
