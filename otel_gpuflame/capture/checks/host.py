"""Where checks look, and how they try things: a test puts others in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from otel_gpuflame.capture.bpf.backend import LoadReport
from otel_gpuflame.capture.bpf.drain import LIBRARY as DRAIN_LIBRARY
from otel_gpuflame.capture.bpf.kernel import OBJECT
from otel_gpuflame.capture.bpf.tracefs import tracepoint_id
from otel_gpuflame.capture.checks import trials
from otel_gpuflame.capture.checks.gpu_state import mig_modes
from otel_gpuflame.capture.libraries import GpuLibrary, installed_libraries, read_library
from otel_gpuflame.symbolize.unwind.table import LIBRARY as UNWIND_LIBRARY


def _library(path: Path) -> GpuLibrary | None:
    try:
        return read_library(path)
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This host, unless told otherwise.

    Functions raise OSError or OtelGpuflameError where the host refuses.
    """

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    release: str = field(default_factory=lambda: os.uname().release)
    machine: str = field(default_factory=lambda: os.uname().machine)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    native_parts: tuple[Path, ...] = (OBJECT, DRAIN_LIBRARY, UNWIND_LIBRARY)

    libbpf_version: Callable[[], str] = trials.libbpf_version
    bcc: Callable[[], str] = trials.bcc_in_use
    load_programs: Callable[[], LoadReport] = trials.load_programs
    count_probed_calls: Callable[[int], int] = trials.count_probed_calls
    tracepoint_id: Callable[[str, str], int | None] = tracepoint_id
    lockdown: Callable[[], str | None] = trials.lockdown

    create_privileged_map: Callable[[], None] = trials.create_privileged_map
    load_tracing_program: Callable[[], None] = trials.load_tracing_program
    open_cpu_sampler: Callable[[], None] = trials.open_cpu_sampler
    read_guarded_process: Callable[[], None] = trials.read_guarded_process
    open_unreadable_file: Callable[[], None] = trials.open_unreadable_file
    open_mapped_file: Callable[[], None] = trials.open_mapped_file
    read_memory_file: Callable[[], None] = trials.read_memory_file
    create_ring: Callable[[int], None] = trials.create_ring
    locked_memory_limit: Callable[[], int | None] = trials.locked_memory_limit
    load_injected_library: Callable[[], Path] = trials.load_injected_library

    installed_libraries: Callable[[Mapping[str, str]], list[Path]] = installed_libraries
    read_library: Callable[[Path], GpuLibrary | None] = _library
    mig_modes: Callable[[], list[bool] | None] = mig_modes
