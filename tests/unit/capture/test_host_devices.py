"""Devices that processes and NVML both name have one number, and are called as NVML calls them."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.host_devices import HostDevices
from otel_gpuflame.events import wire_gpu
from otel_gpuflame.events.executions import NO_DEVICE
from otel_gpuflame.events.frames import ProcessKey

PROCESS = ProcessKey(7, 70)
FIRST, SECOND = (uuid.UUID(int=number) for number in (1, 2))


def rows(*identities: bytes, model: bytes = b"NVIDIA H200", processors: int = 132) -> NDArray[Any]:
    """What a process says of its devices."""
    found = np.zeros(len(identities), wire_gpu.DEVICE)
    for row, identity in zip(found, identities, strict=True):
        row["uuid"] = np.frombuffer(identity, "u1")
    found["model"], found["multiprocessors"] = model, processors
    return found


def test_nvml_before_a_process() -> None:
    """NVML gives number and UUID; the process adds what it knows besides, under that number."""
    devices = HostDevices()
    numbers, named = devices.name([(f"GPU-{SECOND}", "H200"), (f"MIG-{FIRST}", "H200")])
    assert numbers == [0, 1]
    assert [(each.uuid, each.multiprocessors) for each in named] == [
        (f"GPU-{SECOND}", 0),
        (f"MIG-{FIRST}", 0),
    ]
    numbers, (described,) = devices.learn(rows(FIRST.bytes, model=b"H200 MIG 1g.18gb"), PROCESS)
    assert numbers == [1]
    assert (described.index, described.uuid) == (1, f"MIG-{FIRST}")
    assert (described.model, described.multiprocessors) == ("H200 MIG 1g.18gb", 132)


def test_a_process_before_nvml() -> None:
    """Whether it is a MIG instance is known when NVML has said so, whatever its name looks like."""
    devices = HostDevices()
    _, (described,) = devices.learn(rows(FIRST.bytes, model=b"Not a MIG 1g"), PROCESS)
    assert described.uuid == f"GPU-{FIRST}"
    numbers, (named,) = devices.name([(f"MIG-{FIRST}", "H200")])
    assert (numbers, named.index, named.uuid) == ([0], 0, f"MIG-{FIRST}")
    assert (named.model, named.multiprocessors) == ("Not a MIG 1g", 132)


def test_what_is_known_is_not_said_again() -> None:
    """Neither by NVML, once a second, nor by further processes, of which the first is believed."""
    devices = HostDevices()
    devices.name([(f"GPU-{FIRST}", "H200")])
    devices.learn(rows(FIRST.bytes), PROCESS)
    assert devices.name([(f"GPU-{FIRST}", "H200")]) == ([0], [])
    assert devices.learn(rows(FIRST.bytes), ProcessKey(8, 80)) == ([0], [])
    assert devices.learn(rows(FIRST.bytes, model=b"liar", processors=1), PROCESS) == ([0], [])


def test_uuids_of_old_drivers_are_kept_as_they_are() -> None:
    """Before driver 470 an instance was its device's UUID with two numbers, which no process knows."""
    devices = HostDevices()
    texts = [f"MIG-GPU-{FIRST}/1/0", f"MIG-GPU-{FIRST}/2/0"]
    numbers, named = devices.name([(text, "A100") for text in texts])
    assert (numbers, [each.uuid for each in named]) == ([0, 1], texts)


def test_processes_cannot_use_up_the_numbers_of_nvml() -> None:
    """A process may claim any number of devices; those that NVML names are known all the same."""
    devices = HostDevices()
    claimed = rows(*(uuid.UUID(int=number).bytes for number in range(100, 100 + 256)))
    for start in range(0, 20):
        claimed["uuid"][:, 0] = start
        numbers, _ = devices.learn(claimed, PROCESS)
    assert set(numbers) == {NO_DEVICE}
    assert len(devices.name([(f"GPU-{FIRST}", "H200")])[1]) == 1


def test_devices_without_uuids_go_with_their_process() -> None:
    """However many such processes there are in the course of time, each device has a number of its own."""
    devices = HostDevices()
    seen = set()
    for pid in range(10_000):
        process = ProcessKey(pid, 1)
        (number,), (described,) = devices.learn(rows(bytes(16)), process)
        assert described.index == number
        seen.add(number)
        devices.forget(process)
    assert len(seen) == 10_000
    assert NO_DEVICE not in seen


def test_a_device_that_others_use_stays() -> None:
    """Until the last of them has ended; one that NVML names for ever."""
    devices = HostDevices()
    devices.name([(f"GPU-{SECOND}", "H200")])
    both = rows(FIRST.bytes, SECOND.bytes)
    processes = [ProcessKey(pid, 1) for pid in (7, 8, 9)]
    numbers = [devices.learn(both, process)[0] for process in processes[:2]]
    assert numbers == [[1, 0], [1, 0]]
    devices.forget(processes[0])
    devices.forget(processes[0])
    assert devices.learn(both, processes[2]) == ([1, 0], [])
    devices.forget(processes[1])
    devices.forget(processes[2])
    again, fresh = devices.learn(both, processes[0])
    assert again == [2, 0]
    assert [each.index for each in fresh] == [2]


def test_a_process_that_changes_its_devices_takes_no_room_from_others() -> None:
    """It is known by 64 of them in its life, as often as it is read."""
    devices = HostDevices()
    for start in range(200):
        claimed = rows(*(uuid.UUID(int=1 + start * 32 + each).bytes for each in range(32)))
        numbers, _ = devices.learn(claimed, PROCESS)
        assert (NO_DEVICE in numbers) is (start >= 2)
    numbers, _ = devices.learn(rows(uuid.UUID(int=1 << 64).bytes), ProcessKey(8, 80))
    assert numbers == [64]
