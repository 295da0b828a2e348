"""Recordings on an H200 of programs that know what they cost (tests/integration/gpu/truth_programs.py).

Recorded by hardware_truths.py, and trimmed (trim.py); `h200_truths.json` has what the programs said, and at which
lines their code then was. CUPTI recorded none of these launches: all are found by their order.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.correlate.gpu.backpressure import is_full_queue
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import Leaf
from otel_gpuflame.events.executions import Executions
from otel_gpuflame.events.frames import Frame
from otel_gpuflame.findings.find import find
from otel_gpuflame.pipeline import ReplayResult, replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.labels import reason_frame
from otel_gpuflame.profile.model import ValueType
from otel_gpuflame.profile.sample_types import GPU_IDLE, GPU_TIME, GPU_WAIT
from otel_gpuflame.profile.top import innermost_python
from tests.integration.gpu.truth_report import EXPECTED, LIMIT

CAPTURES: Final = Path(__file__).parent / "captures"
TRUTHS: Final[dict[str, Any]] = json.loads((CAPTURES / "h200_truths.json").read_text())
FILE: Final = "tests/integration/gpu/truth_programs.py"


def capture_of(name: str) -> Path:
    """The recording of a program."""
    return CAPTURES / f"h200_truth_{name}.ogfcap"


@pytest.fixture(scope="module", params=TRUTHS)
def recorded(request: pytest.FixtureRequest) -> tuple[str, ReplayResult]:
    """Each program, and its replay."""
    name = request.param
    return name, replay(capture_of(name), AggregateOptions(window_ns=None))


def by_place(result: ReplayResult, sample_type: ValueType) -> Counter[tuple[int, Frame]]:
    """Values by line of the program (0: none) and leaf."""
    found: Counter[tuple[int, Frame]] = Counter()
    for bundle in result.bundles:
        (profile,) = [each for each in bundle.profiles if each.sample_type == sample_type]
        for stack, value in zip(profile.stack.tolist(), profile.value.tolist(), strict=True):
            frames = [bundle.frames[index] for index in bundle.stacks[stack]]
            place = innermost_python(frames)
            found[place.line if place.file == FILE else 0, frames[-1]] += value
    return found


def executions(name: str) -> Any:
    """All records of a recording."""
    with ReplaySource(capture_of(name), call_dtype=wire.CALL) as source:
        return np.concatenate([e.rows for e in source.events() if isinstance(e, Executions)])


def test_the_time_is_that_of_the_program_and_under_its_line(
    recorded: tuple[str, ReplayResult],
) -> None:
    """Within 5 %, as on the device."""
    name, result = recorded
    expected, truth = EXPECTED[name], TRUTHS[name]
    found = by_place(result, expected.sample_type)
    measured_ns = sum(
        value
        for (line, leaf), value in found.items()
        if line in truth["lines"] and expected.leaf in (None, leaf)
    )
    assert measured_ns == pytest.approx(truth["expected_ns"], rel=LIMIT)


def test_each_program_gives_exactly_its_finding(recorded: tuple[str, ReplayResult]) -> None:
    """At its line; a pause of 0.5 s before the loop is none, although the device had been used."""
    name, result = recorded
    rule = EXPECTED[name].finding
    found = [(each.rule, each.place.file, each.place.line) for each in find(result.bundles)]
    assert [each[0] for each in found] == ([rule] if rule else [])
    assert all(file == FILE and line in TRUTHS[name]["lines"] for _, file, line in found)


def test_nothing_is_lost_and_nothing_is_unknown(recorded: tuple[str, ReplayResult]) -> None:
    """Each execution has its launch, its time is there to the nanosecond, and idle time a reason but for the edges."""
    name, result = recorded
    rows = executions(name)
    work = rows[rows["kind"] <= 3]
    lasted_ns = int((work["end_ns"] - work["start_ns"]).sum())
    assert by_place(result, GPU_TIME).total() == lasted_ns
    assert not [text for text in result.ledger.remarks if "without a stack" in text]
    idle = by_place(result, GPU_IDLE)
    unknown = {reason_frame(each) for each in (Leaf.UNKNOWN_INCOMPLETE, Leaf.UNKNOWN_NOT_CAPTURED)}
    assert not unknown & {leaf for _, leaf in idle}
    without_line = {leaf for line, leaf in idle if not line}
    assert without_line == {reason_frame(Leaf.BEFORE_FIRST), reason_frame(Leaf.AFTER_LAST)}


def test_every_time_of_a_full_queue_is_a_wait_of_the_launch_that_was_held_back() -> None:
    """3,967 of them, in launches whose return nobody saw: to the nanosecond."""
    result = replay(capture_of("back_pressure"), AggregateOptions(window_ns=None))
    rows = executions("back_pressure")
    full = rows[is_full_queue(rows)]
    (line,) = TRUTHS["back_pressure"]["lines"]
    waits = {key: value for key, value in by_place(result, GPU_WAIT).items() if key[0] == line}
    assert len(full) == 3_967
    assert sum(waits.values()) == int((full["end_ns"] - full["start_ns"]).sum())
    assert not [text for text in result.ledger.remarks if "full queue" in text]
