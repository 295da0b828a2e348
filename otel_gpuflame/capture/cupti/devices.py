"""Devices of regions under numbers that mean the same on the whole host."""

from __future__ import annotations

import uuid
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.executions import NO_DEVICE, DeviceInfo
from otel_gpuflame.events.frames import ProcessKey

_MAX_DEVICES: Final = 1 << 12
"""Far more than a host has: a process may claim any UUIDs. Further ones are not known."""
_TABLE: Final = 256
_UNKNOWN_UUID: Final = bytes(16)


class HostDevices:
    """Gives a number to each UUID that occurs."""

    def __init__(self) -> None:
        self._indexes: dict[object, int] = {}

    def learn(self, rows: NDArray[Any], process: ProcessKey) -> tuple[list[int], list[DeviceInfo]]:
        """(number of each of `rows`, an array of `wire_gpu.DEVICE`; devices that are new)."""
        numbers, fresh = [], []
        for place, row in enumerate(rows):
            identity = row["uuid"].tobytes()
            # Without a UUID it is its process's own.
            key = (process, place) if identity == _UNKNOWN_UUID else identity
            number = self._indexes.get(key)
            if number is None:
                if len(self._indexes) >= _MAX_DEVICES:
                    numbers.append(NO_DEVICE)
                    continue
                number = self._indexes[key] = len(self._indexes)
                fresh.append(_info(number, row))
            numbers.append(number)
        return numbers, fresh


def number_table(numbers: list[int]) -> NDArray[np.uint32]:
    """What each value of a record's `device` means."""
    table = np.full(_TABLE, NO_DEVICE, np.uint32)
    table[: len(numbers)] = numbers
    return table


def _info(number: int, row: np.void) -> DeviceInfo:
    model = bytes(row["model"]).decode("utf-8", "backslashreplace")
    identity = row["uuid"].tobytes()
    # The driver puts the profile of a MIG instance into its name: "NVIDIA H200 MIG 1g.18gb".
    prefix = "MIG" if " MIG " in model else "GPU"
    return DeviceInfo(
        index=number,
        uuid="" if identity == _UNKNOWN_UUID else f"{prefix}-{uuid.UUID(bytes=identity)}",
        model=model,
        multiprocessors=int(row["multiprocessors"]),
        threads_per_multiprocessor=int(row["threads_per_multiprocessor"]),
        blocks_per_multiprocessor=int(row["blocks_per_multiprocessor"]),
        registers_per_multiprocessor=int(row["registers_per_multiprocessor"]),
        shared_bytes_per_multiprocessor=int(row["shared_bytes_per_multiprocessor"]),
    )
