# SPDX-License-Identifier: Apache-2.0
"""Which libcupti is taken, and what is said when there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from otel_gpuflame.events.wire_gpu import GpuKind, LibraryError, LibraryState
from tests.fakes.build import build_fakes
from tests.integration.inject.region import Region, of_kind
from tests.integration.inject.session import Session, session

pytestmark = pytest.mark.inject


def fake_cupti() -> Path:
    """The fake CUPTI."""
    return build_fakes() / "cupti" / "libcupti.so.13"


def loaded(pid: int) -> set[str]:
    """Paths of the CUPTI libraries that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "libcupti" in line}


def captures(target: Session) -> bool:
    """Whether windows work."""
    region = target.region()
    region.open_window(1)
    target.do("launch_many", count=10)
    target.do("synchronize")
    region.close_window()
    return len(of_kind(region.read(), GpuKind.KERNEL)) == 10


def test_no_cupti_is_said(library: Path) -> None:
    """The program runs, the memory says why nothing is captured, and a lease changes nothing."""
    with session(library, cupti=False) as target:
        region = target.region()
        assert region.state == LibraryState.UNUSABLE
        assert LibraryError(int(region.field("error"))) == LibraryError.NO_CUPTI
        region.lend(9, generation=1)
        target.do("launch_many", count=10)
        assert region.state == LibraryState.UNUSABLE


def test_a_cupti_without_our_functions_is_said(library: Path) -> None:
    """It is too old, or something else."""
    other = str(build_fakes() / "libfake_app.so")
    with session(library, OTEL_GPUFLAME_CUPTI=other, cupti=False) as target:
        region = target.region()
        assert region.state == LibraryState.UNUSABLE
        assert LibraryError(int(region.field("error"))) == LibraryError.OLD_CUPTI


def test_the_version_is_said(library: Path) -> None:
    """As CUPTI says it."""
    with session(library) as target:
        assert int(Region(target.pid).field("cupti_version")) == 130_001


def test_a_copy_that_is_loaded_comes_first(library: Path, tmp_path: Path) -> None:
    """Even before one that is named: two in one process disturb each other."""
    theirs = tmp_path / "theirs" / "libcupti.so.13"
    theirs.parent.mkdir()
    shutil.copy(fake_cupti(), theirs)
    with session(library, LD_PRELOAD=str(theirs)) as target:
        assert loaded(target.pid) == {str(theirs)}
        assert captures(target)


@pytest.mark.parametrize(
    ("cuda", "cupti"),
    [
        ("nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcupti.so.13"),
        ("nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia/cuda_cupti/lib/libcupti.so.12"),
        ("cuda/lib64/libcudart.so.13", "cuda/extras/CUPTI/lib64/libcupti.so.13"),
        ("torch/lib/libtorch_cuda.so", "nvidia/cu13/lib/libcupti.so.13"),
        ("torch/lib/libc10_cuda.so", "nvidia/cuda_cupti/lib/libcupti.so.12"),
    ],
)
def test_the_copy_of_the_programs_cuda_is_found(
    library: Path, tmp_path: Path, cuda: str, cupti: str
) -> None:
    """Where wheels and toolkits put it."""
    for path, source in ((cuda, build_fakes() / "libfake_app.so"), (cupti, fake_cupti())):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, tmp_path / path)
    with session(library, LD_PRELOAD=str(tmp_path / cuda), cupti=False) as target:
        assert {Path(path).resolve() for path in loaded(target.pid)} == {tmp_path / cupti}
        assert captures(target)


def test_the_loader_finds_it_at_last(library: Path) -> None:
    """By its soname, as in a program that links it."""
    directory = f"{fake_cupti().parent}:{build_fakes()}"
    with session(library, cupti=False, LD_LIBRARY_PATH=directory) as target:
        assert captures(target)
