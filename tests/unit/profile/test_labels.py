"""Frames of the driver call: how many are kept of what programs choose."""

from __future__ import annotations

from otel_gpuflame.correlate.waits import WaitMode
from otel_gpuflame.events import apis
from otel_gpuflame.events.wire import DeviceDriver
from otel_gpuflame.profile import labels
from tests.held import held


def test_frames_of_commands_that_a_program_made_up_are_not_kept_for_ever() -> None:
    """A loop over all numbers of an ioctl has a name for each: the last 4,096 are kept."""
    api = next(number for number, each in apis.BY_ID.items() if each.name == "ioctl")
    names = []
    for number in range(20_000):
        subject = DeviceDriver.NVIDIA << 32 | 0x10000 + number
        names.append(labels.device_call_frame(api, subject, WaitMode.BLOCKED).name)
    assert names[7] == "[ioctl 0x10007 blocked]"
    assert held(names) <= 4_096
