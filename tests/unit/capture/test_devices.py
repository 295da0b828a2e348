"""Which device numbers are GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpuflame.capture.devices import GpuDevices, gpu_majors, major_of
from otel_gpuflame.errors import TargetError
from otel_gpuflame.events.wire import DeviceDriver

DEVICES = """\
Character devices:
  1 mem
195 nvidia
195 nvidiactl
226 drm
235 nvidia-caps
507 nvidia-uvm
510 kfd

Block devices:
  7 loop
195 drm
"""


class FakeMap:
    """Remembers what is stored."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, int]] = []

    def set(self, key: bytes, value: bytes) -> bool:
        """As `BpfMap.set`."""
        self.writes.append((int.from_bytes(key, "little"), int.from_bytes(value, "little")))
        return True


def test_drivers_are_found_by_name(tmp_path: Path) -> None:
    """GPU drivers among the character devices, and no block device of the same name."""
    (tmp_path / "devices").write_text(DEVICES)
    assert gpu_majors(tmp_path) == {
        195: DeviceDriver.NVIDIA,
        226: DeviceDriver.DRM,
        507: DeviceDriver.NVIDIA_UVM,
        510: DeviceDriver.KFD,
    }


@pytest.mark.parametrize("text", ["", "Character devices:\n", "no such file"])
def test_hosts_without_gpu_have_none(tmp_path: Path, text: str) -> None:
    """Neither an empty list nor an unreadable one is an error."""
    if text != "no such file":
        (tmp_path / "devices").write_text(text)
    assert gpu_majors(tmp_path) == {}


def test_drivers_that_come_later_are_taken_in_once(tmp_path: Path) -> None:
    """nvidia-uvm is loaded by the first CUDA program; what is known is not written again."""
    devices = FakeMap()
    known = GpuDevices(devices, tmp_path)  # type: ignore[arg-type]
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n")
    known.look()
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n507 nvidia-uvm\n")
    known.look()
    known.look()
    assert devices.writes == [(195, DeviceDriver.NVIDIA), (507, DeviceDriver.NVIDIA_UVM)]


def test_users_may_name_a_device() -> None:
    """A device file stands for its major number: that of /dev/null is 1."""
    devices = FakeMap()
    GpuDevices(devices).add([Path("/dev/null")])  # type: ignore[arg-type]
    assert devices.writes == [(1, DeviceDriver.OTHER)]


@pytest.mark.parametrize(
    ("path", "reason"), [("missing", "No such file"), ("plain", "not a character device")]
)
def test_what_is_no_device_is_refused(tmp_path: Path, path: str, reason: str) -> None:
    """The message says what is wrong with the path."""
    (tmp_path / "plain").touch()
    with pytest.raises(TargetError, match=reason):
        major_of(tmp_path / path)
