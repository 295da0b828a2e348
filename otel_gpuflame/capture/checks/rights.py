"""Rights, each tried by an operation that it guards: a capability may be there and yet not help (seccomp, LSMs)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Check, Status, fail, ok, skip, warn
from otel_gpuflame.errors import OtelGpuflameError

_RING_BYTES: Final = 16 << 20
"""The largest map of a capture."""
_SMALL_RING_BYTES: Final = 1 << 16
"""A whole number of pages everywhere."""
_MIB: Final = 1 << 20


def check_cap_bpf(host: Host) -> Check:
    """BPF maps and programs at all."""
    return _right(
        "CAP_BPF",
        host.create_privileged_map,
        done="a guarded map was created",
        without=(Status.FAIL, "BPF maps cannot be created"),
    )


def check_cap_perfmon(host: Host) -> Check:
    """BPF programs that trace."""
    return _right(
        "CAP_PERFMON",
        host.load_tracing_program,
        done="a tracing program was loaded",
        without=(Status.FAIL, "tracing programs cannot be loaded, which needs CAP_BPF too"),
    )


def check_cap_sys_ptrace(host: Host) -> Check:
    """Memory of processes of other users, which Python frames and names are read from."""
    return _right(
        "CAP_SYS_PTRACE",
        host.read_guarded_process,
        done="a guarded process was read",
        without=(
            Status.FAIL,
            "other users' processes cannot be read: no Python frames, no names, no description",
        ),
    )


def check_cap_dac_read_search(host: Host) -> Check:
    """Files of other users: libraries, /proc/PID/environ, /proc/PID/mem."""
    return _right(
        "CAP_DAC_READ_SEARCH",
        host.open_unreadable_file,
        done="a file was opened against its mode",
        without=(Status.WARN, "files stay closed that only their owner, another user, may read"),
    )


def check_cap_checkpoint_restore(host: Host) -> Check:
    """Files that are mapped, and have been deleted or replaced since."""
    return _right(
        "CAP_CHECKPOINT_RESTORE",
        host.open_mapped_file,
        done="a file was opened by where it is mapped",
        without=(
            Status.WARN,
            "no symbols of libraries that were replaced while in use, as by an upgrade",
        ),
    )


def check_perf_events(host: Host) -> Check:
    """Samples of the CPU."""
    name = "perf events"
    setting = _text(host.proc / "sys/kernel/perf_event_paranoid")
    try:
        host.open_cpu_sampler()
    except OSError as error:
        return warn(
            name,
            f"no CPU samples: {error.strerror} (kernel.perf_event_paranoid={setting})",
            "give CAP_PERFMON, or sysctl kernel.perf_event_paranoid=0",
        )
    return ok(name, f"99 Hz on a CPU (kernel.perf_event_paranoid={setting})")


def check_locked_memory(host: Host) -> Check:
    """Memory for BPF: charged to the memory cgroup, or before Linux 5.11 to RLIMIT_MEMLOCK."""
    name = "locked memory"
    limit = host.locked_memory_limit()
    limit_text = "unlimited" if limit is None else f"{limit // 1024} KiB"
    try:
        host.create_ring(_SMALL_RING_BYTES)
    except OSError as error:
        return skip(name, f"cannot be tried: {error.strerror}, whatever the size")
    try:
        host.create_ring(_RING_BYTES)
    except OSError as error:
        return fail(
            name,
            f"no ring of {_RING_BYTES // _MIB} MiB: {error.strerror} (RLIMIT_MEMLOCK {limit_text})",
            "raise the memory limit of the container; ulimit -l unlimited or LimitMEMLOCK=infinity",
        )
    return ok(name, f"a ring of {_RING_BYTES // _MIB} MiB (RLIMIT_MEMLOCK {limit_text})")


def _right(
    name: str, trial: Callable[[], None], *, done: str, without: tuple[Status, str]
) -> Check:
    try:
        trial()
    except (OtelGpuflameError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        severity, consequence = without
        return Check(name, severity, f"{consequence} ({reason})", f"run as root, or give {name}")
    return ok(name, done)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "unknown"
