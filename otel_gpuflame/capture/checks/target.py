"""One process that is to be recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Check, fail, ok, skip, warn
from otel_gpuflame.capture.describe import describe
from otel_gpuflame.capture.describe.proc_files import process_of
from otel_gpuflame.capture.libraries import is_gpu_library
from otel_gpuflame.symbolize.cpython.detect import PythonRefusal, find_python
from otel_gpuflame.symbolize.maps import AddressMap, read_maps
from otel_gpuflame.symbolize.memory import ProcessMemory
from otel_gpuflame.symbolize.thread_context import find_thread_context

_CUDART: Final = re.compile(r"libcudart(-[0-9a-f]+)?\.so(\.\d+)*")
_DEFAULT_NAMES: Final = ("python -c", "python -m", "python script", "python interactive")


def check_target(host: Host, pid: int) -> Check:
    """It exists, is a process and no thread, and its memory can be read."""
    name = "target"
    try:
        process = process_of(pid, host.proc)
    except OSError:
        return fail(name, f"there is no process {pid}", "give the pid that the host's ps shows")
    if process != pid:
        return fail(name, f"{pid} is a thread of process {process}", f"use --pid {process}")
    maps = read_maps(pid, host.proc)
    if maps is None or not maps.mappings or not _reads(pid, host.proc, maps):
        return fail(
            name,
            f"the memory of process {pid} cannot be read",
            "run as root, or give CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; a zombie has no memory",
        )
    return ok(name, f"process {pid}: {_executable(maps)}")


def check_target_libraries(host: Host, pid: int) -> Check:
    """GPU libraries that it has loaded."""
    name = "target's GPU libraries"
    paths = sorted({path for path in _paths(host, pid) if is_gpu_library(path)})
    root = host.proc / str(pid) / "root"
    probes = {path: host.read_library(Path(f"{root}{path}")) for path in paths}
    found = [f"{_shown(path)} ({len(each.points)} probes)" for path, each in probes.items() if each]
    if found:
        return ok(name, ", ".join(found))
    if paths:
        return warn(
            name,
            f"{', '.join(map(_shown, paths))}: none of the functions that are probed can be found",
            "if the file was replaced by an upgrade, restart the target",
        )
    return warn(
        name,
        "none is loaded",
        "fine if it has not used the GPU yet; a driver library under another name: record --library PATH",
    )


def check_static_cudart(host: Host, pid: int) -> Check:
    """A CUDA runtime that is part of the program has no functions that can be named or probed."""
    name = "target's CUDA runtime"
    names = [path.rpartition("/")[2] for path in _paths(host, pid)]
    if not any(each.startswith("libcuda.so") for each in names):
        return skip(name, "it has not loaded libcuda.so.1")
    runtime = sorted({each for each in names if _CUDART.fullmatch(each)})
    if runtime:
        return ok(name, ", ".join(runtime))
    return warn(
        name,
        "linked statically, or not used: calls are seen at the driver, without frames of cuda… functions above them",
        "nothing is lost; to see those frames link with nvcc -cudart shared",
    )


def check_interpreter(host: Host, pid: int) -> Check:
    """Whether its Python frames can be walked."""
    name = "target's interpreter"
    found = find_python(pid, host.proc)
    if found is None:
        return skip(name, "it runs no CPython")
    if isinstance(found, PythonRefusal):
        return warn(
            name,
            found.reason,
            "run the target on a release of CPython 3.10 to 3.14 with the GIL; native frames are recorded all the same",
        )
    return ok(name, f"CPython {'.'.join(map(str, found.version))} of {_shown(found.file[2])}")


def check_span(host: Host, pid: int) -> Check:
    """Whether it publishes its active span."""
    name = "target's spans"
    if find_thread_context(pid, host.proc) is not None:
        return ok(name, "published")
    return warn(
        name,
        "not published: profiles are not linked to traces",
        "call otel_gpuflame.instrument.install() in the target, beside its OpenTelemetry set-up",
    )


def check_service_name(host: Host, pid: int) -> Check:
    """What its profiles will be called."""
    name = "target's service name"
    service = str(dict(describe(pid, host.proc) or ()).get("service.name", ""))
    if service and service not in _DEFAULT_NAMES:
        return ok(name, service)
    return warn(
        name,
        f"{service or 'unknown'}: says nothing about it",
        "set OTEL_SERVICE_NAME in its environment",
    )


def _paths(host: Host, pid: int) -> list[str]:
    maps = read_maps(pid, host.proc)
    return [mapping.path for mapping in maps.mappings if mapping.is_file] if maps else []


def _reads(pid: int, proc: Path, maps: AddressMap) -> bool:
    memory = ProcessMemory(pid, proc)
    try:
        return memory.read(maps.mappings[0].start, 1) is not None
    finally:
        memory.close()


def _executable(maps: AddressMap) -> str:
    return next((_shown(mapping.path) for mapping in maps.mappings if mapping.is_file), "no file")


def _shown(path: str) -> str:
    """A path of any bytes as text that can be printed."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")
