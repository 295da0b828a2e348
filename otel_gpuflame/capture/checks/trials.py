"""Operations that checks try. Each raises OSError or OtelGpuflameError where the host refuses it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.bpf import perf_events
from otel_gpuflame.capture.bpf.backend import LoadReport
from otel_gpuflame.capture.bpf.bcc_module import find_headers, load_bcc
from otel_gpuflame.capture.bpf.drain import LIBRARY as DRAIN_LIBRARY
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.bpf.library import choose_library
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.programs import Feature
from otel_gpuflame.capture.bpf.tracefs import detached_mount
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.capture.checks import system_calls
from otel_gpuflame.capture.cupti.inject import library_path
from otel_gpuflame.capture.devices import nvidia_is_loaded
from otel_gpuflame.capture.libraries import file_offset_of
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events import wire
from otel_gpuflame.events.apis import CPU_SAMPLES_HZ
from otel_gpuflame.symbolize.memory import ProcessMemory

# A function that nothing calls while no ring is drained.
_OWN_FUNCTION: Final = "ogf_drain_malformed"
_LOCKDOWN: Final = Path("/sys/kernel/security/lockdown")
_SECRET: Final = b"otel_gpuflame doctor"
# A process that is not dumpable may only be read with CAP_SYS_PTRACE, whoever it belongs to.
_GUARDED_PROCESS: Final = f"""
import ctypes, sys
secret = ctypes.create_string_buffer({_SECRET!r})
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
print(ctypes.addressof(secret), flush=True)
sys.stdin.read()
"""


def libbpf_version() -> str:
    """Version of the library that is used, and which one that is."""
    library = choose_library()
    return f"{library.version} ({library.origin})"


def bcc_in_use() -> str:
    """Version of the distribution's BCC, and the headers that it compiles with."""
    return f"{load_bcc().__version__}, headers in {find_headers(os.environ)}"


def load_programs() -> LoadReport:
    """Load and attach everything that does not belong to a library, then let go of it."""
    features = set(Feature) - (set() if nvidia_is_loaded() else {Feature.ERRORS})
    kernel = CaptureKernel(features=features)
    kernel.close()
    return kernel.report


def count_probed_calls(calls: int) -> int:
    """Probe a function of our own, call it `calls` times, and count what arrives."""
    offset = file_offset_of(DRAIN_LIBRARY, _OWN_FUNCTION)
    if offset is None:
        raise SourceUnavailable(f"{DRAIN_LIBRARY} has no {_OWN_FUNCTION}: run `make bpf`")
    kernel = CaptureKernel()
    try:
        cookie = wire.Kind.WAIT << wire.CookieShift.KIND
        kernel.targets.set(os.getpid().to_bytes(4, "little"), np.zeros(1, wire.TARGET).tobytes())
        kernel.uprobes.attach("own", DRAIN_LIBRARY, [ProbePoint(Program.CALL, offset, cookie)])
        drain = kernel.open_drain()
        for _ in range(calls):
            drain.malformed(0)
        drain.swap(0)
        seen = len(drain.data(0)) // wire.CALL.itemsize
        drain.close()
    finally:
        kernel.close()
    return seen


def lockdown() -> str | None:
    """Text of the kernel's lockdown file, whether or not securityfs is mounted; None where it cannot be read."""
    with contextlib.suppress(OSError):
        return _LOCKDOWN.read_text()
    mount = detached_mount("securityfs")
    if mount is None:
        return None
    try:
        return Path(f"/proc/self/fd/{mount}/lockdown").read_text()
    except FileNotFoundError:
        return ""
    except OSError:
        return None
    finally:
        os.close(mount)


def create_privileged_map() -> None:
    """A least-recently-used hash, which CAP_BPF guards even where unprivileged BPF is enabled."""
    os.close(system_calls.create_map(system_calls.MAP_LRU_HASH, key=4, value=4, entries=16))


def create_ring(size_bytes: int) -> None:
    """A ring buffer."""
    os.close(system_calls.create_map(system_calls.MAP_RINGBUF, key=0, value=0, entries=size_bytes))


def load_tracing_program() -> None:
    """A program of two instructions of a type that CAP_PERFMON guards, beside CAP_BPF."""
    os.close(system_calls.load_empty_tracepoint_program())


def open_cpu_sampler() -> None:
    """A sampler of all processes of a CPU: by capability, or by perf_event_paranoid."""
    os.close(perf_events.open_cpu_sampler(min(os.sched_getaffinity(0)), CPU_SAMPLES_HZ))


def read_guarded_process() -> None:
    """Memory of a process that only CAP_SYS_PTRACE opens. No file is involved, whose mode would play a part."""
    with _guarded_process() as (pid, address):
        if system_calls.read_process(pid, address, len(_SECRET)) != _SECRET:
            raise OSError(errno.EIO, "another process was read")


def read_memory_file() -> None:
    """The same as capture does it: through /proc/PID/mem."""
    with _guarded_process() as (pid, address):
        memory = ProcessMemory(pid, Path("/proc"))
        try:
            if not memory.is_open:
                raise OSError(errno.EACCES, "/proc/PID/mem cannot be opened")
            if memory.read(address, len(_SECRET)) != _SECRET:
                raise OSError(errno.EIO, "/proc/PID/mem cannot be read")
        finally:
            memory.close()


def open_unreadable_file() -> None:
    """A file that nobody may read, by its mode."""
    fd = os.memfd_create("otel_gpuflame_doctor", os.MFD_CLOEXEC)
    try:
        os.fchmod(fd, 0)
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
    finally:
        os.close(fd)


def open_mapped_file() -> None:
    """A file of our own by the range that it is mapped at, as files that have been deleted are reached."""
    own_range = next(Path("/proc/self/map_files").iterdir())
    os.close(os.open(own_range, os.O_RDONLY | os.O_CLOEXEC))


def load_injected_library() -> Path:
    """Load what is injected into programs, which does nothing until a driver calls it; where it is."""
    path = library_path()
    try:
        ctypes.CDLL(str(path))["InitializeInjection"]
    except AttributeError as error:
        raise SourceUnavailable(f"{path} has no InitializeInjection") from error
    return path


def locked_memory_limit() -> int | None:
    """RLIMIT_MEMLOCK in bytes, None where there is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY else limit


@contextlib.contextmanager
def _guarded_process() -> Iterator[tuple[int, int]]:
    """A process that cannot be read without the right to, and the address of a secret in it."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARDED_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            address = child.stdout.readline().strip() if child.stdout else ""
            if not address.isdigit():
                raise OSError(errno.ECHILD, f"{sys.executable} does not run")
            yield child.pid, int(address)
        finally:
            child.kill()
