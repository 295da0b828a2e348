"""Can this host capture? Each check tries the thing itself and names the remedy."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.bpf.drain import LIBRARY as DRAIN_LIBRARY
from otel_gpuflame.capture.bpf.kernel import OBJECT, CaptureKernel
from otel_gpuflame.capture.bpf.libbpf import LibbpfError, load_library
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.tracefs import tracepoint_id
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.capture.libraries import file_offset_of, installed_libraries, read_library
from otel_gpuflame.errors import OtelGpuflameError
from otel_gpuflame.events import wire

_KERNEL_FLOOR: Final = (5, 15)
_KERNEL_FULL: Final = (6, 6)
_BTF: Final = Path("/sys/kernel/btf/vmlinux")
_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO
_CAP_SYS_PTRACE: Final = 19
_CALLS: Final = 23
"""A prime number of calls, so that a double count shows."""


class Status(Enum):
    """Outcome of a check: WARN means that capture works with a reduction."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One answer. `remedy` is empty when there is nothing to do."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def _ok(name: str, detail: str) -> Check:
    return Check(name, Status.OK, detail)


def check_kernel_version() -> Check:
    """5.15 is the floor, 6.6 brings uprobe_multi."""
    release = os.uname().release
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    if version < _KERNEL_FLOOR:
        return Check("kernel", Status.FAIL, release, "use Linux 5.15 or newer")
    if version < _KERNEL_FULL:
        return Check(
            "kernel",
            Status.WARN,
            f"{release}: probes detach one by one",
            "Linux 6.6 detaches at once",
        )
    return _ok("kernel", release)


def check_architecture() -> Check:
    """What was run, and what was only compiled."""
    machine = platform.machine()
    if machine == "x86_64":
        return _ok("architecture", machine)
    return Check("architecture", Status.FAIL, machine, "only x86-64 is supported so far")


def check_btf() -> Check:
    """CO-RE needs the kernel's own type information."""
    if _BTF.is_file():
        return _ok("kernel BTF", str(_BTF))
    return Check(
        "kernel BTF", Status.FAIL, f"no {_BTF}", "use a kernel with CONFIG_DEBUG_INFO_BTF=y"
    )


def check_libbpf() -> Check:
    """Found, and new enough."""
    try:
        return _ok("libbpf", str(load_library().libbpf_version_string().decode()))
    except OtelGpuflameError as error:
        return Check("libbpf", Status.FAIL, str(error), "apt-get install libbpf1")


def check_artifacts() -> Check:
    """The parts that are compiled when the package is built."""
    missing = [path.name for path in (OBJECT, DRAIN_LIBRARY) if not path.is_file()]
    if missing:
        return Check(
            "native parts", Status.FAIL, f"missing: {', '.join(missing)}", "make bpf native"
        )
    return _ok("native parts", str(OBJECT.parent))


def check_load() -> Check:
    """Load every program and attach the tracepoints."""
    try:
        kernel = CaptureKernel()
    except (OtelGpuflameError, LibbpfError) as error:
        return Check(
            "load BPF programs", Status.FAIL, str(error), "run as root, or see the message"
        )
    try:
        missing = kernel.report.missing
        if missing:
            detail = "; ".join(f"{program}: {text}" for program, text in missing.items())
            return Check("load BPF programs", Status.WARN, detail, "see docs/troubleshooting.md")
        return _ok("load BPF programs", "all loaded and attached")
    finally:
        kernel.close()


def check_uprobe() -> Check:
    """Probe a function of our own, call it, and count what arrives."""
    try:
        return _count_own_calls()
    except (OtelGpuflameError, LibbpfError) as error:
        return Check(
            "uprobes deliver", Status.FAIL, str(error), "CONFIG_UPROBES=y and root are needed"
        )


def _count_own_calls() -> Check:
    name = "uprobes deliver"
    kernel = CaptureKernel()
    try:
        # A function that nothing calls while no ring is drained.
        offset = file_offset_of(DRAIN_LIBRARY, "ogf_drain_malformed")
        if offset is None:
            return Check(name, Status.FAIL, f"no symbol in {DRAIN_LIBRARY}", "make bpf")
        cookie = wire.Kind.WAIT << wire.CookieShift.KIND
        kernel.targets.set(os.getpid().to_bytes(4, "little"), np.zeros(1, wire.TARGET).tobytes())
        kernel.uprobes.attach("own", DRAIN_LIBRARY, [ProbePoint(Program.CALL, offset, cookie)])
        drain = kernel.open_drain()
        for _ in range(_CALLS):
            drain.malformed(0)
        drain.swap(0)
        seen = len(drain.data(0)) // wire.CALL.itemsize
        drain.close()
    finally:
        kernel.close()
    if seen != _CALLS:
        return Check(
            name, Status.FAIL, f"{seen} of {_CALLS} calls arrived", "see docs/troubleshooting.md"
        )
    return _ok(name, f"{seen} of {_CALLS} calls arrived")


def check_uprobe_multi() -> Check:
    """Attaching and detaching many probes at once."""
    name = "uprobe_multi"
    try:
        kernel = CaptureKernel()
    except (OtelGpuflameError, LibbpfError) as error:
        return Check(name, Status.FAIL, str(error), "run as root")
    supported = kernel.report.uprobe_multi
    kernel.close()
    if supported:
        return _ok(name, "supported")
    return Check(name, Status.WARN, "detaching takes about 0.1 s a probe", "Linux 6.6 or newer")


def check_tracefs() -> Check:
    """The mmap tracepoints tell when a process loads a GPU library."""
    if tracepoint_id("syscalls", "sys_enter_mmap") is None:
        return Check(
            "tracefs",
            Status.WARN,
            "no tracepoints: new libraries are found by scanning once a second",
            "mount -t tracefs tracefs /sys/kernel/tracing, or give CAP_SYS_ADMIN",
        )
    return _ok("tracefs", "syscall tracepoints found")


def check_process_memory() -> Check:
    """Python frames and names are read from other processes' memory.

    By capability and not by trying: some hosts seal pid 1, and our own processes prove nothing.
    """
    name = "process memory"
    effective = _effective_capabilities()
    if effective & 1 << _CAP_SYS_PTRACE:
        return _ok(name, "CAP_SYS_PTRACE")
    return Check(
        name,
        Status.FAIL,
        "no CAP_SYS_PTRACE: other users' processes cannot be read",
        "run as root, or give CAP_SYS_PTRACE",
    )


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def check_pid_namespace() -> Check:
    """BPF reports pids of the host: /proc must be the host's."""
    try:
        inode = Path("/proc/self/ns/pid").stat().st_ino
    except OSError as error:
        return Check("pid namespace", Status.FAIL, str(error), "mount /proc")
    if inode == _INITIAL_PID_NAMESPACE:
        return _ok("pid namespace", "the host's")
    return Check(
        "pid namespace", Status.FAIL, "not the host's", "run the container with --pid=host"
    )


def check_gpu_libraries() -> Check:
    """What there is to probe."""
    name = "GPU libraries"
    libraries = (read_library(path) for path in installed_libraries(os.environ))
    found = {library.key: library for library in libraries if library is not None}.values()
    if found:
        return _ok(
            name, ", ".join(f"{library.path} ({len(library.points)} probes)" for library in found)
        )
    return Check(
        name,
        Status.WARN,
        "neither libcuda.so.1 nor an OpenCL loader is in the loader's path",
        "fine if programs bring their own; else install the GPU driver",
    )


def check_nvidia_driver() -> Check:
    """Version of the kernel module, where there is one."""
    try:
        version = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return Check("NVIDIA driver", Status.WARN, "not loaded", "only needed for NVIDIA GPUs")
    return _ok("NVIDIA driver", version)


ALL: Final[tuple[Callable[[], Check], ...]] = (
    check_kernel_version,
    check_architecture,
    check_btf,
    check_libbpf,
    check_artifacts,
    check_load,
    check_uprobe,
    check_uprobe_multi,
    check_tracefs,
    check_process_memory,
    check_pid_namespace,
    check_gpu_libraries,
    check_nvidia_driver,
)
