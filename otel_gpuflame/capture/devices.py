"""Which device numbers are GPUs: drivers say so in /proc/devices, and users may name devices of others."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.bpf.libbpf import BpfMap
from otel_gpuflame.errors import TargetError
from otel_gpuflame.events.wire import DeviceDriver

# Names of character devices, as drivers register them. nvidia is /dev/nvidia0 and /dev/nvidiactl. Others of NVIDIA
# (nvidia-caps, nvidia-modeset, nvidia-nvswitch) configure, and no work goes through them.
_DRIVERS: Final = {
    "nvidia": DeviceDriver.NVIDIA,
    "nvidia-frontend": DeviceDriver.NVIDIA,
    "nvidia-uvm": DeviceDriver.NVIDIA_UVM,
    "drm": DeviceDriver.DRM,
    "kfd": DeviceDriver.KFD,
}


def gpu_majors(proc: Path = Path("/proc")) -> dict[int, DeviceDriver]:
    """Major numbers of GPU drivers that are loaded now; empty where /proc/devices cannot be read."""
    try:
        text = (proc / "devices").read_text()
    except OSError:
        return {}
    majors: dict[int, DeviceDriver] = {}
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit() and name in _DRIVERS:
            majors[int(number)] = _DRIVERS[name]
    return majors


def nvidia_is_loaded(proc: Path = Path("/proc")) -> bool:
    """Whether NVIDIA's driver is there now."""
    return DeviceDriver.NVIDIA in gpu_majors(proc).values()


def major_of(path: Path) -> int:
    """Major number of a device file. Raises TargetError if it is none."""
    try:
        status = path.stat()
    except OSError as error:
        raise TargetError(f"cannot look at device {path}: {error.strerror}") from error
    if not stat.S_ISCHR(status.st_mode):
        raise TargetError(
            f"{path} is not a character device: name a file of /dev, as /dev/accel/accel0"
        )
    return os.major(status.st_rdev)


class GpuDevices:
    """Keeps BPF's map of GPU device numbers in step: nvidia-uvm is often loaded by the first CUDA program."""

    def __init__(self, majors: BpfMap, proc: Path = Path("/proc")) -> None:
        self._map = majors
        self._proc = proc
        self._known: dict[int, DeviceDriver] = {}

    def add(self, paths: Sequence[Path]) -> None:
        """Count these devices, and all with the same major number, as GPUs. Raises TargetError."""
        self._write({major_of(path): DeviceDriver.OTHER for path in paths})

    def look(self) -> None:
        """Take in drivers that have been loaded since."""
        self._write(gpu_majors(self._proc))

    def _write(self, majors: dict[int, DeviceDriver]) -> None:
        for major, driver in majors.items():
            if self._known.get(major) != driver:
                self._map.set(major.to_bytes(4, "little"), int(driver).to_bytes(4, "little"))
                self._known[major] = driver
