"""GPU libraries and drivers of this host."""

from __future__ import annotations

import re

from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Check, ok, skip, warn

_NO_DRIVER = "no NVIDIA driver is loaded"


def check_gpu_libraries(host: Host) -> Check:
    """What there is to probe."""
    name = "GPU libraries"
    # Most are links to one file.
    paths = {path.resolve(): path for path in host.installed_libraries(host.environment)}
    found = [each for path in paths.values() if (each := host.read_library(path)) is not None]
    if found:
        return ok(
            name, ", ".join(f"{library.path} ({len(library.points)} probes)" for library in found)
        )
    return warn(
        name,
        "neither libcuda.so.1 nor an OpenCL loader is in the loader's path",
        "fine if programs bring their own; else install the GPU driver",
    )


def check_nvidia_driver(host: Host) -> Check:
    """Version of the kernel module, where there is one."""
    try:
        text = (host.proc / "driver/nvidia/version").read_text()
    except OSError:
        return warn("NVIDIA driver", "not loaded", "only needed for NVIDIA GPUs")
    return ok("NVIDIA driver", text.splitlines()[0] if text else "of unknown version")


def check_profiling_rights(host: Host) -> Check:
    """Stall reasons are sampled inside the target, which needs the driver's permission; calls and waits do not."""
    name = "GPU profiling rights"
    try:
        text = (host.proc / "driver/nvidia/params").read_text()
    except OSError:
        return skip(name, _NO_DRIVER)
    match = re.search(r"^RmProfilingAdminOnly: (\d+)$", text, re.MULTILINE)
    if match is None:
        return warn(
            name,
            "the driver does not say who may sample stall reasons",
            "calls and waits do not need it; try NVIDIA driver 418.43 or newer",
        )
    if match[1] == "0":
        return ok(name, "everybody may sample stall reasons (RmProfilingAdminOnly 0)")
    return warn(
        name,
        f"only targets with CAP_SYS_ADMIN can have stall reasons (RmProfilingAdminOnly {match[1]})",
        "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > /etc/modprobe.d/nvidia-profiling.conf, "
        "and reload the driver",
    )


def check_mig(host: Host) -> Check:
    """Partitioned GPUs have no per-process utilisation; calls and waits are seen as ever."""
    modes = host.mig_modes()
    if modes is None:
        return skip("MIG", _NO_DRIVER)
    if any(modes):
        return warn(
            "MIG",
            f"{sum(modes)} of {len(modes)} GPUs are partitioned: no utilisation by process",
            "calls and waits are not affected; nvidia-smi -mig 0 ends the partition",
        )
    return ok("MIG", f"off on {len(modes)} GPUs")
