"""GPU times: the library that is injected into programs, and whether a program has it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Check, ok, skip, warn
from otel_gpuflame.capture.cupti import messages
from otel_gpuflame.capture.cupti.errors import InUseError, NotOursError, RegionError
from otel_gpuflame.capture.cupti.find import open_region, region_descriptors
from otel_gpuflame.capture.cupti.inject import LIBRARY, VARIABLE
from otel_gpuflame.capture.cupti.region import Heads, Region
from otel_gpuflame.capture.describe.environment import read_environment
from otel_gpuflame.capture.libraries import is_gpu_library
from otel_gpuflame.errors import OtelGpuflameError
from otel_gpuflame.events.wire_gpu import LibraryState
from otel_gpuflame.symbolize.maps import read_maps

_START: Final = 'start it by record -- COMMAND, or after eval "$(otel-gpuflame env)"'


def check_injected_library(host: Host) -> Check:
    """It is there, and loads: its functions and their versions are found."""
    name = "GPU time library"
    try:
        return ok(name, str(host.load_injected_library()))
    except (OtelGpuflameError, OSError) as error:
        return warn(
            name,
            f"no GPU times: {error}",
            "make native, or reinstall the package where a C compiler is",
        )


def check_target_gpu_times(host: Host, pid: int) -> Check:
    """Whether the target's region can be opened, and what the library in it says."""
    name = "target's GPU times"
    try:
        heads = _heads(host.proc, pid)
    except PermissionError as error:
        return warn(
            name, f"cannot be read: {error.strerror}", "run as root, or give CAP_SYS_PTRACE"
        )
    except InUseError:
        return ok(name, "another exporter reads them now")
    except (RegionError, OSError) as error:
        return warn(name, f"cannot be read: {error}", "restart it with the library of this version")
    if heads is None:
        return _without_region(host, pid)
    if heads.state == LibraryState.UNUSABLE:
        text, _, remedy = messages.unusable(heads.error, heads.cupti_result).partition(": ")
        return warn(name, text, remedy)
    return ok(name, f"the library is in it, and {_state_name(heads.state)}")


def _heads(proc: Path, pid: int) -> Heads | None:
    """Of the target's region; None where it has none."""
    for path in region_descriptors(pid, proc):
        try:
            region = Region(open_region(path, pid, proc))
        except NotOursError:
            continue
        heads = region.heads()
        region.close()
        return heads
    return None


def _without_region(host: Host, pid: int) -> Check:
    name = "target's GPU times"
    try:
        path = read_environment(pid, host.proc).get(VARIABLE, "")
    except OSError as error:
        return warn(
            name,
            f"its environment cannot be read: {error.strerror}",
            "run as root, or give CAP_SYS_PTRACE",
        )
    if os.path.basename(path) != LIBRARY.name:
        held = f"{VARIABLE} is {path}" if path else f"{VARIABLE} is not set"
        return warn(name, f"not to be had: {held}", _START)
    maps = read_maps(pid, host.proc)
    paths = [mapping.path for mapping in maps.mappings] if maps else []
    if not any(is_gpu_library(each) for each in paths):
        return skip(name, "it has not loaded libcuda.so.1 yet")
    if not Path(f"{host.proc}/{pid}/root{path}").is_file():
        return warn(
            name, f"{path} is not in its file system", "give the path as the target sees it"
        )
    return warn(
        name,
        "its driver has not loaded the library",
        "fine if it has not called cuInit yet; else look into the library by LD_DEBUG=libs",
    )


def _state_name(state: int) -> str:
    try:
        return LibraryState(state).name.lower().replace("_", " ")
    except ValueError:
        return f"in state {state}"
