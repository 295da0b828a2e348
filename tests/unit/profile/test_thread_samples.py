"""CPU samples, off-CPU times and device calls as samples: frames, values, links, losses."""

from __future__ import annotations

import pytest

from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events.frames import FrameKind, Stack, StackKey
from otel_gpuflame.events.records import CallArray, Stacks
from otel_gpuflame.events.wire import DeviceDriver, Kind, OffCpuState
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import Link
from otel_gpuflame.profile.sample_types import (
    CPU_PERIOD,
    CPU_SAMPLES,
    GPU_DRIVER,
    GPU_LAUNCH,
    GPU_WAIT,
    OFF_CPU,
    period,
)
from otel_gpuflame.profile.top import top_python_lines
from tests.unit.profile.builders import (
    PROCESS,
    SAMPLED,
    SPAN_ID,
    TRACE_ID,
    batch,
    call,
    counters,
    leaves,
    run,
    samples,
    usual,
)

IOCTL, POLL, PPOLL, MMAP = 300, 301, 302, 303


def device_call(
    driver: int, command: int = 0, *, api: int = IOCTL, duration_ns: int = 5, switches: int = 0
) -> CallArray:
    """One system call on a GPU device."""
    return call(
        api,
        duration_ns=duration_ns,
        object=command,
        grid=[driver, 0, 0],
        voluntary_switches=switches,
    )


def test_cpu_samples_are_counted_by_stack() -> None:
    """A sample has the stack alone, since the thread itself was its leaf."""
    row = call(0, kind=Kind.CPU_SAMPLE)
    bundles, aggregator = run([*usual(), batch(row, row, row)])
    assert samples(bundles, CPU_SAMPLES) == {(("main", "step"), None): 3}
    assert not samples(bundles, GPU_LAUNCH)
    assert not samples(bundles, GPU_WAIT)
    (account,) = aggregator.ledger.accounts()
    assert (account.kind, account.seen, account.profiled) == ("cpu_sample", 3, 3)
    (row_of_table, *_) = top_python_lines(bundles, CPU_SAMPLES)
    assert (row_of_table.frame.name, row_of_table.value) == ("step", 3)


def test_a_sample_without_frames_says_so() -> None:
    """Code that could not be resolved must not become a sample without a stack."""
    key = StackKey(5, 5)
    bundles, _ = run(
        [
            *usual(),
            Stacks((Stack(key, PROCESS, ()),)),
            batch(call(0, kind=Kind.CPU_SAMPLE, key=key)),
        ]
    )
    ((frames, _),) = samples(bundles, CPU_SAMPLES)
    assert frames == ("[no frames: the thread was in code that could not be resolved]",)


@pytest.mark.parametrize(
    ("state", "leaf"),
    [
        (OffCpuState.PREEMPTED, "[preempted]"),
        (OffCpuState.INTERRUPTIBLE, "[interruptible]"),
        (OffCpuState.UNINTERRUPTIBLE, "[uninterruptible]"),
        (OffCpuState.STOPPED, "[stopped]"),
        (77, "[off the CPU]"),
    ],
)
def test_off_cpu_times_end_in_their_reason(state: int, leaf: str) -> None:
    """Nanoseconds add up under the stack, by what kept the thread off the CPU."""
    row = call(0, kind=Kind.OFF_CPU, duration_ns=2_000_000, bytes=state)
    bundles, _ = run([*usual(), batch(row, row)])
    assert samples(bundles, OFF_CPU) == {(("main", "step", leaf), None): 4_000_000}


@pytest.mark.parametrize(
    ("row", "frames"),
    [
        (
            device_call(DeviceDriver.NVIDIA, 0xC020462A, switches=1),
            ("sys_ioctl", "[NV_ESC_RM_CONTROL blocked]"),
        ),
        (device_call(DeviceDriver.NVIDIA_UVM, 51), ("sys_ioctl", "[UVM_MIGRATE on-CPU]")),
        (device_call(DeviceDriver.OTHER, 0x1234), ("sys_ioctl", "[ioctl 0x1234 on-CPU]")),
        (
            device_call(DeviceDriver.NVIDIA, api=POLL, switches=1),
            ("sys_poll", "[poll blocked]"),
        ),
        (device_call(DeviceDriver.DRM, api=PPOLL), ("sys_ppoll", "[ppoll on-CPU]")),
        (device_call(DeviceDriver.NVIDIA_UVM, api=MMAP), ("sys_mmap", "[mmap on-CPU]")),
        (
            call(9_999, kind=Kind.DRIVER, duration_ns=5),
            ("[unknown call 9999]", "[unknown call 9999 on-CPU]"),
        ),
    ],
)
def test_device_calls_end_in_their_command(row: CallArray, frames: tuple[str, ...]) -> None:
    """Below the stack: the system call, then what was asked for and how the thread spent the time."""
    bundles, _ = run([*usual(), batch(row)])
    assert samples(bundles, GPU_DRIVER) == {(("main", "step", *frames), None): 5}


def test_system_calls_are_frames_of_the_os_kernel() -> None:
    """They are not to be taken for functions of the same name in the C library."""
    bundles, _ = run([*usual(), batch(device_call(DeviceDriver.DRM, 0x6409))])
    (frame,) = [f for f in bundles[0].frames if f.name == "sys_ioctl"]
    assert frame.kind is FrameKind.OS_KERNEL


def test_commands_do_not_mix() -> None:
    """Equal numbers of two drivers, and equal commands that were spent differently, stay apart."""
    rows = [
        device_call(DeviceDriver.NVIDIA_UVM, 27, duration_ns=1),
        device_call(DeviceDriver.OTHER, 27, duration_ns=2),
        device_call(DeviceDriver.NVIDIA_UVM, 27, duration_ns=4, switches=1),
        device_call(DeviceDriver.NVIDIA_UVM, 27, duration_ns=8),
    ]
    bundles, _ = run([*usual(), batch(*rows)])
    assert leaves(bundles, GPU_DRIVER) == {
        "[UVM_REGISTER_CHANNEL on-CPU]": 9,
        "[ioctl 0x1b on-CPU]": 2,
        "[UVM_REGISTER_CHANNEL blocked]": 4,
    }


def test_thread_samples_carry_their_span() -> None:
    """A CPU sample belongs to the span that was active in the thread, as a call does."""
    row = call(0, kind=Kind.CPU_SAMPLE, flags=SAMPLED, trace_id=TRACE_ID, span_id=SPAN_ID)
    options = AggregateOptions(window_ns=None, span_link=SpanLink.ACTIVE)
    bundles, _ = run([*usual(), batch(row)], options)
    assert samples(bundles, CPU_SAMPLES) == {(("main", "step"), Link(TRACE_ID, SPAN_ID)): 1}


def test_lost_samples_are_visible() -> None:
    """Each lost sample is one in the profile; lost times have no known value, and are in the books only."""
    lost = counters(
        cpu_sample={"seen": 3, "ring_full": 2},
        off_cpu={"seen": 4, "ring_full": 4},
    )
    bundles, aggregator = run([*usual(), batch(call(0, kind=Kind.CPU_SAMPLE)), lost])
    assert leaves(bundles, CPU_SAMPLES) == {"step": 1, "[lost: ring full]": 2}
    assert not samples(bundles, OFF_CPU)
    lost_by_kind = {account.kind: account.lost for account in aggregator.ledger.accounts()}
    assert lost_by_kind == {"cpu_sample": 2, "off_cpu": 4}


def test_periods_make_backends_know_the_profiles() -> None:
    """CPU samples are 1/99 s of CPU time each, off-CPU profiles are known by having no period."""
    assert period(CPU_SAMPLES) == CPU_PERIOD
    assert (CPU_PERIOD.type, CPU_PERIOD.value) == (("cpu", "nanoseconds"), 10_101_010)
    assert period(OFF_CPU) is None
    for sample_type in (GPU_WAIT, GPU_DRIVER, GPU_LAUNCH):
        exact = period(sample_type)
        assert exact is not None
        assert (exact.type, exact.value) == (("gpu", "nanoseconds"), 1)
