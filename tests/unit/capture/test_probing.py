"""When windows are opened and closed: over libraries that come and go."""

from __future__ import annotations

import time
from typing import Any, cast

from otel_gpuflame.capture.live.probing import Probing
from otel_gpuflame.capture.windows import BudgetOptions

S = 1_000_000_000


class Host:
    """Everything that probing uses: one library or none, and a target that costs nothing."""

    def __init__(self) -> None:
        self.libraries: tuple[str, ...] = ("libcuda.so.1",)
        self.window_is_open = False
        self.sees_passes = False

    def open_window(self) -> None:
        self.window_is_open = True

    def close_window(self) -> None:
        self.window_is_open = False

    def probe_in_windows(self, _groups: object) -> None:
        pass

    probe_always = probe_in_windows
    record = probe_in_windows

    def stop_recording(self) -> None:
        pass

    def pids(self) -> list[int]:
        return []

    def record_costs(self) -> dict[int, int]:
        return {}


def test_without_a_library_there_is_no_edge_to_wait_for() -> None:
    """One that has passed is not waited for: that would be rounds without a pause until the next program comes."""
    host: Any = Host()
    probing = Probing(host, host, host, host, BudgetOptions(duty=0.5))
    probing.step()
    planned_ns = probing.next_edge_ns
    assert planned_ns is not None
    assert planned_ns > time.monotonic_ns() - S
    host.libraries = ()
    assert probing.step() == []
    assert probing.next_edge_ns is None
    host.libraries = ("libcuda.so.1",)
    assert cast(object, probing.next_edge_ns) == planned_ns
