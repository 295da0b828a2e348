# SPDX-License-Identifier: Apache-2.0
"""System calls on GPU devices. /dev/null, /dev/zero and a terminal stand in: system calls look alike on all."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from otel_gpuflame.events.apis import SYSTEM_CALLS
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import DeviceDriver, Kind
from otel_gpuflame.profile.ledger import Account
from otel_gpuflame.profile.sample_types import GPU_DRIVER
from tests.integration.bpf.apps import device_calls
from tests.integration.bpf.recording import Recording, app, record, total
from tests.integration.bpf.session import POLLING, attached, finished, record_in_step, running

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

IDS: Final = {api.name: api.id for api in SYSTEM_CALLS}
# /dev/null and /dev/zero share a major number, so one of them names both.
DRIVER_SIDE: Final = ("--no-cpu", "--driver", "--device", "/dev/null", "--device", "/dev/ptmx")


@pytest.fixture(scope="module")
def devices(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A program that calls devices, recorded; another one does the same before, and is not."""
    output = tmp_path_factory.mktemp("devices") / "devices.ogfcap"
    with running(app("device_calls", "forever"), environment) as bystander:
        bystander.truth()
        command = app("device_calls", "--hold")
        recording = record_in_step(output, *command, environment=environment, options=DRIVER_SIDE)
        bystander.go()
    assert recording.exit_code == 0, recording.stderr
    return recording


def rows_of(recording: Recording, name: str, device: int) -> CallArray:
    """Rows of one system call on one device."""
    rows = recording.capture.kind(Kind.DRIVER)
    major, minor = device >> 8 & 0xFFF, device & 0xFF
    return rows[(rows["api"] == IDS[name]) & (rows["stream"] == major << 20 | minor)]


def test_calls_on_devices_are_counted_exactly(devices: Recording) -> None:
    """Every ioctl, poll, ppoll and mmap of a device is there once, and none of a pipe or of plain memory."""
    null, zero, terminal = (devices.truth[name] for name in ("null", "zero", "terminal"))
    asked = rows_of(devices, "ioctl", null)
    asked = asked[asked["object"] == device_calls.COMMAND]
    assert len(asked) == device_calls.IOCTLS == 23
    rows = devices.capture.kind(Kind.DRIVER)
    assert device_calls.OTHER_COMMAND not in rows["object"].tolist()
    assert len(rows_of(devices, "poll", null)) == device_calls.POLLS
    assert len(rows_of(devices, "ppoll", null)) == device_calls.PPOLLS
    mapped = rows_of(devices, "mmap", zero)
    assert mapped["bytes"].tolist() == [8192] * device_calls.MMAPS
    assert len(rows_of(devices, "poll", terminal)) == 1
    assert set(rows["grid"][:, 0].tolist()) == {DeviceDriver.OTHER}


def test_books_of_device_calls_balance(devices: Recording) -> None:
    """What was seen is in the file and in the profile, to the nanosecond."""
    rows = devices.capture.kind(Kind.DRIVER)
    assert devices.capture.pending() == {}
    assert devices.result.ledger.accounts() == (Account("driver", len(rows), len(rows), (), 0),)
    assert total(devices.samples(GPU_DRIVER)) == int((rows["end_ns"] - rows["start_ns"]).sum())


def test_a_command_has_its_name_line_and_time(devices: Recording) -> None:
    """The leaf is the command, the line is the program's, and the time is inside what it has measured."""
    samples = [s for s in devices.samples(GPU_DRIVER) if "[ioctl 0x1234 on-CPU]" in s.marks()]
    assert samples
    for sample in samples:
        assert [frame.name for frame in sample.frames[-3:-1]] == ["ioctl", "sys_ioctl"]
        assert "ask_driver" in dict(sample.python())
    assert 0 < total(samples) <= devices.truth["ioctl_ns"]


def test_a_wait_for_a_device_is_blocked(devices: Recording) -> None:
    """A poll of 200 ms that nothing answers: as long as asked for, and no longer than measured."""
    samples = [s for s in devices.samples(GPU_DRIVER) if "[poll blocked]" in s.marks()]
    assert {s.python()[-1][0] for s in samples} == {"wait_for_device"}
    asked_ns = device_calls.BLOCKED_MS * 1_000_000
    assert 0.98 * asked_ns <= total(samples) <= devices.truth["waited_ns"]
    (row,) = rows_of(devices, "poll", devices.truth["terminal"])
    assert row["voluntary_switches"] >= 1


def test_other_processes_and_devices_are_left_alone(devices: Recording) -> None:
    """The bystander made the same calls."""
    assert set(devices.capture.rows["tgid"].tolist()) == {devices.truth["pid"]}


def test_without_device_numbers_nothing_is_taken(output: Path, environment: dict[str, str]) -> None:
    """/dev/null is no GPU, unless somebody says so."""
    options = ("--no-cpu", "--driver")
    recording = record(output, *app("device_calls"), environment=environment, options=options)
    assert recording.exit_code == 0, recording.stderr
    assert len(recording.capture.rows) == 0


def test_a_call_that_a_kill_ends_is_complete(output: Path, environment: dict[str, str]) -> None:
    """The kernel returns from a poll before the process dies of the signal: it lasted until then."""
    with running(app("device_calls", "forever"), environment) as target:
        target.truth()
        with attached(output, target.process.pid, *DRIVER_SIDE) as recorder:
            target.go()
            target.wait_for(lambda: "waiting" in target.stdout.text(), "the program to go on")
            call = Path(f"/proc/{target.process.pid}/syscall")
            target.wait_for(lambda: call.read_text().split(" ", 1)[0] in POLLING, "it to wait")
            target.process.kill()
            recording = finished(recorder, output)
    assert recording.exit_code == 0, recording.stderr
    assert recording.capture.pending() == {}
    samples = recording.samples(GPU_DRIVER)
    assert total(samples) > 0
    assert {sample.frames[-1].name for sample in samples} == {"[poll blocked]"}
