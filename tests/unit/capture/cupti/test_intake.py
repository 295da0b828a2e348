"""Records leave the ring in time, whatever the rest of the exporter does."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from otel_gpuflame.capture.cupti.lease import PROLONG_EVERY_NS
from otel_gpuflame.capture.cupti.source import GpuSource
from tests.unit.capture.cupti.test_source import reading, rows, step
from tests.unit.capture.cupti.writer import LIMIT_S, SLOTS, Writer, kernels, target

RINGS = 4
"""Fillings of a ring that wait at the most."""


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll; fails when nothing comes of it."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def is_read(writer: Writer) -> bool:
    """Whether the ring is empty."""
    return bool(writer.control["records_tail"][0] == writer.library["records_head"][0])


def test_rings_are_emptied_while_nobody_asks() -> None:
    """Three fillings of a ring come whole, in order, with one step at the end."""
    with target() as writer, reading(writer) as source:
        source.start()
        writer.open_window()
        wait_until(lambda: is_read(writer))
        for filling in range(3):
            first = 1 + filling * SLOTS
            writer.write(kernels(SLOTS, correlation_id=np.arange(first, first + SLOTS)))
            wait_until(lambda: is_read(writer))
        assert rows(step(source))["correlation_id"].tolist() == list(range(1, 1 + 3 * SLOTS))


def test_what_waits_is_bounded_and_nothing_is_lost_without_a_count() -> None:
    """When nobody takes records for long, the ring fills and the lease is let run out; then all goes on."""
    with target() as writer, reading(writer) as source:
        (intake,) = source._intakes()
        now_ns = time.monotonic_ns()
        for _ in range(RINGS):
            writer.write(kernels(SLOTS))
            intake.pump(now_ns)
            assert is_read(writer)
        until_ns = int(writer.control["lease_until_ns"][0])
        writer.write(kernels(SLOTS))
        assert intake.pump(now_ns + 2 * PROLONG_EVERY_NS) == RINGS * SLOTS
        assert not is_read(writer)
        assert writer.control["lease_until_ns"][0] == until_ns
        intake.take()
        intake.pump(now_ns + 2 * PROLONG_EVERY_NS)
        assert is_read(writer)
        assert writer.control["lease_until_ns"][0] > until_ns


def test_a_process_that_ends_with_a_full_queue_is_read_to_its_end() -> None:
    """What waits, and then what is in the ring."""
    with target() as writer, reading(writer) as source:
        (intake,) = source._intakes()
        writer.open_window()
        intake.pump(time.monotonic_ns())
        for _ in range(RINGS):
            writer.write(kernels(SLOTS))
            intake.pump(time.monotonic_ns())
        writer.write(kernels(SLOTS))
        writer.kill()
        source.look([], time.monotonic_ns())
        assert len(rows(step(source))) == (RINGS + 1) * SLOTS


def test_the_thread_ends_with_the_source() -> None:
    """Also without a process, and closing twice is fine."""
    source = GpuSource(str)
    source.start()
    thread = source._pump._thread  # type: ignore[union-attr]
    assert thread.is_alive()
    source.close(time.monotonic_ns())
    source.close(time.monotonic_ns())
    assert not thread.is_alive()
