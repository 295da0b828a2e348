"""The C library against the specification, for each way a compiler can address the variable."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.relocation import RelocationSection

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[2] / "otel_gpuflame" / "native"
SYMBOL = "otel_thread_ctx_v1"
R_X86_64_TPOFF64, R_X86_64_TLSDESC = 18, 36

BUILDS = {
    "default": [],
    "descriptor": ["CC=gcc", "TLS_FLAGS=-mtls-dialect=gnu2"],
    "initial-exec": ["TLS_FLAGS=-ftls-model=initial-exec"],
    "clang": ["CC=clang"],
}
x86_64 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="relocation numbers are those of x86-64"
)


@pytest.fixture(scope="module", params=BUILDS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library in each build that can be made here."""
    if request.param == "descriptor" and (
        platform.machine() != "x86_64" or shutil.which("gcc") is None
    ):
        pytest.skip("needs GCC on x86-64")
    if request.param == "clang" and shutil.which("clang") is None:
        pytest.skip("needs clang")
    out = tmp_path_factory.mktemp(request.param)
    subprocess.run(
        ["make", "-s", "-C", str(NATIVE), f"OUT={out}", *BUILDS[request.param]], check=True
    )
    return out / "libogf_context.so"


def tls_relocations(path: Path) -> list[tuple[int, int]]:
    """(type, offset) of the relocations that name the variable."""
    found = []
    with path.open("rb") as file:
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".dynsym")
        for section in elf.iter_sections():
            if isinstance(section, RelocationSection):
                for relocation in section.iter_relocations():
                    symbol = symbols.get_symbol(relocation["r_info_sym"])
                    if symbol.name == SYMBOL:
                        found.append((relocation["r_info_type"], relocation["r_offset"]))
    return found


def compile_reader(name: str, out: Path) -> Path:
    """Builds one of the C programs beside this file."""
    program = out / name
    compiler = ["cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    source = str(HERE / f"{name}.c")
    subprocess.run([*compiler, "-o", str(program), source, "-ldl"], check=True)
    return program


def test_variable_is_exported_as_a_thread_local_pointer(library: Path) -> None:
    """The contract with readers: a pointer-sized, global, default-visible STT_TLS in .dynsym."""
    with library.open("rb") as file:
        (symbol,) = ELFFile(file).get_section_by_name(".dynsym").get_symbol_by_name(SYMBOL)
        info = symbol["st_info"]
        assert (info["type"], info["bind"]) == ("STT_TLS", "STB_GLOBAL")
        assert symbol["st_other"]["visibility"] == "STV_DEFAULT"
        assert symbol["st_shndx"] != "SHN_UNDEF"
        assert symbol["st_size"] == 8


def test_only_the_documented_names_are_exported(library: Path) -> None:
    """Nothing of ours can collide with a symbol of the application."""
    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        exported = {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
    context = {f"ogf_context_{name}" for name in ("set", "clear", "get")}
    python = ("init", "enable", "refresh", "count", "watcher", "follow")
    switch = {f"ogf_switch_{name}" for name in (*python, "run_method", "set_function")}
    assert exported == {SYMBOL, "ogf_process_context_publish"} | context | switch


@x86_64
def test_one_relocation_leads_the_reader_to_the_variable(library: Path) -> None:
    """The reader finds the thread-pointer offset in the GOT slot of exactly one relocation."""
    ((kind, _),) = tls_relocations(library)
    assert kind in {R_X86_64_TLSDESC, R_X86_64_TPOFF64}


def test_needs_only_libc_as_of_glibc_2_17(library: Path) -> None:
    """The library goes into old application images, whatever host it was linked on."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        dynamic = next(s for s in elf.iter_sections() if isinstance(s, DynamicSection))
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
        sonames = [tag.soname for tag in dynamic.iter_tags("DT_SONAME")]
        versions = {
            auxiliary.name
            for section in elf.iter_sections()
            if isinstance(section, GNUVerNeedSection)
            for _, auxiliaries in section.iter_versions()
            for auxiliary in auxiliaries
        }
    assert needed == ["libc.so.6"]
    assert sonames == ["libogf_context.so"]
    numbers = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)[.\d]*", version) for version in versions]
    assert numbers
    assert all(numbers)
    assert all((int(n[1]), int(n[2])) <= (2, 17) for n in numbers if n)


def test_static_tls_stays_small(library: Path) -> None:
    """Libraries loaded late share some hundred bytes of static TLS: we take one pointer."""
    with library.open("rb") as file:
        sizes = [s["p_memsz"] for s in ELFFile(file).iter_segments() if s["p_type"] == "PT_TLS"]
    assert sizes == [8]


def test_a_reader_that_knows_only_the_specification_agrees(library: Path, tmp_path: Path) -> None:
    """Layout, thread isolation, thread exit, TLS reuse, clearing and the GOT slot, seen from C."""
    got_offset = 0
    if platform.machine() == "x86_64":
        ((kind, offset),) = tls_relocations(library)
        # A descriptor is two words, a function and its argument: the offset is the second.
        got_offset = offset + 8 if kind == R_X86_64_TLSDESC else offset
    program = compile_reader("spec_reader", tmp_path)
    done = subprocess.run(
        [str(program), str(library), hex(got_offset)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_reader_never_sees_half_a_record(library: Path, tmp_path: Path) -> None:
    """Stopped after any instruction, the writer shows a whole span or none."""
    program = compile_reader("step_reader", tmp_path)
    done = subprocess.run([str(program), str(library)], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("ptrace is not allowed here")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
