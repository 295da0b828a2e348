"""BPF: the library, our own parts, and whether programs load, attach and deliver."""

from __future__ import annotations

from typing import Final

from otel_gpuflame.capture.bpf.bcc_module import PACKAGES as BCC_PACKAGES
from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.platform import BTF
from otel_gpuflame.capture.checks.result import Check, fail, ok, warn
from otel_gpuflame.errors import OtelGpuflameError

_CALLS: Final = 23
"""A prime number of calls, so that a double count shows."""
_TROUBLESHOOTING: Final = "see docs/troubleshooting.md"


def check_libbpf(host: Host) -> Check:
    """Found, and new enough."""
    try:
        return ok("libbpf", host.libbpf_version())
    except (OtelGpuflameError, OSError) as error:
        return fail(
            "libbpf", str(error), "apt-get install libbpf1, or set OTEL_GPUFLAME_LIBBPF to its path"
        )


def check_native_parts(host: Host) -> Check:
    """What is compiled when the package is built."""
    missing = [path.name for path in host.native_parts if not path.is_file()]
    if missing:
        return fail(
            "native parts",
            f"missing: {', '.join(missing)}",
            "make bpf native, or reinstall the package where clang and a C compiler are",
        )
    return ok("native parts", ", ".join(path.name for path in host.native_parts))


def check_load(host: Host) -> Check:
    """Load every program, and attach those that need no library."""
    name = "load BPF programs"
    try:
        missing = host.load_programs().missing
    except (OtelGpuflameError, OSError) as error:
        return fail(name, str(error), "run as root, or see the checks of single rights below")
    if missing:
        detail = "; ".join(f"{program}: {text}" for program, text in missing.items())
        return warn(name, detail, _TROUBLESHOOTING)
    return ok(name, "all loaded and attached")


def check_uprobes(host: Host) -> Check:
    """Probe a function of our own, call it, and count what arrives."""
    name = "uprobes deliver"
    try:
        seen = host.count_probed_calls(_CALLS)
    except (OtelGpuflameError, OSError) as error:
        return fail(name, str(error), "a kernel with CONFIG_UPROBES=y, and root, are needed")
    if seen != _CALLS:
        return fail(name, f"{seen} of {_CALLS} calls arrived", _TROUBLESHOOTING)
    return ok(name, f"{seen} of {_CALLS} calls arrived")


def check_uprobe_multi(host: Host) -> Check:
    """Attaching and detaching many probes at once."""
    name = "uprobe_multi"
    try:
        supported = host.load_programs().uprobe_multi
    except (OtelGpuflameError, OSError) as error:
        return fail(name, str(error), "run as root")
    if supported:
        return ok(name, "supported")
    return warn(name, "detaching takes about 0.1 s a probe", "use Linux 6.6 or newer")


def check_bcc(host: Host) -> Check:
    """The other loader: only needed where the kernel has no BTF."""
    name = "bcc loader"
    try:
        return ok(name, host.bcc())
    except (OtelGpuflameError, OSError) as error:
        if (host.sys / BTF).is_file():
            return ok(name, f"not usable, and not needed, since the kernel has BTF: {error}")
        return warn(name, str(error), BCC_PACKAGES)


def check_tracepoints(host: Host) -> Check:
    """Those of mmap tell when a process loads a GPU library."""
    if host.tracepoint_id("syscalls", "sys_enter_mmap") is None:
        return warn(
            "syscall tracepoints",
            "not found: new libraries are found by scanning once a second, time in the GPU's kernel driver is not seen",
            "mount -t tracefs tracefs /sys/kernel/tracing, or give CAP_SYS_ADMIN",
        )
    return ok("syscall tracepoints", "found")
