"""Names of device commands, from what programs really pass."""

from __future__ import annotations

import pytest

from otel_gpuflame.events.wire import DeviceDriver
from otel_gpuflame.profile.device_commands import command_name

# _IOC(read and write, letter, number, size) of 64-bit programs.
NVIDIA_CONTROL = 3 << 30 | 32 << 16 | ord("F") << 8 | 0x2A
DRM_SYNCOBJ_WAIT = 3 << 30 | 40 << 16 | ord("d") << 8 | 0xC3
KFD_WAIT_EVENTS = 3 << 30 | 24 << 16 | ord("K") << 8 | 0x0C


@pytest.mark.parametrize(
    ("driver", "command", "name"),
    [
        (DeviceDriver.NVIDIA, NVIDIA_CONTROL, "NV_ESC_RM_CONTROL"),
        (DeviceDriver.NVIDIA, NVIDIA_CONTROL + (8 << 16), "NV_ESC_RM_CONTROL"),
        (DeviceDriver.NVIDIA, 0xC00046C9, "NV_ESC_REGISTER_FD"),
        (DeviceDriver.NVIDIA, 0xC00046FF, "ioctl 0xc00046ff"),
        (DeviceDriver.NVIDIA, 0x2A, "ioctl 0x2a"),
        (DeviceDriver.NVIDIA_UVM, 0x30000001, "UVM_INITIALIZE"),
        (DeviceDriver.NVIDIA_UVM, 33, "UVM_MAP_EXTERNAL_ALLOCATION"),
        (DeviceDriver.NVIDIA_UVM, NVIDIA_CONTROL, "ioctl 0xc020462a"),
        (DeviceDriver.DRM, DRM_SYNCOBJ_WAIT, "DRM_IOCTL_SYNCOBJ_WAIT"),
        (DeviceDriver.DRM, 0x40006440, "DRM driver command 0x0"),
        (DeviceDriver.DRM, 0x4000649F, "DRM driver command 0x5f"),
        (DeviceDriver.DRM, 0x400064A0, "ioctl 0x400064a0"),
        (DeviceDriver.KFD, KFD_WAIT_EVENTS, "AMDKFD_IOC_WAIT_EVENTS"),
        (DeviceDriver.OTHER, NVIDIA_CONTROL, "ioctl 0xc020462a"),
        (0, 0, "ioctl 0x0"),
        (2**32 - 1, 0x462A, "ioctl 0x462a"),
    ],
)
def test_commands_are_named_by_their_driver(driver: int, command: int, name: str) -> None:
    """The letter must be the driver's own, the size does not matter, and what is unknown shows its value."""
    assert command_name(driver, command) == name
