"""PyTorch's autograd engine: which file it is in, and where it is probed. Libraries are compiled here."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.capture.autograd import is_autograd_library, read_autograd_library
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.libraries import file_offset_of
from otel_gpuflame.symbolize.elf import SHT_DYNSYM
from otel_gpuflame.symbolize.elf_symbols import STT_FUNC, SYMBOL
from tests.tiers import require
from tests.unit.symbolize.elf_image import elf_image

ENGINE = "_ZN5torch8autograd6Engine"
TASK = "RKSt10shared_ptrINS0_9GraphTaskEE"
# As exported by PyTorch 1.13 to 2.11, and by 2.15.
BACKWARD = f"{ENGINE}23execute_with_graph_taskE{TASK}S2_INS0_4NodeEEONS0_11InputBufferE"
BACKWARD_2_15 = (
    f"{ENGINE}23execute_with_graph_taskE{TASK}N3c1013intrusive_ptrINS0_4NodeENS7_6detail34"
    "intrusive_target_default_null_typeIS9_EEEEONS0_11InputBufferE"
)
NODE = (
    f"{ENGINE}17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferE"
    "RKS2_INS0_10ReadyQueueEE"
)
# Of a time when the task was no shared_ptr.
OLD_NODE = f"{ENGINE}17evaluate_functionERNS0_12FunctionTaskE"


def library(directory: Path, *functions: str) -> Path:
    """A library that exports these functions, and others like them."""
    compiler = shutil.which("cc")
    require("bpf", compiler is not None, "cc is needed")
    source, path = directory / "torch.c", directory / "libtorch_cpu.so"
    names = (*functions, f"_{NODE}", f"{ENGINE}11thread_mainE{TASK}", "unrelated")
    source.write_text("".join(f"int {name}(int a) {{ return a * a; }}\n" for name in names))
    subprocess.run([str(compiler), "-shared", "-fPIC", "-o", path, source], check=True)
    return path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", True),
        ("/usr/lib/x86_64-linux-gnu/libtorch_cpu.so.1.13", True),
        ("/venv/torch/lib/libtorch_cpu.so (deleted)", True),
        ("/venv/torch/lib/libtorch_cuda.so", False),
        ("/venv/torch/lib/libtorch_cpu.so.debug", False),
        ("/venv/torch/lib/mylibtorch_cpu.so", False),
        ("", False),
    ],
)
def test_the_library_is_known_by_its_file_name(path: str, expected: bool) -> None:
    """Of wheels and of distributions, and nothing like it."""
    assert is_autograd_library(path) is expected


@pytest.mark.parametrize("backward", [BACKWARD, BACKWARD_2_15], ids=["2.0", "2.15"])
def test_both_functions_are_found_whatever_follows_the_task(backward: str, tmp_path: Path) -> None:
    """Nodes are probed in windows only; the cookie says which argument is the task."""
    path = library(tmp_path, backward, NODE)
    found = read_autograd_library(path)
    assert found is not None
    hidden = 1 if os.uname().machine == "x86_64" else 0
    points = [(p.program, p.offset, p.cookie, p.windowed) for p in found.points]
    assert points == [
        (Program.BACKWARD, file_offset_of(path, backward), 2 + hidden, False),
        (Program.NODE, file_offset_of(path, NODE), 2, True),
    ]


@pytest.mark.parametrize("functions", [(BACKWARD,), (NODE,), (BACKWARD, OLD_NODE), ()])
def test_one_function_is_of_no_use_without_the_other(
    functions: tuple[str, ...], tmp_path: Path
) -> None:
    """A version that lacks one is left alone."""
    assert read_autograd_library(library(tmp_path, *functions)) is None


def test_files_that_are_no_libraries_are_refused(tmp_path: Path) -> None:
    """A wrong file is none; what a missing one holds is not known."""
    wrong = tmp_path / "libtorch_cpu.so"
    with pytest.raises(FileNotFoundError):
        read_autograd_library(wrong)
    wrong.write_bytes(os.urandom(4096))
    assert read_autograd_library(wrong) is None


def test_a_library_with_a_million_functions_of_that_name_is_left_alone(tmp_path: Path) -> None:
    """Their addresses are in no segment: each would be looked for in all, once for each table."""
    names = b"".join(name.encode() + b"\0" for name in (BACKWARD, NODE))
    rows = np.zeros(1 << 20, SYMBOL)
    rows["info"], rows["section"], rows["name"], rows["value"] = STT_FUNC, 1, 1, 1 << 60
    path = tmp_path / "libtorch_cpu.so"
    path.write_bytes(elf_image(b"\0" + names, (SHT_DYNSYM, rows.tobytes()), repeated=1000))
    begin_s = time.process_time()
    assert read_autograd_library(path) is None
    assert time.process_time() - begin_s < 2
