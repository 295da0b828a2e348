"""The lease: what the exporter writes, and the library follows. When the exporter dies, it runs out by itself."""

from __future__ import annotations

import ctypes
from typing import Final

from otel_gpuflame.capture.cupti.region import Region
from otel_gpuflame.capture.system_call import system_call

LEASE_NS: Final = 3_000_000_000
PROLONG_EVERY_NS: Final = 1_000_000_000

FOREVER: Final = 1 << 62
"""The end of a lease that goes on until it is ended."""

_FUTEX_WAKE: Final = 1
_ALL: Final = 0x7FFFFFFF
_UINT32: Final = 0xFFFFFFFF


class Lease:
    """Of one region, while that is open.

    `clock_offset_ns` is what the clock of the process is ahead of ours (time namespaces).
    """

    def __init__(self, region: Region, clock_offset_ns: int = 0) -> None:
        self._region = region
        self._clock_offset_ns = clock_offset_ns
        self._prolonged_ns = 0
        self._until_ns = FOREVER
        self.is_running = False

    @property
    def generation(self) -> int:
        """Of the window that is asked for."""
        return int(self._region.control["generation"][0])

    def begin(self, now_ns: int, until_ns: int = FOREVER) -> None:
        """Have the library open a window, or another one, and close it at `until_ns` by itself."""
        self._region.control["generation"][0] = (self.generation + 1) & _UINT32
        self.is_running = True
        self._until_ns = until_ns
        self._prolong(now_ns)

    def keep(self, now_ns: int) -> None:
        """Prolong a running lease when a second has gone by, as far as it may last."""
        if now_ns >= self._until_ns:
            self.is_running = False
        if self.is_running and now_ns - self._prolonged_ns >= PROLONG_EVERY_NS:
            self._prolong(now_ns)

    def end(self) -> None:
        """Have the library close its window."""
        self.is_running = False
        self._region.control["lease_until_ns"][0] = 0
        self._wake()

    def others_begin(self) -> None:
        """Have the library keep away from CUPTI."""
        control = self._region.control
        control["others_begun"][0] = (int(control["others_ended"][0]) + 1) & _UINT32
        self._wake()

    def others_end(self, now_ns: int) -> None:
        """Allow it another window, and have it open one where a lease is running."""
        control = self._region.control
        ended = (int(control["others_ended"][0]) + 1) & _UINT32
        control["others_begun"][0] = ended
        control["others_ended"][0] = ended
        if self.is_running:
            self.begin(now_ns, self._until_ns)
        else:
            self._wake()

    def forget_others(self) -> None:
        """What an earlier exporter knew of other clients, nobody does any more."""
        control = self._region.control
        control["others_begun"][0] = control["others_ended"][0]

    def give_back(self, records_tail: int) -> None:
        """Records before this have been read: their slots can be used again."""
        self._region.control["records_tail"][0] = records_tail

    def _prolong(self, now_ns: int) -> None:
        self._prolonged_ns = now_ns
        until_ns = min(now_ns + LEASE_NS, self._until_ns)
        self._region.control["lease_until_ns"][0] = max(until_ns + self._clock_offset_ns, 1)
        self._wake()

    def _wake(self) -> None:
        self._region.control["wake"][0] = (int(self._region.control["wake"][0]) + 1) & _UINT32
        # Without FUTEX_PRIVATE_FLAG: the waiter is another process. Nothing to do if it does not wait.
        address = ctypes.c_void_p(self._region.control.ctypes.data)
        system_call("futex", address, _FUTEX_WAKE, _ALL)
