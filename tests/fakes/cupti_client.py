"""A profiler inside a target program, which uses the fake CUPTI as torch.profiler uses the real one."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tests.fakes.cuda_driver import APP_LIBRARY

_ROOM = 1 << 18


class _Record(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint32), ("grid_x", ctypes.c_uint32), ("bytes", ctypes.c_uint64)]


class ProfilerError(RuntimeError):
    """CUPTI refused; the text has its result."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What it got: of each record kind, grid and bytes, in their order; and buffers that it had not given."""

    records: list[tuple[int, int, int]]
    foreign: int


class ProfilerClient:
    """One for each process, as Kineto is."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(APP_LIBRARY)
        self._library.fake_profiler_take.restype = ctypes.c_uint64

    def begin(self, *, has_clock: bool = True) -> None:
        """Register and enable; without a clock of its own, as old Kineto and XLA."""
        self._call("begin", int(has_clock))

    def disable(self) -> None:
        """Switch off what was switched on."""
        self._call("disable")

    def flush(self) -> None:
        """Have all buffers back."""
        self._call("flush")

    def finalize(self) -> None:
        """Take CUPTI out of the process, as with TEARDOWN_CUPTI=1."""
        self._call("finalize")

    def take(self) -> Profile:
        """What has come since the last call."""
        rows = (_Record * _ROOM)()
        foreign = ctypes.c_uint64()
        count = self._library.fake_profiler_take(
            rows, ctypes.c_uint64(_ROOM), ctypes.byref(foreign)
        )
        found = [(row.kind, row.grid_x, row.bytes) for row in rows[:count]]
        return Profile(found, foreign.value)

    def _call(self, name: str, *arguments: int) -> None:
        result = getattr(self._library, f"fake_profiler_{name}")(*arguments)
        if result:
            raise ProfilerError(f"fake_profiler_{name}: {result}")
