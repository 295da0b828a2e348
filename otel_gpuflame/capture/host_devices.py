"""Devices under numbers that mean the same in a whole capture, whoever names them: injected libraries or NVML."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.executions import NO_DEVICE, DeviceInfo
from otel_gpuflame.events.frames import ProcessKey

_MAX_DEVICES: Final = 1 << 12
"""At a time. Far more than a host has: a process may claim any UUIDs. Further ones of processes are not known."""
_MAX_OF_PROCESS: Final = 64
"""Whatever it says in the course of time: two libraries tell of 32 devices each."""
_TABLE: Final = 256
_UNKNOWN_UUID: Final = bytes(16)


class HostDevices:
    """Gives a number to each UUID that occurs.

    A process knows a device's 16 bytes and its resources; NVML knows how the UUID is written, which says whether it is
    a MIG instance. What is learnt of a device that has a number already comes as a `DeviceInfo` with that number.

    A number is never given again: profiles refer to devices of processes that have ended, and in a capture it means one
    device from begin to end.
    """

    def __init__(self) -> None:
        self._indexes: dict[object, int] = {}
        self._numbers = count()
        self._named: set[object] = set()
        """By NVML: these are kept."""
        self._claims: dict[ProcessKey, set[object]] = {}
        """What living processes have said that they use."""
        self._claimants: Counter[object] = Counter()
        self._known: dict[int, DeviceInfo] = {}
        self._written: dict[bytes, str] = {}
        """UUIDs as NVML writes them."""

    def learn(self, rows: NDArray[Any], process: ProcessKey) -> tuple[list[int], list[DeviceInfo]]:
        """(number of each of `rows`, an array of `wire_gpu.DEVICE`; what is new of devices)."""
        numbers, fresh = [], []
        for place, row in enumerate(rows):
            identity = row["uuid"].tobytes()
            # Without a UUID it is its process's own.
            key = (process, place) if identity == _UNKNOWN_UUID else identity
            if not self._claim(key, process):
                numbers.append(NO_DEVICE)
                continue
            number = self._number(key)
            known = self._known.get(number)
            # NVML says nothing of its resources; among processes the first one is believed.
            if known is None or not known.multiprocessors:
                fresh += self._note(self._described(number, row))
            numbers.append(number)
        return numbers, fresh

    def name(self, devices: Iterable[tuple[str, str]]) -> tuple[list[int], list[DeviceInfo]]:
        """(number of each; what is new of devices). `devices`: UUID as NVML writes it, and model."""
        numbers, fresh = [], []
        for written, model in devices:
            key = _identity(written)
            number = self._number(key)
            self._named.add(key)
            if isinstance(key, bytes):
                self._written[key] = written
            known = self._known.get(number) or DeviceInfo(index=number, uuid=written, model=model)
            fresh += self._note(replace(known, uuid=written))
            numbers.append(number)
        return numbers, fresh

    def forget(self, process: ProcessKey) -> None:
        """It has ended: there is room again for as many devices as were known from it alone."""
        for key in self._claims.pop(process, ()):
            self._claimants[key] -= 1
            if not self._claimants[key]:
                del self._claimants[key]
                if key not in self._named:
                    self._known.pop(self._indexes.pop(key), None)

    def _claim(self, key: object, process: ProcessKey) -> bool:
        """Whether there is room for one more device that `process` says it uses."""
        claims = self._claims.setdefault(process, set())
        if key in claims:
            return True
        has_room = key in self._indexes or len(self._indexes) < _MAX_DEVICES
        if not has_room or len(claims) >= _MAX_OF_PROCESS:
            return False
        claims.add(key)
        self._claimants[key] += 1
        return True

    def _number(self, key: object) -> int:
        number = self._indexes.get(key)
        if number is None:
            number = self._indexes[key] = next(self._numbers)
        return number

    def _note(self, info: DeviceInfo) -> list[DeviceInfo]:
        if self._known.get(info.index) == info:
            return []
        self._known[info.index] = info
        return [info]

    def _described(self, number: int, row: np.void) -> DeviceInfo:
        return DeviceInfo(
            index=number,
            uuid=self._text(row["uuid"].tobytes()),
            model=bytes(row["model"]).decode("utf-8", "backslashreplace"),
            multiprocessors=int(row["multiprocessors"]),
            threads_per_multiprocessor=int(row["threads_per_multiprocessor"]),
            blocks_per_multiprocessor=int(row["blocks_per_multiprocessor"]),
            registers_per_multiprocessor=int(row["registers_per_multiprocessor"]),
            shared_bytes_per_multiprocessor=int(row["shared_bytes_per_multiprocessor"]),
        )

    def _text(self, identity: bytes) -> str:
        if identity == _UNKNOWN_UUID:
            return ""
        return self._written.get(identity) or f"GPU-{uuid.UUID(bytes=identity)}"


def number_table(numbers: list[int]) -> NDArray[np.uint32]:
    """What each value of a record's `device` means."""
    table = np.full(_TABLE, NO_DEVICE, np.uint32)
    table[: len(numbers)] = numbers
    return table


def _identity(written: str) -> object:
    """The 16 bytes that a process knows; the text itself where it holds something else (MIG before driver 470)."""
    try:
        return uuid.UUID(written.partition("-")[2]).bytes
    except ValueError:
        return written
