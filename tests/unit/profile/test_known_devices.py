"""What is kept of devices is bounded, and what is asked for stays."""

from __future__ import annotations

from otel_gpuflame.events.executions import DeviceInfo
from otel_gpuflame.profile.known_devices import KnownDevices


def device(number: int, uuid: str = "") -> DeviceInfo:
    """One that a process has told of."""
    return DeviceInfo(index=number, uuid=uuid, model="m")


def test_devices_that_nobody_asks_for_are_forgotten() -> None:
    """A host may start processes for ever: the last 8,192 devices without UUIDs are known, and those in use."""
    known = KnownDevices()
    known.add([device(0, "GPU-0"), device(1), device(2)])
    for number in range(3, 20_000):
        known.add([device(number)])
        assert known.get(1) == device(1)
    assert known.get(0) == device(0, "GPU-0")
    assert known.get(2) is None
    assert known.get(20_000 - 8_191) == device(20_000 - 8_191)
    assert known.get(20_000 - 8_192) is None


def test_what_was_said_last_is_true() -> None:
    """NVML adds what a process does not know."""
    known = KnownDevices()
    known.add([device(0, "GPU-0")])
    known.add([device(0, "MIG-0")])
    assert known.get(0) == device(0, "MIG-0")
