"""A made-up host on which every check is content."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from otel_gpuflame.capture.bpf.backend import LoadReport
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.libraries import GpuLibrary
from otel_gpuflame.errors import SourceUnavailable

FILES = {
    "sys/kernel/btf/vmlinux": b"\x9f\xeb\x01\x00",
    "proc/sys/kernel/perf_event_paranoid": b"2\n",
    "proc/self/cgroup": b"0::/system.slice/otel-gpuflame.service\n",
    "proc/driver/nvidia/version": b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159\nGCC 13\n",
    "proc/driver/nvidia/params": b"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n",
    "parts/capture.bpf.o": b"",
    "parts/libogf_drain.so": b"",
}
LIBRARY = GpuLibrary(Path("/usr/lib/libcuda.so.1"), (ProbePoint(Program.CALL, 16, 0),))


def healthy(root: Path, **changes: Any) -> Host:
    """The host; `changes` are fields of it."""
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "proc/self/ns").mkdir()
    os.symlink("pid:[4026531836]", root / "proc/self/ns/pid")
    fields: dict[str, Any] = {
        "proc": root / "proc",
        "sys": root / "sys",
        "release": "6.18.44-amd64",
        "machine": "x86_64",
        "environment": {},
        "native_parts": (root / "parts/capture.bpf.o", root / "parts/libogf_drain.so"),
        "libbpf_version": lambda: "v1.3",
        "bcc": lambda: "0.26.0, headers in /lib/modules/6.18.44-amd64/build",
        "load_programs": lambda: LoadReport("v1.3", uprobe_multi=True),
        "count_probed_calls": lambda calls: calls,
        "tracepoint_id": lambda _category, _name: 7,
        "lockdown": lambda: "none [integrity] confidentiality\n",
        "create_privileged_map": nothing,
        "load_tracing_program": nothing,
        "open_cpu_sampler": nothing,
        "read_guarded_process": nothing,
        "open_unreadable_file": nothing,
        "open_mapped_file": nothing,
        "read_memory_file": nothing,
        "create_ring": lambda _size: None,
        "locked_memory_limit": lambda: 8 << 20,
        "load_injected_library": lambda: Path("/opt/libogf_inject.so"),
        "installed_libraries": lambda _environment: [LIBRARY.path],
        "read_library": lambda _path: LIBRARY,
        "mig_modes": lambda: [False, False],
    }
    return Host(**(fields | changes))


def nothing() -> None:
    """What was tried worked."""


def refused(code: int = errno.EPERM) -> Callable[..., Any]:
    """A trial that the kernel answers with `code`."""

    def trial(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return trial


def unavailable(text: str) -> Callable[..., Any]:
    """A trial that we give up, and say why."""

    def trial(*_: object) -> None:
        raise SourceUnavailable(text)

    return trial
