"""Whether a process has the library that tells GPU times: real regions, and processes without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_gpuflame.capture.checks import trials
from otel_gpuflame.capture.checks.gpu_times import check_target_gpu_times
from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Status
from otel_gpuflame.capture.cupti import find, inject
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events.wire_gpu import LibraryState
from tests.unit.capture.cupti.test_source import reading
from tests.unit.capture.cupti.writer import target

PID = 42
OURS = b"CUDA_INJECTION64_PATH=/otel-gpuflame/libogf_inject.so\0"
HERE = Host()


@pytest.fixture
def process(tmp_path: Path) -> Path:
    """A process 42 in a made-up /proc, with our library in its environment, its file system, and not in its memory."""
    directory = tmp_path / str(PID)
    (directory / "fd").mkdir(parents=True)
    (directory / "environ").write_bytes(OURS)
    (directory / "maps").write_text("1000-2000 r-xp 00000000 08:01 7 /usr/lib/libcuda.so.1\n")
    library = directory / "root" / "otel-gpuflame" / "libogf_inject.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    return directory


@pytest.mark.parametrize("state", [LibraryState.DORMANT, LibraryState.CAPTURING])
def test_a_region_that_can_be_opened_is_well(state: LibraryState) -> None:
    """The state of the library is named; looking changes nothing."""
    with target() as writer:
        writer.library["state"] = state
        result = check_target_gpu_times(HERE, writer.pid)
        assert (result.status, result.remedy) == (Status.OK, "")
        assert state.name.lower() in result.detail
        assert writer.control["generation"][0] == 0


def test_a_region_that_is_read_already_is_well() -> None:
    """As beside the agent."""
    with target() as writer, reading(writer):
        result = check_target_gpu_times(HERE, writer.pid)
    assert (result.status, result.detail) == (Status.OK, "another exporter reads them now")


def test_a_state_of_another_version_is_a_number() -> None:
    """A newer library may have more."""
    with target() as writer:
        writer.library["state"] = 9
        assert "state 9" in check_target_gpu_times(HERE, writer.pid).detail


def test_a_library_that_cannot_record_says_why() -> None:
    """In the words of the recorder."""
    with target() as writer:
        writer.library["error"], writer.library["state"] = 1, LibraryState.UNUSABLE
        result = check_target_gpu_times(HERE, writer.pid)
    assert (result.status, result.detail) == (Status.WARN, "NO_CUPTI")
    assert "nvidia-cuda-cupti" in result.remedy


@pytest.mark.parametrize(("field", "says"), [("abi", "version 7"), ("magic", "magic number")])
def test_a_region_that_cannot_be_read_says_why(field: str, says: str) -> None:
    """A library of another version, or none of ours."""
    with target() as writer:
        writer.library[field] = 7
        result = check_target_gpu_times(HERE, writer.pid)
    assert result.status is Status.WARN
    assert says in result.detail
    assert "restart it" in result.remedy


def test_a_process_that_must_not_be_looked_at_says_so(
    process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right to trace it, its descriptors are closed to us."""

    def scandir(_: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(find.os, "scandir", scandir)
    result = check_target_gpu_times(Host(proc=process.parent), PID)
    assert (result.status, result.detail) == (Status.WARN, "cannot be read: Permission denied")
    assert "CAP_SYS_PTRACE" in result.remedy


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (b"", "CUDA_INJECTION64_PATH is not set"),
        (b"CUDA_INJECTION64_PATH=/opt/nsys/lib.so\0", "CUDA_INJECTION64_PATH is /opt/nsys/lib.so"),
    ],
)
def test_a_program_that_was_started_without_it_says_so(
    environment: bytes, says: str, process: Path
) -> None:
    """The remedy is a restart with the line of `env`."""
    (process / "environ").write_bytes(environment)
    result = check_target_gpu_times(Host(proc=process.parent), PID)
    assert result.status is Status.WARN
    assert says in result.detail
    assert "otel-gpuflame env" in result.remedy


def test_a_program_that_has_not_used_cuda_yet_is_no_matter(process: Path) -> None:
    """The library comes with the driver's initialisation."""
    (process / "maps").write_text("")
    result = check_target_gpu_times(Host(proc=process.parent), PID)
    assert result.status is Status.SKIP


def test_a_path_that_the_program_does_not_have_is_named(process: Path) -> None:
    """As in a container with another file system."""
    (process / "root/otel-gpuflame/libogf_inject.so").unlink()
    result = check_target_gpu_times(Host(proc=process.parent), PID)
    assert result.status is Status.WARN
    assert "/otel-gpuflame/libogf_inject.so is not in its file system" in result.detail


def test_a_driver_that_has_not_loaded_it_is_told(process: Path) -> None:
    """It may still do so in cuInit."""
    result = check_target_gpu_times(Host(proc=process.parent), PID)
    assert (result.status, result.detail) == (Status.WARN, "its driver has not loaded the library")


def test_the_packaged_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial says which file, and what to run."""
    monkeypatch.setattr(inject, "LIBRARY", tmp_path / "libogf_inject.so")
    with pytest.raises(SourceUnavailable, match="make native"):
        trials.load_injected_library()


def test_a_library_that_is_none_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one without the function that the driver calls."""
    path = tmp_path / "libogf_inject.so"
    path.write_bytes(b"no library")
    monkeypatch.setattr(inject, "LIBRARY", path)
    with pytest.raises(OSError, match="libogf_inject"):
        trials.load_injected_library()
    drain = Path(trials.DRAIN_LIBRARY)
    if drain.is_file():
        monkeypatch.setattr(inject, "LIBRARY", drain)
        with pytest.raises(SourceUnavailable, match="InitializeInjection"):
            trials.load_injected_library()
