"""10,000 distinct addresses to names: ours, pyelftools, addr2line and llvm-addr2line, over a large library and libc.

    python -m tests.benchmarks.bench_symbolize [LIBRARY]

LIBRARY: PyTorch's libtorch_cpu.so where it is installed, else the largest libLLVM of this host. 9,000 addresses are
drawn from its code and 1,000 from libc's. Cold is everything but reading the files from the disk: opening, tables,
look-ups and demangling, which the others are spared; warm is the same addresses once more. Linker's names are compared.
"""

from __future__ import annotations

import ctypes.util
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from otel_gpuflame.symbolize.demangle import Demangler
from otel_gpuflame.symbolize.elf import FileBytes
from otel_gpuflame.symbolize.elf_files import ElfFile
from tests.benchmarks import figures
from tests.benchmarks.figures import Figure, figure

ADDRESSES: Final = 9_000
OF_LIBC: Final = 1_000
ROUNDS: Final = 5
FEW: Final = 100
"""For tools that look through all symbols for each address."""
LIMIT_S: Final = 300
Names = dict[int, str | None]


def large_library() -> Path:
    """The library that a service's stacks go through most, or one as large."""
    if len(sys.argv) > 1:
        return Path(sys.argv[1])
    spec = find_spec("torch")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    return max(Path("/usr/lib").rglob("libLLVM*.so*"), key=lambda path: path.stat().st_size)


def libc() -> Path:
    """The C library of this host."""
    return next(Path("/usr/lib").rglob(ctypes.util.find_library("c") or "libc.so.6")).resolve()


def drawn(path: Path, count: int) -> list[int]:
    """Distinct addresses of code, all equally likely."""
    with path.open("rb") as file:
        text = ELFFile(file).get_section_by_name(".text")
        assert text is not None, f"{path} has no code"
        begin, size = text["sh_addr"], text["sh_size"]
    return [begin + offset for offset in random.Random(1).sample(range(size), count)]


def cpu_s(work: Callable[[], object]) -> float:
    """CPU time of this process and of what it has started and waited for."""
    begin = _used_s()
    work()
    return _used_s() - begin


def _used_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Ours:
    """The tables and the demangler of the recorder."""

    def __init__(self) -> None:
        self._demangle = Demangler().demangle
        self._files: dict[Path, ElfFile] = {}

    def resolve(self, path: Path, addresses: list[int]) -> Names:
        """As for the frames of a stack: demangled."""
        names = self.linker_names(path, addresses)
        return {
            address: None if name is None else self._demangle(name)
            for address, name in names.items()
        }

    def linker_names(self, path: Path, addresses: list[int]) -> Names:
        """As the file has them."""
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = ElfFile(FileBytes(os.open(path, os.O_RDONLY)))
        return {address: file.functions.name_at(address) for address in addresses}


class PyElfTools:
    """A sorted list of functions, as one writes it with pyelftools; without demangling, which it has not."""

    def __init__(self) -> None:
        self._tables: dict[Path, tuple[list[int], list[tuple[int, str]]]] = {}

    def resolve(self, path: Path, addresses: list[int]) -> Names:
        """By the function that begins last before the address."""
        if path not in self._tables:
            functions = sorted(_functions(path))
            self._tables[path] = ([f[0] for f in functions], [f[1:] for f in functions])
        starts, functions_of = self._tables[path]
        found: Names = {}
        for address in addresses:
            at = bisect_right(starts, address) - 1
            size, name = functions_of[at] if at >= 0 else (0, "")
            found[address] = name if at >= 0 and address < starts[at] + size else None
        return found


def _functions(path: Path) -> Iterator[tuple[int, int, str]]:
    with path.open("rb") as file:
        elf = ELFFile(file)
        table = elf.get_section_by_name(".symtab") or elf.get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection), f"{path} has no symbols"
        for symbol in table.iter_symbols():
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF":
                yield symbol["st_value"], symbol["st_size"], symbol.name


def by_tool(tool: str, path: Path, addresses: list[int]) -> Names:
    """`addr2line -f`, all addresses in one run."""
    done = subprocess.run(
        [tool, "-f", "-e", str(path)],
        input="\n".join(map(hex, addresses)),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    names = done.stdout.splitlines()[::2]
    return {a: None if n == "??" else n for a, n in zip(addresses, names, strict=True)}


def measure() -> list[Figure]:
    """CPU time of each, and how often they agree."""
    large = large_library()
    wanted = {large: drawn(large, ADDRESSES), libc(): drawn(libc(), OF_LIBC)}

    def all_of(resolve: Callable[[Path, list[int]], Names]) -> None:
        for path, addresses in wanted.items():
            resolve(path, addresses)

    all_of(Ours().resolve)  # the files are in the page cache from here on
    cold, warm = [], []
    for _ in range(ROUNDS):
        ours = Ours()
        cold.append(cpu_s(lambda each=ours: all_of(each.resolve)) * 1e3)  # type: ignore[misc]
        warm.append(cpu_s(lambda each=ours: all_of(each.resolve)) * 1e3)  # type: ignore[misc]
    names = ours.linker_names(large, wanted[large])
    size_mb = large.stat().st_size / 1e6
    result = [
        Figure(name="library", value=size_mb, unit="MB", note=large.name),
        Figure(
            name="addresses in a function",
            value=sum(name is not None for name in names.values()),
            unit=f"of {ADDRESSES}",
        ),
        figure("ours, cold", cold, "ms CPU"),
        figure("ours, warm", warm, "ms CPU"),
    ]
    others = PyElfTools()
    result += [
        figure("pyelftools, cold", [cpu_s(lambda: all_of(others.resolve)) * 1e3], "ms CPU"),
        figure("pyelftools, warm", [cpu_s(lambda: all_of(others.resolve)) * 1e3], "ms CPU"),
    ]
    theirs = others.resolve(large, wanted[large])
    same = sum(names[address] == name for address, name in theirs.items())
    result.append(Figure(name="same name as pyelftools", value=same, unit=f"of {ADDRESSES}"))
    for tool in ("addr2line", "llvm-addr2line"):
        if shutil.which(tool) is not None:
            result += _of_tool(tool, large, wanted[large], names)
    return result


def _of_tool(tool: str, path: Path, addresses: list[int], names: Names) -> list[Figure]:
    """Each run of a tool is cold. The whole number where few addresses say that it will end."""
    few_s = cpu_s(lambda: by_tool(tool, path, addresses[:FEW]))
    one_s = (few_s - cpu_s(lambda: by_tool(tool, path, addresses[:1]))) / FEW
    count = len(addresses) if one_s * len(addresses) < LIMIT_S / 2 else FEW
    found: Names = {}
    spent_s = cpu_s(lambda: found.update(by_tool(tool, path, addresses[:count])))
    same = sum(names[address] == name for address, name in found.items())
    return [
        Figure(name=f"{tool}, {count} addresses", value=spent_s * 1e3, unit="ms CPU"),
        Figure(name=f"same name as {tool}", value=same, unit=f"of {count}"),
    ]


if __name__ == "__main__":
    figures.main(measure)
