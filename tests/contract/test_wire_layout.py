"""wire.py, wire_gpu.py, the BTF of the compiled objects and what the C compiler makes of the headers agree on every
byte.
"""

from __future__ import annotations

import enum
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bpf.generate_wire import MODULES
from otel_gpuflame.events import wire, wire_gpu
from tests.contract.native_build import HEADERS, ROOT, btf_types, build_object, require_tools


@dataclass(frozen=True, slots=True)
class Layouts:
    """A generated module, and what it is generated from."""

    module: ModuleType
    headers: tuple[Path, ...]
    object_name: str
    """Target of bpf/Makefile whose BTF is read."""


LAYOUTS = {
    "bpf": Layouts(wire, (HEADERS / "ogf_events.h", HEADERS / "ogf_unwind.h"), "capture.bpf.o"),
    "gpu": Layouts(wire_gpu, (ROOT / "otel_gpuflame" / "native" / "gpu_region.h",), "gpu_layout.o"),
}
STRUCTS = [(key, struct) for key, (_, structs, _) in MODULES.items() for struct in structs]
ENUMS = [(key, name) for key, (_, _, enums) in MODULES.items() for name in enums]
Btf = dict[str, dict[tuple[str, str], dict[str, Any]]]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The objects of this checkout's sources."""
    require_tools("make", "clang", "llvm-strip", "bpftool")
    directory = tmp_path_factory.mktemp("bpf")
    return {key: build_object(directory, each.object_name) for key, each in LAYOUTS.items()}


@pytest.fixture(scope="module")
def btf(objects: dict[str, Path]) -> Btf:
    """Their types."""
    return {key: btf_types(path) for key, path in objects.items()}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the C compiler of this host says: `struct.field@offset`, `struct.field@size`, `struct@size`, enumerators."""
    require_tools("cc")
    lines = []
    for key, struct in STRUCTS:
        lines.append(f'put("{struct}@size", sizeof(struct {struct}));')
        for field in dtype_of(key, struct).names or ():
            lines.append(f'put("{struct}.{field}@offset", offsetof(struct {struct}, {field}));')
            lines.append(f'put("{struct}.{field}@size", sizeof(((struct {struct} *)0)->{field}));')
    for key, name in ENUMS:
        lines += [f'put("{member}", {member});' for member in members(key, name)]
    includes = "".join(
        f'#include "{header}"\n' for each in LAYOUTS.values() for header in each.headers
    )
    source = (
        f"#include <linux/types.h>\n#include <stddef.h>\n#include <stdio.h>\n{includes}"
        'static void put(const char *name, unsigned long value) { printf("%s %lu\\n", name, value); }\n'
        "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path_factory.mktemp("layout") / "layout"
    compile_command = ["cc", "-std=gnu11", "-Wall", "-Werror", "-x", "c", "-o", str(program), "-"]
    subprocess.run(compile_command, input=source, text=True, check=True)
    output = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def dtype_of(key: str, struct: str) -> np.dtype[Any]:
    """The dtype that was generated for a struct."""
    _, structs, _ = MODULES[key]
    dtype: np.dtype[Any] = getattr(LAYOUTS[key].module, structs[struct])
    return dtype


def members(key: str, enum_name: str) -> dict[str, int]:
    """Members of the class that was generated for an enum, under their names in C."""
    _, _, enums = MODULES[key]
    class_name, prefix = enums[enum_name]
    generated: type[enum.IntEnum] = getattr(LAYOUTS[key].module, class_name)
    # Not by iteration, which leaves out a member of the same value as another: limits may be equal.
    return {f"{prefix}{name}": int(member) for name, member in generated.__members__.items()}


def field_size(dtype: np.dtype[Any], field: str) -> int:
    """Bytes of one field."""
    assert dtype.fields is not None
    return int(dtype.fields[field][0].itemsize)


def field_offset(dtype: np.dtype[Any], field: str) -> int:
    """Where one field begins."""
    assert dtype.fields is not None
    return int(dtype.fields[field][1])


@pytest.mark.parametrize("key", LAYOUTS)
def test_wire_is_what_the_generator_makes_of_the_object(
    objects: dict[str, Path], tmp_path: Path, key: str
) -> None:
    """The committed file is the generator's output; if not, run `make gen` and look at the difference."""
    generator = [sys.executable, str(ROOT / "bpf" / "generate_wire.py"), key, str(objects[key])]
    generated = tmp_path / "wire.py"
    generated.write_bytes(subprocess.run(generator, capture_output=True, check=True).stdout)
    settings = f"--config={ROOT / 'pyproject.toml'}"
    subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-q", settings, str(generated)], check=True
    )
    assert generated.read_text() == Path(str(LAYOUTS[key].module.__file__)).read_text()


@pytest.mark.parametrize(("key", "struct"), STRUCTS)
def test_dtypes_have_the_members_of_btf(btf: Btf, key: str, struct: str) -> None:
    """Every member of a struct is a field at the same offset, in the same order, and no more."""
    entry, dtype = btf[key]["STRUCT", struct], dtype_of(key, struct)
    expected = [(m["name"], m["bits_offset"]) for m in entry["members"]]
    assert [(name, 8 * field_offset(dtype, name)) for name in dtype.names or ()] == expected
    assert dtype.itemsize == entry["size"]


@pytest.mark.parametrize(("key", "struct"), STRUCTS)
def test_dtypes_have_the_layout_of_the_c_compiler(
    compiled: dict[str, int], key: str, struct: str
) -> None:
    """Offsets and sizes are those of offsetof() and sizeof() on this host."""
    dtype = dtype_of(key, struct)
    assert dtype.itemsize == compiled[f"{struct}@size"]
    for field in dtype.names or ():
        assert field_offset(dtype, field) == compiled[f"{struct}.{field}@offset"], field
        assert field_size(dtype, field) == compiled[f"{struct}.{field}@size"], field


@pytest.mark.parametrize(("key", "struct"), STRUCTS)
def test_there_is_no_hidden_padding(key: str, struct: str) -> None:
    """Every byte belongs to a field: what is padding is called so, and therefore zeroed."""
    dtype = dtype_of(key, struct)
    end = 0
    for field in dtype.names or ():
        assert field_offset(dtype, field) == end, field
        end += field_size(dtype, field)
    assert end == dtype.itemsize


@pytest.mark.parametrize(("key", "name"), ENUMS)
def test_enums_have_the_values_of_btf_and_of_the_c_compiler(
    btf: Btf, compiled: dict[str, int], key: str, name: str
) -> None:
    """Names without their prefix, and values, are the same in all three."""
    ours = members(key, name)
    assert ours == {value["name"]: value["val"] for value in btf[key]["ENUM", name]["values"]}
    assert ours == {member: compiled[member] for member in ours}


def test_the_counter_table_holds_every_kind_and_outcome() -> None:
    """Rows and columns of the BPF counter table are numbered by these enums."""
    text = (HEADERS / "ogf_events.h").read_text()
    limits = {
        name: int(text.split(f"{name} = ")[1].split(",")[0])
        for name in ("OGF_MAX_COUNTED_KINDS", "OGF_MAX_OUTCOMES")
    }
    assert max(wire.Kind) < limits["OGF_MAX_COUNTED_KINDS"]
    assert max(wire.Outcome) < limits["OGF_MAX_OUTCOMES"]


def test_the_generator_names_its_remedies(tmp_path: Path) -> None:
    """A file that is no object, and a call without the arguments that it needs, end with what to do."""
    require_tools("bpftool")
    generator = [sys.executable, str(ROOT / "bpf" / "generate_wire.py")]
    bad = tmp_path / "no.o"
    bad.write_text("no object")
    result = subprocess.run(
        [*generator, "gpu", str(bad)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert f"bpftool cannot read {bad}" in result.stderr
    for arguments in ([], [str(bad)], ["other", str(bad)]):
        result = subprocess.run(
            [*generator, *arguments], capture_output=True, text=True, check=False
        )
        assert result.returncode == 1
        assert "Usage: python bpf/generate_wire.py" in result.stderr
    result = subprocess.run(
        [*generator, "bpf", str(bad)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert "bpftool not found: apt-get install bpftool" in result.stderr
