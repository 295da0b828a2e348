"""What a person is told about a process whose GPU times are missing, and what to do about it."""

from __future__ import annotations

from typing import Final

from otel_gpuflame.events.wire_gpu import LibraryError

_REMEDIES: Final = {
    LibraryError.NO_CUPTI: (
        "it found no libcupti: install the CUDA toolkit's (pip install nvidia-cuda-cupti-cu12, or -cu13) where the "
        "program's loader finds it"
    ),
    LibraryError.OLD_CUPTI: (
        "its libcupti lacks a function that is needed: use that of CUDA 12.0 or newer"
    ),
    LibraryError.NO_THREAD: (
        "its worker thread could not be started: raise the limit of processes (ulimit -u, pids.max)"
    ),
}
# CUptiResult of those that have a remedy of their own.
_CUPTI: Final = {
    14: (
        "NOT_COMPATIBLE",
        "use a libcupti that is not newer than the driver, or update the driver",
    ),
    35: (
        "INSUFFICIENT_PRIVILEGES",
        "load the NVIDIA driver with NVreg_RestrictProfilingToAdminUsers=0, or run the program as root",
    ),
    39: (
        "MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        "another profiler (nsys, ncu, cuda-gdb) has the process: run the program without it",
    ),
    40: (
        "VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
        "have the hypervisor's administrator enable profiling for this vGPU",
    ),
}


OTHERS_AT_WORK: Final = (
    "no GPU times while another profiler of the program uses CUPTI, torch.profiler for example: they come back when it "
    "has ended"
)
"""It would lose all that it records."""


def unusable(error: int, cupti_result: int) -> str:
    """Why the library of a process records nothing, and the remedy."""
    try:
        known = LibraryError(error)
    except ValueError:
        return f"error {error} of the library, CUPTI's result {cupti_result}: update otel-gpuflame"
    if known is not LibraryError.CUPTI_ERROR:
        remedy = _REMEDIES.get(known, "the library gave no reason: please report this")
        result = f" (CUPTI's result {cupti_result})" if cupti_result else ""
        return f"{known.name}{result}: {remedy}"
    name, remedy = _CUPTI.get(
        cupti_result,
        ("see CUptiResult", "use a libcupti that fits the driver, and no other profiler beside us"),
    )
    return f"{known.name} (CUPTI's result {cupti_result}, {name}): {remedy}"
