"""Which calls that may wait are still seen to return (bpf/include/ogf_calls.bpf.h)."""

from __future__ import annotations

from otel_gpuflame.capture.bpf.libbpf import BpfMap


class SeenReturns:
    """Tells BPF from when on calls are seen from their begin to their end.

    A wait that outlives its window ends while nobody looks. As long as its thread is taken to be in there, what it
    calls from deeper on its stack counts as made by the driver itself, and is dropped.
    """

    def __init__(self, waits_since: BpfMap) -> None:
        self._waits_since = waits_since

    def lost(self, now_ns: int) -> None:
        """Calls that began before `now_ns` (CLOCK_MONOTONIC) are not. After their probes were detached everywhere."""
        # A reader may see bytes of both times, which does no harm: without these probes all that it knows is older.
        self._waits_since.set(bytes(4), now_ns.to_bytes(8, "little"))
