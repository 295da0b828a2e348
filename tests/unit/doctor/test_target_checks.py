"""Checks of one process: made-up ones, and this one."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_gpuflame.capture.checks import target
from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Status
from otel_gpuflame.doctor.run import OF_TARGET
from otel_gpuflame.symbolize.cpython.detect import PythonRefusal
from otel_gpuflame.symbolize.thread_context import ThreadContextPlace
from tests.unit.doctor.hosts import LIBRARY

PID = 42
CUDA = "/usr/lib/libcuda.so.580.159"
CUDART = "/opt/torch/lib/libcudart-9335f6a2.so.12.4.127"
HERE = Host()


@pytest.fixture
def process(tmp_path: Path) -> Path:
    """A process 42 in a made-up /proc."""
    directory = tmp_path / str(PID)
    directory.mkdir()
    (directory / "status").write_text(f"Name:\tx\nTgid:\t{PID}\nPid:\t{PID}\n")
    (directory / "cmdline").write_bytes(b"python\0train.py\0")
    (directory / "environ").write_bytes(b"")
    os.symlink("/usr/bin/python3", directory / "exe")
    return directory


def maps(process: Path, *paths: str) -> Host:
    """The process maps these files; the host that sees it."""
    lines = [
        f"{0x1000 * (index + 1):x}-{0x1000 * (index + 2):x} r-xp 00000000 08:01 {index + 7} {path}\n"
        for index, path in enumerate(paths)
    ]
    (process / "maps").write_bytes(os.fsencode("".join(lines)))
    return Host(proc=process.parent, read_library=lambda _path: LIBRARY)


def test_a_process_that_can_be_read_is_a_target() -> None:
    """Its pid and its program are named."""
    result = target.check_target(HERE, os.getpid())
    assert result.status is Status.OK
    assert str(os.getpid()) in result.detail
    assert "python" in result.detail


def test_a_process_that_is_not_there_fails(tmp_path: Path) -> None:
    """A pid of another namespace looks like that too."""
    result = target.check_target(Host(proc=tmp_path), PID)
    assert (result.status, result.detail) == (Status.FAIL, "there is no process 42")
    assert "the host's ps" in result.remedy


def test_a_thread_is_not_a_target() -> None:
    """The process that it belongs to is named."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        result = target.check_target(HERE, thread.native_id or 0)
    finally:
        done.set()
        thread.join()
    assert result.status is Status.FAIL
    assert result.remedy == f"use --pid {os.getpid()}"


def test_a_process_may_have_any_name(process: Path) -> None:
    """In any encoding; what is left to tell is its memory, which a made-up process has not."""
    (process / "status").write_bytes(b"Name:\tdata-\xc3\nTgid:\t%d\n" % PID)
    result = target.check_target(Host(proc=process.parent), PID)
    assert result.detail == "the memory of process 42 cannot be read"


def test_what_a_target_has_loaded_can_be_printed(process: Path) -> None:
    """Its files may have any names."""
    host = maps(process, os.fsdecode(b"/opt/data-\xc3/libcuda.so.1"))
    for read_library in (host.read_library, lambda _path: None):
        looking = Host(proc=host.proc, read_library=read_library)
        result = target.check_target_libraries(looking, PID)
        assert "/opt/data-\\udcc3/libcuda.so.1" in result.detail
        assert result.detail.isprintable()


def test_a_process_whose_memory_is_closed_fails(process: Path) -> None:
    """It has mappings, but nothing can be read."""
    result = target.check_target(maps(process, CUDA), PID)
    assert result.status is Status.FAIL
    assert "CAP_SYS_PTRACE" in result.remedy


@pytest.fixture
def zombie() -> Iterator[int]:
    """A child that has ended and was not collected."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child.pid
    child.wait()


def test_a_zombie_fails(zombie: int) -> None:
    """Its directory is there, its memory is not."""
    result = target.check_target(HERE, zombie)
    assert result.status is Status.FAIL
    assert "zombie" in result.remedy


def test_loaded_gpu_libraries_are_named(process: Path) -> None:
    """With the number of functions that are probed."""
    result = target.check_target_libraries(maps(process, CUDA, "/usr/lib/libc.so.6"), PID)
    assert (result.status, result.detail) == (Status.OK, f"{CUDA} (1 probes)")


def test_the_library_is_read_where_the_target_sees_it(process: Path) -> None:
    """Through its own root."""
    seen: list[Path] = []
    host = maps(process, CUDA)
    target.check_target_libraries(Host(proc=host.proc, read_library=seen.append), PID)
    assert seen == [Path(f"{process}/root{CUDA}")]


def test_a_target_without_gpu_library_is_told_so(process: Path) -> None:
    """It may be too early, or another name."""
    result = target.check_target_libraries(maps(process, "/usr/lib/libc.so.6"), PID)
    assert (result.status, result.detail) == (Status.WARN, "none is loaded")
    assert "--library" in result.remedy


def test_a_library_without_our_functions_is_told(process: Path) -> None:
    """As after an upgrade that deleted the file."""
    host = maps(process, CUDA)
    result = target.check_target_libraries(
        Host(proc=host.proc, read_library=lambda _path: None), PID
    )
    assert result.status is Status.WARN
    assert CUDA in result.detail
    assert "restart the target" in result.remedy


@pytest.mark.parametrize(
    ("paths", "status", "says"),
    [
        ((CUDA, CUDART), Status.OK, "libcudart-9335f6a2.so.12.4.127"),
        ((CUDA, "/usr/lib/libcudart.so.12"), Status.OK, "libcudart.so.12"),
        ((CUDA,), Status.WARN, "linked statically"),
        ((CUDA, "/usr/lib/libcudart_static_helper.so"), Status.WARN, "linked statically"),
        (("/usr/lib/libOpenCL.so.1",), Status.SKIP, "has not loaded libcuda"),
    ],
)
def test_a_static_cuda_runtime_is_recognised(
    paths: tuple[str, ...], status: Status, says: str, process: Path
) -> None:
    """CUDA without a mapped libcudart: the runtime is part of the program."""
    result = target.check_static_cudart(maps(process, *paths), PID)
    assert result.status is status
    assert says in result.detail
    assert ("nothing is lost" in result.remedy) is (status is Status.WARN)


def test_a_supported_interpreter_is_named() -> None:
    """This one."""
    result = target.check_interpreter(HERE, os.getpid())
    assert result.status is Status.OK
    assert "CPython 3." in result.detail


def test_an_interpreter_that_is_not_walked_is_said(
    process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason of the one who refused it."""
    refusal = PythonRefusal("CPython 3.9 is not supported: 3.10 to 3.14 are")
    monkeypatch.setattr(target, "find_python", lambda *_: refusal)
    result = target.check_interpreter(maps(process), PID)
    assert (result.status, result.detail) == (Status.WARN, refusal.reason)
    assert "3.10 to 3.14" in result.remedy


def test_a_program_without_interpreter_has_none_to_check(process: Path) -> None:
    """It is recorded with native frames."""
    result = target.check_interpreter(maps(process, "/usr/bin/app"), PID)
    assert result.status is Status.SKIP


def test_spans_that_are_not_published_are_told() -> None:
    """This process has not been prepared."""
    result = target.check_span(HERE, os.getpid())
    assert result.status is Status.WARN
    assert "instrument.install()" in result.remedy


def test_published_spans_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the thread context record has a place."""
    monkeypatch.setattr(target, "find_thread_context", lambda *_: ThreadContextPlace(-64))
    assert target.check_span(HERE, os.getpid()).status is Status.OK


@pytest.mark.parametrize(
    ("command", "environment", "status"),
    [
        (b"python\0train.py\0", b"", Status.OK),
        (b"python\0-c\0pass\0", b"OTEL_SERVICE_NAME=shop\0", Status.OK),
        (b"python\0-c\0pass\0", b"", Status.WARN),
        (b"python\0", b"", Status.WARN),
    ],
)
def test_names_that_say_nothing_are_told(
    command: bytes, environment: bytes, status: Status, process: Path
) -> None:
    """A service called `python -c` is no help to anybody."""
    (process / "cmdline").write_bytes(command)
    (process / "environ").write_bytes(environment)
    result = target.check_service_name(maps(process), PID)
    assert result.status is status
    assert ("OTEL_SERVICE_NAME" in result.remedy) is (status is Status.WARN)


def test_a_process_that_went_away_meanwhile_breaks_no_check(tmp_path: Path) -> None:
    """Each of them answers."""
    for check in OF_TARGET:
        assert check(Host(proc=tmp_path), PID).detail
