"""All checks in the order in which they are read: first what everything else needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Final

from otel_gpuflame.capture.checks import bpf, gpu, gpu_times, platform, processes, rights, target
from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Check, Status, fail
from otel_gpuflame.doctor.collector import check_collector
from otel_gpuflame.export import OtlpOptions

OF_HOST: Final[tuple[Callable[[Host], Check], ...]] = (
    platform.check_kernel_version,
    platform.check_architecture,
    platform.check_btf,
    platform.check_lockdown,
    bpf.check_libbpf,
    bpf.check_native_parts,
    bpf.check_load,
    bpf.check_uprobes,
    bpf.check_uprobe_multi,
    bpf.check_bcc,
    bpf.check_tracepoints,
    rights.check_perf_events,
    rights.check_cap_bpf,
    rights.check_cap_perfmon,
    rights.check_cap_sys_ptrace,
    rights.check_cap_dac_read_search,
    rights.check_cap_checkpoint_restore,
    rights.check_locked_memory,
    processes.check_process_memory,
    processes.check_pid_namespace,
    processes.check_cgroups,
    gpu.check_gpu_libraries,
    gpu.check_nvidia_driver,
    gpu.check_profiling_rights,
    gpu.check_mig,
    gpu_times.check_injected_library,
)
OF_TARGET: Final[tuple[Callable[[Host, int], Check], ...]] = (
    target.check_target_libraries,
    target.check_static_cudart,
    gpu_times.check_target_gpu_times,
    target.check_interpreter,
    target.check_span,
    target.check_service_name,
)


def run_checks(
    host: Host | None = None, *, pid: int | None = None, receiver: OtlpOptions | None = None
) -> Iterator[Check]:
    """Each check as soon as it is done: of the host, of process `pid`, and of `receiver`."""
    host = host or Host()
    # Loading takes a moment, and two checks look at its result.
    host = replace(host, load_programs=cache(host.load_programs))
    for check in OF_HOST:
        yield _guarded(partial(check, host))
    if pid is not None:
        yield from _of_target(host, pid)
    yield _guarded(partial(check_collector, receiver))


def has_failed(checks: Iterable[Check]) -> bool:
    """Whether capture cannot work, or what was asked for does not."""
    return any(check.status is Status.FAIL for check in checks)


def _of_target(host: Host, pid: int) -> Iterator[Check]:
    """Nothing about a process that is not there."""
    first = _guarded(partial(target.check_target, host, pid))
    yield first
    if first.status is Status.OK:
        for check in OF_TARGET:
            yield _guarded(partial(check, host, pid))


def _guarded(check: partial[Check]) -> Check:
    """One check that breaks must not hide the others."""
    try:
        return check()
    except Exception as error:
        name = check.func.__name__.removeprefix("check_").replace("_", " ")
        return fail(
            name, f"the check itself failed: {type(error).__name__}: {error}", "please report this"
        )
