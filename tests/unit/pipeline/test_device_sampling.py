"""What becomes of the readings of devices on their way to metrics."""

from __future__ import annotations

from otel_gpuflame.capture.nvml import DeviceReadings, Reading
from otel_gpuflame.events.device_metrics import ClockReason, DeviceMetric
from otel_gpuflame.export.agent_snapshot import DeviceState
from otel_gpuflame.pipeline.device_sampling import device_states

SERVICES = {77: "train", 78: "train", 79: "serve"}


def state(*readings: Reading) -> DeviceState:
    """State of a device that says this."""
    (found,) = device_states([DeviceReadings("GPU-1", "H200", 5, readings)], SERVICES.get)
    return found


def test_what_a_device_does_not_say_is_none() -> None:
    """A value of 0 and no value are different things."""
    found = state(Reading(DeviceMetric.SM_ACTIVE, 0.0, 10))
    assert found == DeviceState(uuid="GPU-1", model="H200", sm_active=0.0)
    assert found.dram_active is None


def test_idleness_is_no_limit_of_the_clocks() -> None:
    """Every other reason is named, however many there are."""
    reasons = ClockReason.GPU_IDLE | ClockReason.SW_POWER_CAP | ClockReason.HW_THERMAL
    found = state(Reading(DeviceMetric.CLOCK_REASONS, float(reasons)))
    assert found.clock_limits == ("sw_power_cap", "hw_thermal")


def test_processes_of_a_service_add_up_and_strangers_are_left_out() -> None:
    """Metrics name services, whose number is bounded; a process that is no target has none."""
    processes = {77: 0.25, 78: 0.5, 79: 0.125, 4242: 1.0}
    readings = [Reading(DeviceMetric.PROCESS_SM, v, 10, pid) for pid, v in processes.items()]
    assert state(*readings).services == (("serve", 0.125), ("train", 0.75))
