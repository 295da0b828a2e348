"""Names out of the ring, as the live source takes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.live.naming import LiveNames
from otel_gpuflame.events import wire
from tests.unit.capture.test_decode import record


def ring(*records: bytes) -> NDArray[np.uint8]:
    """What the drain shows: each record behind its length, padded to 8."""
    data = b"".join(
        len(each).to_bytes(8, "little") + each.ljust((len(each) + 7) & ~7, b"\0")
        for each in records
    )
    return np.frombuffer(data, np.uint8)


def test_what_cannot_be_named_is_counted() -> None:
    """An alias of a kernel that was named before the capture, and a record that is none: neither gives a name."""
    names = LiveNames(str)
    learned = names.learn(
        ring(
            record(wire.NAME, b"gemm", handle=1, name_bytes=4),
            record(wire.NAME, handle=2, alias_of=1),
            record(wire.NAME, handle=4, alias_of=3),
            b"no name",
        )
    )
    assert [(each.handle, each.name) for each in learned.fresh] == [(1, "gemm"), (2, "gemm")]
    assert {(each.kind, each.outcome): each.count for each in names.counters()} == {
        ("name", "unresolved"): 1,
        ("name", "forgotten"): 0,
    }
    assert names.undecodable == 1
