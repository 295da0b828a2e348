"""Each program gives exactly its finding; a clean one gives none."""

from __future__ import annotations

import pytest

from otel_gpuflame.findings.model import Confidence
from tests.unit.findings import programs
from tests.unit.findings.programs import MS, US, WINDOW_NS, Program, S, Scenario


@pytest.mark.parametrize(
    "program",
    [programs.clean, programs.overlapping_streams, programs.copy_awaited_by_event],
    ids=lambda program: program.__name__,
)
def test_programs_that_lose_nothing_give_no_finding(program: Scenario) -> None:
    """A rule that cries wolf is worse than none."""
    assert program().findings() == []


@pytest.mark.parametrize(
    ("program", "rule", "line", "lost_ns", "confidence"),
    [
        (
            programs.item_a_step,
            "synchronise-in-loop",
            20,
            8 * S + 8 * MS,
            Confidence.LOW,
        ),
        (programs.unpinned_copy, "unpinned-copy", 30, 2 * S + 20 * MS, Confidence.HIGH),
        (programs.sleeping, "input-bound", 40, 3_300 * MS, Confidence.HIGH),
        (programs.python_loop, "input-bound", 51, 3 * S, Confidence.MEDIUM),
        (programs.back_pressure, "back-pressure-bound", 60, 3_976 * MS, Confidence.HIGH),
        (programs.launch_bound, "launch-bound", 70, 7_500 * MS, Confidence.HIGH),
        (
            programs.low_occupancy,
            "low-occupancy",
            80,
            round(3 * S * (1 - 4 / 132 * 128 / 2048)),
            Confidence.MEDIUM,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_program_gives_exactly_its_finding(
    program: Scenario, rule: str, line: int, lost_ns: int, confidence: Confidence
) -> None:
    """The rule, the line, the time lost, its share of the window, and how sure it is."""
    (finding,) = program().findings()
    assert (finding.rule, finding.where) == (rule, f"/srv/app/train.py:{line}")
    assert finding.lost_ns == lost_ns
    assert finding.share == pytest.approx(lost_ns / WINDOW_NS)
    assert finding.confidence is confidence
    assert dict(finding.resource)["service.name"] == "train"
    assert finding.window.duration_ns == WINDOW_NS
    assert finding.remedy


def test_evidence_is_in_numbers() -> None:
    """What a person would ask next is answered."""
    (waits,) = programs.item_a_step().findings()
    assert dict(waits.evidence) == {
        "waits": 1_000,
        "mean_wait_ns": 8 * MS + 8 * US,
        "launches_between": 100,
        "values_read": 1_000,
        "call": "cuStreamSynchronize",
        "idle_share_of_devices": 0.012,
    }
    (copies,) = programs.unpinned_copy().findings()
    assert dict(copies.evidence) == {
        "copies": 1_000,
        "mean_copy_bytes": 8 << 20,
        "copies_that_waited": 1_000,
        "synchronises": 1_000,
        "bytes_per_second_waited": round((8 << 20) * 1_000 / 2.02),
        "memory": "pageable",
    }
    (launches,) = programs.launch_bound().findings()
    assert dict(launches.evidence) == {
        "launches": 500_000,
        "mean_execution_ns": 4 * US,
        "mean_idle_ns_per_launch": 15 * US,
        "at_this_line_ns": 6 * S,
    }
    (loop,) = programs.python_loop().findings()
    assert dict(loop.evidence) == {
        "off_cpu_ns": 0,
        "on_cpu_ns": 3 * S,
        "at_this_line_ns": 2 * S,
        "gaps": 660,
    }
    (pressure,) = programs.back_pressure().findings()
    assert dict(pressure.evidence) == {
        "launches": 5_000,
        "held_back_ns_per_launch": 795_200,
        "at_this_line_ns": 3_976 * MS,
    }
    (low,) = programs.low_occupancy().findings()
    assert dict(low.evidence) == {
        "kernel": "tiny",
        "executions": 3_000,
        "execution_ns": 3 * S,
        "occupancy_bound": 0.0019,
        "limited_by": "grid",
        "grid": "4x1x1",
        "block": "128x1x1",
        "registers_per_thread": 32,
        "shared_bytes_per_block": 0,
    }


def test_two_reasons_are_two_findings_the_larger_first() -> None:
    """Rules do not hide each other."""
    both = Program(programs.sleeping().events + programs.unpinned_copy().events)
    assert [finding.rule for finding in both.findings()] == ["input-bound", "unpinned-copy"]
