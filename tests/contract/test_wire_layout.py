"""wire.py, the BTF of the compiled object and what the C compiler makes of the header agree on every byte."""

from __future__ import annotations

import enum
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpf.generate_wire import ENUMS, STRUCTS
from otel_gpuflame.events import wire
from tests.contract.native_build import HEADERS, ROOT, btf_types, build_object, require_tools

DTYPES: dict[str, np.dtype[Any]] = {struct: getattr(wire, name) for struct, name in STRUCTS.items()}


@pytest.fixture(scope="module")
def capture_object(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The object of this checkout's sources."""
    require_tools("make", "clang", "llvm-strip", "bpftool")
    return build_object(tmp_path_factory.mktemp("bpf"))


@pytest.fixture(scope="module")
def btf(capture_object: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Its types."""
    return btf_types(capture_object)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the C compiler of this host says: `struct.field@offset`, `struct.field@size`, `struct@size`, enumerators."""
    require_tools("cc")
    lines = []
    for struct, dtype in DTYPES.items():
        lines.append(f'put("{struct}@size", sizeof(struct {struct}));')
        for field in dtype.names or ():
            lines.append(f'put("{struct}.{field}@offset", offsetof(struct {struct}, {field}));')
            lines.append(f'put("{struct}.{field}@size", sizeof(((struct {struct} *)0)->{field}));')
    for class_name, prefix in ENUMS.values():
        lines += [f'put("{prefix}{m.name}", {prefix}{m.name});' for m in members(class_name)]
    source = (
        "#include <linux/types.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        '#include "ogf_events.h"\n'
        'static void put(const char *name, unsigned long value) { printf("%s %lu\\n", name, value); }\n'
        "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path_factory.mktemp("layout") / "layout"
    compile_command = [
        "cc",
        "-std=gnu11",
        "-Wall",
        "-Werror",
        f"-I{HEADERS}",
        "-x",
        "c",
        "-o",
        str(program),
        "-",
    ]
    subprocess.run(compile_command, input=source, text=True, check=True)
    output = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def members(class_name: str) -> list[enum.Enum]:
    """Members of an enum of wire.py."""
    return list(getattr(wire, class_name))


def field_size(dtype: np.dtype[Any], field: str) -> int:
    """Bytes of one field."""
    assert dtype.fields is not None
    return int(dtype.fields[field][0].itemsize)


def field_offset(dtype: np.dtype[Any], field: str) -> int:
    """Where one field begins."""
    assert dtype.fields is not None
    return int(dtype.fields[field][1])


def test_wire_is_what_the_generator_makes_of_the_object(
    capture_object: Path, tmp_path: Path
) -> None:
    """The committed file is the generator's output; if not, run `make gen` and look at the difference."""
    generator = [sys.executable, str(ROOT / "bpf" / "generate_wire.py"), str(capture_object)]
    generated = tmp_path / "wire.py"
    generated.write_bytes(subprocess.run(generator, capture_output=True, check=True).stdout)
    settings = f"--config={ROOT / 'pyproject.toml'}"
    subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-q", settings, str(generated)], check=True
    )
    assert generated.read_text() == Path(wire.__file__).read_text()


@pytest.mark.parametrize("struct", STRUCTS)
def test_dtypes_have_the_members_of_btf(
    btf: dict[tuple[str, str], dict[str, Any]], struct: str
) -> None:
    """Every member of a struct is a field at the same offset, in the same order, and no more."""
    entry, dtype = btf["STRUCT", struct], DTYPES[struct]
    expected = [(m["name"], m["bits_offset"]) for m in entry["members"]]
    assert [(name, 8 * field_offset(dtype, name)) for name in dtype.names or ()] == expected
    assert dtype.itemsize == entry["size"]


@pytest.mark.parametrize("struct", STRUCTS)
def test_dtypes_have_the_layout_of_the_c_compiler(compiled: dict[str, int], struct: str) -> None:
    """Offsets and sizes are those of offsetof() and sizeof() on this host."""
    dtype = DTYPES[struct]
    assert dtype.itemsize == compiled[f"{struct}@size"]
    for field in dtype.names or ():
        assert field_offset(dtype, field) == compiled[f"{struct}.{field}@offset"], field
        assert field_size(dtype, field) == compiled[f"{struct}.{field}@size"], field


@pytest.mark.parametrize("struct", STRUCTS)
def test_there_is_no_hidden_padding(struct: str) -> None:
    """Every byte belongs to a field: what is padding is called so, and therefore zeroed."""
    dtype = DTYPES[struct]
    end = 0
    for field in dtype.names or ():
        assert field_offset(dtype, field) == end, field
        end += field_size(dtype, field)
    assert end == dtype.itemsize


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_the_values_of_btf_and_of_the_c_compiler(
    btf: dict[tuple[str, str], dict[str, Any]], compiled: dict[str, int], name: str
) -> None:
    """Names without their prefix, and values, are the same in all three."""
    class_name, prefix = ENUMS[name]
    ours = {f"{prefix}{member.name}": int(member.value) for member in members(class_name)}
    assert ours == {value["name"]: value["val"] for value in btf["ENUM", name]["values"]}
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
    """A file that is no object, and a call without arguments, end with what to do."""
    require_tools("bpftool")
    generator = [sys.executable, str(ROOT / "bpf" / "generate_wire.py")]
    bad = tmp_path / "no.o"
    bad.write_text("no object")
    result = subprocess.run([*generator, str(bad)], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"bpftool cannot read {bad}" in result.stderr
    result = subprocess.run(generator, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "Usage: python bpf/generate_wire.py" in result.stderr
    result = subprocess.run(
        [*generator, str(bad)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert "bpftool not found: apt-get install bpftool" in result.stderr
