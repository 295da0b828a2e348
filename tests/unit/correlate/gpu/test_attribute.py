"""Rows of attributions hold the fields of their call, whatever else stands in its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from otel_gpuflame.correlate.gpu.attribute import attributions, part
from otel_gpuflame.correlate.gpu.rows import JOINED
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import ATTRIBUTION
from otel_gpuflame.events.executions import NO_DEVICE

OF_CALL = sorted({*(ATTRIBUTION.names or ())} & {*(wire.CALL.names or ())})
OWN = sorted({*(ATTRIBUTION.names or ())} - {*(wire.CALL.names or ())})
COUNT = 10_000
"""Rows: more than are made at a time."""


def _random(dtype: np.dtype[np.void]) -> np.ndarray:
    """Rows of random bytes."""
    random = np.random.default_rng(1)
    return np.frombuffer(random.bytes(COUNT * dtype.itemsize), dtype)


@pytest.mark.parametrize("dtype", [wire.CALL, JOINED, ATTRIBUTION], ids=["call", "joined", "own"])
@pytest.mark.parametrize("has_places", [False, True])
def test_fields_are_those_of_the_call(dtype: np.dtype[np.void], has_places: bool) -> None:
    """Each field of the call under its name, in the order that was asked for; the others as given, else as nothing."""
    rows = _random(dtype)
    places = np.arange(COUNT)[::-3] if has_places else None
    chosen = rows if places is None else rows.take(places)
    value = np.arange(len(chosen))
    given = part(rows, places, time_ns=7, value_ns=value, measure=2, leaf=1)
    told = attributions([part(rows[:0], time_ns=0, value_ns=0, measure=0, leaf=0), given])
    for name in OF_CALL:
        assert np.array_equal(told[name], chosen[name]), name
    assert np.array_equal(told["value_ns"], value)
    constants = dict.fromkeys(OWN, 0) | {"time_ns": 7, "measure": 2, "leaf": 1, "device": NO_DEVICE}
    del constants["value_ns"]
    for name, constant in constants.items():
        assert (told[name] == constant).all(), name


def test_no_two_fields_share_bytes() -> None:
    """The columns that no call has lie where the copied bytes mean nothing here."""
    fields: Mapping[str, Any] = ATTRIBUTION.fields or {}
    taken = np.zeros(ATTRIBUTION.itemsize, np.int64)
    for dtype, offset in ((place[0], place[1]) for place in fields.values()):
        taken[offset : offset + dtype.itemsize] += 1
        assert offset % min(dtype.base.itemsize, 8) == 0
    assert taken.max() == 1
    assert {*OF_CALL, *OWN} == {*fields}
